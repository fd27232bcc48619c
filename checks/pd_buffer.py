"""What came over from the prefill node is a part of the states, or not what the draft's first step needs.

Symptom: fine on one node; with disaggregation a shape error, or a poor first draft after each transfer.
Cause: the transfer buffer is one hidden size wide, or carries the target's state where the draft's is wanted.
Fix: make the buffer as wide as the concat, and transfer what a single node would have handed on.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause


def check(evidence: Evidence) -> Cause | None:
    hidden, trained = evidence.golden.hidden, evidence.trained
    split = evidence.context.launch.get("disaggregation-mode", "null") not in ("null", "none", "")
    if evidence.slot_count != 1 or len(trained) < 2 or not split or evidence.found[0] != trained[0]:
        return None
    return Cause(
        "certain",
        f"the draft received {hidden} columns, exactly slot 0 of the {len(trained)} x {hidden} that were sent, and "
        f"the engine runs disaggregated ({evidence.context.launch.get('disaggregation-mode')})",
        f"make the transfer buffer {len(trained) * hidden} wide, as the concat is",
        steps=0,
    )


CAUGHT = [Case("the first slot alone", slots=(3,), context={"launch": "--disaggregation-mode decode"})]
CLEAN = [
    Case("as trained", context={"launch": "--disaggregation-mode decode"}),
    Case("one slot, one node", slots=(3,)),
]
