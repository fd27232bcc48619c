"""The target makes other states when it verifies a token than in a prefill of the same tokens.

Symptom: exact states of the prompts, and drafts that are worse after the first verification; or another text than without
speculation.
Cause: the verification's attention has another mask, length or cache slots than its tokens', or a layer runs otherwise there.
Fix: run a verification's rows as a prefill of the same tokens would be: their positions, and attention to all before them.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen


def check(evidence: Evidence) -> Cause | None:
    if evidence.off:
        raise NotSeen("the prompts' own states are off already")
    found = evidence.twice
    if not found.off:
        return None
    first = found.off[0]
    forward, row = first.first
    return Cause(
        "likely",
        f"{', '.join(one.part for one in found.off)} of {first.failed} of {found.rows} tokens is another when the target "
        f"verifies them than in a prefill of the same tokens (row {row.row} of {forward.end}, token {row.place} of its "
        f"request; off by up to {first.worst:.2g} where {first.bound:.1g} is allowed)",
        "compare how the target runs a verification with a prefill: positions, mask, lengths and cache slots of its attention, "
        "and what its layers do by forward mode",
        steps=2,
    )


CAUGHT = [Case("other states of what was verified", said={"verified": "otherwise"})]
CLEAN = [
    Case("the same states", said={"verified": "alike"}),
    Case("the same states, in bfloat16", said={"verified": "alike"}, dtype="bfloat16"),
]
