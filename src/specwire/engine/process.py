"""Processes that end with this one: the engine's driver, and all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

RUN_ID = "SPECWIRE_RUN_ID"  # in the environment of every process of one run, however it was started


def start(
    command: Sequence[str], env: Mapping[str, str], log: BinaryIO, folder: Path
) -> tuple[subprocess.Popen, str]:
    """Start a driver in a session of its own, and say which run id its processes carry."""
    run_id = uuid.uuid4().hex
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
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    driver.wait()
    for _ in range(100):
        left = processes_of(run_id)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def processes_of(run_id: str) -> list[int]:
    """Live processes that were given this run's id in their environment (where /proc tells)."""
    mark, found = f"{RUN_ID}={run_id}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def death(code: int, error: str | None) -> str:
    """Why a process ended that should not have: its log's last error, or how it was killed."""
    if error is None and code < 0:
        return f"killed by {signal.Signals(-code).name}" + (
            ", often for want of memory" if code == -9 else ""
        )
    return error or f"exit code {code}, no error message"
