"""The rows are the golden's, but not in their places: moved, missing, zero, or another request's.

Symptom: fine for one request alone; poor in batches, with a prefix cache or with tree drafting.
Cause: rows are gathered by the wrong index, or only some of them are handed on.
Fix: gather the states with the index that the token ids were gathered with.
"""

from collections import Counter

from specwire.diagnosis.alterations import one_row
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.shards import sharded

FIX = "gather the states by the index that the token ids were gathered by (accepted tokens, cached prefix)"


def check(evidence: Evidence) -> Cause | None:
    if (short := evidence.short_events) and not sharded(evidence):
        return Cause(
            "certain",
            f"{len(short)} prefills recorded fewer states than tokens: {short[0]} has {short[0].rows} rows for "
            f"{len(short[0].token_ids)} tokens",
            FIX,
            steps=1,
        )
    if not evidence.off or not evidence.nearest_rows or not (moved := evidence.moved_rows):
        return None
    places = evidence.seen.places
    within = [(row, there) for row, there in moved if there is not None and places[there][0] == places[row][0]]
    steps = Counter(places[there][1] - places[row][1] for row, there in within)
    if steps and 2 * steps.most_common(1)[0][1] > len(places):
        return None  # most rows are off by the same step: a shift
    row, there = moved[0]
    what = "is zero" if there is None else "holds prompt {}, position {}".format(*places[there])
    return Cause(
        "certain",
        f"{len(moved)} of {len(places)} rows are not in their place, the others are "
        "exact; "
        "prompt {}, position {} ".format(*places[row])
        + what,
        FIX,
        steps=2,
    )


def _swapped(states, world):
    states = states.clone()
    if world.prompt in (0, 2):
        states[:8] = world.earlier(2 - world.prompt, states)[:8]
    return states


CAUGHT = [
    Case("two requests in each other's place", alter=_swapped),
    Case("reversed", alter=lambda states, world: states.flip(0)),
    Case("one row of zeros", alter=one_row(3, lambda row: 0 * row), dtype="bfloat16"),
    Case("only the last row", alter=lambda states, world: states[-1:]),
]
CLEAN = [
    Case("as trained"),
    Case("shifted", alter=lambda states, world: states.roll(1, 0)),
    Case("another layer", slots=(2, 7, 10)),
]
