"""Slots of the earlier pipeline stages are missing, or come from layers counted from the stage's own start.

Symptom: only with pipeline stages: fewer slots, or layers that are too late.
Cause: inner states are collected on the last stage only, or its loop counts its own layers from 0.
Fix: hand the collected states on between stages; compare global layer numbers.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import listed


def check(evidence: Evidence) -> Cause | None:
    found, trained, stages = evidence.found, evidence.trained, evidence.context.stages
    if stages < 2 or not found or None in found or found == trained:
        return None
    start = evidence.golden.layers - evidence.golden.layers // stages
    local = [k for k in trained if start + k <= evidence.golden.layers]
    if len(found) < len(trained) and found == trained[-len(found) :]:
        what = f"only {listed(found)} of {listed(trained)} arrived: those before the last stage are missing"
    elif any(list(found) == [first + k for k in local[: len(found)]] for first in (start, start + 1)):
        what = f"slots hold {listed(found)}, layers {listed(local)} counted from the last stage's start"
    else:
        return None
    return Cause(
        "certain",
        f"{what} (pp_size {stages})",
        "hand the collected states on with the pipeline's proxy tensors, and compare global layer numbers; or "
        "serve without pipeline stages",
        steps=0,
    )


CAUGHT = [
    Case("only the last stage's", slots=(7, 10), context={"launch": "--pp-size 2"}),
    Case(
        "counted from the stage's start",
        slots=(8, 10),
        trained=(2, 4, 10),
        context={"launch": "--pp-size 2"},
    ),
]
CLEAN = [
    Case("as trained", context={"launch": "--pp-size 2"}),
    Case("a slot short, one stage", slots=(7, 10)),
]
