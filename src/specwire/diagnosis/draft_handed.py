"""What is handed to the draft, row for row: the concat of the rows that the target just made, the state that its own
step before made, and the place that each row is at. Needs no golden and no checkpoint: copies must be equal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.capture import Event
from specwire.diagnosis.draft_rounds import EXTEND, PREFILL, STEP, Block, Forward, Request, Round, Rounds

if TYPE_CHECKING:
    import torch

HELD = 24  # events whose states are kept at a time
FEW = 8  # columns: as many are not those of another row by chance
EARLIER = 8  # forwards of the same request that are searched for a row that is out of its place


class How(StrEnum):
    """What a row holds that is not the row it should be."""

    ZERO = "zero"
    ROW = "another row of its request"
    OTHER = "a row of another request"
    STALE = "a row of an earlier forward"
    UNKNOWN = "no row that was recorded"


@dataclass(frozen=True)
class Odd:
    """One row of the draft's input that is not what was made for it. `rel_l2` is how far it is from that; `columns` are
    where it is another, in a replay in which the rest is right."""

    forward: Forward
    block: Block
    row: int
    how: How
    rel_l2: float
    wanted: tuple[Event, int]
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Mistold:
    """One row that the draft got with another token than the one after it, which the target was given, or said."""

    forward: Forward
    block: Block
    row: int
    token: int
    wanted: int


@dataclass(frozen=True)
class Misplaced:
    """One row of the draft's input at another position than its token's."""

    forward: Forward
    block: Block
    position: int
    wanted: int


@dataclass(frozen=True)
class Handed:
    """All comparisons of one rank's draft inputs."""

    rounds: Rounds
    _held: _Held = field(default_factory=lambda: _Held(), compare=False)

    @cached_property
    def odd(self) -> dict[str, list[Odd]]:
        """Rows that are not what was made for them, by the kind of their forward."""
        found: dict[str, list[Odd]] = {PREFILL: [], EXTEND: [], STEP: []}
        for forward, block, row, sources in self._wanted:
            if odd := self._compare(forward, block, row, sources):
                found[forward.kind].append(odd)
        return found

    @cached_property
    def compared(self) -> dict[str, int]:
        """How many rows could be compared, by the kind of their forward."""
        counts = {PREFILL: 0, EXTEND: 0, STEP: 0}
        for forward, *_ in self._wanted:
            counts[forward.kind] += 1
        return counts

    @property
    def stepped(self) -> bool:
        """Whether there is any step of the draft's own, or any row that was verified, to look at."""
        return any(forward.kind != PREFILL for forward in self.rounds.forwards)

    @cached_property
    def misplaced(self) -> list[Misplaced]:
        """Rows of steps and of verified rows that are at another position than their token's."""
        found = []
        for forward in self.rounds.forwards:
            positions = forward.input.positions
            for block in forward.blocks if positions and len(positions) == forward.input.rows else ():
                if block.place is None or forward.kind == PREFILL:
                    continue
                for i in range(block.rows):
                    wanted = block.place + (0 if forward.kind == STEP else i)
                    if positions[block.first + i] != wanted:
                        found.append(Misplaced(forward, block, positions[block.first + i], wanted))
                        break
        return found

    @cached_property
    def verified_elsewhere(self) -> list[tuple[Round, tuple[int, ...]]]:
        """Rounds whose tokens the target was given at other positions than theirs, with the first of these: where none of
        the draft's steps has branches each is at the place after the one before it."""
        found = []
        for one in self.rounds.rounds:
            if one.verified is None or one.place is None or one.claimed_place is not None:
                continue
            count = len(one.verified[1]) if one.steps and all(block.rows == 1 for _, block in one.steps) else 1
            wanted = tuple(range(one.place, one.place + count))
            if one.verified[1][:count] != wanted:
                found.append((one, wanted))
        return found

    @cached_property
    def mistold(self) -> list[Mistold]:
        """Rows of prefills and of verified rows that came with another token than the one after them."""
        found = []
        for forward, block, row, wanted in self._followed():
            ids = forward.input.token_ids
            if ids and len(ids) == forward.input.rows and ids[row] != wanted:
                found.append(Mistold(forward, block, row, ids[row], wanted))
        return found

    def _followed(self) -> Iterator[tuple[Forward, Block, int, int]]:
        """(forward, block, row, token after it): of a prefill's rows by the target's own ids, of each request's last row
        by what is verified first in the round that goes on from it."""
        for forward in self.rounds.forwards:
            given = forward.given
            if forward.kind == PREFILL and given is not None and given.token_ids and given.rows == forward.input.rows:
                for block in forward.blocks:
                    for row in range(block.first, block.first + block.rows - 1):
                        yield forward, block, row, given.token_ids[row + 1]
        for one in self.rounds.rounds:
            if one.seed is not None and one.verified is not None and one.claimed_place is None:
                yield *one.seed, one.verified[0][0]

    @property
    def cut_short(self) -> list[Round]:
        """Rounds of a chain of which the engine kept fewer drafts than the target's own answers confirm."""
        return [
            one
            for one in self.rounds.rounds
            if one.chain
            and one.verified is not None
            and one.matched is not None
            and (one.accepted or one.matched) < one.matched
        ]

    @cached_property
    def miscounted(self) -> list[Round]:
        """Rounds that the engine begins at another place than its own tokens say."""
        return [
            one
            for request in self.rounds.requests
            for one in request.rounds
            if one.claimed_place is not None and one.place is not None and one.claimed_place != one.place
        ]

    @cached_property
    def _wanted(self) -> list[tuple[Forward, Block, int, list[tuple[Event, int]]]]:
        """Each row that something was made for: (forward, block, row, events and rows of which it must be one)."""
        return [found for forward in self.rounds.forwards for found in self._sources(forward)]

    def _sources(self, forward: Forward) -> Iterator[tuple[Forward, Block, int, list[tuple[Event, int]]]]:
        for block in forward.blocks:
            if forward.kind == STEP:
                yield from self._of_step(forward, block)
            elif forward.given is not None and forward.given.width == forward.input.width:
                yield from self._of_target(forward, block)

    def _of_step(self, forward: Forward, block: Block) -> Iterator[tuple[Forward, Block, int, list[tuple[Event, int]]]]:
        one = next((r for r in block.request.rounds if any(f is forward for f, _ in r.steps)), None)
        if one is None:
            return
        before = one.seed if block.depth == 1 else (*one.steps[block.depth - 2], None)
        if before is None:
            return
        earlier, theirs, row = before
        rows = [row] if row is not None else range(theirs.first, theirs.first + theirs.rows)
        made = [earlier.made_row(theirs, each) for each in rows]
        if None in made or earlier.made.width != forward.input.width:
            return
        for i in range(block.rows):
            yield forward, block, block.first + i, [(earlier.made, each) for each in made]

    def _of_target(
        self, forward: Forward, block: Block
    ) -> Iterator[tuple[Forward, Block, int, list[tuple[Event, int]]]]:
        if forward.kind == PREFILL:
            if forward.given.rows == forward.input.rows:
                for row in range(block.first, block.first + block.rows):
                    yield forward, block, row, [(forward.given, row)]
            return
        one = next((r for r in block.request.rounds if r.extend is not None and r.extend[0] is forward), None)
        slots = forward.given.slots or forward.input.slots
        said = forward.input.token_ids
        if one is None or one.verified is None or not said or forward.given.rows % max(1, len(slots)):
            return
        ids, positions = one.verified
        first = list(slots).index(block.request.slot) * len(ids)
        count = one.accepted if one.accepted is not None else one.matched or 1
        for k in range(min(count, block.rows)):
            nodes = [
                n
                for n, (token, at) in enumerate(zip(ids, positions))
                if (at == positions[0] + k and (k == 0 or token == said[block.first + k - 1]))
            ]
            if one.chain:
                nodes = [k]
            if nodes and first + max(nodes) < forward.given.rows:
                yield forward, block, block.first + k, [(forward.given, first + n) for n in nodes]

    def _compare(self, forward: Forward, block: Block, row: int, sources: list[tuple[Event, int]]) -> Odd | None:
        got = self._held(forward.input)[row]
        wanted = [self._held(event)[each] for event, each in sources]
        if any(_same(one, got) for one in wanted):
            return None
        got, wanted = got.double(), [one.double() for one in wanted]
        errors = [float((got - one).norm() / one.norm().clamp_min(1e-300)) for one in wanted]
        errors = [error if error == error else float("inf") for error in errors]
        best = min(range(len(errors)), key=errors.__getitem__)
        odd = (got != wanted[best]).nonzero().flatten()
        part = None
        if forward.input.replayed and FEW <= len(odd) < len(got):  # a static input that was filled in part
            part = (int(odd[0]), int(odd[-1]) + 1)
        how = self._how(forward, block, got, sources, slice(*part) if part else slice(None))
        return Odd(forward, block, row, how, errors[best], sources[best], part)

    def _how(
        self, forward: Forward, block: Block, got: torch.Tensor, sources: list[tuple[Event, int]], part: slice
    ) -> How:
        """What the row's columns `part` hold."""
        got = got[part]
        if not got.any():
            return How.ZERO
        event = sources[0][0]
        same = _same(self._held(event)[:, part].double(), got).nonzero().flatten().tolist()
        if same:
            mine = self._rows_of(forward, block, event)
            return How.ROW if set(same) & set(mine) else How.OTHER
        for earlier in reversed(self.rounds.forwards[: forward.number][-EARLIER * max(1, len(forward.blocks)) :]):
            for other in (earlier.made, earlier.given, earlier.input):
                if other is None or other.width != forward.input.width:
                    continue
                if _same(self._held(other)[:, part].double(), got).any():
                    return How.STALE
        return How.UNKNOWN

    def _rows_of(self, forward: Forward, block: Block, event: Event) -> Sequence[int]:
        """The rows of an event of all requests that are this block's request's."""
        slots = list(event.slots or forward.input.slots)
        if block.request.slot not in slots or event.rows % len(slots):
            return range(event.rows)
        each, number = event.rows // len(slots), slots.index(block.request.slot)
        if forward.kind == PREFILL:
            return range(block.first, block.first + block.rows)
        return range(number * each, (number + 1) * each)


def said_at(forward: Forward, block: Block) -> str:
    """Where in a run a row is, in words."""
    kinds = {PREFILL: "the prefill", EXTEND: "the rows that were verified", STEP: f"step {block.depth} of the draft"}
    return f"{kinds[forward.kind]} at token {block.place} ({forward.input})"


def request_of(request: Request) -> str:
    return f"request {request.slot}"


def _same(rows: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Which of `rows` are `row`, value for value; NaN is like NaN here: a copy of it is a copy."""
    return ((rows == row) | (rows.isnan() & row.isnan())).all(dim=-1)


class _Held:
    """The states of the events that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, torch.Tensor] = OrderedDict()

    def __call__(self, event: Event) -> torch.Tensor:
        if id(event) not in self._kept:
            self._kept[id(event)] = event.file.rows(event.states)
            while len(self._kept) > HELD:
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(event))
        return self._kept[id(event)]
