"""One setting, measured: its server booted, warmed up, loaded and stopped; or what went wrong on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.bench.client import Load, LoadPrompt, Response, run_load
from specwire.bench.http import shown
from specwire.bench.measure import figures
from specwire.bench.profile import read_profile, summarise
from specwire.bench.server import (
    Patience,
    Server,
    ServerFailed,
    ServerPlan,
    existing,
    flush_cache,
    launch_line,
    plan_server,
    running,
    server_info,
)
from specwire.bench.statistics import rounded
from specwire.engine.arguments import CPU_KERNELS
from specwire.engine.log import last_error
from specwire.errors import SpecwireError
from specwire.progress import Progress
from specwire.regular import make_private, read_ending

Enough = Callable[[list[dict[str, Any]]], bool]  # given a load's runs so far: need there be no more?

# Seconds after which a server's last cycles are on the disk: the taps write twice a second, and a stop is a kill.
_UNTIL_WRITTEN = 1.5

# What specwire sets for its own ends, and nobody should copy.
_OURS = (
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "HF_HUB_OFFLINE",
    "EAGLE3_PROFILE",
)


@dataclass(frozen=True)
class Setting:
    """What one point of a comparison runs: no `draft` means no speculation. `url` names a server that runs already."""

    name: str
    draft: Path | None = None
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None


@dataclass(frozen=True)
class Workload:
    """The same for all settings. `loads` pairs each load with how many of the prompts it sends per run."""

    prompts: tuple[LoadPrompt, ...]
    warm_up: tuple[LoadPrompt, ...]
    loads: tuple[tuple[Load, int], ...]
    repeats: int
    seed: int
    patience: Patience = Patience()

    @property
    def most_tokens(self) -> int:
        """Tokens that the engine's cache must hold when the widest load is under way."""
        longest = max(len(prompt.content) + prompt.new_tokens for prompt in (*self.prompts, *self.warm_up))
        return longest * max(int(load.value) if load.kind == "closed" else count for load, count in self.loads)


@dataclass(frozen=True)
class Stand:
    """What the settings are measured on: SGLang from `root`, this target, this machine."""

    root: Path
    target: Path
    tp: int
    device: str
    python: str
    profiled: bool


def measure(
    stand: Stand | None,
    setting: Setting,
    workload: Workload,
    folder: Path,
    say: Progress,
    enough: Enough = lambda runs: False,
) -> dict[str, Any]:
    """The point's record: how it was started, its figures by load, and `state` with `error` when it failed.

    Never raises for what a server or a file of the point does; `folder` keeps its log, job and profile.
    """
    make_private(folder)
    shutil.rmtree(folder / "profile", ignore_errors=True)  # an earlier run's
    record: dict[str, Any] = {
        "name": setting.name,
        "draft": str(setting.draft) if setting.draft else None,
        "state": "ok",
        "error": None,
        "env": dict(setting.env),
        "loads": [],
    }
    try:
        plan = _plan(stand, setting, workload, folder) if stand and setting.url is None else None
        record |= _how(plan, setting)
        with running(plan, workload.patience, say) if plan else nullcontext(existing(setting.url or "")) as server:
            record |= {"boot_seconds": server.boot_seconds, "engine": _engine(server)}
            _loaded(server, workload, say, enough, record["loads"])
            if stand and stand.profiled and plan:
                time.sleep(_UNTIL_WRITTEN)
    except ServerFailed as failed:
        record |= {"state": "failed", "error": _told(failed)}
    except Exception as error:  # whatever it is, the other points are measured
        if not isinstance(error, (SpecwireError, OSError)):
            traceback.print_exc()
        why = str(error) if isinstance(error, SpecwireError) else f"{type(error).__name__}: {error}"
        record |= {"state": "failed", "error": {"stage": "preparation", "why": why, "log": None, "last_error": None}}
    if stand and stand.profiled and setting.url is None:
        _add_profile(record, folder / "profile")
    return record | {"warnings": list(_warnings(record))}


def _plan(stand: Stand, setting: Setting, workload: Workload, folder: Path) -> ServerPlan:
    env = dict(setting.env)
    if stand.profiled:
        env["EAGLE3_PROFILE"] = str((folder / "profile").absolute())
    return plan_server(
        stand.root,
        stand.target,
        setting.draft,
        tp=stand.tp,
        device=stand.device,
        arguments=setting.arguments,
        env=env,
        out=folder.absolute(),
        python=stand.python,
        tokens=workload.most_tokens,
    )


