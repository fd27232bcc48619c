"""States hold NaN or infinity.

Symptom: acceptance length 1, or every drafted token accepted; text of one repeated symbol.
Cause: an overflow (float16 served where bfloat16 was trained), a kernel without its arguments, a buffer never
filled.
Fix: find the first layer that is not finite; serve in the dtype of the checkpoint.
"""

from specwire.diagnosis.alterations import one_row
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause


def check(evidence: Evidence) -> Cause | None:
    if not (bad := evidence.not_finite):
        return None
    rank, row, slot = bad[0]
    prompt, position = evidence.seen.places[row]
    half = ", bfloat16 rather than float16" if evidence.dtype == "float16" else ""
    return Cause(
        "certain",
        f"{len({(rank, row) for rank, row, _ in bad})} sampled rows hold NaN or infinity ({evidence.dtype}), in "
        f"slots {sorted({slot for *_, slot in bad})}; first: rank {rank}, slot {slot}, prompt {prompt}, position "
        f"{position}",
        f"serve in the checkpoint's dtype{half}; hidden-state-dump shows which boundary is the first that is not "
        "finite", steps=0,
    )


CAUGHT = [
    Case("one NaN", alter=one_row(2, lambda row: row * float("nan"))),
    Case("overflow in float16", alter=lambda states, world: (states * 1e5).half()),
    Case("on one rank only", ranks=2, per_rank=lambda rank, states, world: states / (1 - rank)),
]
CLEAN = [Case("as trained"), Case("large but finite", alter=lambda states, world: states * 1e5)]
