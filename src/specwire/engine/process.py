"""Processes that end with this one: the engine's driver, and all that it starts, with what they leave behind."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from specwire import outgoing
from specwire.engine import temporary
from specwire.engine.segments import RUN_ID, processes_of, release, segments_of

Driver = subprocess.Popen[bytes]

_scratch: dict[str, Path] = {}  # by run id: its directory of temporary files. Sockets go there: paths must be short
_copying: dict[str, threading.Thread] = {}  # by run id: who writes its log


def start(command: Sequence[str], env: Mapping[str, str], log: BinaryIO, folder: Path) -> tuple[Driver, str]:
    """Start a driver in a session of its own, and say which run id its processes carry."""
    run_id = uuid.uuid4().hex
    if env.get("TMPDIR") == os.environ.get("TMPDIR"):  # or the caller has said where temporary files go
        _scratch[run_id] = temporary.make(run_id)
        env = {"TORCHINDUCTOR_CACHE_DIR": _compiled_kernels(), **env, "TMPDIR": str(_scratch[run_id])}
    outgoing.know_environment(env)
    hides = outgoing.knows()
    driver = subprocess.Popen(  # an engine's captures, sockets and profiles are this user's alone
        command,
        stdin=subprocess.PIPE,  # closes when this process ends, however it ends; the driver then ends too
        stdout=subprocess.PIPE if hides else log,
        stderr=subprocess.STDOUT,
        env={**env, RUN_ID: run_id, "SPT_NOENV": "1"},  # or the engine's process titles overwrite the run id
        cwd=folder,
        start_new_session=True,
        umask=0o077,
    )
    if driver.stdout is not None:
        _copying[run_id] = _copied(driver.stdout, log)
    return driver, run_id


def _copied(said: IO[bytes], log: BinaryIO) -> threading.Thread:
    """A thread that copies what the engine says into its log, without the secrets that it was started with."""
    own = os.fdopen(os.dup(log.fileno()), "wb")

    def copy() -> None:
        with own, said:
            outgoing.copy_hidden(said, own)

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    return copying


def wait_a_moment(process: Driver, seconds: float = 0.3) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def kill_all(driver: Driver, run_id: str) -> None:
    """Kill the driver's group and whatever carries the run's id, also what changed its session."""
    release(run_id)  # before anything ends: what nobody maps any more cannot be found
    _kill_group(driver.pid)
    if driver.stdin is not None:
        driver.stdin.close()
    driver.wait()
    for _ in range(100):
        left = processes_of(run_id)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if (copying := _copying.pop(run_id, None)) is not None:
        copying.join(timeout=10)
    if (place := _scratch.pop(run_id, None)) is not None:
        temporary.discard(place)


def note_segments(run_id: str) -> None:
    """Write down the run's shared memory, in case that this process and the driver are both killed."""
    if (place := _scratch.get(run_id)) is not None:
        temporary.note_segments(place, segments_of(run_id))


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _compiled_kernels() -> str:
    """Where torch keeps what it compiled, unless told: not among the files that go with the run."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")


def death(code: int, error: str | None) -> str:
    """Why a process ended that should not have: its log's last error, or how it was killed."""
    if error is None and code < 0:
        return f"killed by {signal.Signals(-code).name}" + (", often for want of memory" if code == -9 else "")
    return error or f"exit code {code}, no error message"