def _how(plan: ServerPlan | None, setting: Setting) -> dict[str, Any]:
    if plan is None:
        return {"url": setting.url, "log": None}
    changed = {name: value for name, value in plan.env.items() if os.environ.get(name) != value}
    return {
        "argv": list(plan.argv),
        "command": list(plan.command),
        "changed_env": changed,
        "launch": launch_line(plan.argv, _to_copy(changed)),
        "log": str(plan.log),
    }


def _to_copy(changed: Mapping[str, str]) -> dict[str, str]:
    """The variables that this server needs wherever it is started; on a CPU the kernels that stand in are one."""
    kept = {name: value for name, value in changed.items() if name not in _OURS}
    return kept | ({"PYTHONPATH": str(CPU_KERNELS)} if "SGLANG_USE_CPU_ENGINE" in kept else {})


def _told(failed: ServerFailed) -> dict[str, Any]:
    log = failed.log if failed.log and failed.log.exists() else None
    said = last_error(read_ending(log)) if log else None
    return {"stage": failed.stage, "why": failed.why, "log": str(log) if log else None, "last_error": said}


def _warnings(record: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the figures has to know."""
    runs = [run for load in record["loads"] for run in load["runs"]]
    if record["draft"] and runs and not any(run["acceptance"] for run in runs):
        yield "the engine reports no speculation, although a draft was named"
    if not all(run["flushed"] for run in runs):
        yield "the engine did not forget cached prefixes before every run: later runs may have done less work"
    if "profile_missing" in record:
        yield record["profile_missing"]


def _engine(server: Server) -> dict[str, Any]:
    """Of what the server says of itself, what a result should keep."""
    info = server_info(server.address)
    kept = (
        "version",
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "attention_backend",
        "dtype",
        "disable_overlap_schedule",
        "disable_cuda_graph",
        "tp_size",
    )
    return {name: value for name in kept if name in info and (value := _plain(info[name])) is not None}


def _plain(value: Any) -> Any:
    """What a server says of itself, if it is a word or a number that a result can hold; None otherwise."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, float):
        return rounded(value, 12)
    return value if type(value) in (bool, int) and abs(value) < 1 << 53 else None


def _loaded(server: Server, workload: Workload, say: Progress, enough: Enough, loads: list[dict[str, Any]]) -> None:
    """Fill `loads` run by run, so that what was measured before a failure is kept. Raises ServerFailed."""
    widest = max((load for load, _ in workload.loads), key=lambda load: load.value if load.kind == "closed" else 0)
    say("warming up")
    _send(server, workload.warm_up, widest, 0, workload.patience, "warm-up")
    for load, count in workload.loads:
        record: dict[str, Any] = {"kind": load.kind, "value": load.value, "runs": [], "stopped_early": False}
        loads.append(record)
        for repeat in range(workload.repeats):
            say(f"{load}, run {repeat + 1} of {workload.repeats}")
            flushed = flush_cache(server.address)
            answers = _send(server, workload.prompts[:count], load, workload.seed + repeat, workload.patience, "load")
            record["runs"].append({**figures(answers), "flushed": flushed})
            record["server_length"] = _server_length(server)
            if enough(record["runs"]):
                record["stopped_early"] = repeat + 1 < workload.repeats
                break


def _send(
    server: Server, prompts: Sequence[LoadPrompt], load: Load, seed: int, patience: Patience, stage: str
) -> list[Response]:
    answers = asyncio.run(
        run_load(server.address, prompts, load, seed=seed, silence=patience.silent_request, alive=server.failure)
    )
    sent = [answer for answer in answers if not answer.unsent]
    errors = [answer.error for answer in sent if answer.error]
    if errors:
        died = server.failure(wait=2.0)
        raise ServerFailed(
            stage, died or f"{len(errors)} of {len(sent)} requests failed, the first with: {errors[0]}", server.log
        )
    return answers


def _server_length(server: Server) -> float | None:
    """The engine's own running average of accepted length, of all that it has served."""
    states = server_info(server.address).get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    length = state.get("avg_spec_accept_length")
    return rounded(float(length)) if isinstance(length, (int, float)) and abs(length) < 1e9 else None


def _add_profile(record: dict[str, Any], folder: Path) -> None:
    """Each load's profile, of the cycles between its first request and its last answer."""
    try:
        profiles = read_profile(folder)
    except SpecwireError as error:
        record["profile_missing"] = str(error)
        return
    for load in record["loads"]:
        if load["runs"]:
            load["profile"] = summarise(profiles, load["runs"][0]["begin"], load["runs"][-1]["end"])
