"""The positions that the draft got are not those of its tokens.

Symptom: fine for one text request; crashes, or low acceptance, in batches, after images or after a cached
prefix.
Cause: positions are taken per request where they are needed per token, or counted without the cached prefix.
Fix: give the draft the target's positions, row by row.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause


def check(evidence: Evidence) -> Cause | None:
    odd = evidence.alignment.odd_positions if evidence.alignment else ()
    if not odd:
        return None
    return Cause(
        "certain",
        f"{len(odd)} prefills have positions that are not their tokens': {odd[0]}",
        "give the draft, for each row, the position of the target's token in that row",
        steps=1,
    )


CAUGHT = [
    Case("one position for all", positions=lambda ids: [0] * len(ids)),
    Case("off by a prefix", positions=lambda ids: range(3, 3 + len(ids))),
]
CLEAN = [Case("as trained"), Case("shifted states", alter=lambda states, world: states.roll(1, 0))]
