"""Finds processes that run from a tree, by what the kernel tells about them. Nothing is ever ended.

A Python process counts when it holds files of the package loaded or open, or when it uses SGLang (by its
title, its command, its script, the kernels it has loaded, or as the parent of a renamed worker) and its own
search path finds SGLang in the tree. A process on a view counts for the tree that its links lead to as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.trees.processes import Process, packages, processes
from specwire.trees.tree import PACKAGE

_EVERY = 0.5
_TOLD_EVERY = 5.0
_SHOWN = 100


@dataclass(frozen=True)
class Live:
    """A process that runs from the tree: its id, its command line, and what shows it."""

    pid: int
    command: str
    evidence: str


class LiveServer(SpecwireError):
    """A process runs from the tree; `processes` lists them."""

    def __init__(self, message: str, processes: list[Live]) -> None:
        super().__init__(message)
        self.processes = processes


def refuse_if_live(root: Path, force: bool, wait: float, note: Callable[[str], None]) -> None:
    """Return once no process runs from the tree whose `sglang` package lies in `root`.

    Waits up to `wait` seconds for that; with `force` it returns at once, and `note` hears who runs. Raises
    LiveServer, which names them.
    """
    if not os.path.isdir("/proc/self"):
        note("this system has no /proc: whether a process runs from the tree is unknown")
        return
    began = time.monotonic()
    running, unreadable = look(root)
    if unreadable:
        many = len(unreadable) > 1
        note(
            f"{len(unreadable)} Python process{'es' * many} of another user cannot be looked into "
            f"(pid {_few(unreadable)}): whether {'one' if many else 'it'} runs from the tree is unknown"
        )
    told = began - _TOLD_EVERY
    while running and not force and (left := began + wait - time.monotonic()) > 0:
        if time.monotonic() - told >= _TOLD_EVERY:
            told = time.monotonic()
            note(f"waiting up to {left:.0f} s for the end of {_named(running)}")
        time.sleep(min(_EVERY, left))
        running, _ = look(root)
    if running and force:
        note(f"going on although {_named(running)} runs from the tree")
    elif running:
        raise LiveServer(
            f"{_named(running)} runs from {root / PACKAGE} ({running[0].evidence}). Stop it yourself, "
            "wait for it with --wait SECONDS, or go on with --force: what is loaded stays as it is, "
            "what starts meanwhile may get some of both.",
            running,
        )


def look(root: Path) -> tuple[list[Live], list[int]]:
    """(processes that run from the tree in `root`, Python processes that cannot be looked into)."""
    table = processes()
    pythons = {pid: process for pid, process in table.items() if process.is_python}
    users = {pid: why for pid, process in pythons.items() if (why := process.uses_sglang)}
    for pid in list(users):
        # The program that holds an engine shows nothing itself; its renamed workers do.
        if pythons[pid].titled and pythons[pid].parent in pythons:
            users.setdefault(pythons[pid].parent, f"it is the parent of {pid}, {pythons[pid].command}")
    tree, real = _identity(root / PACKAGE), os.path.realpath(root / PACKAGE)
    found, unreadable = [], []
    for pid, process in sorted(pythons.items()):
        if not process.readable:
            if os.path.isdir(f"/proc/{pid}"):
                unreadable.append(pid)
        elif held := _held(process, real):
            found.append(Live(pid, process.command, f"it has {held} open"))
        elif pid in users and any(_identity(place) == tree for place in packages(process, table)):
            found.append(Live(pid, process.command, users[pid]))
    return found, unreadable


def _held(process: Process, package: str) -> str:
    """A file of the package that the process has loaded, or open for longer than a reader takes."""
    inside = package + "/"
    if loaded := sorted(path for path in process.maps if path.startswith(inside)):
        return loaded[0]
    before = {path for path in process.open_files() if path.startswith(inside)}
    if before:
        time.sleep(0.2)
    return min(before & process.open_files(), default="") if before else ""


def _identity(place: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(place)
        return status.st_dev, status.st_ino
    except OSError:
        return None


def _named(running: list[Live]) -> str:
    first = running[0]
    command = first.command if len(first.command) <= _SHOWN else first.command[: _SHOWN - 3] + "..."
    others = [each.pid for each in running[1:]]
    more = f" and {len(others)} more (pid {_few(others)})" if others else ""
    return f"process {first.pid} ({command}){more}"


def _few(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:8])) + (", ..." if len(pids) > 8 else "")
