"""The quick part of `gate`: which files hold one of a few words. Nearly all of its time goes into reading them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from specwire.errors import SpecwireError

_BUFFER = 1 << 20
_WORTH_A_SECOND_PROCESS = 1000


# Looks at the bytes of a file and the words that it holds, and says whether it is worth more.
Look = Callable[[bytes, tuple[bytes, ...]], bool]


def holding(paths: list[str], needles: tuple[bytes, ...], look: Look) -> list[str]:
    """Those of `paths` whose bytes hold at least one of `needles` and pass `look`, in order; read once each.

    Raises SpecwireError for a file that cannot be read.
    """
    workers = _processors() if len(paths) >= _WORTH_A_SECOND_PROCESS else 1
    if workers == 1:
        return [paths[index] for index in _scan(paths, needles, look)]
    shares = [paths[start::workers] for start in range(workers)]
    pipes = [_fork(share, needles, look) for share in shares[1:]]
    found = [index * workers for index in _scan(shares[0], needles, look)]
    for start, (process, pipe, share) in enumerate(zip(*_apart(pipes), shares[1:], strict=True), 1):
        found += [index * workers + start for index in _collect(process, pipe, share, needles, look)]
    return [paths[index] for index in sorted(found)]


def _scan(paths: list[str], needles: tuple[bytes, ...], look: Look) -> list[int]:
    found = []
    buffer = bytearray(_BUFFER)  # one for all files: it stays in the processor's cache
    holds = _finder(buffer, needles)
    for index, path in enumerate(paths):
        try:
            handle = os.open(path, os.O_RDONLY)
            size = os.readv(handle, [buffer])
            while size == len(buffer):
                buffer = buffer + bytearray(len(buffer))
                holds = _finder(buffer, needles)
                size += os.readv(handle, [memoryview(buffer)[size:]])
            os.close(handle)
        except OSError as error:
            raise SpecwireError(
                f"{path}: cannot be read ({error.strerror}), so that nothing can be said about the tree. "
                "Make it readable, or name a part of the tree without it."
            ) from error
        held = holds(size)
        if held and look(bytes(memoryview(buffer)[:size]), tuple(held)):
            found.append(index)
    return found


def _finder(buffer: bytearray, needles: tuple[bytes, ...]) -> Callable[[int], list[bytes]]:
    """Which needles are among the first so many bytes of the buffer.

    Asks the C library, whose search takes less than half the time of `bytes.find`; that one where there is none.
    """
    try:
        import ctypes

        search = ctypes.PyDLL(None).memmem
    except (ImportError, OSError, AttributeError):
        return lambda size: [needle for needle in needles if buffer.find(needle, 0, size) >= 0]
    search.restype = ctypes.c_void_p
    search.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    start = (ctypes.c_char * len(buffer)).from_buffer(buffer)  # keeps the buffer where it is
    address = ctypes.addressof(start)
    sized = [(needle, len(needle)) for needle in needles]
    return lambda size, _alive=start: [
        needle for needle, length in sized if search(address, size, needle, length)
    ]


def _processors() -> int:
    threading = sys.modules.get("threading")  # forking is for a process without threads
    if not hasattr(os, "sched_getaffinity") or (threading and threading.active_count() > 1):
        return 1
    return min(4, len(os.sched_getaffinity(0)))


def _fork(paths: list[str], needles: tuple[bytes, ...], look: Look) -> tuple[int, int]:
    """Scan in a child process, which writes the indexes found; (its id, the pipe to read them from)."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    status = 1
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(b" ".join(b"%d" % index for index in _scan(paths, needles, look)))
        status = 0
    finally:
        os._exit(status)


def _collect(process: int, pipe: int, paths: list[str], needles: tuple[bytes, ...], look: Look) -> list[int]:
    with os.fdopen(pipe, "rb") as reading:
        text = reading.read()
    _, status = os.waitpid(process, 0)
    if status:  # a file that cannot be read, or a child that was killed: find out which, here
        return _scan(paths, needles, look)
    return [int(index) for index in text.split()]


def _apart(pipes: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [process for process, _ in pipes], [pipe for _, pipe in pipes]
