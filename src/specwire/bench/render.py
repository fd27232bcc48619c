"""Bench results, profiles and sweeps as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specwire.bench.compare import accepted, rate, slowest
from specwire.bench.profile import WORDS


def bench_text(document: Mapping[str, Any]) -> str:
    lines = []
    for number in range(max((len(point["loads"]) for point in document["points"]), default=0)):
        lines += [*_load_table(document["points"], number), ""]
    lines += [*_troubles(document["points"])]
    lines += [*_verdicts(document["comparisons"])]
    for point in document["points"]:
        for load in point["loads"]:
            if profile := load.get("profile"):
                lines += [
                    "",
                    f"{point['name']}, {load_words(load)}: where the time of a cycle goes",
                    *profile_lines(profile),
                ]
    return "\n".join(lines).strip()


def _troubles(points: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for point in points:
        if error := point["error"]:
            yield f"{point['name']}: FAILED at {error['stage']}: {failure_words(error)}"
            yield from [f"  log: {error['log']}"] if error["log"] else []
        yield from (f"  note: {point['name']}: {warning}" for warning in point["warnings"])


def failure_words(error: Mapping[str, Any]) -> str:
    """Why, and the log's last error where that does not say it already."""
    last = error["last_error"]
    return error["why"] if not last or last in error["why"] else f"{error['why']}; the log's last error: {last}"


def load_words(load: Mapping[str, Any]) -> str:
    return f"{load['value']:g} at a time" if load["kind"] == "closed" else f"{load['value']:g} a second"


def sentence(comparison: Mapping[str, Any]) -> str:
    """A comparison's verdict in words that leave no doubt which way it went."""
    found, who = comparison["speedup"], f"{comparison['point']}, {load_words(comparison['load'])}"
    if found is None:
        return f"{who}: cannot be compared with {comparison['against']}"
    times = f"{found['value']:.3f} x {comparison['against']}"
    if found["low"] is None:
        return f"{who}: {times}, from one run each: repeat it to tell a difference from noise"
    interval = f"95 % interval {found['low']:.3f} to {found['high']:.3f}"
    words = {"faster": "FASTER", "slower": "SLOWER", "within noise": "no difference beyond noise"}[found["verdict"]]
    few = "; more --repeats would narrow it" if found["verdict"] == "within noise" else ""
    return f"{who}: {words}: {times} ({interval}{few})"


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in ("decode", "prefill"):
        if phase := profile[name]:
            cycle, between = phase["cycle_ms"], phase["between_ms"]
            lines.append(
                f"  {name}: {phase['cycles']} cycles of {number(cycle['mean'])} ms"
                f" (p50 {number(cycle['p50'])}, p99 {number(cycle['p99'])}), {number(phase['batch'])} requests in each,"
                f" {number(between['p50'])} ms between"
            )
            rows = [
                [
                    WORDS.get(each["stage"], each["stage"]),
                    f"{each['share']:.1%}",
                    *(number(each[f"{key}_ms"]) for key in ("mean", "p50", "p90", "p99")),
                ]
                for each in phase["stages"]
            ]
            lines += ["    " + line for line in table(["stage", "share", "mean ms", "p50", "p90", "p99"], rows)]
            if found := phase["acceptance"]:
                lines.append(f"    accepted: {acceptance_words(found)}")
    notes = [f"{profile['lost']} cycles were not recorded"] if profile["lost"] else []
    notes += ["recording stopped at its limit"] if profile["stopped_early"] else []
    return lines + [f"  note: {note}" for note in notes] or ["  no cycle in this window"]


def acceptance_words(found: Mapping[str, Any]) -> str:
    positions = found.get("by_position")
    by_position = "; by position " + " ".join(f"{share:.0%}" for share in positions) if positions else ""
    return f"{found['length']:.2f} tokens per verify{by_position}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns of equal width: the first to the left, figures to the right."""
    everything = [list(head), *map(list, rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(head))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in everything
    ]


def _load_table(points: Sequence[Mapping[str, Any]], number_of_load: int) -> list[str]:
    having = [
        point for point in points if len(point["loads"]) > number_of_load and point["loads"][number_of_load]["runs"]
    ]
    rows = [_row(point, point["loads"][number_of_load]) for point in having]
    if not rows:
        return []
    head = ["", "tok/s", "tok/s/user", "TTFT ms", "p99", "ITL ms", "p99", "accepted", "runs"]
    return [load_words(having[0]["loads"][number_of_load]), *("  " + line for line in table(head, rows))]


def _row(point: Mapping[str, Any], load: Mapping[str, Any]) -> list[str]:
    found = accepted(load["runs"])
    return [
        point["name"],
        number(rate(load)),
        number(rate(load, "per_user")),
        number(rate(load, "ttft_ms")),
        number(slowest(load, "ttft_ms")),
        number(rate(load, "itl_ms")),
        number(slowest(load, "itl_ms")),
        f"{found['length']:.2f}" if found else "-",
        str(len(load["runs"])),
    ]


def _verdicts(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for each in comparisons:
        yield sentence(each)
        if each["same_answers"] is not None and each["same_answers"] < 1:
            yield f"  note: {each['same_answers']:.0%} of the answers are the same as {each['against']}'s"


def sweep_text(document: Mapping[str, Any]) -> str:
    rows = [_point_row(point) for point in sorted(document["points"], key=_by_rate)]
    lines = table(["", "tok/s", "spread", "ITL ms", "accepted", "state"], rows)
    for left_out in document["left_out"]:
        where = " ".join(f"{name}={value}" for name, value in left_out["where"].items())
        lines.append(f"left out: {where}: {left_out['why']}")
    lines += [*_troubles(document["points"])]
    if not document["complete"]:
        lines.append(f"not complete: {len(document['points'])} points so far")
    return "\n".join([*lines, "", *best_lines(document["best"])])


def best_lines(best: Mapping[str, Any] | None) -> list[str]:
    if best is None:
        return ["no verdict: a baseline and a point with speculation are both needed, and one of them failed"]
    again = "measured once more" if best["confirmed"] else "not measured again, so partly luck"
    lines = [f"best ({again}): {sentence(best['comparison'])}"]
    if not best["worth_it"]:
        lines.append(
            "Speculation does not pay here: no setting is faster than the baseline beyond noise. Launch without it:"
        )
    elif best["as_good"]:
        lines.append(f"within noise of it: {', '.join(best['as_good'])}. Launch it with:")
    else:
        lines.append("Launch it with:")
    return [*lines, f"  {best['launch']}"]


def _point_row(point: Mapping[str, Any]) -> list[str]:
    load = point["loads"][0] if point["loads"] and point["loads"][0]["runs"] else None
    if load is None:
        return [point["name"], "-", "-", "-", "-", point["state"]]
    rates = [run["tokens_per_second"] for run in load["runs"]]
    found = accepted(load["runs"])
    state = "stopped early" if load["stopped_early"] and point["state"] == "ok" else point["state"]
    return [
        point["name"],
        number(rate(load)),
        f"{number(min(rates))}-{number(max(rates))}",
        number(rate(load, "itl_ms")),
        f"{found['length']:.2f}" if found else "-",
        state,
    ]


def _by_rate(point: Mapping[str, Any]) -> float:
    return -(rate(point["loads"][0]) or 0.0) if point["loads"] and point["loads"][0]["runs"] else 0.0
