"""What a report says, section by section, from the documents of verify, bench and sweep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwire.bench.compare import rate
from specwire.bench.render import acceptance_words, best_lines, load_words, number, sentence
from specwire.profile import WORDS
from specwire.report.blocks import Block, Code, Figure, Heading, Table, Text
from specwire.report.charts import Interval, columns, intervals, stacked

BETWEEN = "between cycles"
PARTS = (*WORDS.values(), BETWEEN)
_TONES = {"faster": "good", "slower": "bad", "within noise": "unsure", "unknown": "unsure"}
_VERDICTS = {"match": "good", "mismatch": "bad", "inconclusive": "unsure"}


def contents(documents: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Verdicts first, then the evidence for each, then what all of it belongs to."""
    verifies, benches, sweeps = ([each for each in documents if each["schema"] == schema] for schema in ("specwire.check/1", "specwire.bench/1", "specwire.sweep/1"))
    blocks: list[Block] = [block for each in verifies for block in _wiring_verdict(each)]
    blocks += [block for each in benches for block in _speed_verdict(each)]
    blocks += [block for each in sweeps for block in _sweep_verdict(each)]
    blocks += [block for each in verifies for block in _wiring(each)]
    blocks += [block for each in benches for block in (*_speed(each), *_time(each["points"]), *_acceptance(each["points"]))]
    blocks += [block for each in sweeps for block in (*_sweep(each), *_winner_time(each))]
    return [*blocks, *_failures([*benches, *sweeps]), *_provenance(documents)]


# --- verdicts -----------------------------------------------------------------------------------------


def _wiring_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    words = {"match": "the draft gets what it was trained on", "mismatch": "the draft does NOT get what it was trained on", "inconclusive": "no verdict"}
    causes = "; ".join(f"{cause['id']} ({cause['confidence']})" for cause in document["causes"])
    yield Text(f"Wiring: {document['verdict']}: {words[document['verdict']]}" + (f". Cause: {causes}" if causes else ""), _VERDICTS[document["verdict"]])
    if document.get("tree_restored") is False:
        yield Text("The tree was not restored after the run.", "bad")


def _speed_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    for each in document["comparisons"]:
        yield Text(f"Speed: {sentence(each)}", _TONES[each["verdict"]])
        if each["verdict"] == "slower":
            yield Text(f"Speculation with {each['point']} costs throughput here: without it the server is faster.")
    if not document["comparisons"]:
        why = "only one point was measured" if len(document["points"]) == 1 else "the baseline or every other point failed"
        yield Text(f"Speed: nothing to compare: {why}", "unsure")


def _sweep_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    best = document["best"]
    tone = "unsure" if best is None else _TONES[best["comparison"]["verdict"]]
    *lines, last = best_lines(best)
    yield Text(f"Sweep: {(lines or [last])[0]}", tone)
    yield from (Text(line) for line in lines[1:])
    if best:
        yield Code(last.strip())
    if not document["complete"]:
        yield Text("The sweep is not complete.", "unsure")


# --- wiring -------------------------------------------------------------------------------------------


