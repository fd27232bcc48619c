"""The sections on speed: throughput and latency, where the time goes, acceptance, the sweep's points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwire.bench.compare import accepted, rate, slowest
from specwire.bench.profile import WORDS
from specwire.bench.render import acceptance_words, load_words, number
from specwire.report.blocks import Block, Figure, Heading, Table, Text
from specwire.report.charts import Interval, columns, intervals, stacked

BETWEEN = "between cycles"
PARTS = (*WORDS.values(), BETWEEN)
TONES = {"faster": "good", "slower": "bad", "within noise": "unsure", "unknown": "unsure"}
_HEAD = ("", "tok/s", "lowest", "highest", "per user", "TTFT ms", "p99", "ITL ms", "p99", "tokens per verify", "runs")


def speed(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Speed")
    yield Text(_workload_words(document["workload"]))
    comparable = [each for each in document["comparisons"] if each["speedup"]]
    if comparable:
        base = comparable[0]["against"]
        told = (
            f"Tokens per second against {base}; the bar is the 95 % interval. One that crosses 1 shows no difference."
        )
        yield Figure(intervals([_compared(each) for each in comparable], 1.0, base, "x"), told)
    for place in range(max((len(point["loads"]) for point in document["points"]), default=0)):
        having = [(point["name"], point["loads"][place]) for point in document["points"] if len(point["loads"]) > place]
        having = [(name, load) for name, load in having if load["runs"]]
        if having:
            yield Heading(load_words(having[0][1]), 3)
            yield Table(_HEAD, [_figures(name, load) for name, load in having])


def time(points: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Per generated token: that is what a longer cycle with more tokens in it has to beat."""
    having = [(point["name"], point["loads"][0]) for point in points if point["loads"]]
    having = [(name, load) for name, load in having if (load.get("profile") or {}).get("decode")]
    if not having:
        return
    yield Heading("Where the time goes")
    phases = [load["profile"]["decode"] for _, load in having]
    parts = [_parts(phase) for phase in phases]
    bars = [(name, list(own.items())) for (name, _), own in zip(having, parts, strict=True)]
    told = f"Milliseconds per token and request in decode, {load_words(having[0][1])}"
    yield Figure(stacked(bars, "ms", PARTS), f"{told}: each part of a cycle divided by the tokens that a cycle brings.")
    rows = [[name, *(number(own.get(name)) for own in parts)] for name in PARTS if any(name in own for own in parts)]
    rows.append(["all parts", *(number(sum(own.values())) for own in parts)])
    rows.append(["time between tokens, as the client saw it", *(number(rate(load, "itl_ms")) for _, load in having)])
    rows.append(["tokens per cycle", *(number(_tokens_per_cycle(phase)) for phase in phases)])
    yield Table(["ms per token", *(name for name, _ in having)], rows)
    yield from (Text(_cycle_words(name, load["profile"])) for name, load in having)


