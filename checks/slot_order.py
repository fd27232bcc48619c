"""The slots hold trained boundaries, in another order or one of them twice.

Symptom: acceptance collapses although every layer that was asked for is there.
Cause: the layer ids are in another order than in training (or the engine sorts them), or one is repeated.
Fix: put the ids into the order of training.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import layer_ids_fix, listed


def check(evidence: Evidence) -> Cause | None:
    found, trained = evidence.found, evidence.trained
    if None in found or len(found) != len(trained) or found == trained or not set(found) <= set(trained):
        return None
    what = "in another order" if sorted(found) == sorted(trained) else "with one repeated and one left out"
    return Cause(
        "certain",
        f"slots hold boundaries {listed(found)}, the trained {listed(trained)} {what}",
        layer_ids_fix(evidence, found),
        steps=1,
    )


CAUGHT = [
    Case("first two swapped", slots=(7, 3, 10)),
    Case("reversed", slots=(10, 7, 3)),
    Case("one twice", slots=(3, 3, 10)),
]
CLEAN = [
    Case("as trained"),
    Case("trained in that order", slots=(7, 3, 10), trained=(7, 3, 10)),
    Case("all below", slots=(2, 6, 9)),
]
