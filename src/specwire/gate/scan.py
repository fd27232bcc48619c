"""The quick part of `gate`: which files hold one of a few words. Nearly all of its time goes into reading them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence

from specwire.regular import SOURCE_LIMIT, descriptor

_BUFFER = 1 << 20
_FILES = 24  # of SGLang's, some 300 kB
_WORTH_A_SECOND_PROCESS = 1000


# Looks at the bytes of a file and the words that it holds, and says whether it is worth more.
Look = Callable[[bytes, tuple[bytes, ...]], bool]


def holding(paths: list[str], needles: tuple[bytes, ...], look: Look) -> list[str]:
    """Those of `paths` whose bytes hold at least one of `needles` and pass `look`, in order; read once each.

    A file that cannot be read, or is larger than any module, is among them: nobody can say that it holds none.
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
    """Indexes into `paths`. Files are searched some at a time: most batches hold nothing, and are done with."""
    found = []
    batch = _Batch()
    for first in range(0, len(paths), _FILES):
        ends = batch.read(paths[first : first + _FILES])
        held = batch.held(needles, 0, ends[-1])
        if not held and not batch.unread:
            continue
        for index, (begin, end) in enumerate(itertools.pairwise((0, *ends)), first):
            if index - first in batch.unread:
                found.append(index)
                continue
            here = batch.held(held, begin, end)
            if here and look(bytes(batch.buffer[begin:end]), tuple(here)):
                found.append(index)
    return found


class _Batch:
    """The bytes of some files, one behind the other, in a buffer that stays in the processor's cache."""

    def __init__(self) -> None:
        self.unread: set[int] = set()
        self._use(bytearray(_BUFFER))

    def _use(self, storage: bytearray) -> None:
        self._storage = storage
        self.buffer = memoryview(storage)
        self._text_holds = _in_text(storage)

    def read(self, paths: list[str]) -> list[int]:
        """Where each file ends in the buffer; of one that cannot be read nothing is in it, and `unread` has its number."""
        ends, at = [], 0
        self.unread = set()
        for number, path in enumerate(paths):
            begin = at
            try:
                handle = descriptor(path)
                try:
                    at += os.readv(handle, [self.buffer[at:]])
                    while at == len(self.buffer) and at - begin <= SOURCE_LIMIT:
                        self._use(bytearray(self.buffer) + bytearray(at))
                        at += os.readv(handle, [self.buffer[at:]])
                finally:
                    os.close(handle)
            except OSError:
                at = begin
                self.unread.add(number)
            if at - begin > SOURCE_LIMIT:
                at = begin
                self.unread.add(number)
            ends.append(at)
        return ends

    def held(self, needles: Sequence[bytes], begin: int, end: int) -> list[bytes]:
        """Which needles stand between two places of the buffer."""
        storage = self._storage
        if self._text_holds is None or storage.find(0, begin, end) >= 0:
            return [needle for needle in needles if storage.find(needle, begin, end) >= 0]
        after, storage[end] = storage[end], 0
        held = [needle for needle in needles if self._text_holds(needle, begin)]
        storage[end] = after
        return held


def _in_text(storage: bytearray) -> Callable[[bytes, int], bool] | None:
    """Whether a needle stands in the storage between a place and the next zero; None where there is no C library.

    C's search for text is many times as fast as `bytes.find`, and as its search for bytes: processors have
    instructions for it.
    """
    try:
        import ctypes

        search = ctypes.PyDLL(None).strstr
    except (ImportError, OSError, AttributeError):
        return None
    search.restype = ctypes.c_void_p
    search.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    start = (ctypes.c_char * len(storage)).from_buffer(storage)  # keeps the storage where it is
    address = ctypes.addressof(start)

    def found(needle: bytes, begin: int, _alive: ctypes.Array[ctypes.c_char] = start) -> bool:
        return search(address + begin, needle) is not None

    return found


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
    if status:  # a child that was killed: do its part here
        return _scan(paths, needles, look)
    return [int(index) for index in text.split()]


def _apart(pipes: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [process for process, _ in pipes], [pipe for _, pipe in pipes]
