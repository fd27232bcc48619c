"""`specwire gate` over a whole clean tree against `rg -l` with the same words over the same files.

    python benchmarks/bench_gate.py [TREE]      default: the installed SGLang

Prints ratios of wall time and of processor time, all measured in turns in one run, best of several. The limit
is 3 times ripgrep's wall time plus the start of the interpreter; exit 1 when it is not kept. On a machine with
more to do than it has processors, wall times say nothing, and processor times are judged instead.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from specwire.gate.leftovers import _OURS
from specwire.strip.words import NEEDLES
from specwire.trees.tree import Tree

LIMIT = 3.0
ROUNDS = 15


def main() -> int:
    tree = Tree.find(sys.argv[1] if len(sys.argv) > 1 else "installed")
    rg = shutil.which("rg")
    if rg is None:
        print(
            "bench_gate: ripgrep is not installed (apt-get install ripgrep). Nothing was measured.",
            file=sys.stderr,
        )
        return 3
    words = [part for needle in (_OURS, *NEEDLES) for part in ("-e", needle.decode())]
    search = [rg, "-l", "-F", "--hidden", "--no-ignore", "-g", "*.py", *words, str(tree.package)]
    commands = {
        "gate": [str(Path(sys.executable).with_name("specwire")), "gate", str(tree.package)],
        "rg": search,
        "rg, one thread": [search[0], "-j1", *search[1:]],
        "interpreter": [sys.executable, "-c", "pass"],
        "interpreter and click": [sys.executable, "-c", "import click"],
    }
    best = {name: (float("inf"), float("inf")) for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            allowed = (0, 1) if command[0] == rg else (0,)
            best[name] = tuple(map(min, best[name], _timed(command, allowed)))
    files = sum(1 for _ in tree.python_files())
    print(f"SGLang {tree.version}: {files} Python files, {len(os.sched_getaffinity(0))} processors, best of {ROUNDS}")
    for name, (wall, processor) in best.items():
        print(f"  {name:22} wall {wall * 1000:7.1f} ms   processor {processor * 1000:7.1f} ms")
    start = best["interpreter"]
    wall = (best["gate"][0] - start[0]) / best["rg"][0]
    single = (best["gate"][0] - start[0]) / best["rg, one thread"][0]
    processor = (best["gate"][1] - start[1]) / best["rg"][1]
    print(f"  (gate - interpreter) / rg: wall {wall:.2f}, processor {processor:.2f}; limit {LIMIT}")
    print(f"  (gate - interpreter) / rg with one thread: wall {single:.2f}")
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        print("  the machine is busy with other things: judged by processor time")
        return 0 if processor <= LIMIT else 1
    return 0 if wall <= LIMIT else 1


def _timed(command: list[str], allowed: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of wall and of processor time that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in allowed:
        raise SystemExit(
            f"bench_gate: {' '.join(command[:4])} ended with {done.returncode}: {(done.stdout + done.stderr).decode()[-300:]}"
        )
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
