"""What a report says: verdicts first, then the evidence for each, then what all of it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwire.bench.render import best_lines, sentence
from specwire.report.belongs import failures, provenance, warnings
from specwire.report.blocks import Block, Code, Heading, Table, Text
from specwire.report.speed import TONES, acceptance, speed, swept, time

_WIRING = {
    "match": ("the draft gets what it was trained on", "good"),
    "mismatch": ("the draft does NOT get what it was trained on", "bad"),
    "inconclusive": ("no verdict", "unsure"),
}


def contents(documents: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The blocks for results of verify, bench and sweep, whichever there are."""
    verifies = [each for each in documents if each["schema"] == "specwire.check/1"]
    benches = [each for each in documents if each["schema"] == "specwire.bench/1"]
    sweeps = [each for each in documents if each["schema"] == "specwire.sweep/1"]
    return [
        *(block for each in verifies for block in _wiring_verdict(each)),
        *(block for each in benches for block in _speed_verdict(each)),
        *(block for each in sweeps for block in _sweep_verdict(each)),
        *(block for each in verifies for block in _wiring(each)),
        *(block for each in benches for block in (*speed(each), *time(each["points"]), *acceptance(each["points"]))),
        *(block for each in sweeps for block in (*swept(each), *_winner(each))),
        *warnings([*benches, *sweeps]),
        *failures([*benches, *sweeps]),
        *provenance(documents),
    ]


def _wiring_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    words, tone = _WIRING[document["verdict"]]
    causes = "; ".join(f"{cause['id']} ({cause['confidence']})" for cause in document["causes"])
    yield Text(f"Wiring: {document['verdict']}: {words}" + (f". Cause: {causes}" if causes else ""), tone)
    if document.get("tree_restored") is False:
        yield Text("The tree was not restored after the run.", "bad")


def _speed_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    for each in document["comparisons"]:
        yield Text(f"Speed: {sentence(each)}", TONES[each["verdict"]])
        if each["verdict"] == "slower":
            yield Text(f"Speculation with {each['point']} costs throughput here: without it the server is faster.")
    if not document["comparisons"]:
        one = len(document["points"]) == 1
        why = "only one point was measured" if one else "the baseline or every other point failed"
        yield Text(f"Speed: nothing to compare: {why}", "unsure")


def _sweep_verdict(document: Mapping[str, Any]) -> Iterator[Block]:
    best = document["best"]
    if best is None:
        yield Text(f"Sweep: {best_lines(None)[0]}", "unsure")
    else:
        first, *others, launch = best_lines(best)
        yield Text(f"Sweep: {first}", TONES[best["comparison"]["verdict"]])
        yield from (Text(line) for line in others)
        yield Code(launch.strip())
    if not document["complete"]:
        yield Text("The sweep is not complete.", "unsure")


def _winner(document: Mapping[str, Any]) -> Iterator[Block]:
    """Where the time goes in the best point and its baseline, as they were measured last."""
    if best := document["best"]:
        records = document.get("confirmation") or document["points"]
        shown = [point for point in records if point["id"] in (best["id"], best["baseline"]["id"])]
        yield from time(shown)
        yield from acceptance(shown)


def _wiring(document: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading("Wiring")
    head = ["slot", "wanted boundary", "nearest", "rel. L2", "cosine", "state"]
    names = ("slot", "expected_boundary", "nearest_boundary", "rel_l2", "cosine", "state")
    yield Table(head, [[_word(slot[name]) for name in names] for slot in document["slots"]], frozenset({0, 5}))
    agree = {True: "all equal", False: "which DIFFER", None: "not compared"}[document["ranks_agree"]]
    ranks = f"{document['ranks']} ranks, {agree}" if document["ranks"] > 1 else "one rank"
    shapes = f"Concat {document['concat_shape']}, golden {document['golden_concat_shape']}"
    yield Text(f"{shapes}; {ranks}; noise floor {_word(document['noise_floor'])}.")
    for cause in document["causes"]:
        yield Text(f"{cause['id']} ({cause['confidence']}): {cause['evidence']}")
        yield Text(f"Fix: {cause['fix']}")


def _word(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
