"""Ranks differ from each other, and only their sum is right: a reduce is missing.

Symptom: only with several ranks: quality quietly lower; each rank drafts from other states.
Cause: the states are read before a deferred or fused all-reduce has been done.
Fix: read them after the reduce, or do the reduce on a copy.
"""

from specwire.case import Case
from specwire.evidence import Cause, Evidence, angle


def check(evidence: Evidence) -> Cause | None:
    if len(evidence.seen.captured) < 2 or not evidence.off or evidence.slot_count != len(evidence.trained):
        return None
    if any((evidence.captured(slot) == 0).double().mean() > 0.3 for slot in evidence.off):
        return None  # every rank has a part of its own: a shard
    kinds = [_kind(evidence, slot, evidence.trained[slot]) for slot in evidence.off]
    if None in kinds:
        return None
    exact = all(exact for exact, _ in kinds)
    return Cause(
        "certain" if exact else "likely",
        f"slots {list(evidence.off)} differ between ranks, and over {len(evidence.ranks)} ranks {kinds[0][1]}",
        "collect the states after the all-reduce (turn off its fusion with the next norm, or reduce a copy first)", steps=1,
    )


def _kind(evidence: Evidence, slot: int, k: int) -> tuple[bool, str] | None:
    total, others = evidence.summed(slot), len(evidence.ranks) - 1
    if evidence.fits(total, k, slack=2):
        return True, "their sum is the golden's row"
    if evidence.golden.has(f"residual.{k}"):
        if evidence.fits(total - others * evidence.wanted(f"residual.{k}").double(), k, slack=2 * others + 1):
            return True, "their sum, with the residual counted once, is the golden's row"
        return None
    if k - 1 not in evidence.seen.boundaries:
        return None
    residual, before = (total - evidence.wanted(k)) / others, evidence.wanted(k - 1)
    if angle(residual, before) > angle(evidence.wanted(k), before) + 0.005:
        return False, "their sum exceeds the golden's row by what looks like the residual, counted once too often per further rank"
    return None


def _deferred(rank, states, world):
    return states - (0.7, 0.3)[rank] * _branches(world)


def _branches(world):
    return world["branch.3"].new_tensor([[*a, *b, *c] for a, b, c in zip(*(world[f"branch.{k}"].tolist() for k in (3, 7, 10)))])


CAUGHT = [
    Case("all partial", ranks=2, per_rank=lambda rank, states, world: states * (0.3, 0.7)[rank]),
    Case("the branch partial, the residual whole", ranks=2, per_rank=_deferred),
    Case("the same, golden without residuals", ranks=2, per_rank=_deferred, residuals=False),
]
CLEAN = [Case("as trained", ranks=8), Case("equal on all ranks, and wrong", ranks=2, slots=(2, 6, 9))]
