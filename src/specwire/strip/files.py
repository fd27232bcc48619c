"""`strip` over files and directories: which of them hold debug code, what goes from each, and the writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specwire.errors import SpecwireError
from specwire.patching.marks import RUNTIME_MARK
from specwire.regular import read_source
from specwire.strip.exclude import Excluded
from specwire.strip.words import FORWARDS, LOGS, NEEDLES, Words
from specwire.trees.journal import JOURNALS
from specwire.trees.transaction import Change, begun_around, commit, locked
from specwire.trees.tree import MARKER, PACKAGE
from specwire.trees.walk import package_root, walk

if TYPE_CHECKING:
    from specwire.strip.plan import Plan


@dataclass(frozen=True)
class Planned:
    """What `strip` makes of the files below some paths: its plans. `unread`: files of which none can be made, and why."""

    plans: list[Plan]
    unread: list[tuple[str, str]]
    excluded: list[str]

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)


def plans(paths: list[str], words: Words, excluded: Excluded = Excluded()) -> Planned:
    """A Plan per file below `paths` that holds debug code, in the order of the paths. Nothing is written.

    Files that no debug word occurs in are not parsed. A file that cannot be read or parsed keeps no other one back.
    Raises SpecwireError for a path that is not there.
    """
    found = Planned([], [], [])
    for path in _once(paths):
        top = path if os.path.isdir(path) else None
        suspects: list[tuple[str, bytes]] = []
        for name in walk(path).python:
            if name in excluded:
                found.excluded.append(name)
                continue
            try:
                if (data := suspicious(name, words, len(top or ""))) is not None:
                    suspects.append((name, data))
            except SpecwireError as error:
                found.unread.append((name, str(error)))
        if not suspects:
            continue
        from specwire.strip.elsewhere import Neighbours
        from specwire.strip.plan import plan

        neighbours = Neighbours(words, top)
        for name, data in suspects:
            try:
                made = plan(data, name, words, neighbours.of(name))
            except SpecwireError as error:
                found.unread.append((name, str(error)))
                continue
            if made.gone or made.left:
                found.plans.append(made)
    return found


def begun(paths: list[str]) -> list[Path]:
    """The directories at, above and below `paths` in which a change was begun and not ended, the outermost first."""
    around = {place for path in paths for place in begun_around(Path(path))}
    below = {
        Path(os.path.abspath(os.path.dirname(name)))
        for path in paths
        if os.path.isdir(path)
        for name in walk(path, JOURNALS).others
        if os.path.basename(name) in JOURNALS
    }
    return sorted(around | below)


def suspicious(name: str, words: Words, start: int = 0) -> bytes | None:
    """A file's bytes when it may hold debug code; None for a clean one and for specwire's own tap file.

    `start`: where in its name that begins what says which part of the tree it is.
    """
    try:
        data = read_source(name)
    except OSError as error:
        raise SpecwireError(f"{name}: cannot be read ({error.strerror}). Leave it out or make it readable.") from error
    if RUNTIME_MARK in data[: data.find(b"\n") + 1]:
        return None
    needles = (*NEEDLES, *LOGS) if FORWARDS.match(name, start) else NEEDLES
    return data if words.suspects(data, needles) or b"# specwire:" in data else None


def write(found: list[Plan], force: bool, wait: float, note: Callable[[str], None]) -> None:
    """Write all changed files, or none of them.

    Refuses while a process runs from a tree that a file belongs to: see `specwire.trees.live`.
    """
    from specwire.trees.live import refuse_if_live

    changes = [
        Change(Path(os.path.abspath(each.name)), each.before, each.after) for each in found if each.before != each.after
    ]
    if not changes:
        return
    packages = sorted({package_root(os.fspath(change.path)) for change in changes})
    overlays = {package for package in packages if os.path.exists(os.path.join(package, MARKER))}
    if overlays and len(packages) > 1:
        raise SpecwireError(f"{', '.join(packages)}: a view and another tree at once. Strip one after the other.")
    with contextlib.ExitStack() as held:
        for package in packages:
            held.enter_context(locked(Path(package)))  # as `apply` and `remove` do: one at a time
        for package in packages:
            if os.path.basename(package) == PACKAGE:
                refuse_if_live(Path(package).parent, force, wait, note)
        # In the package itself, or the directory around all of them, where what was cut off is looked for.
        for left in commit(Path(os.path.commonpath(packages)), changes, replace_links=bool(overlays)):
            note(f"{left}: could not be deleted yet; the next specwire command on the tree tries again")


def _once(paths: list[str]) -> list[str]:
    """The paths as given, without those that lie below another one."""
    kept: list[str] = []
    for path in paths:
        if not os.path.exists(path):
            raise SpecwireError(f"{path}: no such file or directory. Name a Python file or a directory of them.")
        if not os.path.isdir(path) and not path.endswith(".py"):
            raise SpecwireError(f"{path}: no Python source. Name a .py file or a directory of them.")
    real = {path: os.path.realpath(path) for path in paths}
    for path in paths:
        if not any(
            other != path and (real[path] + os.sep).startswith(real[other] + os.sep) and real[path] != real[other]
            for other in paths
        ):
            if real[path] not in {real[each] for each in kept}:
                kept.append(path)
    return kept
