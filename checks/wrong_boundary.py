"""A slot holds a boundary of the target, but not the one that it was trained with.

Symptom: acceptance is low, and no single shift of the layer ids mends it.
Cause: a layer id in the draft's config is wrong, or the engine's own list is.
Fix: correct that slot's layer id.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import layer_ids_fix, listed
from specwire.goldens.golden import Golden
from specwire.goldens.labels import other_reading, wrong_labels


def check(evidence: Evidence) -> Cause | None:
    found, trained = evidence.found, evidence.trained
    if len(found) != len(trained):
        return None
    wrong = [slot for slot, k in enumerate(found) if k not in (None, 0, trained[slot])]
    one_shift = len(wrong) == len(trained) > 1 and len({found[slot] - trained[slot] for slot in wrong}) == 1
    if not wrong and None in found and len(evidence.seen.boundaries) <= evidence.golden.layers:
        return _neighbour(evidence)
    if not wrong or one_shift or set(found) <= set(trained):
        return None  # one offset for all, or another order: faults with names of their own
    return Cause(
        "certain",
        "; ".join(f"slot {slot} holds boundary {found[slot]}, trained was {trained[slot]}" for slot in wrong)
        + f" (captured {listed(found)}, trained {listed(trained)})",
        layer_ids_fix(evidence, found) if None not in found else f"correct the layer ids of slots {listed(wrong)}",
        steps=1 + len(wrong),
    )


def _neighbour(evidence: Evidence) -> Cause | None:
    """Near a boundary and on none: all that a golden of a few boundaries can say."""
    lost = [slot for slot, k in enumerate(evidence.found) if k is None]
    near = [slot for slot in lost if evidence.nearest[slot][1] < 0.7]
    rows = evidence.nearest_rows
    if not near or any(row is not None for slot in near for row in rows[slot]):
        return None  # rows of the trained boundary, in other places
    return Cause(
        "possible",
        f"slots {listed(near)} are near a boundary (relative L2 {evidence.nearest[near[0]][1]:.2g}) and hold none "
        f"of the {len(evidence.seen.boundaries)} that the golden knows: perhaps a neighbouring layer",
        f"build a golden with all boundaries (specwire golden build): it can say which layer it is{_read_wrongly(evidence)}",
        steps=4,
    )


def _read_wrongly(evidence: Evidence) -> str:
    """What an imported golden's names may be, if its ids were read by the wrong convention."""
    golden = evidence.golden
    other = other_reading(golden.file.metadata, golden.trained, golden.layers) if isinstance(golden, Golden) else None
    if other is None:
        return ""
    name, read = other
    return f"; {wrong_labels(golden.file.metadata, name)}, by which the draft was trained on {listed(read)}"


CAUGHT = [
    Case("a golden of few boundaries", slots=(4, 8, 11), known=(3, 7, 10)),
    Case("one slot of a golden of few boundaries", slots=(4, 7, 10), known=(3, 7, 10)),
    Case("one id off by two", slots=(3, 5, 10)),
    Case("two ids off, differently", slots=(2, 7, 12), dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("another order", slots=(7, 3, 10)),
    Case("all one below", slots=(2, 6, 9)),
    Case("near no boundary of few", alter=lambda states, world: states.roll(1, -1), known=(3, 7, 10)),
    Case("rows of few boundaries, doubled", alter=lambda states, world: states[[0, 0, *range(2, len(states))]], known=(3, 7, 10)),
]  # fmt: skip