def acceptance(points: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """By the engine's own counters, at the first load."""
    found = [(point["name"], point["loads"][0]["runs"]) for point in points if point["loads"]]
    found = [(name, every) for name, runs in found if (every := accepted(runs))]
    if not found:
        return
    yield Heading("Acceptance by position")
    if series := [(name, every["by_position"]) for name, every in found if every["by_position"]]:
        yield Figure(columns(series), "How often the draft token at each position, and so all before it, was accepted.")
    for name, every in found:
        counted = f"by the engine's own count {every['engine_length']:.2f}, over {every['cycles']} verifies"
        yield Text(f"{name}: {acceptance_words(every)}; {counted}.")


def swept(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Sweep")
    yield Text(_workload_words(document["workload"]))
    worked = [point for point in document["points"] if point["state"] == "ok" and point["loads"]]
    worked = sorted((point for point in worked if point["loads"][0]["runs"]), key=lambda point: -_rate(point))
    if worked:
        base = _base(worked)
        told = (
            f"Tokens per second, {load_words(worked[0]['loads'][0])}: mean and range of the runs. Gray: no speculation."
        )
        rows = [_ranged(point, _rate(base)) for point in worked]
        yield Figure(intervals(rows, _rate(base), base["name"], "tok/s"), told)
        yield Table(_HEAD, [_figures(point["name"], point["loads"][0]) for point in worked])
    for each in document["left_out"]:
        where = " ".join(f"{name}={value}" for name, value in each["where"].items())
        yield Text(f"Left out: {where}: {each['why']}.")


def _workload_words(told: Mapping[str, Any]) -> str:
    least, most = told["prompt_length"]["least"], told["prompt_length"]["most"]
    length = str(least) if least == most else f"{least} to {most}"
    boots = f", {told['boots']} boots" if told.get("boots", 1) > 1 else ""
    return (
        f"{told['prompts']} prompts of {length} {told['in']}, {told['new_tokens']} new tokens each, greedy; "
        f"{told['repeats']} runs per load{boots}; seed {told['seed']}. Warm-up apart."
    )


def _compared(each: Mapping[str, Any]) -> Interval:
    found, name = each["speedup"], f"{each['point']}, {load_words(each['load'])}"
    return Interval(
        name, found["value"], found["low"], found["high"], TONES[each["verdict"]], f"{found['value']:.3g} x"
    )


def _figures(name: str, load: Mapping[str, Any]) -> list[str]:
    rates = [run["tokens_per_second"] for run in load["runs"]]
    found = accepted(load["runs"])
    return [
        name,
        number(rate(load)),
        number(min(rates)),
        number(max(rates)),
        number(rate(load, "per_user")),
        number(rate(load, "ttft_ms")),
        number(slowest(load, "ttft_ms")),
        number(rate(load, "itl_ms")),
        number(slowest(load, "itl_ms")),
        f"{found['length']:.2f}" if found else "-",
        f"{len(rates)}, stopped early" if load["stopped_early"] else str(len(rates)),
    ]


def _parts(phase: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds per token by part. Between cycles it is the median: idle times are no part of a cycle."""
    tokens, cycles = _tokens_per_cycle(phase), phase["cycles"]
    own = {WORDS.get(each["stage"], each["stage"]): each["total_ms"] / cycles / tokens for each in phase["stages"]}
    return {**own, BETWEEN: (phase["between_ms"]["p50"] or 0.0) / tokens}


def _tokens_per_cycle(phase: Mapping[str, Any]) -> float:
    return (phase["acceptance"] or {}).get("length") or 1.0


def _cycle_words(name: str, profile: Mapping[str, Any]) -> str:
    phase = profile["decode"]
    cycle, share = phase["cycle_ms"], {each["stage"]: each["share"] for each in phase["stages"]}
    spread = f"mean {number(cycle['mean'])} ms, p50 {number(cycle['p50'])}, p90 {number(cycle['p90'])}, p99 {number(cycle['p99'])}"
    told = [f"{name}: {phase['cycles']} cycles, {spread}", f"the parts add up to {phase['accounted']:.1%} of it"]
    if "verify" in share:
        verifying, drafting = (
            share.get("target", 0) + share["verify"],
            share.get("draft", 0) + share.get("draft-extend", 0),
        )
        told.append(f"verification takes {verifying:.0%} of a cycle, drafting {drafting:.0%}")
    if phase["graph_share"]:
        told.append(f"the target ran from a graph in {phase['graph_share']:.0%} of them")
    told.append(
        f"clock: {profile['clock']} on {profile['device']}, {profile['ranks']} rank" + "s" * (profile["ranks"] > 1)
    )
    return "; ".join(told) + "."


def _rate(point: Mapping[str, Any]) -> float:
    return rate(point["loads"][0]) or 0.0


def _base(worked: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The point that the others are drawn against: the fastest baseline, or the fastest of all where none worked."""
    return next((point for point in worked if point["draft"] is None), worked[0])


def _ranged(point: Mapping[str, Any], base: float) -> Interval:
    rates = [run["tokens_per_second"] for run in point["loads"][0]["runs"]]
    tone = "good" if min(rates) > base else "bad" if max(rates) < base else "unsure"
    shown = "plain" if point["draft"] is None else tone
    return Interval(point["name"], _rate(point), min(rates), max(rates), shown, number(_rate(point)))
