"""Ranks differ from each other, and only their sum is right: a reduce is missing.

Symptom: only with several ranks: quality quietly lower; each rank drafts from other states.
Cause: the states are read before a deferred or fused all-reduce has been done.
Fix: read them after the reduce, or do the reduce on a copy.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_ranks import STATES
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.fits import sum_over_ranks


def check(evidence: Evidence) -> Cause | None:
    return _of_the_draft(evidence) or _of_the_target(evidence)


def _of_the_draft(evidence: Evidence) -> Cause | None:
    """The draft's own layer: from equal inputs each rank makes another state."""
    try:
        differences = evidence.draft_ranks.differences
    except NotSeen:
        return None
    one = next((one for one in differences if one.what == STATES and one.event.site != "draft-input"), None)
    if one is None:
        return None
    part = "fc" if one.event.site == "draft-fc" else "layer"
    return Cause(
        "certain",
        f"from the same inputs the draft's {part} makes other states on rank {one.rank} than on the first, first in "
        f"{one.event}, by {one.rel_l2:.2g}: as where each rank has a part, and they are not added up",
        f"see that the draft's {part} reduces over the ranks (its output projections, reduce_results), as the target's do",
        steps=0,  # the tokens and states of each rank follow from it
    )


def _of_the_target(evidence: Evidence) -> Cause | None:
    if len(evidence.seen.captured) < 2 or not evidence.off:
        return None
    held = evidence.seen.captured.values()
    if any((states[:, slot] == 0).double().mean() > 0.3 for states in held for slot in evidence.off):
        return None  # every rank has a part of its own: a shard
    kinds = [sum_over_ranks(evidence, slot, evidence.trained[slot]) for slot in evidence.off]
    if None in kinds:
        return None
    exact = all(exact for exact, _ in kinds)
    return Cause(
        "certain" if exact else "likely",
        f"slots {list(evidence.off)} differ between ranks, and over {len(evidence.ranks)} ranks {kinds[0][1]}",
        "collect the states after the all-reduce (turn off its fusion with the next norm, or reduce a copy first)",
        steps=1,
    )


def _deferred(rank, states, world):
    return states - (0.7, 0.3)[rank] * world.joined("branch.3", "branch.7", "branch.10")


CAUGHT = [
    Case("all partial", ranks=2, per_rank=lambda rank, states, world: states * (0.3, 0.7)[rank]),
    Case("the branch partial, the residual whole", ranks=2, per_rank=_deferred),
    Case("the same, golden without residuals", ranks=2, per_rank=_deferred, residuals=False),
    Case("the draft's own", ranks=2, draft_run={"by_rank": {1: {"layer": "partial"}}}),
]
CLEAN = [
    Case("on one rank alone", ranks=2, per_rank=lambda rank, states, world: states * (1 - rank)),
    Case("as trained", ranks=8),
    Case("equal on all ranks, and wrong", ranks=2, slots=(2, 6, 9)),
]
