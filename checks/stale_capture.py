"""A buffer was read that had not been filled anew: an earlier request's states, or one layer's in every slot.

Symptom: the first request is right and later ones are not, or all slots are alike.
Cause: references to a buffer that is written again, or a graph that was captured before the layers were set.
Fix: copy the states when they are collected; set the layers before graphs are captured.
"""

from specwire.case import Case
from specwire.evidence import Cause, Evidence
from specwire.hints import listed

FIX = "copy the states when they are collected, and set the layers to capture before graphs are captured"


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.slot_count != len(evidence.trained):
        return None
    first = evidence.captured(0)
    if evidence.slot_count > 1 and all(evidence.captured(slot).equal(first) for slot in range(1, evidence.slot_count)):
        return Cause("certain", f"all {evidence.slot_count} slots hold the same bytes (boundary {listed(evidence.found[:1])}) where {listed(evidence.trained)} "
                     "were trained", FIX, steps=0)
    places, tokens = evidence.seen.places, evidence.tokens
    again = [
        (row, earlier) for row in range(len(places)) for earlier in range(row)
        if places[row][1] == places[earlier][1] and tokens[row] != tokens[earlier]
        and all(evidence.captured(slot)[row].equal(evidence.captured(slot)[earlier]) and evidence.captured(slot)[row].any() for slot in evidence.off)
    ]
    if len(again) < 2:
        return None
    row, earlier = again[0]
    return Cause("certain", f"{len(again)} rows hold the bytes of the same position in an earlier prompt: prompt {places[row][0]}, position "
                 f"{places[row][1]} is prompt {places[earlier][0]}'s", FIX, steps=1)


def _first_again(states, world):
    if world.prompt == 2:
        states = states.clone()
        states[:8] = world.earlier(0, states)
    return states


CAUGHT = [Case("an earlier prompt's states", alter=_first_again), Case("one buffer in every slot", slots=(10, 10, 10))]
CLEAN = [Case("as trained"), Case("reversed", alter=lambda states, world: states.flip(0)), Case("one slot twice", slots=(3, 3, 10))]
