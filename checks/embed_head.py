"""The draft's embedding or head is not the one it was trained with.

Symptom: acceptance exactly 1.00 with exact states, or good in one engine and poor in another.
Cause: a checkpoint without `lm_head` or with an unused table, or an engine that overwrites the draft's own.
Fix: export both, or let the draft share the target's as it did in training.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_layer import AS_CONFIGURED
from specwire.diagnosis.draft_side import OTHER_HEAD
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.hints import static_cause
from specwire.diagnosis.noise import ROUNDOFF

CLOSE = 0.02  # two honest tables of one token differ by rounding at most


def check(evidence: Evidence) -> Cause | None:
    if found := static_cause(evidence, "embed-head"):
        return found
    errors = evidence.draft.embed_errors
    own, least = errors.get("the draft's own"), min(errors.values())
    if least > _rounded(evidence):
        return Cause(
            "certain",
            f"the embeddings that reach the draft are of no known table: nearest is {min(errors, key=errors.get)}, "
            f"off by {least:.2g}",
            "load the embedding that the draft was trained with",
            steps=1,
        )
    if own is not None and own > CLOSE:
        return Cause(
            "likely",
            f"the draft got the target's embeddings; its checkpoint has its own, which differ by {own:.2g}",
            "let the engine load the draft's own embed_tokens, if it was trained with it",
            steps=2,
        )
    try:
        head = evidence.draft.head
    except NotSeen:
        return None
    if head.name != OTHER_HEAD or evidence.draft.layer_run != AS_CONFIGURED:
        return None
    whose = "; the target's lm_head says them all" if head.explained else ""
    return Cause(
        "certain",
        f"{head.wrong} of {head.compared} drafted tokens are not what lm_head says of the draft's own states, which are "
        f"right: the first is {head.first.drafted} where it says {head.first.choice}{whose}",
        "load the draft's own lm_head, or share the target's if training did",
        steps=1,
    )


def _rounded(evidence: Evidence) -> float:
    """By how much a row that is looked up may differ from its table's: by the rounding of its values, if at all."""
    dtype = evidence.draft.looked_at[0].input.file.entry("embeds").torch_name
    return 2 * ROUNDOFF.get(dtype, CLOSE / 2)


CAUGHT = [
    Case("embeddings a little too large", draft_run={"embed": "scaled"}),
    Case("a random head", draft_run={"head": "random"}),
    Case("the target's head, which likes much the same", draft_run={"head": "target"}),
    Case("a random embedding", draft_run={"embed": "random"}),
]
CLEAN = [Case("its own head", draft_run={}), Case("ids unmapped", draft_run={"unmapped": True})]
