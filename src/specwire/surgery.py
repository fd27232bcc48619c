"""Apply, remove and look at taps in a whole tree: plans first, proves the plan, then changes all files or none."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib.resources import files as resource_files
from typing import Any

from specwire import marks, registry
from specwire.errors import FAULT, OK, SpecwireError
from specwire.probe import Probe, Site
from specwire.transaction import Change, commit, digest
from specwire.tree import Tree


Progress = Callable[[str], None]


@dataclass
class Outcome:
    """What a command found or would do; `changes` hold whole files, in tree order."""

    tree: Tree
    result: str
    sites: list[Site] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return FAULT if self.result in ("failed", "refused") else OK

    def document(self) -> dict[str, Any]:
        named = {self._name(change): change for change in self.changes}
        return {
            "schema": "specwire.tree/1",
            "tree": str(self.tree.root),
            "engine": "sglang",
            "version": self.tree.version,
            "result": self.result,
            "sites": [vars(site) for site in self.sites],
            "files": {
                name: {"before": digest(change.before), "after": digest(change.after)} for name, change in named.items()
            },
            "created": [name for name, change in named.items() if change.before is None],
            "deleted": [name for name, change in named.items() if change.after is None],
        }

    def diff(self) -> str:
        """A patch that `patch -p1` takes, run in the tree's root."""
        return "".join(_diff(self._name(change), change) for change in self.changes if not self._name(change).endswith(".pyc"))

    def write(self) -> None:
        commit(self.tree.package, self.changes)

    def _name(self, change: Change) -> str:
        return change.path.relative_to(self.tree.root).as_posix()


def probes() -> dict[str, Probe]:
    return {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}


def chosen(names: Iterable[str], groups: Iterable[str]) -> list[str]:
    """The probes that were named, singly or by group; the `debug` group when none was.

    Raises SpecwireError for a name that no probe has.
    """
    known = probes()
    if unknown := [name for name in names if name not in known]:
        raise SpecwireError(f"no probe is called {unknown[0]}. There are: {', '.join(known)}.")
    groups = set(groups) or (set() if tuple(names) else {"debug"})
    return [name for name, probe in known.items() if name in names or probe.group in groups]


def plan_apply(tree: Tree, names: list[str], progress: Progress = lambda _: None) -> Outcome:
    """What inserting these probes' taps comes to. Nothing is written.

    Taps that are there already stay: every file is rendered anew, from what it was without any tap.
    """
    known, sites, changes = probes(), [], []
    candidates = _candidates(tree, known, names)
    for count, (name, data) in enumerate(candidates.items(), 1):
        progress(f"reading {count}/{len(candidates)} {name}")
        present = marks.marks(data)
        if foreign := [mark for mark in present if not mark.intact or mark.probe not in (*known, marks.IMPORT)]:
            sites += [_as_found(name, mark) for mark in foreign]
            continue
        had = {mark.probe for mark in present}
        wanted = {
            probe: recipe for probe, recipe in known.items() if probe in had or probe in names and _takes(recipe, name, data)
        }
        after, rendered = _rendered(name, marks.stripped(data), wanted)
        sites += [_now(site, had) for site in rendered if site.probe in names]
        changes.append(Change(tree.path(name), data, after))
    sites += _nowhere(names, known, sites)
    if any(change.after != change.before for change in changes) or _tapped(changes):
        changes.append(_runtime(tree, wanted=True))
    changes = [change for change in changes if change.before != change.after]
    return Outcome(tree, _apply_result(sites, changes), sites, changes)


