"""How fast `check` is beside reading the same files: `python benchmarks/bench_check.py [--gigabytes 2]
[--ranks 1] [--json]`.

Writes synthetic golden and capture files, warms the page cache, and times in one run: one read of all the
files plus one chunked pass of max |a - b| over them, and `check` on the same files in a process of its own.
Prints the ratio, the throughput, and how much memory `check` took beyond an interpreter that has imported
torch. All of it on one thread; the ratio is of processor time, which other work on the machine does not move,
and the wall ratio is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from specwire.capture_write import write_event
from specwire.tensorfile import open_tensors
from specwire.tensorheader import ITEM_BYTES

HIDDEN, SLOTS, LAYERS = 7168, (3, 31, 59), 61
BLOCK = 4096  # rows written at a time
CHUNK = 131_072  # elements; the quickest for the peer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of golden and captures together")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--equal", action="store_true", help="captures with the golden's very bytes")
    parser.add_argument("--dir", type=Path, help="where to write the files (default: a temporary directory)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    row = len(SLOTS) * HIDDEN * 2
    rows = max(BLOCK, int(options.gigabytes * 1e9 / (row * (1 + options.ranks))) // BLOCK * BLOCK)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        golden, captures = make_files(Path(folder), rows, options.ranks, options.equal)
        result = measure(golden, captures, rows, options)
    print(json.dumps(result, indent=2) if options.as_json else table(result))
    return 0 if result["verdict"] == "match" else 1


def make_files(folder: Path, rows: int, ranks: int, equal: bool) -> tuple[Path, Path]:
    """A golden with the trained boundaries only, and one prefill of all its rows on each rank."""
    golden, capture = folder / "golden.safetensors", folder / "capture"
    random = torch.Generator().manual_seed(0)
    shapes = {"token_ids": ("I64", [rows])} | {f"boundary.{k}": ("BF16", [rows, HIDDEN]) for k in SLOTS}
    noise = json.dumps({"bfloat16": {str(k): [4e-3, 6e-3, 0.0] for k in range(LAYERS + 1)}})
    starts = begin(
        golden,
        shapes,
        {
            "schema": "specwire.golden/1",
            "trained_boundaries": json.dumps(SLOTS),
            "num_layers": str(LAYERS),
            "hidden_size": str(HIDDEN),
            "dtype": "bfloat16",
            "target": "synthetic",
            "source": "bench_check",
            "noise": noise,
        },
    )
    events = []
    for rank in range(ranks):
        write_event(capture, rank, 0, "draft-input", {"hidden_states": torch.zeros(0, 1)}, world_size=ranks)
        path = capture / f"rank{rank}" / "000000.draft-input.safetensors"
        about = dict(open_tensors(path).metadata)
        events.append(
            (
                path,
                begin(
                    path,
                    {
                        "hidden_states": ("BF16", [rows, len(SLOTS) * HIDDEN]),
                        "token_ids": ("I64", [rows]),
                        "positions": ("I64", [rows]),
                    },
                    about,
                ),
            )
        )
    ids = torch.arange(rows) % 50_000
    put(golden, starts["token_ids"], ids)
    for path, where in events:
        put(path, where["token_ids"], torch.cat([ids[1:], ids[:1]]))
        put(path, where["positions"], torch.arange(rows))
    for first in range(0, rows, BLOCK):
        block = torch.randn(BLOCK, len(SLOTS), HIDDEN, generator=random).bfloat16()
        for slot, k in enumerate(SLOTS):
            put(golden, starts[f"boundary.{k}"] + first * HIDDEN * 2, block[:, slot])
        served = (
            block if equal else (block.float() * (1 + 2e-3 * torch.randn(BLOCK, 1, 1, generator=random))).bfloat16()
        )
        for path, where in events:
            put(path, where["hidden_states"] + first * len(SLOTS) * HIDDEN * 2, served)
    return golden, capture


def begin(path: Path, shapes: dict, metadata: dict) -> dict[str, int]:
    """Write a header and make room for the tensors; returns where each one's bytes begin."""
    header, end = {"__metadata__": metadata}, 0
    for name, (code, shape) in shapes.items():
        size = torch.Size(shape).numel() * ITEM_BYTES[code]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in shapes}


