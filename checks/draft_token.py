"""The tokens that the draft proposes are not those that its own head likes best.

Symptom: exact states, and low acceptance: from the first drafted token on, or from a later one.
Cause: the worker takes another token than the best by the scores, at some step, or verifies others than were drafted.
Fix: take the best token at each step, and give the target those tokens, in that order.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_side import OTHER_CHOICE
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, Partly

FIX = "take the best token by the draft's scores at each step, and give the target those tokens in that order"


def check(evidence: Evidence) -> Cause | Partly | None:
    tokens, head = evidence.draft.tokens, evidence.draft.head
    if tokens.handed_on:
        one, depth, drafted, verified = tokens.handed_on[0]
        return Cause(
            "certain",
            f"{len(tokens.handed_on)} times the target was given another token than was drafted: {verified} for {drafted}, "
            f"{depth} after token {one.place}",
            FIX,
            steps=2,
        )
    if head.name == OTHER_CHOICE:
        first = head.first
        order = "" if first.rank is None else f", by the draft's own scores number {first.rank + 1}"
        return Cause(
            "certain",
            f"{head.wrong} of {head.compared} drafted tokens are not the best by the draft's head: token {first.drafted}"
            f"{order}, {first.depth} after token {first.one.place}, where {first.choice} is the best",
            FIX,
            steps=2,
        )
    return None if len(tokens.depths) > 1 else Partly("the first drafted token only")


CAUGHT = [Case("the second best", draft_run={"choice": "second"})]
CLEAN = [
    Case("the best", draft_run={}),
    Case("a random head", draft_run={"head": "random"}),
    Case("a state handed on without its norm", draft_run={"output": "bare"}),
    Case("ids unmapped", draft_run={"unmapped": True}),
]
