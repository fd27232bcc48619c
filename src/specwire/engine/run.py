"""Runs SGLang's engine on prompts of token ids, in processes of its own, and leaves none behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from specwire.engine.arguments import environment, rank_count, server_arguments
from specwire.engine.job import write_job
from specwire.engine.log import BootProgress, last_error
from specwire.engine.process import death, kill_all, note_segments, start, wait_a_moment
from specwire.errors import SpecwireError
from specwire.interpreter import ask
from specwire.regular import make_private, open_anew, open_text, read_ending, read_json

DRIVER = Path(__file__).with_name("driver.py")
# Whatever the model's generation_config.json says: each token is the likeliest by the head alone.
GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}


@dataclass(frozen=True, kw_only=True)
class Drive:
    """One run of the driver: what to start, in which environment, and who hears how far it is.

    The job is the command's last word. `log` is open at `log_file`; `timeout` is in seconds.
    """

    command: list[str]
    env: dict[str, str]
    log: BinaryIO
    log_file: Path
    ranks: int
    on_progress: Callable[[str], None] | None = None
    timeout: float | None = None


RunDriver = Callable[[Drive], "int | None"]  # the driver's exit code; None when it took longer than the timeout


@dataclass(frozen=True)
class Completion:
    """One prompt's answer. `meta` is the engine's: spec_accept_length, spec_verify_ct, ..."""

    output_ids: list[int]
    meta: dict[str, Any]


@dataclass(frozen=True)
class EngineResult:
    """`batches[i][j]` answers prompt j of batch i. Times are in seconds of wall clock."""

    version: str
    device: str
    batches: list[list[Completion]]
    argv: list[str]
    log: Path
    boot_seconds: float
    generate_seconds: float


class EngineFailed(SpecwireError):
    """The engine ended, or did not come through in time."""


def run_engine(
    root: Path,
    target: Path,
    draft: Path | None,
    batches: Sequence[Sequence[Sequence[int]]],
    *,
    tp: int,
    device: str,
    extra_args: Sequence[str],
    env: Mapping[str, str],
    out: Path,
    max_new_tokens: int,
    python: str,
    on_progress: Callable[[str], None] | None = None,
    timeout: float | None = None,
    run: RunDriver | None = None,
    logprobs: bool = False,
    again: bool = False,
) -> EngineResult:
    """Boot `root`'s SGLang once, send the batches one after the other, and stop it.

    The prompts of one batch are sent together, greedily continued by `max_new_tokens`. `extra_args`
    are the engine's own and override the defaults; so does `env`. The log is out/engine.log.
    With `logprobs` the engine says each token's logprob, the prompts' too, in each completion's `meta`.
    `again`: at the end the first prompt is sent once more with its answer, so that what was said is computed twice.
    `on_progress` hears a few words at least every two seconds. `run` runs the driver to its end in
    another way than in a fresh interpreter.

    Raises SpecwireError with the engine's last error when it does not come up, crashes or takes
    longer than `timeout` seconds. However this ends, no process of the engine is left.
    """
    device = resolve_device(device, python)
    out = Path(out).absolute()
    make_private(out)
    longest = max((sum(len(prompt) + max_new_tokens for prompt in batch) for batch in batches), default=0)
    argv = server_arguments(
        Path(target).absolute(),
        Path(draft).absolute() if draft else None,
        tp=tp,
        device=device,
        extra=extra_args,
        tokens=longest,
    )
    result_file = out / "engine-result.json"
    job = {
        "root": str(Path(root).absolute()),
        "argv": argv,
        "batches": [[list(map(int, prompt)) for prompt in batch] for batch in batches],
        "sampling_params": {"max_new_tokens": max_new_tokens, "ignore_eos": True, **GREEDY},
        "logprobs": logprobs,
        "again": again,
        "output": str(result_file),
        "fork": device == "cpu",
    }
    job_file, log_file = out / "engine-job.json", out / "engine.log"
    handed = write_job(job_file, job)
    result_file.unlink(missing_ok=True)

    run_env = environment(Path(root).absolute(), ranks=rank_count(argv), device=device, extra=env) | handed
    with open_anew(log_file) as log:
        drive = Drive(
            command=[python, str(DRIVER), str(job_file)],
            env=run_env,
            log=log,
            log_file=log_file,
            ranks=rank_count(argv),
            on_progress=on_progress,
            timeout=timeout,
        )
        code = (run or _run_to_the_end)(drive)
    if not result_file.exists():
        raise EngineFailed(_what_went_wrong(code, log_file, timeout))
    result = read_json(result_file)
    return EngineResult(
        version=result["version"],
        device=device,
        batches=[[Completion(a["output_ids"], a["meta_info"]) for a in batch] for batch in result["batches"]],
        argv=argv,
        log=log_file,
        boot_seconds=result["boot_seconds"],
        generate_seconds=result["generate_seconds"],
    )


@cache
def resolve_device(device: str, python: str) -> str:
    """`cuda` or `cpu`; `auto` asks the torch of that interpreter. Raises SpecwireError without a torch."""
    if device in ("cuda", "cpu"):
        return device
    if device != "auto":
        raise SpecwireError(f"device {device!r}: none of auto, cuda, cpu.")
    if python == sys.executable and find_spec("torch"):
        import torch  # what compares needs it, too: once is enough

        return "cuda" if torch.cuda.is_available() else "cpu"
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    asked = ask(python, code, seconds=300)
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise SpecwireError(f"{python}: torch cannot be imported ({why}). Name the engine's Python.")
    return asked.stdout.split()[-1]


def _run_to_the_end(drive: Drive) -> int | None:
    """A fresh interpreter; however it ends, everything of it is killed."""
    started, told = time.monotonic(), 0.0
    progress, heard = BootProgress(drive.ranks), ""
    driver, run_id = start(drive.command, drive.env, drive.log, drive.log_file.parent)
    try:
        with open_text(drive.log_file) as lines:
            while True:
                code = wait_a_moment(driver)
                for line in lines:
                    progress.feed(line)
                now = time.monotonic()
                if str(progress) != heard:
                    note_segments(run_id)
                if drive.on_progress and (str(progress) != heard or now - told >= 2):
                    heard, told = str(progress), now
                    drive.on_progress(f"{heard} ({now - started:.0f} s)")
                if code is not None:
                    return code
                if drive.timeout is not None and now - started > drive.timeout:
                    return None
    finally:
        kill_all(driver, run_id)


def _what_went_wrong(code: int | None, log_file: Path, timeout: float | None) -> str:
    text = read_ending(log_file)
    error = last_error(text)
    if code is None:
        lines = [line for line in text.splitlines() if line.strip()]
        said = f"its last error: {error}" if error else f"its last words: {lines[-1] if lines else 'none'}"
        return f"the engine did not finish within {timeout:.0f} s; {said}. Log: {log_file}"
    return f"the engine failed: {death(code, error)}. Log: {log_file}"
