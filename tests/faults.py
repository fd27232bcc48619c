"""Stops a piece of work at any of its file operations: by kill -9, or by an error of the kernel's."""

import errno
import fcntl
import io
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass

CHANGING = set("write link symlink rename replace unlink remove rmdir mkdir chmod fchmod fchown utime truncate".split())
WATCHED = {
    os: [*CHANGING, "open", "fsync", "scandir", "listdir"],
    fcntl: ["flock"],
    io: ["open"],
}


@dataclass(frozen=True)
class Fault:
    """At operation `at` (from 0): a kill `before` it, `after` it or `half` way through a write; or `error` or
    `interrupt` instead of it."""

    at: int
    how: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.how}-{errno.errorcode.get(self.number, '')}@{self.at}".replace("-@", "@")


@dataclass(frozen=True)
class Report:
    """How the child ended: `killed`, or `done` with what the work returned, or `raised` with the error."""

    end: str
    value: object
    operations: tuple[str, ...]


def stopped(work: Callable[[], object], *faults: Fault, watched: dict = WATCHED) -> Report:
    """Do the work in a forked child, with the faults in its way; operations not `watched` are not counted."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        watch = _Watch(faults, watched)
        try:
            watch.install()
            try:
                end = ("done", work())
            finally:
                watch.stop()
        except BaseException as error:
            error.text = traceback.format_exc()
            end = ("raised", error)
        try:
            data = pickle.dumps((*end, tuple(watch.operations)))
        except Exception:
            data = pickle.dumps((end[0], repr(end[1]), tuple(watch.operations)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return Report("killed", None, ())
    return Report(*pickle.loads(data))


class _Watch:
    def __init__(self, faults: tuple[Fault, ...], watched: dict) -> None:
        self.watched = watched
        self.faults, self.operations, self.on = {fault.at: fault for fault in faults}, [], False

    def install(self) -> None:
        self.on = True
        for module, names in self.watched.items():
            for name in names:
                setattr(module, name, self._watched(name, getattr(module, name)))

    def stop(self) -> None:
        self.on = False

    def _watched(self, name, real):
        def call(*args, **kwargs):
            if not self.on:
                return real(*args, **kwargs)
            fault = self.faults.get(len(self.operations))
            self.operations.append(name)
            return real(*args, **kwargs) if fault is None else _strike(fault, name, real, args, kwargs)

        return call


def _strike(fault, name, real, args, kwargs):
    if fault.how == "interrupt":
        raise KeyboardInterrupt
    if fault.how == "error":
        path = args[0] if args and isinstance(args[0], (str, os.PathLike)) else None
        raise OSError(fault.number, os.strerror(fault.number), path)
    try:
        if fault.how == "half" and name == "write":
            real(args[0], bytes(args[1])[: len(args[1]) // 2])
        if fault.how == "after":
            real(*args, **kwargs)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def kills(operations: tuple[str, ...], thorough: bool) -> list[Fault]:
    """Faults that kill: before each operation that changes anything; thoroughly, before and after all."""
    points = [Fault(at, "before") for at in _at(operations, thorough)]
    if thorough:
        points += [Fault(at, "after") for at in range(len(operations))]
    return points + [Fault(at, "half") for at, name in enumerate(operations) if name == "write"]


def errors(operations: tuple[str, ...], thorough: bool) -> list[Fault]:
    """Faults in which the kernel refuses: no space; thoroughly, also no permission or a broken disk."""
    numbers = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS, errno.EMLINK) if thorough else (errno.ENOSPC,)
    return [Fault(at, "error", number) for at in _at(operations, thorough) for number in numbers]


def _at(operations: tuple[str, ...], thorough: bool) -> list[int]:
    return [at for at, name in enumerate(operations) if thorough or name in CHANGING]
