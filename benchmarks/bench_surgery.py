"""`apply` and `remove` of all debug probes against one LibCST parse of the files that take a tap.

    python benchmarks/bench_surgery.py [TREE]      default: the installed SGLang

All measured in turns in one run, on a copy of the tree, in processor time (which other work on the machine
hardly moves) with wall time beside it; the median of several rounds. The parse, too, runs without the garbage
collector, which is to its advantage. Exit 1 when a limit is not kept. `apply` finds the sites, proves every
file and writes; `remove` finds the taps from the tree alone, proves and writes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import libcst

from specwire.patching import collecting, surgery
from specwire.trees.tree import Tree

LIMITS = {"apply": 1.5, "remove": 0.5}
ROUNDS = 3


def main() -> int:
    original = Tree.find(sys.argv[1] if len(sys.argv) > 1 else "installed")
    rounds: list[dict[str, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="specwire-bench-") as folder:
        shutil.copytree(original.package, Path(folder) / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
        tree, names = Tree.find(folder), surgery.chosen([], ["debug"])
        files = [change.before for change in surgery.plan_apply(tree, names).changes if change.before is not None]
        for _ in range(ROUNDS):
            rounds.append({
                "parse": _timed(collecting.paused()(lambda: [libcst.parse_module(data) for data in files])),
                "apply": _timed(lambda: surgery.plan_apply(tree, names).write()),
                "remove": _timed(lambda: surgery.plan_remove(tree).write()),
            })  # fmt: skip
    lines = sum(data.count(b"\n") for data in files)
    print(
        f"SGLang {original.version}: {len(files)} files take debug taps, {lines} lines; "
        f"{ROUNDS} rounds, {os.cpu_count()} cores"
    )
    print(f"{'':8} {'processor':>10} {'wall':>8} {'ratio':>7} {'limit':>6}")
    kept = True
    for what in ("parse", "apply", "remove"):
        processor, wall = (statistics.median(each[what][index] for each in rounds) for index in (0, 1))
        ratio = statistics.median(each[what][0] / each["parse"][0] for each in rounds)
        limit = LIMITS.get(what)
        kept = kept and (limit is None or ratio <= limit)
        print(f"{what:8} {processor:8.2f} s {wall:6.2f} s {ratio:7.2f} {limit or '':>6}")
    return 0 if kept else 1


def _timed(work) -> tuple[float, float]:
    """(processor, wall) seconds of a piece of work."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


if __name__ == "__main__":
    sys.exit(main())
