"""Processes that end with this one: the engine's driver, and all that it starts, with what they leave behind."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from specwire.regular import read_bytes, read_text

RUN_ID = "SPECWIRE_RUN_ID"  # in the environment of every process of one run, however it was started


def start(command: Sequence[str], env: Mapping[str, str], log: BinaryIO, folder: Path) -> tuple[subprocess.Popen, str]:
    """Start a driver in a session of its own, and say which run id its processes carry."""
    run_id = uuid.uuid4().hex
    if env.get("TMPDIR") == os.environ.get("TMPDIR"):  # or the caller has said where temporary files go
        env = {"TORCHINDUCTOR_CACHE_DIR": _compiled_kernels(), **env, "TMPDIR": str(_scratch(run_id))}
        _scratch(run_id).mkdir(mode=0o700)
    driver = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closes when this process ends, however it ends; the driver then ends too
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**env, RUN_ID: run_id, "SPT_NOENV": "1"},  # or the engine's process titles overwrite the run id
        cwd=folder,
        start_new_session=True,
    )
    return driver, run_id


def wait_a_moment(process: subprocess.Popen, seconds: float = 0.3) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def kill_all(driver: subprocess.Popen, run_id: str) -> None:
    """Kill the driver's group and whatever carries the run's id, also what changed its session."""
    driver.stdin.close()
    release_shared_memory(run_id)
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    driver.wait()
    for _ in range(100):
        left = processes_of(run_id)
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    shutil.rmtree(_scratch(run_id), ignore_errors=True)


def release_shared_memory(run_id: str) -> None:
    """Unlink the engine's segments that this run's processes map: it ends them by SIGKILL and leaves the names.

    For the end of a run only: who maps a segment keeps it, who asks for its name no longer finds it.
    """
    for pid in processes_of(run_id):
        with contextlib.suppress(OSError):
            maps = read_text(f"/proc/{pid}/maps", "replace")
            for path in set(re.findall(r"/dev/shm/(?:sglang_loads_|sgl_shm_)\S+$", maps, re.MULTILINE)):
                os.unlink(path)


def _scratch(run_id: str) -> Path:
    """The run's own directory of temporary files. Sockets go there, whose paths have to be short."""
    return Path(tempfile.gettempdir()) / f"specwire-{run_id[:12]}"


def _compiled_kernels() -> str:
    """Where torch keeps what it compiled, unless told: not among the files that go with the run."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")


def processes_of(run_id: str) -> list[int]:
    """Live processes that were given this run's id in their environment (where /proc tells)."""
    mark, found = f"{RUN_ID}={run_id}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in read_bytes(entry / "environ").split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def death(code: int, error: str | None) -> str:
    """Why a process ended that should not have: its log's last error, or how it was killed."""
    if error is None and code < 0:
        return f"killed by {signal.Signals(-code).name}" + (", often for want of memory" if code == -9 else "")
    return error or f"exit code {code}, no error message"
