"""The golden's values are all there, in another order of the columns.

Symptom: low acceptance; widths, sizes and dtypes are right, and no layer fits.
Cause: slots that were stacked where they should follow each other, or heads and their columns that changed places.
Fix: put one slot behind the other, each with its columns in the target's order.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.not_finite or evidence.columns is not None or evidence.several:
        return None
    if any(evidence.found[slot] is not None for slot in evidence.off):
        return None  # a layer as it should be: faults with names of their own
    what = _of_the_slots(evidence) or _within_slots(evidence)
    if what is None:
        return None
    return Cause(
        "certain",
        f"{what}: in that order every slot is the golden's, within the noise floor",
        "join the slots along the last axis (torch.cat), and leave each row's columns where the target has them",
        steps=1,
    )


def _of_the_slots(evidence: Evidence) -> str | None:
    import torch

    slots, hidden = evidence.slot_count, evidence.golden.hidden
    if slots < 2:
        return None
    whole = torch.cat([evidence.captured(slot) for slot in range(slots)], dim=-1)
    spread = whole.view(-1, slots, hidden).transpose(1, 2)
    ways = {
        f"the {slots} slots alternate, column by column": whole.view(-1, hidden, slots).transpose(1, 2),
        f"each slot takes every column that is {slots} further": spread.reshape(-1, slots, hidden),
    }
    for step, word in ((1, "late"), (-1, "early")):
        ways[f"each row begins a column {word}"] = whole.roll(-step, -1).view(-1, slots, hidden)
    for name, states in ways.items():
        if all(evidence.fits(states[:, slot], k) for slot, k in enumerate(evidence.trained)):
            return name
    return None


def _within_slots(evidence: Evidence) -> str | None:
    hidden = evidence.golden.hidden
    for width in (size for size in range(2, hidden // 2 + 1) if hidden % size == 0):
        crossed = [
            (evidence.captured(slot).view(-1, width, hidden // width), evidence.trained[slot]) for slot in evidence.off
        ]
        if all(evidence.fits(states.transpose(1, 2).flatten(1), k) for states, k in crossed):
            return f"slots {list(evidence.off)}: {hidden // width} heads of {width} columns lie across each other"
    return None


def _stacked(states, world):
    return states.view(len(states), 3, 32).transpose(1, 2).flatten(1)


def _unstacked(states, world):
    return states.view(len(states), 32, 3).transpose(1, 2).flatten(1)


def _crossed(states, world):
    return states.view(len(states), 3, 4, 8).transpose(2, 3).flatten(1)


CAUGHT = [
    Case("stacked", alter=_stacked),
    Case("stacked, in bfloat16", alter=_stacked, dtype="bfloat16"),
    Case("unstacked, though they were not", alter=_unstacked),
    Case("a column late", alter=lambda states, world: states.roll(1, -1)),
    Case("a column early", alter=lambda states, world: states.roll(-1, -1), dtype="bfloat16"),
    Case("heads across", alter=_crossed, ranks=2),
    Case("heads across on the second rank", ranks=2, per_rank=lambda r, s, w: _crossed(s, w) if r else s),
]
CLEAN = [
    Case("as trained"),
    Case("another order of the slots", slots=(7, 3, 10)),
    Case("rows reversed", alter=lambda states, world: states.flip(0)),
]