def plan_remove(tree: Tree, names: list[str] | None = None, force: bool = False) -> Outcome:
    """What taking taps out comes to: all of them, or those of the probes named. Nothing is written.

    Every file's new state is proven: it has the very bytes from before the taps, or, when somebody has
    edited it since, a syntax tree that lacks the taps and nothing else.
    """
    sites, changes, remaining = [], [], False
    for name, data in _marked_files(tree):
        present = marks.marks(data)
        going = [mark for mark in present if names is None or mark.probe in names]
        staying = {mark.probe for mark in present if mark not in going} - {marks.IMPORT}
        if not force and (edited := [mark for mark in going if not mark.intact]):
            sites += [_as_found(name, mark) for mark in edited]
            continue
        if not going:
            remaining = True
            continue
        after = marks.stripped(data)
        if staying:
            remaining = True
            known = probes()
            after, _ = _rendered(name, after, {probe: known[probe] for probe in known if probe in staying})
        problem = _unproven(data, after, present, complete=not staying)
        qualnames = _qualnames(data)
        sites += [
            Site(mark.probe, name, qualnames(mark.line), mark.line, "failed" if problem else "removed", problem)
            for mark in going
            if mark.probe != marks.IMPORT
        ]
        changes.append(Change(tree.path(name), data, after))
    if not remaining and not any(site.state in ("edited", "failed") for site in sites):
        changes += _runtime_leaving(tree)
    return Outcome(tree, _remove_result(sites, changes), sites, changes)


def status(tree: Tree) -> Outcome:
    """What is in the tree, where, and whether a hand has been on it. Reads bytes; parses only tapped files."""
    sites = []
    for name, data in _marked_files(tree):
        qualnames = _qualnames(data)
        for mark in marks.marks(data):
            if mark.probe == marks.IMPORT and mark.intact:
                continue
            state = "applied" if mark.intact else "edited"
            why = "" if mark.intact else "the line is not as it was inserted"
            sites.append(Site(mark.probe, name, qualnames(mark.line), mark.line, state, why))
    runtime = tree.path(marks.RUNTIME).exists()
    whole = all(site.state == "applied" for site in sites) and bool(sites) == runtime
    result = "nothing" if not sites and not runtime else "applied" if whole else "partial"
    return Outcome(tree, result, sites)


# --- planning -----------------------------------------------------------------------------------------


def _candidates(tree: Tree, known: dict[str, Probe], names: list[str]) -> dict[str, bytes]:
    """The files that a wanted probe may have a site in, and those that hold taps already."""
    patterns = {pattern for name in names for pattern in known[name].files}
    found = {}
    for name in tree.python_files(f"{tree.package.name}/srt"):
        if any(fnmatch(name, pattern) for pattern in patterns):
            data = tree.read(name)
            if marks.LITERAL in data and name != marks.RUNTIME or any(_takes(known[probe], name, data) for probe in names):
                found[name] = data
    return found


def _takes(probe: Probe, name: str, data: bytes) -> bool:
    return any(fnmatch(name, pattern) for pattern in probe.files) and any(needle in data for needle in probe.needles)


def _rendered(name: str, original: bytes, wanted: dict[str, Probe]) -> tuple[bytes, tuple[Site, ...]]:
    from specwire.insert import render  # LibCST takes half a second to import: only when something is rendered

    done = render(name, original, wanted)
    return done.data, done.sites


def _now(site: Site, had: set[str]) -> Site:
    return replace(site, state="already") if site.state == "applied" and site.probe in had else site


def _as_found(name: str, mark: marks.Mark) -> Site:
    if mark.intact:
        return Site(mark.probe, name, "", mark.line, "edited", "a tap of a probe that this specwire does not know; remove it first")
    return Site(mark.probe, name, "", mark.line, "edited", f"the line is not as it was inserted: {mark.code}")


def _nowhere(names: list[str], known: dict[str, Probe], sites: list[Site]) -> list[Site]:
    have = {site.probe for site in sites}
    return [
        Site(name, ", ".join(known[name].files), "", 0, "absent", f"no file of this release holds {_needles(known[name])}")
        for name in names
        if name not in have
    ]


def _needles(probe: Probe) -> str:
    return " or ".join(repr(needle.decode()) for needle in probe.needles) + " where the site would be"


