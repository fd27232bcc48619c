"""The draft gets more or fewer slots than it was trained with.

Symptom: a shape error at `fc`, or low acceptance where the width happens to be accepted.
Cause: the list of layer ids is too long or too short, or the engine left one out.
Fix: give as many ids as there were in training.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import listed


def check(evidence: Evidence) -> Cause | None:
    count, trained, hidden = evidence.slot_count, evidence.trained, evidence.golden.hidden
    if count in (0, len(trained)) or (count == 1 and not set(evidence.found) & set(trained)):
        return None  # no slots at all, or final states: faults with names of their own
    left_out = [k for k in trained if k not in evidence.found]
    return Cause(
        "certain",
        f"the states are {evidence.width} wide, {count} x {hidden}, where {len(trained)} x {hidden} were "
        "trained; the slots hold "
        f"{listed(evidence.found)} of {listed(trained)}" + (f", so {listed(left_out)} is missing" if left_out else ""),
        f"give the draft {len(trained)} layer ids, for boundaries {listed(trained)}",
        steps=2,
    )


CAUGHT = [
    Case("one short", slots=(3, 7)),
    Case("one too many", slots=(3, 5, 7, 10)),
    Case("one alone", slots=(7,)),
]
CLEAN = [Case("as trained"), Case("final states", slots=("final_norm",))]
