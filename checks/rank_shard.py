"""Each rank holds its own part of the states, some columns or some rows, and nobody gathered them.

Symptom: only with several ranks: a shape error, or states that are zero or foreign outside each rank's part.
Cause: tensor, sequence or data parallel sharding is still in force where the draft reads.
Fix: gather the states over the ranks before the draft.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.shards import sharded

FIX = "gather the states over the ranks (all-gather) before they are handed to the draft"


def check(evidence: Evidence) -> Cause | None:
    if kind := sharded(evidence):
        order = "side by side" if kind == "columns" else "below each other"
        return Cause(
            "certain",
            f"each rank holds some of the {kind}: put {order} in rank order they are the golden's concat",
            FIX,
            steps=0,
        )
    if len(evidence.ranks) < 2 or not evidence.off:
        return None
    parts = [evidence.captured(slot, rank) for slot in evidence.off for rank in evidence.ranks]
    owners = sum((part != 0).double() for part in parts)
    whole = all(evidence.fits(evidence.summed(slot), evidence.trained[slot]) for slot in evidence.off)
    if not whole or owners.max() > len(evidence.off):
        return None
    bare = [rank for rank in evidence.ranks if not any(evidence.captured(slot, rank).any() for slot in evidence.off)]
    if len(bare) == len(evidence.ranks) - 1:
        return Cause(
            "certain",
            f"slots {list(evidence.off)}: one rank holds the golden's rows, and rank "
            f"{', '.join(map(str, bare))} nothing but zeros",
            "hand the states to every rank: each drafts from its own copy",
            steps=1,
        )
    return Cause(
        "certain",
        f"slots {list(evidence.off)}: no value is set on two ranks, and their sum over {len(evidence.ranks)} ranks "
        "is the golden's row",
        FIX,
        steps=1,
    )


def _columns(rank, states, world):
    return states.chunk(4, dim=-1)[rank]


def _padded(rank, states, world):
    kept = states.new_zeros(states.shape)
    kept[:, rank::2] = states[:, rank::2]
    return kept


CAUGHT = [
    Case("a quarter of the columns each", ranks=4, per_rank=_columns),
    Case("half of the rows each", ranks=2, per_rank=lambda rank, states, world: states.tensor_split(2)[rank]),
    Case("zero outside its own columns", ranks=2, per_rank=_padded),
    Case("on one rank alone", ranks=2, per_rank=lambda rank, states, world: states * (1 - rank)),
]
CLEAN = [
    Case("as trained", ranks=4),
    Case("partial sums", ranks=2, per_rank=lambda rank, states, world: states * (0.3, 0.7)[rank]),
]
