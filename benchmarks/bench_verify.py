"""`verify` against a bare boot and prefill of the same prompts: `python benchmarks/bench_verify.py [--family deepseek] [--ranks 8] [--rounds 3]`.

Both run in turns, each as a whole process, in one run; the ratio is taken pair by pair, and its median is judged. The bare
one boots the tree itself, untapped, with the same arguments and prompts, and compares nothing. The limit is 1.15; exit 1
when it is not kept. On a machine with more to do than it has processors, wall times say nothing: processor times are judged.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="deepseek", choices=["llama", "deepseek"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    golden = ROOT / "golden" / options.family / "float32.safetensors"
    if options.bare:
        return bare(options.bare, golden, options.ranks)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make = [sys.executable, ROOT / "fixtures" / "make.py", options.family, place, "--dtype", "float32"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        return run(place, golden, options)


def run(place: Path, golden: Path, options: argparse.Namespace) -> int:
    specwire = [str(Path(sys.executable).with_name("specwire"))]
    job = ["--target", place / "target", "--draft", place / "draft", "--golden", golden, "--tp", str(options.ranks)]
    verify = [*specwire, "verify", "installed", *job, "--device", "cpu", "--quiet"]
    alone = [sys.executable, __file__, "--bare", place, "--family", options.family, "--ranks", str(options.ranks)]
    pairs = []
    for round_ in range(options.rounds + 1):
        pair = timed(verify), timed(alone)
        told = "  (to warm up)" if not round_ else ""
        print(
            *(
                f"{name} {wall:6.1f} s wall {cpu:6.1f} s processor"
                for name, (wall, cpu) in zip(("verify", "bare"), pair)
            ),
            told,
            flush=True,
        )
        pairs += [pair] if round_ else []
    wall = statistics.median(a[0] / b[0] for a, b in pairs)
    processor = statistics.median(a[1] / b[1] for a, b in pairs)
    busy = os.getloadavg()[0] > options.ranks + len(os.sched_getaffinity(0))
    print(f"verify / bare, median of {len(pairs)} pairs: wall {wall:.2f}, processor {processor:.2f}; limit {LIMIT}")
    print(
        f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors{': judged by processor time' * busy}"
    )
    return 0 if (processor if busy else wall) <= LIMIT else 1


def bare(place: Path, golden: Path, ranks: int) -> int:
    """Boot the installed tree as it is, on the golden's prompts one after the other."""
    from specwire.engine.run import run_engine
    from specwire.goldens.golden import open_golden
    from specwire.trees.tree import Tree

    prompts = [[list(prompt.token_ids)] for prompt in open_golden(golden).prompts]
    with tempfile.TemporaryDirectory() as out:
        run_engine(
            Tree.find("installed").root, place / "target", place / "draft", prompts, tp=ranks, device="cpu", extra_args=(),
            env={}, out=Path(out), max_new_tokens=2, python=sys.executable,
        )  # fmt: skip
    return 0


def timed(command: list[str | Path]) -> tuple[float, float]:
    """Seconds of wall and of processor time, those of all its processes that were waited for, that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run([os.fspath(word) for word in command], capture_output=True, text=True)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(
            f"bench_verify: {command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}"
        )
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
