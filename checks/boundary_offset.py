"""Every slot holds the boundary that lies the same number of layers from the trained one.

Symptom: acceptance is low but not zero; nothing fails.
Cause: the release reads the draft's layer ids by another convention than the one it was trained under.
Fix: write the ids that this release turns into the trained boundaries.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import asked_for, layer_ids_fix, listed, usual_defaults


def check(evidence: Evidence) -> Cause | None:
    found, trained = evidence.found, evidence.trained
    if len(found) != len(trained) or None in found:
        return None
    offsets = {k - wanted for k, wanted in zip(found, trained)}
    if len(offsets) != 1 or offsets == {0}:
        return None
    offset = offsets.pop()
    ignored = list(found) in usual_defaults(evidence) and asked_for(evidence, found) is False
    return Cause(
        "likely" if ignored else "certain",
        f"slots hold boundaries {listed(found)} where {listed(trained)} were trained: each is {abs(offset)} "
        f"{'below' if offset < 0 else 'above'}",
        layer_ids_fix(evidence, found),
        steps=1,
        fits=True,
    )


CAUGHT = [
    Case("one below", slots=(2, 6, 9)),
    Case("one above, in bfloat16", slots=(4, 8, 11), dtype="bfloat16"),
    Case(
        "the draft's ids were meant as layer outputs",
        slots=(2, 6, 9),
        context={"draft": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}},
    ),
]
CLEAN = [Case("as trained"), Case("only one slot off", slots=(2, 7, 10))]
