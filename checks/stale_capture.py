"""A buffer was read that had not been filled anew: an earlier request's states, or one layer's in every slot.

Symptom: the first request is right and later ones are not, or all slots are alike.
Cause: references to a buffer that is written again, or a graph that was captured before the layers were set.
Fix: copy the states when they are collected; set the layers before graphs are captured.
"""

from specwire.diagnosis.alterations import one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_handed import How, said_at
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.fits import repeated_rows
from specwire.diagnosis.hints import listed, odd_rows

FIX = "copy the states when they are collected, and set the layers to capture before graphs are captured"


def check(evidence: Evidence) -> Cause | None:
    if cause := _in_replays(evidence):
        return cause
    if not evidence.off:
        return None
    empty = [slot for slot in evidence.off if not any(held[:, slot].any() for held in evidence.seen.captured.values())]
    if empty:
        return Cause(
            "certain",
            f"slots {empty} are zero in all {len(evidence.seen.places)} rows looked at, on every "
            "rank: nothing was written into them",
            "hand the states on after they have been collected, and see that every slot is copied",
            steps=0,
        )
    first, *others = (evidence.captured(slot) for slot in range(evidence.slot_count))
    if others and first.any() and all(states.equal(first) for states in others):
        return Cause(
            "certain",
            f"all slots hold the same bytes, of boundary {evidence.found[0]}, where "
            f"{listed(evidence.trained)} were trained",
            FIX,
            steps=0,
        )
    again = repeated_rows(evidence)
    if len(again) < 2:
        return None
    (prompt, position), (earlier, _) = (evidence.seen.places[row] for row in again[0])
    return Cause(
        "certain",
        f"{len(again)} rows hold the bytes of the same position in an earlier prompt: "
        f"prompt {prompt}, position {position} is prompt {earlier}'s",
        FIX,
        steps=1,
    )


def _in_replays(evidence: Evidence) -> Cause | None:
    """A graph that reads a static input which nobody fills before the replay: rows of an earlier forward, or none."""
    try:
        found = odd_rows(evidence)
    except NotSeen:
        return None
    odd = [one for one in found if one.how in (How.STALE, How.ZERO)]
    misplaced = any(one.how in (How.ROW, How.OTHER) for one in found)  # then padding is among them, or the like
    if not odd or misplaced or not all(one.forward.input.replayed for one in odd):
        return None
    first = odd[0]
    event, row = first.wanted
    where = f" in columns {first.columns[0]} to {first.columns[1] - 1}" if first.columns else ""
    return Cause(
        "certain",
        f"{len(odd)} rows that a replayed graph of the draft read are not those made for it, and none of an eager forward: "
        f"row {first.row} of {said_at(first.forward, first.block)} is {first.how.value}{where}, where row {row} of {event} "
        "was due",
        "copy the states into the graph's own input before each replay, whatever its shape",
        steps=0,
    )


def _first_again(states, world):
    if world.prompt == 2:
        states = states.clone()
        states[:8] = world.earlier(0, states)
    return states


CAUGHT = [
    Case("an earlier prompt's states", alter=_first_again),
    Case("one buffer in every slot", slots=(10, 10, 10)),
    Case("a slot that was never filled", alter=one_slot(2, lambda states: 0 * states)),
    Case("a state that no replay was given", draft_run={"handed": "zero", "graph": "replay"}),
    Case("half of a state that no replay was given", draft_run={"handed": "in part", "graph": "replay"}),
    Case("no slot was ever filled, on two ranks", ranks=2, alter=lambda states, world: 0 * states),
]
CLEAN = [
    Case("as trained"),
    Case("replayed as made", draft_run={"graph": "replay"}),
    Case("the same fault in an eager step", draft_run={"handed": "zero"}),
    Case("half of a state in an eager step", draft_run={"handed": "in part"}),
    Case("reversed", alter=lambda states, world: states.flip(0)),
    Case("one slot twice", slots=(3, 3, 10)),
]
