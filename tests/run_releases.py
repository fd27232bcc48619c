"""Every SGLang release, there and back: apply all debug and capture probes, look, remove, compare.

    python tests/run_releases.py [--sample] [VERSION...]

One line for each release. Exit code 1 when a file differs, a site was not recognised, or a capture loop that
a plain count finds has no tap.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import releases

from specwire.patching import marks, surgery
from specwire.trees.tree import Tree


@dataclass
class Trip:
    """What one release's way there and back came to; `wrong` is empty when all is as it should be."""

    version: str
    states: Counter = field(default_factory=Counter)
    files: int = 0
    loops: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def round_trip(version: str) -> Trip:
    """Apply, compile and compare every touched file, remove, and compare the whole directory."""
    trip = Trip(version)
    pristine = releases.release_tree(version)
    truth = {name: digest for name, digest in releases.recorded(pristine).items() if name.startswith("sglang/")}
    with tempfile.TemporaryDirectory(prefix=f"specwire-{version}-", dir=releases.cache()) as folder:
        root = Path(folder) / "tree"
        shutil.copytree(pristine, root, copy_function=os.link)  # a file written in place would change the original too
        before, tree, clock = _snapshot(root), Tree.find(root), time.perf_counter()

        applied = surgery.plan_apply(tree, surgery.chosen([], ["debug", "capture"]))
        applied.write()
        trip.seconds["apply"], clock = time.perf_counter() - clock, time.perf_counter()
        trip.states = Counter(site.state for site in applied.sites)
        trip.files = len(applied.changes) - 1
        trip.wrong += [
            f"failed: {site.probe} {site.file} {site.qualname}: {site.why}"
            for site in applied.sites
            if site.state == "failed"
        ]
        trip.wrong += [
            f"absent without a reason: {site.probe} {site.file}"
            for site in applied.sites
            if site.state == "absent" and not site.why
        ]
        if applied.result != "applied":
            trip.wrong.append(f"apply ended as {applied.result}")
        for change in applied.changes:
            name = change.path.relative_to(root).as_posix()
            trip.wrong += [f"{name}: {what}" for what in _differs(change.path.read_bytes(), change.before)]
            if change.before is not None and _sha256((pristine / name).read_bytes()) != truth[name]:
                trip.wrong.append(f"{name}: written in place, through its other name")
        tapped = {
            (site.file, site.qualname)
            for site in applied.sites
            if site.probe == "layer-capture" and site.state == "applied"
        }
        counted = _counted_loops(root)
        trip.loops = len(counted)
        trip.wrong += [
            f"{file}:{line}: a capture loop in {name} without a tap"
            for file, line, name in counted
            if (file, name) not in tapped
        ]

        clock = time.perf_counter()
        removed = surgery.plan_remove(tree)
        removed.write()
        trip.seconds["remove"] = time.perf_counter() - clock
        if removed.result != "removed":
            trip.wrong.append(f"remove ended as {removed.result}")
        if Counter(site.state for site in removed.sites) != Counter({"removed": trip.states["applied"]}):
            trip.wrong.append("not every tap was removed")
        after = _snapshot(root)
        trip.wrong += [
            f"{name}: not as it was"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        trip.wrong += [
            f"{name}: not what the release's RECORD says"
            for name, digest in truth.items()
            if after.get(name, ("", ""))[1] != digest
        ]
    return trip


def _snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Mode and hash of every file below `root`, and the mode of every directory."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            found[path.relative_to(root).as_posix()] = (
                path.lstat().st_mode,
                _sha256(path.read_bytes()) if path.is_file() else "",
            )
    return found


def _differs(now: bytes, before: bytes | None) -> list[str]:
    """What is wrong with a patched file: it must compile, and without the taps be the original."""
    try:
        compile(now, "patched", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"does not compile: {error}"]
    if before is None:
        return []
    lines = {number for number, line in enumerate(now.splitlines(), 1) if marks.LITERAL in line}
    taps = _Taps(lines)
    if ast.dump(taps.visit(ast.parse(now))) != ast.dump(ast.parse(before)):
        return ["is more than the original with taps"]
    return [] if taps.found == len(lines) else [f"{len(lines)} tap lines, {taps.found} statements"]


class _Taps(ast.NodeTransformer):
    """Leaves out the statements and decorators that stand on the given lines, and counts them."""

    def __init__(self, lines: set[int]) -> None:
        self.lines, self.found = lines, 0

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.stmt) and node.lineno in self.lines and node.end_lineno == node.lineno:
            self.found += 1
            return None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kept = [each for each in node.decorator_list if each.lineno not in self.lines]
            self.found += len(node.decorator_list) - len(kept)
            node.decorator_list = kept
        return super().visit(node)


def _counted_loops(root: Path) -> list[tuple[str, int, str]]:
    """Capture loops by a plain count that shares nothing with the matchers: (file, line, qualified name).

    It is the innermost `for` in a method that calls a layer and decides on capturing by a test or a keyword.
    """
    found = []
    for path in sorted((root / "sglang/srt/models").rglob("*.py")):
        data = path.read_bytes()
        if b"to_capture" not in data:
            continue
        for owner in ast.walk(ast.parse(marks.stripped(data))):
            for method in owner.body if isinstance(owner, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                    loops = [node for node in ast.walk(method) if isinstance(node, ast.For) and _captures(node)]
                    inner = [
                        loop
                        for loop in loops
                        if not any(other is not loop and other in ast.walk(loop) for other in loops)
                    ]
                    name = path.relative_to(root).as_posix()
                    found += [(name, loop.lineno, f"{owner.name}.{method.name}") for loop in inner]
    return found


def _captures(loop: ast.For) -> bool:
    text = ast.unparse(loop)
    runs = "self.layers[" in text or "layer(" in text or "layer.forward" in text
    tests = any(isinstance(node, ast.If) and "captur" in ast.unparse(node.test) for node in ast.walk(loop))
    keywords = any(isinstance(node, ast.keyword) and node.arg and "captur" in node.arg for node in ast.walk(loop))
    grows = keywords or ".append(" in text or ".slot(" in text
    return runs and grows and (tests or keywords)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def line(trip: Trip) -> str:
    """The release in one line."""
    states = "  ".join(f"{trip.states[state]:3} {state}" for state in ("applied", "absent", "failed"))
    seconds = "  ".join(f"{what} {trip.seconds.get(what, 0):4.1f} s" for what in ("apply", "remove"))
    verdict = "DIFFERS" if trip.wrong else "ok"
    return f"{trip.version:13} {trip.files:3} files  {trip.loops:2} loops  {states}  {seconds}  {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--sample", action="store_true", help="the releases that CI runs, not all of them")
    arguments = parser.parse_args()
    versions = arguments.versions or (releases.sample() if arguments.sample else releases.versions())
    begun, bad, sites = time.perf_counter(), 0, Counter()
    with concurrent.futures.ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        for trip in pool.map(round_trip, versions):
            print(line(trip), flush=True)
            for what in trip.wrong[:20]:
                print(f"    {what}", flush=True)
            bad += bool(trip.wrong)
            sites += trip.states
    if not arguments.versions and not arguments.sample and (newer := releases.unpinned()):
        print(f"the registry has more: {', '.join(newer)}; add them with `python tests/releases.py VERSION`")
    states = ", ".join(f"{count} {state}" for state, count in sorted(sites.items()))
    print(f"{len(versions)} releases, {states}, {bad} with differences, {time.perf_counter() - begun:.0f} s")
    return 1 if bad or not versions else 0


if __name__ == "__main__":
    sys.exit(main())
