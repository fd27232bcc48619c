"""The draft's side on every rank: the same tokens, positions and states in each of its forwards.

Ranks of one engine share each request: what differs between them is a fault, and the first difference is its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwire.capture import Capture, Event
from specwire.diagnosis.distance import relative
from specwire.diagnosis.draft_layer import far, rounding
from specwire.diagnosis.draft_rounds import TARGET_SITES
from specwire.diagnosis.finding import NotSeen

if TYPE_CHECKING:
    from specwire.diagnosis.context import Context

SITES = ("draft-input", "draft-fc", "concat-last", "concat-full")
IDS, POSITIONS, STATES, NUMBER = "tokens", "positions", "states", "number of forwards"


@dataclass(frozen=True)
class Difference:
    """The first thing in which a rank's draft is not the first rank's: `what` differs at this event of that rank's;
    `values` are some of it on both ranks, where they are few; `rel_l2` is by how much states differ."""

    rank: int
    event: Event
    first: Event
    what: str
    values: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    rel_l2: float = 0.0


@dataclass(frozen=True)
class Ranks:
    """How many ranks and forwards were compared, and each rank's first difference."""

    ranks: tuple[int, ...]
    forwards: int
    differences: tuple[Difference, ...]


def draft_ranks(capture: Capture, context: Context) -> Ranks:
    """Compare every rank's draft with the first rank's; NotSeen where there is one alone, or ranks have work of their
    own."""
    if context.launch.get("enable_dp_attention") or context.launch.get("dp_size", "1") not in ("", "1"):
        raise NotSeen("with data-parallel attention each rank has requests of its own")
    own = {rank: _of_the_draft(capture, rank) for rank in capture.ranks}
    own = {rank: events for rank, events in own.items() if events}
    if capture.world_size < 2:
        return Ranks(tuple(own), 0, ())
    if len(own) < 2:
        raise NotSeen("one rank alone recorded what reached the draft")
    first, *others = own
    found = tuple(one for rank in others if (one := _first_difference(own[first], own[rank], rank)))
    forwards = sum(event.site == "draft-input" for event in own[first])
    return Ranks(tuple(own), forwards, found)


def _of_the_draft(capture: Capture, rank: int) -> list[Event]:
    """The events of the draft's forwards: from each input to the next thing that the target does."""
    found, drafting = [], False
    for event in capture.events:
        if event.rank != rank:
            continue
        if event.site == "draft-input":
            drafting = True
        elif event.site in TARGET_SITES or (event.site == "concat-full" and event.prefill):
            drafting = False
        if drafting and event.site in SITES:
            found.append(event)
    return found


def _first_difference(first: Sequence[Event], other: Sequence[Event], rank: int) -> Difference | None:
    for mine, theirs in zip(first, other):
        if (mine.site, mine.mode) != (theirs.site, theirs.mode) or mine.rows != theirs.rows:
            return Difference(rank, theirs, mine, NUMBER, ((mine.rows,), (theirs.rows,)))
        for what, ours, his in _whole(mine, theirs):
            if ours != his:
                return Difference(rank, theirs, mine, what, (tuple(ours or ())[:8], tuple(his or ())[:8]))
        if (error := _apart(mine, theirs)) is not None:
            return Difference(rank, theirs, mine, STATES, rel_l2=error)
    return None


def _whole(mine: Event, theirs: Event) -> Iterator[tuple[str, Sequence[int] | None, Sequence[int] | None]]:
    yield IDS, mine.token_ids, theirs.token_ids
    yield POSITIONS, mine.positions, theirs.positions


def _apart(mine: Event, theirs: Event) -> float | None:
    """The worst row's relative difference, if rounding cannot have made it."""
    name = "output" if "output" in mine.file.tensors else "hidden_states"
    if name not in mine.file.tensors or name not in theirs.file.tensors:
        return None
    a, b = mine.file.rows(name), theirs.file.rows(name)
    if a.shape != b.shape:
        return float("inf")
    if bool(((a == b) | (a.isnan() & b.isnan())).all()):
        return None
    worst = max(far(error) for error in relative(b, a))
    return worst if worst > rounding(mine.dtype, 4 * a.shape[-1]) else None
