"""The draft is given a state that is not the one that was made for it.

Symptom: the first drafted token is accepted as it should be and later ones are not, or it falls with every verification.
Cause: after a verification, or from one step of the draft to its next, states are altered, or taken from another forward.
Fix: hand on, row for row, the concat of the rows that were accepted, and each step's own state to the step after it.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_handed import How, said_at
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Partly
from specwire.diagnosis.hints import odd_rows


def check(evidence: Evidence) -> Cause | Partly | None:
    handed = evidence.handed
    odd = [one for one in odd_rows(evidence) if one.how in (How.STALE, How.UNKNOWN)]
    if not odd:
        if not any(handed.compared.values()):
            raise NotSeen("nothing was captured of what the draft's inputs were made from (concat-full, concat-last)")
        return None if handed.stepped else Partly("prefill only")
    first = odd[0]
    event, row = first.wanted
    return Cause(
        "certain" if first.how is How.STALE else "likely",
        f"{len(odd)} rows that the draft was given are not those made for it: row {first.row} of "
        f"{said_at(first.forward, first.block)} is {first.how.value}, off by {first.rel_l2:.2g} from row {row} of {event}",
        "hand on the accepted rows' concat, and each step's state to the next, as they were made",
        steps=3,
    )


CAUGHT = [Case("a state that is halved on its way to the next step", draft_run={"handed": "halved"})]
CLEAN = [Case("as made", draft_run={}), Case("a state that is lost on its way", draft_run={"handed": "zero"})]
