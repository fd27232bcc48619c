"""Drafted ids are not mapped from the draft's vocabulary to the target's, or by the wrong map.

Symptom: acceptance 1.00 or slightly above, with exact states; drafted text is unrelated.
Cause: `d2t` is missing, not loaded, or from another vocabulary.
Fix: export the draft with the map it was trained with.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_side import UNMAPPED
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import static_cause

FIX = "export the draft with the d2t and t2d that it was trained with, and see that the engine loads them"


def check(evidence: Evidence) -> Cause | None:
    if found := static_cause(evidence, "vocab-map"):
        return found
    head = evidence.draft.head
    if head.name == UNMAPPED:
        return Cause(
            "certain",
            f"the engine took {head.wrong} of {head.compared} drafted tokens unmapped: the first is {head.first.own} of the "
            f"draft's own vocabulary, which d2t makes {head.first.choice}",
            FIX,
            steps=1,
        )
    return None


CAUGHT = [Case("ids left as they are", draft_run={"unmapped": True})]
CLEAN = [Case("mapped", draft_run={}), Case("another head", draft_run={"head": "random"})]
