"""The ranks do not draft alike: other tokens, positions or states on one rank than on another.

Symptom: only with several ranks: acceptance falls, or the text of a rank's share of the target goes astray.
Cause: a choice made on each rank by itself, from scores that differ or with a seed of its own, or rows that one rank misses.
Fix: draft on one rank and send its tokens to the others, or make sure that all compute the same.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_ranks import IDS, NUMBER, POSITIONS, STATES
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause

FIXES = {
    IDS: "send the tokens that one rank drafted to all others before they are used",
    POSITIONS: "give every rank the same positions",
    STATES: "hand the same states to the draft of every rank",
    NUMBER: "give every rank's draft the same rows",
}


def check(evidence: Evidence) -> Cause | None:
    for one in evidence.draft_ranks.differences:
        target_s = one.event.site == "draft-input" and one.event.prefill and not evidence.alone
        if one.what == NUMBER and one.event.prefill:
            continue  # rows that one rank alone recorded leave no verdict, and name none
        if one.what == STATES and (target_s or one.event.site != "draft-input"):
            continue  # the target's states, or a reduction in the draft: faults with names of their own
        ours, theirs = one.values
        said = f": {list(theirs)} where the first has {list(ours)}" if theirs or ours else f", by {one.rel_l2:.2g}"
        return Cause(
            "certain",
            f"rank {one.rank}'s draft has other {one.what} than the first rank's, first in {one.event}{said}",
            FIXES[one.what],
            steps=0 if one.what in (IDS, POSITIONS) else 1,  # whatever else is off may come of it
        )
    return None


def _of_rank_1(what):
    return {"by_rank": {1: what}}


CAUGHT = [
    Case("another token on one rank", ranks=2, draft_run=_of_rank_1({"choice": "second"})),
    Case("another position on one rank", ranks=2, draft_run=_of_rank_1({"step_position": 1})),
    Case("another state on one rank", ranks=2, draft_run=_of_rank_1({"handed": "halved"})),
]
CLEAN = [
    Case("all alike", ranks=2, draft_run={}),
    Case("alike, and badly chosen", ranks=2, draft_run={"choice": "second"}),
]
