"""Tells whether each rank holds its own part of the states: some of the columns, or some of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specwire.capture import Event
from specwire.diagnosis.align import knows
from specwire.diagnosis.distance import relative
from specwire.diagnosis.evidence import Evidence

if TYPE_CHECKING:
    import torch

ROWS = 64


def sharded(evidence: Evidence) -> str | None:
    """ "columns" or "rows" when the ranks' states, put side by side or below each other, are the golden's
    concat."""
    for event_of_rank in _prefills(evidence):
        ids = tuple(next(iter(event_of_rank.values())).token_ids or ())
        parts = [event_of_rank[rank] for rank in sorted(event_of_rank)]
        wanted = _concat(evidence, ids)
        if wanted is None or len(parts) < 2:
            continue
        if sum(part.width for part in parts) == wanted.shape[1] and all(part.rows >= len(ids) for part in parts):
            if any(_same(evidence, states, wanted) for states in _side_by_side(evidence, parts, len(wanted))):
                return "columns"
        if (
            sum(part.rows for part in parts) >= len(ids) > max(part.rows for part in parts)
            and parts[0].width == wanted.shape[1]
        ):
            import torch

            states = torch.cat([part.file.rows(part.states) for part in parts])[: len(wanted)]
            if _same(evidence, states, wanted):
                return "rows"
    return None


def _prefills(evidence: Evidence) -> Iterator[dict[int, Event]]:
    """The events of one prefill on all ranks, for prompts that the golden knows."""
    by_sequence: dict[tuple[int, ...], dict[int, Event]] = {}
    for event in evidence.capture.at(evidence.site) if evidence.capture else ():
        if event.token_ids and knows(evidence.golden, event):
            by_sequence.setdefault(tuple(event.token_ids), {})[event.rank] = event
    return iter(by_sequence.values())


def _concat(evidence: Evidence, ids: tuple[int, ...]) -> torch.Tensor | None:
    """The golden's concat for the prompt that begins with these ids, shifted or not; its first rows only."""
    import torch

    golden = evidence.whole
    if not all(golden.has(f"boundary.{k}") for k in golden.trained):
        return None
    for number, prompt in enumerate(golden.prompts):
        if len(prompt.token_ids) == len(ids) and ids[:-1] in (
            prompt.token_ids[1:],
            prompt.token_ids[:-1],
        ):
            where = [(number, position) for position in range(min(ROWS, len(ids)))]
            return torch.cat([golden.rows(f"boundary.{k}", where).float() for k in golden.trained], dim=-1)
    return None


def _side_by_side(evidence: Evidence, parts: list[Event], rows: int) -> Iterator[torch.Tensor]:
    """The two ways to cut columns: the whole concat into ranks, or each slot into ranks."""
    import torch

    states = [part.file.rows(part.states, 0, rows).float() for part in parts]
    yield torch.cat(states, dim=-1)
    slots = len(evidence.trained)
    if all(part.shape[1] % slots == 0 for part in states):
        yield torch.cat([part.view(rows, slots, -1) for part in states], dim=-1).flatten(1)


def _same(evidence: Evidence, states: torch.Tensor, wanted: torch.Tensor) -> bool:
    hidden = evidence.golden.hidden
    return states.shape == wanted.shape and all(
        evidence.floor(k).allows(
            relative(states[:, slot * hidden : (slot + 1) * hidden], wanted[:, slot * hidden : (slot + 1) * hidden])
        )
        for slot, k in enumerate(evidence.trained)
    )
