"""Points side by side: how many times as fast, with what certainty, and whether the answers are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specwire.bench.statistics import mean, ratio, rounded

Runs = Sequence[Mapping[str, Any]]

# What is compared, and whether more of it is better.
FIGURES = (("tokens_per_second", True), ("per_user", True), ("ttft_ms", False), ("itl_ms", False))


def comparisons(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every point that worked against the first, load by load; [] when the first did not work."""
    if not points or points[0]["state"] != "ok":
        return []
    return [
        compare(point, points[0], number)
        for point in points[1:]
        if point["state"] == "ok"
        for number in range(len(points[0]["loads"]))
    ]


def compare(point: Mapping[str, Any], base: Mapping[str, Any], number: int) -> dict[str, Any]:
    """One load of two points: `speedup` is of tokens per second, and above 1 always means better."""
    ours, theirs = point["loads"][number], base["loads"][number]
    ratios = {name: _ratio(ours["runs"], theirs["runs"], name, more) for name, more in FIGURES}
    return {
        "point": point["name"],
        "against": base["name"],
        "load": {"kind": ours["kind"], "value": ours["value"]},
        "speedup": ratios["tokens_per_second"],
        "verdict": (ratios["tokens_per_second"] or {}).get("verdict", "unknown"),
        "ratios": ratios,
        "same_answers": same_answers(ours["runs"], theirs["runs"]),
    }


def rate(load: Mapping[str, Any], name: str = "tokens_per_second") -> float | None:
    """The mean over a load's runs."""
    return mean([value for run in load["runs"] if (value := figure(run, name)) is not None])


def accepted(runs: Runs) -> dict[str, Any] | None:
    """Acceptance by the engine's counters over all runs, each as heavy as its cycles; None without speculation."""
    found = [run["acceptance"] for run in runs if run["acceptance"]]
    cycles = sum(each["cycles"] for each in found)
    if not cycles:
        return None

    def over(values: Sequence[float]) -> float | None:
        return rounded(sum(value * each["cycles"] for value, each in zip(values, found, strict=True)) / cycles)

    positions = [each["by_position"] for each in found]
    return {
        "cycles": cycles,
        "length": over([each["length"] for each in found]),
        "engine_length": over([each["engine_length"] for each in found]),
        "by_position": None if None in positions else [over(row) for row in zip(*_padded(positions), strict=True)],
    }


def _padded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    longest = max(map(len, rows))
    return [[*row, *[0.0] * (longest - len(row))] for row in rows]


def slowest(load: Mapping[str, Any], name: str) -> float | None:
    """The worst run's 99th percentile: that of one run alone may lie below the mean of all."""
    return max((value for run in load["runs"] if (value := run[name]["p99"]) is not None), default=None)


def figure(run: Mapping[str, Any], name: str) -> float | None:
    value = run[name]
    found: float | None = value["mean"] if isinstance(value, Mapping) else value
    return found


def same_answers(ours: Runs, theirs: Runs) -> float | None:
    """The share of prompts whose greedy answers are equal, by the first run of each."""
    pairs = list(zip(ours[0]["outputs"], theirs[0]["outputs"], strict=False)) if ours and theirs else []
    return rounded(sum(one == other for one, other in pairs) / len(pairs)) if pairs else None


def _ratio(ours: Runs, theirs: Runs, name: str, more_is_better: bool) -> dict[str, Any] | None:
    values = [[value for run in runs if (value := figure(run, name)) is not None] for runs in (ours, theirs)]
    found = ratio(*values) if more_is_better else ratio(*reversed(values))
    if found is None:
        return None
    return {
        "value": rounded(found.value),
        "low": rounded(found.low),
        "high": rounded(found.high),
        "verdict": found.verdict,
    }
