"""A slot holds the embeddings: the same row for a token wherever it stands.

Symptom: low acceptance; the slot's rows do not depend on the context.
Cause: a layer id of 0 (or of -1 before one is added), or ids counted from the embeddings by mistake.
Fix: use the id of the layer that was trained.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import layer_ids_fix, listed


def check(evidence: Evidence) -> Cause | None:
    found, trained = evidence.found, evidence.trained
    slots = [slot for slot, k in enumerate(found) if k == 0 and (slot >= len(trained) or trained[slot] != 0)]
    if not slots or len(found) != len(trained):
        return None
    shifted = None not in found and len({k - wanted for k, wanted in zip(found, trained)}) == 1
    return Cause(
        "certain",
        f"slot {', '.join(map(str, slots))} holds boundary 0, the token embeddings, where boundary "
        f"{', '.join(str(trained[slot]) for slot in slots)} was trained (captured {listed(found)})",
        layer_ids_fix(evidence, found) if None not in found else f"give slot {slots[0]} the id of its trained layer",
        steps=2 if shifted and len(found) > 1 else 1,
    )


CAUGHT = [
    Case("first id is 0", slots=(0, 7, 10)),
    Case("first id is 0, the others off", slots=(0, 6, 9), dtype="bfloat16"),
]
CLEAN = [Case("as trained"), Case("trained on the embeddings", slots=(0, 7, 10), trained=(0, 7, 10))]
