"""Speculation on the CPU engine, measured end to end: `python benchmarks/bench_speculation.py [--family llama] [--out DIR]`.

A draft that is built to be accepted and a random one, beside the baseline, with real servers; then the same
draft on the tree as it is and on the tree with profiling taps that are switched off, in turns. Limits:
the taps and the client agree within 5 % on how long a request decodes, the random draft is
slower than the baseline, and taps that are off cost nothing beyond noise and change no token.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from specwire.bench.client import Load
from specwire.bench.compare import compare, same_answers
from specwire.bench.points import Setting, Stand, Workload, measure
from specwire.bench.profile import decoding, read_profile
from specwire.bench.prompts import random_prompts
from specwire.bench.render import bench_text
from specwire.bench.run import bench, profiled_view, provenance
from specwire.model_files import read_config
from specwire.report.contents import contents
from specwire.report.page import page
from specwire.trees.tree import Tree

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("--speculative-num-steps=3", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="llama", choices=["llama", "deepseek"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--boots", type=int, default=2, help="of each side, for what taps that are off cost")
    parser.add_argument("--python", default=sys.executable, help="the engine's interpreter")
    parser.add_argument("--out", type=Path, help="keep logs, bench.json and report.html here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return run(options, options.out or Path(temporary))


def run(options: argparse.Namespace, out: Path) -> int:
    target, drafts = made(options.family, out / "models")
    vocabulary = read_config(target)["vocab_size"]
    prompts, warm_up = random_prompts(8, 32, 64, vocabulary, seed=0), random_prompts(4, 32, 16, vocabulary, seed=1)
    workload = Workload(tuple(prompts), tuple(warm_up), ((Load("closed", 1), 8),), options.repeats, 0)
    tree, view = Tree.find("installed", options.python), out / "tree"
    profiled_view(tree, view, say)
    stand = Stand(view, target, 1, "cpu", options.python, profiled=True)
    settings = [Setting("baseline"), *(Setting(name, place, STEPS) for name, place in drafts.items())]
    document = bench(stand, settings, workload, 1, out, say)
    document |= {
        "schema": "specwire.bench/1",
        "provenance": provenance(tree, target, list(drafts.values()), sys.argv),
    }
    (out / "bench.json").write_text(json.dumps(document, indent=2), "utf-8")
    (out / "report.html").write_text(page("Speculation on the CPU engine", contents([document])), "utf-8")
    print(bench_text(document))
    failed = [point for point in document["points"] if point["state"] != "ok"]
    checks = (
        []
        if failed
        else [
            *agreement(document, out),
            *slower(document),
            *off(options, stand, tree, workload, drafts["accepted"], out),
        ]
    )
    print()
    for name, value, limit, fine in checks:
        print(f"{'ok  ' if fine else 'OVER'} {name}: {value} (limit: {limit})")
    return 0 if checks and all(fine for *_, fine in checks) else 1


def made(family: str, place: Path) -> tuple[Path, dict[str, Path]]:
    """The family's target in float32, where greedy answers are the same with and without speculation, and its drafts."""
    for kind in ("accepted", "random"):
        words = [
            sys.executable,
            ROOT / "fixtures" / "make.py",
            family,
            place / kind,
            "--draft",
            kind,
            "--dtype",
            "float32",
        ]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return place / "accepted" / "target", {kind: place / kind / "draft" for kind in ("accepted", "random")}


def agreement(document: dict, out: Path) -> list[tuple]:
    """Of the time that the client waited between a request's first token and its last, what the taps account for."""
    found = []
    for number, point in enumerate(document["points"]):
        (profile,) = read_profile(out / "points" / f"{number}-{point['name']}" / "profile")
        spans = [span for run in point["loads"][0]["runs"] for span in run["decoding"]]
        ratio = sum(decoding(profile.cycles, *span) for span in spans) / sum(
            1000 * (end - begin) for begin, end in spans
        )
        parts = point["loads"][0]["profile"]["decode"]["accounted"]
        found += [
            (f"{point['name']}: cycles and waits to the client's clock", f"{ratio:.3f}", "0.95 to 1.05", 0.95 <= ratio <= 1.05),
            (f"{point['name']}: stages to their cycles", f"{parts:.3f}", "0.95 to 1.05", 0.95 <= parts <= 1.05),
        ]  # fmt: skip
    return found


def slower(document: dict) -> list[tuple]:
    comparison = next(each for each in document["comparisons"] if each["point"] == "random")
    value = comparison["speedup"]
    return [
        (
            "random draft to baseline",
            f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})",
            "slower",
            comparison["verdict"] == "slower",
        )
    ]


def off(options, stand: Stand, tree: Tree, workload: Workload, draft: Path, out: Path) -> list[tuple]:
    """Unpatched, then patched with profiling off, boot by boot in turns."""
    sides = {
        "unpatched": Stand(tree.root, stand.target, 1, "cpu", options.python, False),
        "patched": Stand(stand.root, stand.target, 1, "cpu", options.python, False),
    }
    records: dict[str, dict] = {}
    for boot in range(options.boots):
        for name, side in sides.items():
            record = measure(
                side,
                Setting(name, draft, STEPS),
                workload,
                out / "off" / f"{name}{boot}",
                lambda text, name=name: say(f"{name}: {text}"),
            )
            if record["state"] != "ok":
                return [(f"{name} server", record["error"]["why"], "runs", False)]
            if name in records:
                records[name]["loads"][0]["runs"] += record["loads"][0]["runs"]
            else:
                records[name] = record
    found = compare(records["patched"], records["unpatched"], 0)
    speed = found["speedup"]
    same = same_answers(records["patched"]["loads"][0]["runs"], records["unpatched"]["loads"][0]["runs"])
    interval = f"{speed['value']:.3f} ({speed['low']:.3f} to {speed['high']:.3f})"
    return [
        (
            "throughput with taps that are off to the unpatched tree's",
            interval,
            "within noise",
            found["verdict"] == "within noise",
        ),
        ("answers that are the same", f"{same:.0%}", "100%", same == 1),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
