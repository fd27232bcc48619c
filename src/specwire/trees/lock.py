"""One specwire at a time in a directory: by the directory's own lock, which leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.regular import open_directory

_held: set[tuple[int, int]] = set()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the directory's own lock: it leaves nothing behind, and a killed process gives it back.

    May be held more than once by one process. Raises SpecwireError when another process holds it.
    """
    try:
        handle = open_directory(root)
    except OSError as error:
        raise SpecwireError(f"{root}: cannot be opened ({error.strerror}). Nothing was changed.") from error
    try:
        status = os.fstat(handle)
        mine = (status.st_dev, status.st_ino)
        if mine in _held:
            yield
            return
        _lock(handle, root)
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
    finally:
        os.close(handle)


def _lock(handle: int, root: Path) -> None:
    import fcntl  # not on Windows, where the commands that only read work

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpecwireError(f"{root}: another specwire is at work there. Wait for it, then run this again.") from None
    except OSError as error:
        raise SpecwireError(
            f"{root}: this file system locks no directories ({error.strerror}), so two runs could not be "
            "kept apart. Nothing was changed. Use a local copy, or `specwire apply --overlay DIR`, DIR local."
        ) from error
