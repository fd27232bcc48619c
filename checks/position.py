"""The positions that the draft got are not those of its tokens.

Symptom: fine for one text request; crashes, or low acceptance, in batches, after images or after a cached
prefix.
Cause: positions are taken per request where they are needed per token, or counted without the cached prefix.
Fix: give the draft the target's positions, row by row.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_handed import said_at
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Partly, listed

PREFILL_ONLY = "prefill only"


def check(evidence: Evidence) -> Cause | Partly | None:
    odd = evidence.alignment.odd_positions if evidence.alignment else ()
    if odd:
        return Cause(
            "certain",
            f"{len(odd)} prefills have positions that are not their tokens': {odd[0]}",
            "give the draft, for each row, the position of the target's token in that row",
            steps=1,
        )
    if evidence.capture is None:
        return Partly(PREFILL_ONLY)
    try:
        handed = evidence.handed
    except NotSeen:
        return Partly(PREFILL_ONLY)
    if handed.misplaced:
        first = handed.misplaced[0]
        return Cause(
            "certain",
            f"{len(handed.misplaced)} times rows of the draft are not at their tokens' positions: "
            f"{said_at(first.forward, first.block)} is at position {first.position}, and its token's is {first.wanted}",
            "count the position on by one for each step of the draft, from the number of tokens that were accepted so far",
            steps=1,
        )
    if handed.verified_elsewhere:
        one, wanted = handed.verified_elsewhere[0]
        return Cause(
            "certain",
            f"{len(handed.verified_elsewhere)} times the target verified tokens at other positions than theirs: "
            f"{listed(one.verified[1][: len(wanted)])} where they are at {listed(wanted)} ({one.asked})",
            "give the target, for each drafted token, the place that it would have in the request",
            steps=1,
        )
    if handed.miscounted:
        one = handed.miscounted[0]
        return Cause(
            "certain",
            f"{len(handed.miscounted)} times the draft went on from another place than its tokens: at {one.claimed_place} "
            f"where {one.place} tokens were said and verified",
            "take the number of accepted tokens, the target's own next one included, as what the request has grown by",
            steps=2,
        )
    return None if handed.stepped else Partly(PREFILL_ONLY)


CAUGHT = [
    Case("one position for all", positions=lambda ids: [0] * len(ids)),
    Case("off by a prefix", positions=lambda ids: range(3, 3 + len(ids))),
    Case("a step that is counted twice", draft_run={"step_position": 1}),
]
CLEAN = [Case("as trained"), Case("shifted states", alter=lambda states, world: states.roll(1, 0))]
