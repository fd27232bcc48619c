"""The engine's arguments and environment: what specwire adds to what the user asks for."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specwire.interpreter import SAFE_PATH
from specwire.regular import read_json

CPU_KERNELS = Path(__file__).parent / "cpu"

# Prompts are token ids and every token must pass through the model in one prefill, or rows of the
# golden would have no counterpart: no cached prefix, no chunks.
COMMON = ("--skip-tokenizer-init", "--disable-radix-cache", "--chunked-prefill-size=-1", "--random-seed=0")
ON_CPU = (
    "--device=cpu",
    "--attention-backend=intel_amx",
    "--sampling-backend=pytorch",
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    "--mem-fraction-static=0.2",
)
SPECULATION = ("--speculative-num-steps=2", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=3")


def server_arguments(
    target: Path, draft: Path | None, *, tp: int, device: str, extra: Sequence[str], tokens: int
) -> list[str]:
    """The engine's command line: defaults first, the user's `extra` last, so that the user wins.

    `--no-NAME` in extra takes back a default `--NAME` that has no opposite of its own, such as
    --no-disable-radix-cache. `tokens` is how many the cache must hold at least.
    """
    defaults = [f"--model-path={target}", f"--tp-size={tp}", f"--port={_free_port()}", *COMMON]
    if device == "cpu":
        defaults += [*ON_CPU, f"--max-total-tokens={max(2048, 2 * tokens)}"]
        if _is_float32(target):
            defaults.append("--dtype=float32")  # by itself the engine would halve it
    if draft is not None:
        defaults += ["--speculative-algorithm=EAGLE3", f"--speculative-draft-model-path={draft}"]
        names = {flag.split("=")[0] for flag in extra}
        if not names & {flag.split("=")[0] for flag in SPECULATION}:
            defaults += SPECULATION
    known = {flag.split("=")[0] for flag in defaults}
    taken_back = {flag for flag in extra if flag.startswith("--no-") and "--" + flag.removeprefix("--no-") in known}
    kept = [flag for flag in defaults if "--no-" + flag.split("=")[0].removeprefix("--") not in taken_back]
    return kept + [flag for flag in extra if flag not in taken_back]


def rank_count(argv: Sequence[str]) -> int:
    """How many ranks a command line of `server_arguments` boots: tensor ranks times pipeline stages."""
    return last_number(argv, "--tp-size", "--tensor-parallel-size", "--tp") * last_number(
        argv, "--pp-size", "--pipeline-parallel-size", "--pp"
    )


def last_number(argv: Sequence[str], *names: str) -> int:
    """The value given last for an option, as `--name=1` or as `--name 1`; 1 without one."""
    found = 1
    for flag, following in zip(argv, [*argv[1:], ""]):
        name, equals, value = flag.partition("=")
        value = value if equals else following
        if name in names and value.isdigit():
            found = max(1, int(value))
    return found


def environment(root: Path, *, ranks: int, device: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: `root` is where its `sglang` comes from, and stays unwritten."""
    env = dict(os.environ)
    before = [str(CPU_KERNELS)] if device == "cpu" else []
    env["PYTHONPATH"] = os.pathsep.join([*before, str(root), *filter(None, [env.get("PYTHONPATH")])])
    env |= SAFE_PATH
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env["HF_HUB_OFFLINE"] = "1"
    if device == "cpu":
        cpus, threads = _cpus_per_rank(ranks)
        env |= {
            "CUDA_VISIBLE_DEVICES": "",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": cpus,
            "SGLANG_NCCL_SO_PATH": "/nonexistent",  # torch built for CUDA would have the ranks load NCCL
            "TORCHDYNAMO_DISABLE": "1",  # every rank would run a C++ compiler for a handful of tokens
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # ranks that wait must not take the cores of those that work
        }
    return env | dict(extra)


def _cpus_per_rank(ranks: int) -> tuple[str, int]:
    """The engine's binding string, equal shares of the usable cores, and threads per rank."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    share = max(1, len(cpus) // ranks)
    groups = [[cpus[(rank * share + i) % len(cpus)] for i in range(share)] for rank in range(ranks)]
    return "|".join(",".join(map(str, group)) for group in groups), share


def _is_float32(model: Path) -> bool:
    try:
        config = read_json(model / "config.json")
    except (OSError, ValueError):
        return False  # the engine has its own words for a model without a readable config
    text: dict[str, Any] = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    return "float32" == (text.get("dtype") or text.get("torch_dtype"))


def _free_port() -> int:
    """Below the ephemeral range, where the engine's own offsets from it are likely free as well."""
    for port in random.sample(range(20000, 31000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return 0
