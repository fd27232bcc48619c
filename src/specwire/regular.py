"""Regular files: read though they came from anywhere (a pipe or a device in a file's place is refused, not waited
for), and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEXT_LIMIT = 64 * 1024 * 1024


def open_regular(path: Path | str) -> BinaryIO:
    """A regular file, opened for reading. Raises OSError for anything else, a pipe without a writer included."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", os.fspath(path))
    raise OSError(errno.EINVAL, "no regular file: a pipe, a device or a socket", os.fspath(path))


def read_text(path: Path | str) -> str:
    """A small text file. Raises OSError, also when it has more than 64 MB, and ValueError when it is no UTF-8."""
    with open_regular(path) as file:
        data = file.read(TEXT_LIMIT + 1)
    if len(data) > TEXT_LIMIT:
        raise OSError(errno.EFBIG, f"more than {TEXT_LIMIT:,} bytes", os.fspath(path))
    return data.decode("utf-8")


@contextlib.contextmanager
def written_whole(path: Path | str, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which is at `path` once the block is done: all of it, or what was there before.

    `durable`: also when the machine goes down right after. Raises OSError where nothing can be written.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
