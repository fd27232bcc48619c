"""A slot holds one part of the stream: a branch without the residual, or the residual without the branch.

Symptom: low acceptance; the states are too small, and the more so the deeper the layer.
Cause: the model file records `hidden_states` where the stream is `hidden_states + residual`.
Fix: record the sum of both.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import part_of_stream


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.several:
        return None
    slots = [slot for slot in evidence.off if evidence.found[slot] is None]
    parts = [part_of_stream(evidence, slot, evidence.trained[slot]) for slot in slots]
    if not parts or None in parts or len(slots) < len(evidence.off):
        return None
    return Cause(
        "certain" if all(exact for exact, _ in parts) else "likely",
        f"slots {slots}: " + parts[0][1],
        "record hidden_states + residual where the target collects its inner states",
        steps=1,
    )


CAUGHT = [
    Case("branch alone", slots=("branch.3", "branch.7", "branch.10")),
    Case(
        "branch alone, golden without residuals",
        slots=("branch.3", "branch.7", "branch.10"),
        residuals=False,
    ),
    Case("residual alone", slots=("residual.3", "residual.7", "residual.10"), dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("half the states", alter=lambda states, world: states / 2),
    Case("the layer before", slots=(2, 6, 9)),
]