def _tapped(changes: list[Change]) -> bool:
    return any(change.after and marks.LITERAL in change.after for change in changes)


def _apply_result(sites: list[Site], changes: list[Change]) -> str:
    states = {site.state for site in sites}
    if "failed" in states:
        return "failed"
    if "edited" in states:
        return "refused"
    if changes:
        return "applied"
    return "already" if "already" in states else "nothing"


def _remove_result(sites: list[Site], changes: list[Change]) -> str:
    states = {site.state for site in sites}
    if "failed" in states:
        return "failed"
    if "edited" in states:
        return "refused"
    return "removed" if changes else "nothing"


# --- the tap file -------------------------------------------------------------------------------------


def _runtime(tree: Tree, wanted: bool) -> Change:
    path = tree.path(marks.RUNTIME)
    before = path.read_bytes() if path.exists() else None
    if before is not None and not before.startswith(marks.RUNTIME_MARK):
        raise SpecwireError(f"{path}: is in the way, and not specwire's. Rename it first. Nothing was written.")
    return Change(path, before, runtime_source() if wanted else None)


def _runtime_leaving(tree: Tree) -> list[Change]:
    """The tap file and what Python compiled from it."""
    change = _runtime(tree, wanted=False)
    compiled = sorted((change.path.parent / "__pycache__").glob(f"{change.path.stem}.*.pyc"))
    return [*([change] if change.before is not None else []), *(Change(path, path.read_bytes(), None) for path in compiled)]


def runtime_source() -> bytes:
    return resource_files("specwire.runtime").joinpath("_specwire.py").read_bytes()


# --- proof --------------------------------------------------------------------------------------------


def _marked_files(tree: Tree) -> Iterable[tuple[str, bytes]]:
    for name in tree.python_files():
        data = tree.read(name)
        if marks.LITERAL in data and name != marks.RUNTIME:
            yield name, data


def _unproven(before: bytes, after: bytes, present: list[marks.Mark], complete: bool) -> str:
    """Why `after` is not surely the file without the taps; empty when it is."""
    original = next((mark.original for mark in present if mark.original), None)
    if complete and original == digest(after):
        return ""
    try:
        expected, got = ast.parse(before), ast.parse(after)
    except (SyntaxError, ValueError) as error:
        return f"would leave no valid Python ({error}): a hand has been on the lines around the taps"
    theirs = _Without({mark.line for mark in present}).visit(expected)
    ours = _Without({mark.line for mark in marks.marks(after)}).visit(got)
    return "" if ast.dump(theirs) == ast.dump(ours) else "more than the taps would change"


class _Without(ast.NodeTransformer):
    """Drops the statements and decorators that stand on the given lines."""

    def __init__(self, lines: set[int]) -> None:
        self.lines = lines

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.lineno in self.lines:
                return None
        if hasattr(node, "decorator_list"):
            node.decorator_list = [each for each in node.decorator_list if each.lineno not in self.lines]
        return self.generic_visit(node)


def _qualnames(data: bytes) -> Callable[[int], str]:
    """Which function a line of the file stands in."""
    try:
        spans = list(_spans(ast.parse(data), ""))
    except (SyntaxError, ValueError):
        return lambda line: ""
    return lambda line: next((name for start, end, name in reversed(spans) if start <= line <= end), "")


def _spans(node: ast.AST, prefix: str) -> Iterable[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}.{child.name}" if prefix else child.name
            yield min([child.lineno, *(each.lineno for each in child.decorator_list)]), child.end_lineno, name
        yield from _spans(child, name)


def _diff(name: str, change: Change) -> str:
    before = (change.before or b"").decode("utf-8", "surrogateescape").splitlines(keepends=True)
    after = (change.after or b"").decode("utf-8", "surrogateescape").splitlines(keepends=True)
    old, new = ("/dev/null" if part is None else f"{side}/{name}" for part, side in ((change.before, "a"), (change.after, "b")))
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
