"""The one place where files are opened: read though they came from anywhere, and written whole or not at all.

A pipe or a device in a file's place is refused, not waited for, and nothing is read without a limit. A test holds
that nobody else opens a file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

TEXT_LIMIT = 64 << 20  # bytes
SOURCE_LIMIT = 8 << 20  # bytes; SGLang's largest module has half a MB, and a parser takes seventy times the source

AnyPath = Path | str
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # as JSON writes one: whole pairs begin like that, too


def open_regular(path: AnyPath, follow: bool = True) -> io.BufferedReader:
    """A regular file, opened for reading. Raises OSError for anything else, a pipe without a writer included.

    Without `follow` a link is refused, too.
    """
    return os.fdopen(descriptor(path, follow), "rb")


def descriptor(path: AnyPath, follow: bool = True) -> int:
    """The same as the number that the system gives it: for the readers that have thousands of files to read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", os.fspath(path))
    raise OSError(errno.EINVAL, "no regular file: a pipe, a device or a socket", os.fspath(path))


def open_stream(path: AnyPath) -> BinaryIO:
    """A file to be read from its beginning to its end, a pipe among them, as of `ssh HOST cat LOG`."""
    return open(path, "rb")


def open_text(path: AnyPath) -> TextIO:
    """A text file that another process is still writing: each read goes on where the last one ended."""
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace")


def open_lock(path: AnyPath) -> BinaryIO:
    """A file that is there only to be locked: made when there is none."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b")


def open_directory(path: AnyPath) -> int:
    """A directory, opened to be locked or synced."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def read_bytes(path: AnyPath, limit: int = TEXT_LIMIT, follow: bool = True) -> bytes:
    """A whole file. Raises OSError, also when it has more than `limit` bytes."""
    with open_regular(path, follow) as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = file.read(limit + 1)
            if len(data) <= limit:
                return data
    raise OSError(errno.EFBIG, f"more than {limit:,} bytes", os.fspath(path))


def read_source(path: AnyPath) -> bytes:
    """A module's bytes. Raises OSError, also when it is larger than any module that a person has written."""
    return read_bytes(path, SOURCE_LIMIT)


def read_text(path: AnyPath, errors: str = "strict", limit: int = TEXT_LIMIT) -> str:
    """A small text file. Raises OSError, also when it has more than 64 MB, and ValueError when it is no UTF-8."""
    return read_bytes(path, limit).decode("utf-8", errors)


def read_json(path: AnyPath, limit: int = TEXT_LIMIT) -> Any:
    """The document in a JSON file. Raises OSError, and ValueError when it is no JSON, nested too deeply or no text."""
    text = read_text(path, limit=limit)
    try:
        document = json.loads(text)
        if _HALF_A_PAIR.search(text):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half a surrogate pair, which is no character") from None


def read_ending(path: AnyPath, limit: int = TEXT_LIMIT) -> str:
    """The last `limit` bytes of a text file, as of a log that a process has written."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit))
        return file.read(limit).decode("utf-8", "replace")


def make_private(folder: Path) -> None:
    """A directory of this user's alone, with those above it; one that is there stays as it is. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def create(path: AnyPath, mode: int = 0o666) -> int:
    """A new file, opened for writing; never one that is there, nor through a link. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def open_anew(path: AnyPath) -> BinaryIO:
    """An empty file of this user's alone, for a log: what was there goes, and no link is followed. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    return os.fdopen(create(path, 0o600), "wb")


@contextlib.contextmanager
def written_whole(path: AnyPath, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which is at `path` once the block is done: all of it, or what was there before.

    It gets the mode that the user's umask gives. `durable`: also when the machine goes down right after. Raises
    OSError where nothing can be written.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _umask() -> int:
    """What the user takes away from the mode of a new file: only by setting it can it be asked for."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
