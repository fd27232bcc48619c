"""The rows are the golden's, but not in their places: moved, missing, zero, or another request's.

Symptom: fine for one request alone; poor in batches, with a prefix cache or with tree drafting.
Cause: rows are gathered by the wrong index, or only some of them are handed on.
Fix: gather the states with the index that the token ids were gathered with.
"""

from collections import Counter
from collections.abc import Sequence

from specwire.diagnosis.alterations import one_row, one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_handed import said_at
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.hints import moved_rows
from specwire.diagnosis.shards import sharded

FIX = "gather the states by the index that the token ids were gathered by (accepted tokens, cached prefix)"


def check(evidence: Evidence) -> Cause | None:
    return (None if evidence.alone else _of_prefills(evidence)) or _of_later_rows(evidence)


def _of_later_rows(evidence: Evidence) -> Cause | None:
    """Rows that the draft got after a verification, or from its own step before; without a golden, in prefills too."""
    try:
        odd, mistold = moved_rows(evidence), evidence.handed.mistold
    except NotSeen:
        return None
    if mistold:
        first = mistold[0]
        return Cause(
            "certain",
            f"{len(mistold)} rows that the draft was given came with another token than the one after them: row {first.row} "
            f"of {said_at(first.forward, first.block)} with {first.token}, where {first.wanted} follows",
            "give the draft, with the state of each token, the id of the one after it: the target's own next token with the "
            "last",
            steps=2,
        )
    if not odd:
        return None
    first, made = odd[0], odd[0].wanted[0]
    padding = made.about.get("graph_rows", made.rows) - made.rows if made.replayed else 0
    behind = f"; the graph that made them has {made.rows + padding} rows, {padding} of them padding" if padding else ""
    return Cause(
        "certain",
        f"{len(odd)} rows that the draft was given are not in their place: row {first.row} of "
        f"{said_at(first.forward, first.block)} is {first.how.value}{behind}",
        FIX + ("; of a replay's output take the live rows, which come before the padding" if padding else ""),
        steps=2,
    )


def _of_prefills(evidence: Evidence) -> Cause | None:
    if (short := evidence.short_events) and not sharded(evidence):
        return Cause(
            "certain",
            f"{len(short)} prefills recorded fewer states than tokens: {short[0]} has {short[0].rows} rows for "
            f"{len(short[0].token_ids)} tokens",
            FIX,
            steps=1,
        )
    if evidence.alignment and (odd := evidence.alignment.odd_ids):
        return Cause(
            "certain",
            f"in {len(odd)} prefills the draft received token ids that are not those of its states' rows: {odd[0]}",
            "give the draft, with the state of each token, the id of the one after it: the prompt's, shifted left by one",
            steps=1,
        )
    if not evidence.off:
        return None
    moved = {slot: rows for slot, rows in evidence.moved_rows.items() if not _one_step(evidence, rows)}
    if not moved:
        return None
    places = evidence.seen.places
    slot, ((row, there), *_) = next(iter(moved.items()))
    what = "is zero" if there is None else "holds prompt {}, position {}".format(*places[there])
    return Cause(
        "certain",
        f"slots {list(moved)}: {len({row for rows in moved.values() for row, _ in rows})} of {len(places)} rows are not "
        f"in their place, the others are exact; in slot {slot} prompt {{}}, position {{}} {what}".format(*places[row]),
        FIX,
        steps=2,
    )


def _one_step(evidence: Evidence, moved: Sequence[tuple[int, int | None]]) -> bool:
    """Whether most rows are off by the same step: that is a shift."""
    places = evidence.seen.places
    within = [(row, there) for row, there in moved if there is not None and places[there][0] == places[row][0]]
    steps = Counter(places[there][1] - places[row][1] for row, there in within)
    return bool(steps) and 2 * steps.most_common(1)[0][1] > len(places)


def _swapped(states, world):
    states = states.clone()
    if world.prompt in (0, 2):
        states[:8] = world.earlier(2 - world.prompt, states)[:8]
    return states


def _numbers(rows):
    import torch

    return torch.arange(len(rows))[:, None]


def _each_its_own(states, world):
    some = one_slot(2, lambda rows: rows * (_numbers(rows) % 3 != 1))(states, world)
    return one_slot(0, lambda rows: rows.flip(0))(some, world)


def _on_the_second(rank, states, world):
    return one_slot(1, lambda rows: rows.flip(0))(states, world) if rank else states


CAUGHT = [
    Case("two requests in each other's place", alter=_swapped),
    Case("reversed", alter=lambda states, world: states.flip(0)),
    Case("one row of zeros", alter=one_row(3, lambda row: 0 * row), dtype="bfloat16"),
    Case("zero rows in one slot of three", alter=one_slot(1, lambda rows: rows * (_numbers(rows) % 4 != 2))),
    Case("one slot's rows reversed", alter=one_slot(2, lambda rows: rows.flip(0)), dtype="bfloat16"),
    Case("two slots' rows, each in another order", alter=_each_its_own, ranks=2),
    Case("rows reversed in one slot, on the second rank", ranks=2, per_rank=_on_the_second),
    Case("another token with the last row", draft_run={"tail": 5}),
    Case("only the last row", alter=lambda states, world: states[-1:]),
]
CLEAN = [
    Case("as trained"),
    Case("shifted", alter=lambda states, world: states.roll(1, 0)),
    Case("one slot shifted", alter=one_slot(1, lambda rows: rows.roll(1, 0))),
    Case("another layer", slots=(2, 7, 10)),
    Case("another layer in one slot, noise in another", slots=(3, 6, 10), alter=one_slot(2, lambda rows: 1.1 * rows)),
]
