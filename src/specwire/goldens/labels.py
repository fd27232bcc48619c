"""How far a golden's word on boundaries goes: a list that nobody gave, and names that rest on a convention."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

ASSUMED = "assumed"  # the value of `trained_source` in a golden's metadata
# What an id k of training data means, as a step to the boundary that it names.
CONVENTIONS = {"boundary": 0, "layer-output": 1}
TRUE_LIST = (
    "give the true list with --trained: the training configuration has it (eagle_aux_hidden_state_layer_ids), where an "
    "id k is boundary k, or boundary k + 1 if ids are outputs of layers, as SpecForge's defaults are"
)


def not_known(captured: Sequence[int], assumed: Sequence[int]) -> str:
    """Why nothing follows from a difference to a list that was only assumed."""
    return (
        f"what the engine captures is boundary {', '.join(map(str, captured)) or '-'}; whether the draft was trained so is not "
        f"known, for the golden's own list {list(assumed)} was assumed when it was built: {TRUE_LIST}"
    )


def same_as_assumed(assumed: Sequence[int]) -> str:
    return (
        f"the golden's list {list(assumed)} was assumed when it was built, and is what the engine captures: {TRUE_LIST}"
    )


def other_reading(
    metadata: Mapping[str, str], trained: Sequence[int], layers: int
) -> tuple[str, tuple[int, ...]] | None:
    """The convention that an imported golden's ids were not read by, and the trained boundaries by that one; None where
    nobody had to choose."""
    chosen = metadata.get("id_convention")
    if chosen not in CONVENTIONS:
        return None
    other = next(name for name in CONVENTIONS if name != chosen)
    read = tuple(k - CONVENTIONS[chosen] + CONVENTIONS[other] for k in trained)
    return (other, read) if all(0 <= k <= layers for k in read) else None


def wrong_labels(metadata: Mapping[str, str], other: str) -> str:
    """What an imported golden's names rest on, and what they may be called instead."""
    try:
        ids = json.loads(metadata.get("imported_ids", "null"))
    except ValueError:
        ids = None
    return f"the golden's data named its layers {ids or 'by ids'}, which were read as {metadata['id_convention']}, not {other}"
