"""A target streamed layer by layer against reading its bytes from disk: `python benchmarks/bench_golden.py [--layers 8] [--rounds 3]`.

Both run in turns in one process, each after the files were taken out of the page cache, and the median of the pairs is
judged: at most 2 for dense layers of bfloat16, which are computed in bfloat16 and float32; exit 1 when it is not kept. Of a
checkpoint with INT4 experts it is said where the time goes, and nothing is judged. Streaming is timed from the first byte of
a weight to the last boundary; what comes before, importing and making the model, is the same for a target of any size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures"))
LIMIT = 2.0
PROMPT = [list(range(20, 28))]
HIDDEN, INTERMEDIATE, WIDTH, EXPERTS = 2048, 5632, 1024, 16
CHUNK = 8 << 20  # bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache" if (ROOT / ".cache").exists() else None) as folder:
        ratio = compared("dense bfloat16", dense(Path(folder) / "dense", options.layers), options.rounds)
        compared("INT4 experts", fours(Path(folder) / "int4"), options.rounds)
    print(f"streaming / reading, dense bfloat16: {ratio:.2f}; limit {LIMIT}")
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    return 0 if ratio <= LIMIT else 1


def dense(folder: Path, layers: int) -> Path:
    """A Llama of about 50 million parameters a layer."""
    from targets import FAMILIES, make_target
    from weights import save

    wide = {"hidden": HIDDEN, "intermediate": INTERMEDIATE, "heads": 16, "kv_heads": 16, "head_dim": 128}
    save(folder, *make_target(replace(FAMILIES["llama"], layers=layers, **wide), 0, "bfloat16"), "bfloat16")
    return folder


def fours(folder: Path) -> Path:
    """A Kimi-K2.5 of three layers, two of them with experts too many to be held together."""
    from kimi import KIMI, wrapped
    from targets import make_target
    from weights import save

    extra = KIMI["kimi-k2.5"].extra | {"n_routed_experts": EXPERTS, "moe_intermediate_size": WIDTH}
    family = replace(
        KIMI["kimi-k2.5"], layers=3, hidden=HIDDEN, experts=EXPERTS, expert_width=WIDTH, intermediate=WIDTH, extra=extra
    )
    narrow, _ = wrapped(*make_target(family, 0, "bfloat16"), 0)
    save(folder, *narrow, "bfloat16")
    return folder


def compared(what: str, target: Path, rounds: int) -> float:
    """The median of streaming over reading, over pairs; prints each, and where the last streaming's time went."""
    ratios = []
    for round_ in range(rounds + 1):
        forget(target)
        seconds, wanted, spent = streamed(target)
        forget(target)
        read = reading(target, wanted)
        ratios += [seconds / read] if round_ else []
        told = "  (to warm up)" if not round_ else ""
        print(
            f"{what}: {wanted / 2**20:.0f} MiB streamed in {seconds:.2f} s, read in {read:.2f} s: {seconds / read:.2f}{told}"
        )
    whole = sum(spent.values())
    print(f"{what}: " + ", ".join(f"{name} {took / whole:.0%}" for name, took in spent.items()), flush=True)
    return statistics.median(ratios)


def forget(target: Path) -> None:
    """Take the target's files out of the page cache."""
    for path in target.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reading(target: Path, wanted: int) -> float:
    """Seconds that the first `wanted` bytes of a target's files take to be read, one chunk after the other."""
    buffer, begun = bytearray(CHUNK), time.perf_counter()
    for path in sorted(target.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while wanted > 0 and (got := file.readinto(memoryview(buffer)[: min(CHUNK, wanted)])):
                wanted -= got
    assert not wanted
    return time.perf_counter() - begun


def streamed(target: Path) -> tuple[float, int, dict[str, float]]:
    """Seconds, bytes read, and seconds of the computing thread by what it did."""
    from specwire.goldens import stream
    from specwire.goldens.checkpoint import Checkpoint
    from specwire.model_files import read_config, text_config

    config = text_config(read_config(target))
    checkpoint = Checkpoint(target, config)
    spent: dict[str, float] = defaultdict(float)
    clock = Clock(spent)
    parts = [
        (Checkpoint, "parts", "waiting for the disk"),
        (type(checkpoint.scheme), "make", "making dense"),
        (stream.Streamed, "_converted", "converting"),
        (stream, "_pass", "the model's forward"),
        (stream.Future, "result", "waiting for the disk"),
    ]
    with clock.on(parts):
        stream.run(checkpoint, PROMPT, ["bfloat16", "float32"], highest=config["num_hidden_layers"], watched=[])
    return sum(spent.values()), checkpoint.bytes_read, dict(spent)


class Clock:
    """Adds to `spent` the seconds of one thread, each second to the innermost part that it was in."""

    def __init__(self, spent: dict[str, float]) -> None:
        self.spent, self.inside, self.since = spent, [], 0.0
        self.thread = threading.get_ident()

    @contextmanager
    def on(self, parts: list[tuple[Any, str, str]]) -> Iterator[None]:
        plain = [(holder, name, getattr(holder, name)) for holder, name, _ in parts]
        for (holder, name, told), (_, _, function) in zip(parts, plain, strict=True):
            setattr(holder, name, self._timed(function, told))
        try:
            yield
        finally:
            for holder, name, function in plain:
                setattr(holder, name, function)

    def _timed(self, function: Callable[..., Any], told: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return function(*args, **kwargs)
            self._turn(told)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn(None)

        return timed

    def _turn(self, told: str | None) -> None:
        now = time.perf_counter()
        if self.inside:
            self.spent[self.inside[-1]] += now - self.since
        self.since = now
        self.inside.append(told) if told else self.inside.pop()


if __name__ == "__main__":
    sys.exit(main())