def put(path: Path, offset: int, tensor: torch.Tensor) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))


def measure(golden: Path, captures: Path, rows: int, options: argparse.Namespace) -> dict:
    files = [golden, *sorted(captures.glob("rank*/*"))]
    size = sum(file.stat().st_size for file in files)
    torch.set_num_threads(1)
    reads, passes, checks, peak, verdict = [], [], [], 0, ""
    for _ in range(options.repeat):
        reads.append(timed(lambda: [read(file) for file in files]))
        passes.append(timed(lambda: [max_difference(golden, file, rows) for file in files[1:]]))
        seconds, peak, verdict = run_check(golden, captures)
        checks.append(seconds)
    (read_wall, read_cpu), (pass_wall, pass_cpu), (wall, cpu) = (
        [min(column) for column in zip(*times)] for times in (reads, passes, checks)
    )
    return {
        "gigabytes": round(size / 1e9, 2),
        "ranks": options.ranks,
        "equal": options.equal,
        "read_seconds": round(read_wall, 3),
        "max_difference_seconds": round(pass_wall, 3),
        "check_seconds": round(wall, 3),
        "cpu_ratio": round(cpu / (read_cpu + pass_cpu), 2),
        "wall_ratio": round(wall / (read_wall + pass_wall), 2),
        "gigabytes_per_second": round(size / 1e9 / wall, 2),
        "extra_memory_mb": round(peak / 1e6),
        "verdict": verdict,
    }


def timed(work) -> tuple[float, float]:
    """Seconds on the wall and on the processor."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def read(path: Path) -> None:
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def max_difference(golden: Path, capture: Path, rows: int) -> float:
    """The peer: memory maps, chunks of CHUNK elements, nothing per row."""
    a, b = open_tensors(golden), open_tensors(capture)
    states = mapped(b, "hidden_states").view(rows, len(SLOTS), HIDDEN)
    worst, step = 0.0, max(1, CHUNK // HIDDEN)
    for slot, k in enumerate(SLOTS):
        wanted = mapped(a, f"boundary.{k}")
        for first in range(0, rows, step):
            difference = (states[first : first + step, slot].float() - wanted[first : first + step].float()).abs().max()
            worst = max(worst, float(difference))
    return worst


def mapped(file, name: str) -> torch.Tensor:
    entry = file.entry(name)
    size = os.path.getsize(file.path)
    whole = torch.from_file(str(file.path), shared=False, size=size, dtype=torch.uint8)
    return whole[entry.start : entry.stop].view(torch.bfloat16).view(entry.shape)


CHILD = """
import sys, time
import torch
import specwire.diagnosis.check
specwire.diagnosis.check.modules("specwire.checks")
torch.linalg.vecdot(torch.zeros(4, 4), torch.zeros(4, 4))
def memory(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
before = memory("VmRSS")
start, used = time.perf_counter(), time.process_time()
document = specwire.diagnosis.check.check_capture(sys.argv[1], sys.argv[2])
print(time.perf_counter() - start, time.process_time() - used, 1024 * (memory("VmHWM") - before),
document["verdict"])
"""


def run_check(golden: Path, captures: Path) -> tuple[tuple[float, float], int, str]:
    done = subprocess.run([sys.executable, "-c", CHILD, golden, captures], capture_output=True, text=True, check=True)
    wall, cpu, peak, verdict = done.stdout.split()
    return (float(wall), float(cpu)), int(peak), verdict


def table(result: dict) -> str:
    return "\n".join(f"{name.replace('_', ' '):24} {value}" for name, value in result.items())


if __name__ == "__main__":
    sys.exit(main())
