"""Apply, remove and look at taps in a whole tree: plans first, proves the plan, then all files or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from specwire import registry
from specwire.errors import SpecwireError
from specwire.patching import collecting, compiled, marks, tapfile
from specwire.patching.outcome import Outcome
from specwire.patching.taps import FoundTap, TappedFile, unchanged
from specwire.probe import Probe, Site
from specwire.progress import Progress, silent
from specwire.regular import read_bytes
from specwire.sites.serving import MODELS
from specwire.trees.patch import unified
from specwire.trees.transaction import Change
from specwire.trees.tree import Tree


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


@collecting.paused()
def plan_apply(
    tree: Tree, names: list[str], progress: Progress = silent, models: Container[str] | None = None
) -> Outcome:
    """What inserting these probes' taps comes to. Nothing is written.

    Taps that are there already stay: every file is rendered anew, from what it was without any tap. `models`: the
    only target files to be tapped anew (drafts and all that is no model file are always); None for all.
    """
    known, now = probes(), tapfile.read(tree)
    stale = now != tapfile.source()  # taps may then call what today's tap file has under another name
    outcome = Outcome(tree, "applied")
    if now is not None and (site := tapfile.edited(now)):
        _add_edited(outcome, [site], marks.RUNTIME, _tap_file_diff(now))
    files = _concerned(tree, known, names, models)
    for count, (name, file) in enumerate(files.items(), 1):
        progress(f"reading {count}/{len(files)} {name}", count / len(files))
        if foreign := [each for each in file.found if not each.intact or each.probe not in (*known, marks.IMPORT)]:
            _add_edited(outcome, [_edited(name, each) for each in foreign], name, _edit_diff(name, file))
            continue
        had = {each.probe for each in file.found}
        wanted = {
            probe: recipe
            for probe, recipe in known.items()
            if probe in had or probe in names and recipe.takes(name, file.data) and _asked_for(name, file.data, models)
        }
        if stale or not wanted.keys() <= had or wanted.keys() & set(names):
            _add_rendered(outcome, name, file, wanted, names)
    outcome.sites += _nowhere(names, known, outcome.sites)
    if stale and (outcome.changes or any(marks.LITERAL in file.data for file in files.values())):
        outcome.changes.append(tapfile.coming(tree, now))
    return _applied(outcome)


@collecting.paused()
def plan_remove(tree: Tree, names: list[str] | None = None, force: bool = False) -> Outcome:
    """What taking taps out comes to: all of them, or those of the probes named. Nothing is written.

    Every file's new state is proven: it has the very bytes from before the taps, or, when somebody has
    edited it since, a syntax tree that lacks the taps and nothing else. Edited taps go only by `force`, and
    only as whole statements that do nothing without the tap file.

    Raises SpecwireError for a name that neither a probe nor a tap in the tree has.
    """
    outcome, remaining, unknown = Outcome(tree, "removed"), False, set(names or ()) - probes().keys()
    for name, file in _tapped(tree):
        unknown -= {each.probe for each in file.found}
        going, staying = _parted(file, names)
        remaining = remaining or bool(staying)
        if not going:
            continue
        if not force and (edited := [each for each in going if not each.intact]):
            _add_edited(outcome, [_edited(name, each) for each in edited], name, _edit_diff(name, file))
        elif stuck := [each for each in going if each.stuck]:
            outcome.sites += [_failed(name, each, each.stuck) for each in stuck]
        else:
            _add_removed(outcome, name, file, going, staying)
    if unknown:
        raise SpecwireError(
            f"no probe and no tap in the tree is called {min(unknown)}. Probes are: {', '.join(probes())}."
        )
    now = tapfile.read(tree)
    if now is not None and not remaining:
        _add_tap_file_leaving(outcome, now, force)
    outcome.clean = not remaining
    return _removed(outcome)


@collecting.paused()
def status(tree: Tree) -> Outcome:
    """What is in the tree, where, and whether a hand has been on it. Parses only tapped files."""
    outcome = Outcome(tree, "applied")
    for name, file in _tapped(tree):
        for each in file.found:
            if not each.intact:
                outcome.sites.append(_edited(name, each))
            elif each.probe != marks.IMPORT:
                outcome.sites.append(Site(each.probe, name, each.qualname, each.first, "applied"))
        if not all(each.intact for each in file.found):
            outcome.edits[name] = _edit_diff(name, file)
        if marks.NAME in file.data and not any(each.probe == marks.IMPORT for each in file.found):
            why = "taps are in and the import of what they call is not: the engine would stop at the first one"
            outcome.sites.append(Site(marks.IMPORT, name, "", 0, "failed", why))
    now = tapfile.read(tree)
    if now is None and outcome.sites:
        why = "taps are in and the file that they call is not: the engine cannot start"
        outcome.sites.append(Site(tapfile.PROBE, marks.RUNTIME, "", 0, "failed", why))
    elif now is not None and (site := tapfile.edited(now)):
        _add_edited(outcome, [site], marks.RUNTIME, _tap_file_diff(now))
    whole = outcome.sites and all(site.state == "applied" for site in outcome.sites)
    outcome.clean = not outcome.sites and now is None
    outcome.result = "nothing" if outcome.clean else "applied" if whole else "partial"
    return outcome


# --- planning -----------------------------------------------------------------------------------------


def _concerned(
    tree: Tree, known: dict[str, Probe], names: list[str], models: Container[str] | None
) -> dict[str, TappedFile]:
    """The files that hold something of ours, wherever, and those that a wanted probe may have a site in."""
    found = {}
    for name, data in tree.scan(b""):
        if name == marks.RUNTIME:
            continue
        file = TappedFile(data)
        if file.found or any(known[probe].takes(name, data) for probe in names) and _asked_for(name, data, models):
            found[name] = file
    return found


def _asked_for(name: str, data: bytes, models: Container[str] | None) -> bool:
    """A draft is no target: it is told by the states that it reads, and taps go into whichever will be served."""
    return models is None or name in models or not name.startswith(f"{MODELS}/") or b"spec_info.hidden_states" in data


def _tapped(tree: Tree) -> Iterable[tuple[str, TappedFile]]:
    for name, data in tree.scan(marks.WORD):
        if name != marks.RUNTIME and (file := TappedFile(data)).found:
            yield name, file


def _add_rendered(outcome: Outcome, name: str, file: TappedFile, wanted: dict[str, Probe], names: list[str]) -> None:
    from specwire.patching.insert import NotTapped, failed

    try:
        after, rendered = _rendered(name, file.without(file.found), wanted, outcome.tree.read)
    except NotTapped as error:
        outcome.sites += failed(error, name, [probe for probe in wanted if probe in names])
        return
    if marks.same_but_hash(after, file.data):
        after = file.data  # edited since elsewhere: its import line keeps the hash that it was given
    had, have = _lines(file), _lines(TappedFile(after)) if after != file.data else _lines(file)
    if lost := sorted({key[:2] for key in had} - {key[:2] for key in have}):
        why = "has a tap there that would not be put there now; take it out first with `specwire remove`"
        outcome.sites += [Site(probe, name, qualname, 0, "failed", why) for probe, qualname in lost]
        return
    lines = after.splitlines()
    for site in rendered:
        if site.probe in names:
            key = (site.probe, site.qualname, lines[site.line - 1].strip() if site.line else b"")
            already = site.state == "applied" and had[key] > 0
            had[key] -= already
            outcome.sites.append(replace(site, state="already") if already else site)
    outcome.changes.append(Change(outcome.tree.path(name), file.data, after))


def _lines(file: TappedFile) -> Counter[tuple[str, str, bytes]]:
    """How often each tap is there: by probe, function and text."""
    return Counter(
        (each.probe, each.qualname, file.lines[each.first - 1].strip())
        for each in file.found
        if each.probe != marks.IMPORT
    )


def _rendered(
    name: str, original: bytes, wanted: dict[str, Probe], *read: Callable[[str], bytes]
) -> tuple[bytes, tuple[Site, ...]]:
    # LibCST takes half a second to import: only when something is rendered.
    from specwire.patching.insert import NotTapped, render

    if marks.LITERAL in original:
        line = original[: original.index(marks.LITERAL)].count(b"\n") + 1
        raise NotTapped(name, "holds the taps' own mark as text, so taps could not be told from it", line)
    done = render(name, original, wanted, *read)
    return done.data, done.sites


def _nowhere(names: list[str], known: dict[str, Probe], sites: list[Site]) -> list[Site]:
    have = {site.probe for site in sites}
    return [
        Site(
            name,
            ", ".join(known[name].files),
            "",
            0,
            "absent",
            f"no file of this release holds {_needles(known[name])}",
        )
        for name in names
        if name not in have
    ]


def _needles(probe: Probe) -> str:
    return " or ".join(repr(needle.decode()) for needle in probe.needles) + " where the site would be"


def _applied(outcome: Outcome) -> Outcome:
    """All that can be tapped is; a site that was not recognised is said and keeps no other one out."""
    outcome.changes = [change for change in outcome.changes if change.before != change.after]
    states = {site.state for site in outcome.sites}
    if "edited" in states:
        outcome.result = "failed" if "failed" in states else "refused"
        outcome.why = "" if "failed" in states else "edited taps are in; `specwire remove --force` takes them out"
        outcome.changes = []
    elif "failed" in states:
        in_the_way = any(site.probe == tapfile.PROBE for site in outcome.sites)  # no tap can start without its file
        outcome.incomplete = bool(states & {"applied", "already"}) and not in_the_way
        outcome.result = "partial" if outcome.incomplete else "failed"
        if outcome.incomplete:
            files = sorted({site.file for site in outcome.sites if site.state == "failed"})
            outcome.why = f"not recognised in {', '.join(files)}: a model that goes through there is not seen whole"
        outcome.changes = outcome.changes if outcome.incomplete else []
    elif not outcome.changes:
        outcome.result = "already" if "already" in states else "nothing"
    return outcome


# --- removing -----------------------------------------------------------------------------------------


def _parted(file: TappedFile, names: list[str] | None) -> tuple[list[FoundTap], list[FoundTap]]:
    """(what goes, what stays). The import goes with the last tap that needs it."""
    taps = [each for each in file.found if each.probe != marks.IMPORT]
    staying = [each for each in taps if names is not None and each.probe not in names]
    if staying:
        going = [each for each in taps if each not in staying]
        return going, [*staying, *(each for each in file.found if each.probe == marks.IMPORT)]
    return (list(file.found), []) if names is None or taps else ([], list(file.found))


def _add_removed(outcome: Outcome, name: str, file: TappedFile, going: list[FoundTap], staying: list[FoundTap]) -> None:
    after = file.without(going)
    proof, problem = unchanged(file, going, after, staying)
    shown = [each for each in going if each.probe != marks.IMPORT] or going
    if problem:
        outcome.sites += [_failed(name, each, problem) for each in shown]
        return
    why = _PROOFS[proof] + (", the taps that stay aside" if staying else "")
    outcome.sites += [Site(each.probe, name, each.qualname, each.first, "removed", why) for each in shown]
    outcome.proofs[name] = proof
    path = outcome.tree.path(name)
    outcome.changes.append(Change(path, file.data, after))
    outcome.changes += [Change(each, read_bytes(each), None) for each in compiled.tapped(path)]


_PROOFS = {
    "original-hash": "by its hash, the file is the original again",
    "syntax-tree": "edited since; its syntax tree loses the tap and nothing else",
}


def _add_tap_file_leaving(outcome: Outcome, now: bytes, force: bool) -> None:
    site = tapfile.edited(now)
    if site is not None and site.state == "failed" and not outcome.sites:
        return  # somebody else's file of that name, in a tree that has none of ours
    if site is not None and (site.state == "failed" or not force):
        _add_edited(outcome, [site], marks.RUNTIME, _tap_file_diff(now))
        return
    if site is not None:
        outcome.sites.append(replace(site, state="removed"))
    outcome.changes += tapfile.leaving(outcome.tree, now)


def _removed(outcome: Outcome) -> Outcome:
    states = {site.state for site in outcome.sites}
    if "failed" in states or "edited" in states:
        outcome.result = "failed" if "failed" in states else "refused"
        outcome.why = "" if "failed" in states else "taps have been edited; --force takes them out as they are"
        outcome.changes, outcome.proofs, outcome.clean = [], {}, False
        # What was proven to be removable was not removed.
        outcome.sites = [
            replace(site, state="applied", why="") if site.state == "removed" else site for site in outcome.sites
        ]
    elif not outcome.changes:
        outcome.result = "nothing"
    return outcome


# --- what a hand has been on --------------------------------------------------------------------------


def _add_edited(outcome: Outcome, sites: list[Site], name: str, diff: bytes) -> None:
    outcome.sites += sites
    if diff:
        outcome.edits[name] = diff


def _edited(name: str, each: FoundTap) -> Site:
    why = each.why or "a tap of a probe that this specwire does not know; remove it first"
    return Site(each.probe, name, each.qualname, each.first, "edited", why + (f"; {each.stuck}" if each.stuck else ""))


def _failed(name: str, each: FoundTap, why: str) -> Site:
    return Site(each.probe, name, each.qualname, each.first, "failed", why)


def _edit_diff(name: str, file: TappedFile) -> bytes:
    """From what `apply` would put there to what is there; empty when that cannot be said."""
    known = probes()
    wanted = {each.probe: known[each.probe] for each in file.found if each.probe in known}
    if not wanted or any(each.stuck for each in file.found):
        return b""
    try:
        expected, _ = _rendered(name, file.without(file.found), wanted)
    except SpecwireError:
        return b""
    if len(file.original()) == 1:
        expected = marks.with_original(expected, *file.original())
    return unified(expected, file.data, f"as inserted/{name}", f"as it is/{name}", context=1)


def _tap_file_diff(now: bytes) -> bytes:
    """The same for the tap file; empty for somebody else's of that name, which was never inserted."""
    if not now.startswith(marks.RUNTIME_MARK):
        return b""
    return unified(tapfile.source(), now, f"as inserted/{marks.RUNTIME}", f"as it is/{marks.RUNTIME}", context=1)
