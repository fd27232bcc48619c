"""Results of verify, bench and sweep, as small as a report can be made of them."""

import json

from specwire.bench.compare import comparisons
from specwire.bench.profile import acceptance, read_profile, summarise
from specwire.bench.statistics import spread
from specwire.bench.sweep import best

HEAD = {"schema": "specwire.profile/1", "rank": 0, "pid": 1, "clock": "monotonic", "device": "cpu"}
PROVENANCE = {
    "specwire": "1.0", "command": ["specwire", "bench"], "machine": {"system": "Linux", "processors": 2}, "drafts": [],
    "tree": {"version": "9.9", "root": "/tree", "sha256": "ab" * 32}, "target": {"path": "/target", "sha256": "cd" * 32},
}  # fmt: skip
WORKLOAD = {
    "prompts": 8,
    "prompt_length": {"least": 8, "most": 8},
    "in": "tokens",
    "new_tokens": 16,
    "loads": [],
    "repeats": 3,
    "seed": 0,
}


def profile(folder, **parts):
    cycle = {
        "kind": "cycle",
        "t": 1.0,
        "ms": sum(parts.values()),
        "gap_ms": 1.0,
        "mode": "DECODE",
        "batch": 1,
        "graph": False,
        "accepted": [2, 1],
    }
    lines = [HEAD, {**cycle, "parts": {name.replace("_", "-"): [value, 1] for name, value in parts.items()}}]
    (folder / "rank0.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summarise(read_profile(folder))


def point(name, *rates, draft=None, profile=None):
    accepted = {**acceptance([1, 2, 3]), "engine_length": 2.1, "by": "spec histogram"} if draft else None
    runs = [
        {
            "tokens_per_second": rate,
            "per_user": rate,
            "ttft_ms": spread([1.0]),
            "itl_ms": spread([1000 / rate]),
            "outputs": ["a"],
            "acceptance": accepted,
        }
        for rate in rates
    ]
    load = {"kind": "closed", "value": 1, "runs": runs, "stopped_early": False, "profile": profile}
    return {
        "name": name,
        "id": name,
        "draft": draft,
        "where": {},
        "state": "ok",
        "error": None,
        "warnings": ["mind this"] if draft else [],
        "loads": [load],
        "launch": f"launch {name}",
    }


def failed(name):
    return {
        **point(name),
        "state": "failed",
        "error": {"stage": "boot", "why": "out of memory", "log": "/log", "last_error": "the log says so"},
        "loads": [],
    }


def bench(*points):
    return {
        "schema": "specwire.bench/1",
        "points": list(points),
        "comparisons": comparisons(points),
        "workload": WORKLOAD,
        "provenance": PROVENANCE,
    }


def sweep(*points):
    return {
        "schema": "specwire.sweep/1",
        "points": list(points),
        "best": best(points),
        "left_out": [],
        "complete": True,
        "workload": WORKLOAD,
        "provenance": PROVENANCE,
    }


def verify(verdict, *causes):
    slot = {"slot": 0, "expected_boundary": 3, "nearest_boundary": 2, "rel_l2": 0.5, "cosine": 0.7, "state": verdict}
    return {
        "schema": "specwire.check/1", "verdict": verdict, "slots": [slot], "causes": list(causes), "ranks": 8, "ranks_agree": True, "noise_floor": 1e-6,
        "concat_shape": [8, 768], "golden_concat_shape": [8, 768], "tree_restored": True, "run": {"tree": "/tree", "version": "9.9"},
    }  # fmt: skip
