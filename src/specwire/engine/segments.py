"""The processes of one run, and the shared memory that they map: found by what /proc tells.

The driver loads this file by its path, in an interpreter that need not have specwire: only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal

RUN_ID = "SPECWIRE_RUN_ID"  # in the environment of every process of one run, however it was started
_SEGMENT = re.compile(rb"(/dev/shm/(?:sglang_loads_|sgl_shm_)\S+)$", re.MULTILINE)


def processes_of(run_id: str) -> list[int]:
    """Live processes that were given this run's id in their environment (where /proc tells)."""
    mark = f"{RUN_ID}={run_id}".encode()
    ids = [name for name in _listed("/proc") if name.isdigit()]
    return [int(name) for name in ids if mark in _read(f"/proc/{name}/environ").split(b"\0")]


def segments_of(run_id: str, processes: list[int] | None = None) -> list[str]:
    """The engine's segments of shared memory that this run's processes map."""
    found = {
        os.fsdecode(path)
        for pid in (processes_of(run_id) if processes is None else processes)
        for path in _SEGMENT.findall(_read(f"/proc/{pid}/maps"))
    }
    return sorted(found)


def release(run_id: str, but: int = 0) -> None:
    """Unlink the engine's segments that this run's processes map: it ends them by SIGKILL and leaves the names.

    For the end of a run only: the processes are held still first (all `but` the one that asks), so that none makes
    another segment meanwhile; who maps a segment keeps it, who asks for its name no longer finds it. What has come
    from the one that asks belongs to the run, too: a fork shows the environment that its first parent began with.
    """
    processes = sorted({*processes_of(run_id), *_family(but)})
    for pid in processes:
        if pid != but:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
    for path in segments_of(run_id, processes):
        with contextlib.suppress(OSError):
            os.unlink(path)


def mapped(paths: list[str]) -> bool:
    """Whether a process that we may look into maps one of these files."""
    names = [os.fsencode(path) for path in paths]
    ids = [name for name in _listed("/proc") if name.isdigit()]
    return any(path in _read(f"/proc/{name}/maps") for name in ids for path in names)


def _family(pid: int) -> set[int]:
    """A process and all that have come from it; none for 0."""
    parents = {}
    for name in _listed("/proc") if pid else ():
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat")):
            parents[int(name)] = int(stat.rpartition(b")")[2].split()[1])
    found = {pid} if pid else set()
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
