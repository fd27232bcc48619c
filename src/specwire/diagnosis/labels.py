"""How far the golden's word on boundaries goes: a list that nobody gave, and names that rest on a convention.

With a list that was only assumed, rows are judged as those of the layers that the engine took. What is done to rows
is a fault whatever the draft was trained on; which layers they are of is none, for against a guess nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Skipped
from specwire.goldens.golden import Golden
from specwire.goldens.labels import (
    TRUE_LIST,
    not_known,
    other_reading,
    same_as_assumed,
    wrong_labels,
)

# What names a difference of layers.
LAYERS = ("default-boundaries", "embedding-slot", "final-boundary", "slot-order", "boundary-offset", "wrong-boundary")


def as_captured(evidence: Evidence) -> Golden | None:
    """The golden with the boundaries that were captured in place of assumed ones; None when nothing is to be changed.

    A slot's boundary is the one that it holds, else the one that the engine says it is, else the nearest.
    """
    golden = evidence.golden
    if (
        not isinstance(golden, Golden)
        or golden.assumed is None
        or golden.trained != golden.assumed
        or evidence.sample is None
        or not _as_many(evidence)
    ):
        return None
    said = _said(evidence)
    said = tuple(said) if len(said) == evidence.slot_count and set(said) <= set(golden.boundaries) else ()
    taken = tuple(
        found if found is not None else said[slot] if said else evidence.nearest[slot][0]
        for slot, found in enumerate(evidence.found)
    )
    taken += (said or golden.assumed)[len(taken) : evidence.slot_count]  # slots of which a log shows nothing
    return replace(golden, trained=taken) if taken != golden.trained else None


def _as_many(evidence: Evidence) -> bool:
    """Whether the slots are as many as `fc` takes; if it is not known, one alone is the final states and no choice."""
    fc_in, hidden = evidence.context.fc_in, evidence.golden.hidden
    return evidence.width == fc_in if fc_in and fc_in % hidden == 0 else evidence.slot_count > 1


def _said(evidence: Evidence) -> Sequence[int]:
    """The boundaries that the engine said it captures, else what the tree's rule makes of the draft's ids."""
    if said := evidence.told:
        return said
    context = evidence.context
    return (context.rule(context.layer_ids) if context.rule and context.draft else None) or ()


def unjudged(evidence: Evidence, name: str) -> Skipped | None:
    """Why the check of this name cannot say anything against the golden's list."""
    if evidence.golden.assumed is None or name not in (*LAYERS, "slot-count"):
        return None
    return Skipped("the golden's list of trained boundaries was assumed when it was built")


def reasons(evidence: Evidence) -> list[str]:
    """Why rows that match another list than the assumed one are no match."""
    assumed = evidence.golden.assumed
    return [] if assumed in (None, evidence.trained) else [not_known(evidence.trained, assumed)]


def notes(evidence: Evidence) -> list[str]:
    """What the golden says of its boundaries that a match does not prove, or that it disproves."""
    golden = evidence.golden
    if golden.assumed is not None and evidence.trained == golden.assumed:
        same = evidence.sample is not None and evidence.found == golden.assumed
        return [
            same_as_assumed(golden.assumed) if same else f"the golden's list was assumed when it was built: {TRUE_LIST}"
        ]
    said = tuple(_said(evidence))
    if not isinstance(golden, Golden) or evidence.sample is None:
        return []
    if golden.file.metadata.get("imported_ids", "null") == "null":
        return []
    if evidence.found != golden.trained or len(said) != len(golden.trained) or said == golden.trained:
        return []
    other = other_reading(golden.file.metadata, golden.trained, golden.layers)
    mend = "import it again with the ids and the convention that the data was written by"
    if other and other[1] == said:
        mend = f"{wrong_labels(golden.file.metadata, other[0])}: import it again with --convention {other[0]}"
    return [
        f"by its own word the engine captured boundaries {list(said)}, and their states are those that the golden calls "
        f"{list(golden.trained)}: the draft gets what its data held, and the golden's names are wrong, so that preflight "
        f"sees a fault where there is none; {mend}"
    ]
