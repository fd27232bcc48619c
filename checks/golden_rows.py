"""The golden contradicts itself: rows that no model can have computed.

Symptom: a mismatch that no fault of the engine explains.
Cause: training data that was written wrongly: one layer saved twice, a row left empty, two prompts mixed up.
Fix: build the golden again, from the model or from sound data.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause

FIX = "build the golden again (specwire golden build), and look at what wrote the data that this one was made of"


def check(evidence: Evidence) -> Cause | None:
    """Only slots that are off, and hold no boundary: elsewhere the golden is good enough."""
    for slot in evidence.off:
        k = evidence.trained[slot]
        if evidence.found[slot] is None and not evidence.not_finite and (said := _said(evidence, k)):
            return Cause("certain", f"slot {slot}: {said}", FIX, steps=0)
    return None


def _said(evidence: Evidence, k: int) -> str | None:
    rows, places, tokens = evidence.wanted(k), evidence.seen.places, evidence.tokens
    same = [other for other in evidence.seen.boundaries if other != k and evidence.wanted(other).equal(rows)]
    if same:
        return (
            f"the golden's boundary {k} is its boundary {same[0]}, byte for byte: one of them is not what it is called"
        )
    seen: dict[bytes, int] = {}
    for row, values in enumerate(rows if k else ()):
        where = "prompt {}, position {}".format(*places[row])
        if not values.any():
            return f"the golden's boundary {k} is zero at {where}, which no layer's output is"
        first = seen.setdefault(values.numpy().tobytes(), row)
        if tokens[first] != tokens[row]:
            at = "prompt {}, position {}".format(*places[first])
            return f"the golden's boundary {k} at {where} is that of another token, at {at}, byte for byte"
    return None


def _twin(golden):
    return {**golden, 7: golden[6]}


def _empty(golden):
    return {**golden, 7: golden[7] * (golden[7] != golden[7][2])}


def _mixed(golden):
    return {**golden, 7: golden[7].roll(1, 0).where(golden[7] != golden[7][0], golden[7])}


CAUGHT = [
    Case("one boundary twice", golden=_twin),
    Case("an empty row", golden=_empty),
    Case("a row twice", golden=_mixed, dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 7, 10)),
    Case("the engine's rows twice", alter=lambda states, world: states[[0, *range(len(states) - 1)]]),
]
