"""Temporary directories of one run: gone when it ends, however it ends; the next run sweeps what a kill -9 left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from specwire.engine.segments import mapped, processes_of
from specwire.regular import open_lock, read_bytes, written_whole

_RUNNING = ".running"  # locked as long as its process lives, and holds the run's id; a directory without it is kept
_SEGMENTS = ".segments"  # the shared memory that the run's processes were seen to map

_held: dict[Path, BinaryIO] = {}


def make(run_id: str = "") -> Path:
    """A new directory of this user's alone. Raises OSError where none can be made."""
    import fcntl  # not on Windows, where the commands that only read work

    sweep()
    place = Path(tempfile.mkdtemp(prefix="specwire-"))
    lock = open_lock(place / f"{_RUNNING}.new")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(run_id.encode())
    lock.flush()
    os.rename(place / f"{_RUNNING}.new", place / _RUNNING)  # only now can a sweep take it for one that was left
    _held[place] = lock
    return place


def discard(place: Path) -> None:
    """The directory goes, with all that is in it; one that is kept stays."""
    if place in _held:
        shutil.rmtree(place, ignore_errors=True)
        _let_go(place)


def discard_all() -> None:
    """Whatever this process has made and not kept: for its end, when a signal came between two steps."""
    for place in list(_held):
        discard(place)


def is_empty(place: Path) -> bool:
    """Whether nothing was put into the directory."""
    return not set(os.listdir(place)) - {_RUNNING, _SEGMENTS}


def keep(place: Path) -> None:
    """The directory stays for somebody to look at: no later run sweeps it up."""
    (place / _RUNNING).unlink(missing_ok=True)
    _let_go(place)


def note_segments(place: Path, segments: list[str]) -> None:
    """Write down the shared memory of the run, for a sweep that finds nobody else to ask."""
    with contextlib.suppress(OSError), written_whole(place / _SEGMENTS) as file:
        file.write("\n".join(segments).encode())


def sweep() -> None:
    """Delete this user's directories whose process is gone without having said to keep them, and their segments."""
    folder = tempfile.gettempdir()
    for name in os.listdir(folder):
        place = Path(folder, name)
        if name.startswith("specwire-") and place not in _held:
            with contextlib.suppress(OSError):
                _sweep(place)


def _sweep(place: Path) -> None:
    import fcntl  # not on Windows, where the commands that only read work

    status = os.lstat(place)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or not os.path.lexists(place / _RUNNING):
        return
    with open_lock(place / _RUNNING) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run_id = lock.read(64).decode("ascii", "replace")
        if run_id and processes_of(run_id):
            return  # they end when they notice that nobody holds them any more
        with contextlib.suppress(OSError):
            segments = read_bytes(place / _SEGMENTS).decode().splitlines()
            for path in segments:
                if path.startswith(("/dev/shm/sglang_loads_", "/dev/shm/sgl_shm_")) and path.count("/") == 3:
                    if not mapped([path]) and os.lstat(path).st_uid == os.geteuid():
                        os.unlink(path)
        shutil.rmtree(place)


def _let_go(place: Path) -> None:
    if (lock := _held.pop(place, None)) is not None:
        lock.close()