def _wiring(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Wiring")
    rows = [
        [str(slot["slot"]), _word(slot["expected_boundary"]), _word(slot["nearest_boundary"]), _small(slot["rel_l2"]), _small(slot["cosine"]), slot["state"]]
        for slot in document["slots"]
    ]
    yield Table(["slot", "wanted boundary", "nearest", "rel. L2", "cosine", "state"], rows, frozenset({0, 5}))
    ranks = f"{document['ranks']} ranks, " + {True: "all equal", False: "which DIFFER", None: "not compared"}[document["ranks_agree"]] if document["ranks"] > 1 else "one rank"
    yield Text(f"Concat {document['concat_shape']}, golden {document['golden_concat_shape']}; {ranks}; noise floor {_small(document['noise_floor'])}.")
    for cause in document["causes"]:
        yield Text(f"{cause['id']} ({cause['confidence']}): {cause['evidence']}")
        yield Text(f"Fix: {cause['fix']}")


# --- bench --------------------------------------------------------------------------------------------


def _speed(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Speed")
    told = document["workload"]
    yield Text(
        f"{told['prompts']} prompts of {_range(told['prompt_length'])} {told['in']}, {told['new_tokens']} new tokens each, greedy; "
        f"{told['repeats']} runs per load" + (f", {told['boots']} boots" if told.get("boots", 1) > 1 else "") + f"; seed {told['seed']}. Warm-up apart."
    )
    rows = [
        Interval(
            f"{each['point']}, {load_words(each['load'])}", found["value"], found["low"], found["high"], _TONES[each["verdict"]],
            f"{found['value']:.3g} x",
        )
        for each in document["comparisons"]
        if (found := each["speedup"])
    ]  # fmt: skip
    if rows:
        base = document["comparisons"][0]["against"]
        yield Figure(intervals(rows, 1.0, base, "x"), f"Tokens per second against {base}; the bar is the 95 % interval. An interval that crosses 1 is no difference.")
    for number_of_load in range(max((len(point["loads"]) for point in document["points"]), default=0)):
        having = [point for point in document["points"] if len(point["loads"]) > number_of_load and point["loads"][number_of_load]["runs"]]
        if having:
            yield Heading(load_words(having[0]["loads"][number_of_load]), 3)
            yield _load_table(having, number_of_load)


def _load_table(points: Sequence[Mapping[str, Any]], number_of_load: int) -> Table:
    head = ["", "tok/s", "lowest", "highest", "tok/s per user", "TTFT ms", "p99", "ITL ms", "p99", "tokens per verify", "runs"]
    rows = []
    for point in points:
        load = point["loads"][number_of_load]
        rates, last = [run["tokens_per_second"] for run in load["runs"]], load["runs"][-1]
        found = last["acceptance"]
        rows.append([
            point["name"], number(rate(load)), number(min(rates)), number(max(rates)), number(rate(load, "per_user")),
            number(rate(load, "ttft_ms")), number(last["ttft_ms"]["p99"]), number(rate(load, "itl_ms")), number(last["itl_ms"]["p99"]),
            f"{found['length']:.2f}" if found else "-", str(len(rates)),
        ])  # fmt: skip
    return Table(head, rows)


def _time(points: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Per generated token: that is what a longer cycle with more tokens in it has to beat."""
    profiled = [(point, load) for point in points for load in point["loads"][:1] if (load.get("profile") or {}).get("decode")]
    if not profiled:
        return
    yield Heading("Where the time goes")
    parts = [_parts(load["profile"]["decode"]) for _, load in profiled]
    bars = [(point["name"], list(own.items())) for (point, _), own in zip(profiled, parts, strict=True)]
    load = load_words(profiled[0][1])
    yield Figure(
        stacked(bars, "ms", PARTS),
        f"Milliseconds per token and request in decode, {load}: each part of a cycle divided by the tokens that a cycle brings.",
    )
    rows = [[name, *(number(own.get(name)) for own in parts)] for name in PARTS if any(name in own for own in parts)]
    rows.append(["all parts", *(number(sum(own.values())) for own in parts)])
    rows.append(["time between tokens, as the client saw it", *(number(rate(each, "itl_ms")) for _, each in profiled)])
    rows.append(["tokens per cycle", *(number(_tokens_per_cycle(each["profile"]["decode"])) for _, each in profiled)])
    yield Table(["ms per token", *(point["name"] for point, _ in profiled)], rows)
    for point, each in profiled:
        yield Text(_cycle_words(point["name"], each["profile"]["decode"], each["profile"]))


def _parts(phase: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds per token by part. Between cycles it is the median: idle times are no part of a cycle."""
    tokens = _tokens_per_cycle(phase)
    own = {WORDS.get(each["stage"], each["stage"]): each["total_ms"] / phase["cycles"] / tokens for each in phase["stages"]}
    return {**own, BETWEEN: (phase["between_ms"]["p50"] or 0.0) / tokens}


def _tokens_per_cycle(phase: Mapping[str, Any]) -> float:
    return (phase["acceptance"] or {}).get("length") or 1.0


def _cycle_words(name: str, phase: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    cycle = phase["cycle_ms"]
    share = {each["stage"]: each["share"] for each in phase["stages"]}
    told = f"{name}: {phase['cycles']} cycles, mean {number(cycle['mean'])} ms, p50 {number(cycle['p50'])}, p90 {number(cycle['p90'])}, p99 {number(cycle['p99'])}; parts add up to {phase['accounted']:.1%} of it"
    if "verify" in share:
        told += f"; verification takes {share.get('target', 0) + share['verify']:.0%} of a cycle, drafting {share.get('draft', 0) + share.get('draft-extend', 0):.0%}"
    if phase["graph_share"] is not None:
        told += f"; the target ran from a graph in {phase['graph_share']:.0%} of them"
    return told + f". Clock: {profile['clock']} on {profile['device']}, {profile['ranks']} rank" + ("s." if profile["ranks"] > 1 else ".")


def _acceptance(points: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    found = [(point["name"], accepted) for point in points for load in point["loads"][:1] if load["runs"] and (accepted := load["runs"][-1]["acceptance"])]
    if not found:
        return
    yield Heading("Acceptance by position")
    series = [(name, accepted["by_position"]) for name, accepted in found if accepted["by_position"]]
    if series:
        yield Figure(columns(series), "How often the draft token at each position, and so all before it, was accepted.")
    yield from (Text(f"{name}: {acceptance_words(accepted)}; by the engine's own count {accepted['engine_length']:.2f} over {accepted['cycles']} verifies.") for name, accepted in found)


# --- sweep --------------------------------------------------------------------------------------------


def _sweep(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Sweep")
    worked = [point for point in document["points"] if point["state"] == "ok" and point["loads"] and point["loads"][0]["runs"]]
    worked.sort(key=lambda point: -(rate(point["loads"][0]) or 0.0))
    if worked:
        best = document["best"]
        base = best["baseline"]["tokens_per_second"] if best else rate(worked[0]["loads"][0])
        rows = []
        for point in worked:
            rates = [run["tokens_per_second"] for run in point["loads"][0]["runs"]]
            tone = "plain" if point["draft"] is None else "good" if min(rates) > base else "bad" if max(rates) < base else "unsure"
            rows.append(Interval(point["name"], rate(point["loads"][0]), min(rates), max(rates), tone, number(rate(point["loads"][0]))))
        named = best["baseline"]["name"] if best else worked[0]["name"]
        yield Figure(intervals(rows, base, named, "tok/s"), f"Tokens per second, {load_words(worked[0]['loads'][0])}: mean and range of the runs. Gray: without speculation.")
        yield Table(
            ["setting", "tok/s", "lowest", "highest", "ITL ms", "tokens per verify", "runs"],
            [_sweep_row(point) for point in worked],
        )
    for each in document["left_out"]:
        yield Text("Left out: " + " ".join(f"{name}={value}" for name, value in each["where"].items()) + f": {each['why']}.")


def _sweep_row(point: Mapping[str, Any]) -> list[str]:
    load = point["loads"][0]
    rates, found = [run["tokens_per_second"] for run in load["runs"]], load["runs"][-1]["acceptance"]
    runs = f"{len(rates)}" + (" (stopped early)" if load["stopped_early"] else "")
    return [point["name"], number(rate(load)), number(min(rates)), number(max(rates)), number(rate(load, "itl_ms")), f"{found['length']:.2f}" if found else "-", runs]


def _winner_time(document: Mapping[str, Any]) -> Iterator[Block]:
    best = document["best"]
    if best:
        shown = [point for point in document["points"] if point["id"] in (best["id"], best["baseline"]["id"])]
        yield from _time(shown)
        yield from _acceptance(shown)


# --- failures and provenance --------------------------------------------------------------------------


def _failures(documents: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    failed = [point for document in documents for point in document["points"] if point["state"] != "ok"]
    if failed:
        yield Heading("What failed")
        yield Table(["point", "at", "why", "log"], [[point["name"], point["error"]["stage"], point["error"]["why"], point["error"]["log"] or "-"] for point in failed], frozenset({0, 1, 2, 3}))


def _provenance(documents: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    yield Heading("What this belongs to")
    rows, commands = [], []
    for document in documents:
        if document["schema"] == "specwire.check/1":
            run = document.get("run") or {}
            rows += [["verify", name, str(run[name]), ""] for name in ("tree", "version", "target", "draft", "golden", "device") if run.get(name)]
            continue
        found, kind = document["provenance"], document["schema"].split(".")[1].split("/")[0]
        rows.append([kind, "specwire", found["specwire"], ""])
        if found["tree"]:
            rows.append([kind, f"SGLang {found['tree']['version']}", found["tree"]["root"], found["tree"]["sha256"]])
        if found["target"]:
            rows.append([kind, "target", found["target"]["path"], found["target"]["sha256"]])
        rows += [[kind, "draft", each["path"], each["sha256"]] for each in found["drafts"]]
        rows.append([kind, "machine", f"{found['machine']['system']}, {found['machine']['processors']} processors", ""])
        commands.append(Code(shlex.join(found["command"]), f"{kind} again"))
        shown = document["points"] if kind == "bench" else []
        commands += [Code(point["launch"], f"the server of {point['name']}") for point in shown if point.get("launch")]
    yield Table(["of", "what", "which", "SHA-256"], rows, frozenset({0, 1, 2, 3}))
    yield from commands


def _range(ends: Mapping[str, int]) -> str:
    return str(ends["least"]) if ends["least"] == ends["most"] else f"{ends['least']} to {ends['most']}"


def _word(value: Any) -> str:
    return "-" if value is None else str(value)


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
