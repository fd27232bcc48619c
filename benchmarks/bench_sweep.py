"""A sweep of 12 points on the CPU engine, killed in the middle and gone on with: `python benchmarks/bench_sweep.py [--family llama] [--out DIR]`.

The whole process group gets SIGKILL as soon as four points are on the disk. Limits: no server is left of it, the
second go measures none of those points again, all 12 points work, the report holds the sweep, and the sweep's own
time is at most 1.1 times that of its servers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECWIRE = [sys.executable, "-c", "from specwire.cli import main; main()"]
GRID = 'steps = [1, 2, 3, 4, 5]\n[env]\nOMP_NUM_THREADS = ["1", "2"]\n'
POINTS, KILLED_AFTER = 12, 4
LOAD = "--prompt-length 32 --new-tokens 48 --requests 4 --repeats 2".split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="deepseek", choices=["llama", "deepseek"])
    parser.add_argument("--out", type=Path, help="keep models, logs, sweep.json and report.html here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return run(options.family, (options.out or Path(temporary)).absolute())


def run(family: str, place: Path) -> int:
    make = [sys.executable, ROOT / "fixtures" / "make.py", family, place / "models", "--draft", "accepted"]
    subprocess.run([*make, "--dtype", "float32"], check=True, stdout=subprocess.DEVNULL)
    (place / "grid.toml").write_text(GRID, "utf-8")
    command = [
        *SPECWIRE,
        "sweep",
        "installed",
        "--target",
        place / "models" / "target",
        "--draft",
        place / "models" / "draft",
    ]
    command += ["--device", "cpu", "--grid", place / "grid.toml", "--out", place / "sweep", *LOAD]
    before = killed(command, place / "sweep")
    left = servers_below(place / "sweep")
    begun = time.monotonic()
    done = subprocess.run(command)
    seconds = time.monotonic() - begun
    subprocess.run([*SPECWIRE, "report", place / "sweep", "--out", place / "report.html"], check=True)
    document = json.loads((place / "sweep" / "sweep.json").read_text("utf-8"))
    return judged(
        document,
        done.returncode,
        before,
        measured(place / "sweep"),
        left,
        seconds,
        (place / "report.html").read_text("utf-8"),
    )


def killed(command: list, out: Path) -> dict[str, bytes]:
    """The points that were on the disk when the sweep and all its servers were killed."""
    process = subprocess.Popen(command, start_new_session=True)
    while process.poll() is None and len(measured(out)) < KILLED_AFTER:
        time.sleep(0.2)
    time.sleep(5)  # into the next point's boot
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return measured(out)


def measured(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in out.glob("points/*/point.json")}


def servers_below(out: Path) -> list[int]:
    """Processes that still work for the sweep some seconds after its end."""
    deadline = time.monotonic() + 60
    while found := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _works_for(pid, out)]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.5)
    return []


def _works_for(pid: int, out: Path) -> bool:
    try:
        return os.fsencode(out) in Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def judged(document, code, before, after, left, seconds, page) -> int:
    points = document["points"]
    new = [point for point in points if point["state"] == "ok" and not any(point["id"] in name for name in before)]
    served = sum(point["seconds"] for point in [*new, *document["confirmation"]])
    best = document["best"]
    length = (
        best
        and next(point for point in points if point["id"] == best["id"])["loads"][0]["runs"][-1]["acceptance"]["length"]
    )
    checks = [
        ("exit code of the second go", code, "0", code == 0),
        ("points that work", sum(point["state"] == "ok" for point in points), POINTS, document["complete"] and len(new) + len(before) == POINTS),
        ("points measured before the kill and kept as they were", len(before), f"{KILLED_AFTER} or more", KILLED_AFTER <= len(before) < POINTS and all(after[name] == data for name, data in before.items())),
        ("processes left by the kill", len(left), 0, not left),
        ("acceptance length of the best point", length, "above 1.5", bool(length) and length > 1.5),
        ("best point in the report", best and best["name"], "there", bool(best) and best["name"] in page),
        ("second go to its points, boot to stop", f"{seconds / served:.3f}", "1.1", seconds / served <= 1.1),
    ]  # fmt: skip
    for name, value, limit, fine in checks:
        print(f"{'ok  ' if fine else 'OVER'} {name}: {value} (limit: {limit})")
    return 0 if all(fine for *_, fine in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
