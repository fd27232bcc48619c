"""A server for the length of a `with`: booted, waited for, watched, and gone afterwards whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.bench.http import Address, ServerSays, ask
from specwire.engine.arguments import environment, rank_count, server_arguments
from specwire.engine.job import write_job
from specwire.engine.log import BootProgress, last_error
from specwire.engine.process import death, kill_all, note_segments, start, wait_a_moment
from specwire.engine.run import DRIVER
from specwire.errors import SpecwireError
from specwire.progress import Progress
from specwire.regular import make_private, open_anew, open_text, read_ending

# `run` and `verify` want every token in one prefill; a server that is measured keeps the engine's own ways.
AS_IN_PRODUCTION = ("--no-disable-radix-cache", "--no-chunked-prefill-size")
INFO_SECONDS = 5.0  # what is asked beside the load, and can be done without
HEALTH_SECONDS = 25  # the engine gives itself twenty to answer its own question
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.model", "vocab.json")


class ServerFailed(SpecwireError):
    """It did not come up, died, hung or answered with errors: `stage` says which, the message why."""

    def __init__(self, stage: str, why: str, log: Path | None) -> None:
        super().__init__(f"{why}. Log: {log}" if log else why)
        self.stage, self.why, self.log = stage, why, log


@dataclass(frozen=True)
class Patience:
    """Seconds: for the whole boot, for a log that says nothing during it, for a request that hears nothing."""

    boot: float = 1800.0
    silent_log: float = 600.0
    silent_request: float = 120.0


@dataclass(frozen=True)
class ServerPlan:
    """How to start one server: `argv` are SGLang's own arguments, `command` what really runs."""

    command: tuple[str, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    changed_env: Mapping[str, str]
    address: Address
    log: Path
    ranks: int = 1


@dataclass
class Server:
    """One that answers. `failure()` says why it no longer does, None while it runs."""

    address: Address
    log: Path | None
    boot_seconds: float
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def failure(self, wait: float = 0.0) -> str | None:
        if self.process is None:
            return None
        code = wait_a_moment(self.process, wait) if wait else self.process.poll()
        return None if code is None else f"the server died: {death(code, _last_error(self.log))}"


def plan_server(
    root: Path,
    target: Path,
    draft: Path | None,
    *,
    tp: int,
    device: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    out: Path,
    python: str,
    tokens: int,
) -> ServerPlan:
    """SGLang's `launch_server` from `root`, with the user's arguments last and the environment on top.

    `tokens` is how many the cache must hold at least. Writes the driver's job into `out`.
    """
    make_private(out)
    own = ["--host=127.0.0.1", *AS_IN_PRODUCTION]
    if any((target / name).exists() for name in TOKENIZERS):
        own.append("--no-skip-tokenizer-init")
    argv = server_arguments(
        target.absolute(),
        draft.absolute() if draft else None,
        tp=tp,
        device=device,
        extra=(*own, *arguments),
        tokens=tokens,
    )
    job = {"root": str(root.absolute()), "argv": argv, "fork": device == "cpu"}
    handed = write_job(out / "server-job.json", job)
    whole = environment(root.absolute(), ranks=rank_count(argv), device=device, extra=env) | handed
    return ServerPlan(
        command=(python, str(DRIVER), str(out / "server-job.json")),
        argv=tuple(argv),
        env=whole,
        changed_env=dict(env),
        address=Address("127.0.0.1", _port(argv)),
        log=out / "server.log",
        ranks=tp,
    )


@contextlib.contextmanager
def running(plan: ServerPlan, patience: Patience, say: Progress) -> Iterator[Server]:
    """Boot the server, and have it gone when the block ends, with all its processes.

    Raises ServerFailed when it does not come up: dead, silent too long, or not ready in time.
    """
    begun = time.monotonic()
    with open_anew(plan.log) as log:
        process, run_id = start(plan.command, plan.env, log, plan.log.parent)
    try:
        _await_ready(process, plan, patience, say, begun)
        note_segments(run_id)
        yield Server(plan.address, plan.log, round(time.monotonic() - begun, 3), process)
    finally:
        kill_all(process, run_id)


def existing(url: str) -> Server:
    """A server that somebody else started and stops. Raises ServerFailed when none answers there."""
    address = Address.parse(url)
    if not _healthy(address):
        raise ServerFailed("boot", f"no healthy server answers at {address.url}/health", None)
    return Server(address, None, 0.0)


def server_info(address: Address) -> dict[str, Any]:
    """What the server says of itself, under either of the names that releases use; {} when it says nothing."""
    for path in ("/server_info", "/get_server_info"):
        with contextlib.suppress(OSError, ServerSays, ValueError, RecursionError):
            status, text = asyncio.run(ask(address, "GET", path, INFO_SECONDS))
            if status == 200 and isinstance(told := json.loads(text), dict):
                return told
    return {}


def flush_cache(address: Address) -> bool:
    """Forget cached prefixes, so that a repeat does the same work. The engine refuses while it is busy."""
    given_up = time.monotonic() + INFO_SECONDS
    while (left := given_up - time.monotonic()) > 0:
        with contextlib.suppress(OSError, ServerSays):
            status, _ = asyncio.run(ask(address, "POST", "/flush_cache", left))
            if status == 200:
                return True
        time.sleep(0.25)
    return False


_ONLY_MEASURING = ("--random-seed=0", "--skip-tokenizer-init")


def launch_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """What to type to get this server, without what only a measurement wants: a port, a fixed seed, bare token ids.

    The user's own come after ours: one that was given on purpose is there a second time, and stays.
    """
    kept = [flag for flag in argv if not flag.startswith(("--port=", "--host="))]
    for ours in _ONLY_MEASURING:
        if ours in kept:
            kept.remove(ours)
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    return " ".join([*settings, "python -m sglang.launch_server", shlex.join(kept)])


def _await_ready(
    process: subprocess.Popen[bytes], plan: ServerPlan, patience: Patience, say: Progress, begun: float
) -> None:
    progress, heard, size, changed = BootProgress(plan.ranks), "", 0, time.monotonic()
    with open_text(plan.log) as lines:
        while True:
            code = wait_a_moment(process)
            for line in lines:
                progress.feed(line)
            now = time.monotonic()
            if lines.tell() != size:
                size, changed = lines.tell(), now
            if str(progress) != heard:
                heard = str(progress)
                say(f"booting: {heard} ({now - begun:.0f} s)")
            if code is not None:
                raise ServerFailed(
                    "boot", f"the server did not come up: {death(code, _last_error(plan.log))}", plan.log
                )
            if now - begun > patience.boot:
                raise ServerFailed(
                    "boot", f"the server was not ready within {patience.boot:g} s; {_last_words(plan.log)}", plan.log
                )
            if now - changed > patience.silent_log:
                raise ServerFailed(
                    "boot",
                    f"the server hangs: its log has said nothing for {patience.silent_log:g} s; {_last_words(plan.log)}",
                    plan.log,
                )
            if _listens(plan.address) and _healthy(plan.address):
                return


def _healthy(address: Address) -> bool:
    try:
        status, _ = asyncio.run(ask(address, "GET", "/health", HEALTH_SECONDS))
    except (OSError, ServerSays):
        return False
    return status == 200


def _listens(address: Address) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), timeout=1):
        return True
    return False


def _port(argv: Sequence[str]) -> int:
    ports = [flag.partition("=")[2] or argv[at + 1] for at, flag in enumerate(argv) if flag.split("=")[0] == "--port"]
    return int(ports[-1])


def _last_error(log: Path | None) -> str | None:
    return last_error(read_ending(log)) if log else None


def _last_words(log: Path) -> str:
    lines = [line for line in read_ending(log).splitlines() if line.strip()]
    return f"its last words: {lines[-1][:300] if lines else 'none'}"
