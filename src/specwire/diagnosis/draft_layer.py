"""The draft's layer: what it made of its inputs, in prefills, on verified rows and in each of its own steps, beside
what the checkpoint makes of them; and which other way of running it explains a difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.diagnosis.distance import relative
from specwire.diagnosis.draft_reference import (
    AFTER_ATTENTION,
    AFTER_MLP,
    EMBEDS_NORM,
    INNER_NORM,
    STATES_NORM,
    Ask,
    Reference,
    Rows,
    Sees,
    Way,
)
from specwire.diagnosis.draft_rounds import EXTEND, PREFILL, STEP, Block, Forward, Request, Round, Rounds
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.noise import ROUNDOFF

if TYPE_CHECKING:
    import torch

    from specwire.capture import Event

AS_CONFIGURED = "as configured"
REQUESTS, TOKENS = 4, 256  # requests that are looked into, and their tokens
FIRST, LAST = 2, 1  # rounds of each request
# How much better another explanation must fit than the configured one.
CLEARER = 2.0
WORDS = {PREFILL: "prefills", EXTEND: "verified rows", STEP: "its own steps"}


@dataclass(frozen=True)
class Run:
    """How a part of the draft was run: as configured, another way, or (`name` None) none that is known.

    `kinds` are the forwards in which it was so; `error` is how far that way's result is from what was recorded, and
    `configured` how far the configured one's.
    """

    name: str | None
    kinds: tuple[str, ...]
    everywhere: bool
    error: float
    configured: float
    nearest: str

    @property
    def right(self) -> bool:
        return self.name == AS_CONFIGURED

    @property
    def where(self) -> str:
        """Where it was so, as the end of a sentence; nothing where that is everywhere."""
        return "" if self.everywhere else f" in {' and '.join(WORDS[kind] for kind in self.kinds)} alone"


@dataclass(frozen=True, eq=False)
class Made:
    """A state that the draft made: row `row` of `forward`, recorded as row `recorded` of its `made`; `sees` are the
    rows that attention sees, itself last."""

    forward: Forward
    block: Block
    row: int
    recorded: int
    sees: tuple[tuple[Forward, int], ...]
    fresh: int

    @property
    def kind(self) -> str:
        return self.forward.kind

    @property
    def event(self) -> Event:
        """What recorded it."""
        assert self.forward.made is not None  # or there would be no row `recorded` of it
        return self.forward.made


@dataclass(frozen=True)
class Layer:
    """The layer of the first few requests, computed from recorded inputs."""

    reference: Reference
    made: tuple[Made, ...]
    target_theta: float | None

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in WORDS if any(one.kind == kind for one in self.made))

    @cached_property
    def run(self) -> Run:
        """How it was run: the way that explains all kinds of forward, else the one that explains those that differ."""
        self._seen()
        explained = {kind: self._explain([kind]) for kind in self.kinds}
        odd = tuple(kind for kind, name in explained.items() if name != AS_CONFIGURED)
        whole = self._explain(self.kinds)
        name: str | None
        if not odd and whole is not None:
            odd, name = self.kinds, whole
        elif whole is not None and len(odd) == len(self.kinds):
            name = whole
        else:
            odd = odd or self.kinds
            name = self._explain(odd)
        errors = {way: self._worst(way, odd) for way in self.errors}
        nearest = min(errors, key=errors.__getitem__)
        return Run(name, odd, odd == self.kinds, errors[name or nearest], errors[AS_CONFIGURED], nearest)

    @cached_property
    def errors(self) -> dict[str, list[float | None]]:
        """The relative error of each state, for each way to run the layer; further ways only where it is needed."""
        self._seen()
        found = self._errors(self._ways())
        self._search_windows(found)
        if self._named(found, self.kinds) is None or any(self._named(found, [kind]) is None for kind in self.kinds):
            found |= self._errors(self._further_ways())
        return found

    @cached_property
    def streams(self) -> torch.Tensor:
        """The stream before the final norm of each state, and the MLP's part of it, as configured: [2, states, hidden]."""
        import torch

        self._seen()
        stream, branch = self.reference.layer(self._rows, self._asks, [self._ways()[0]])
        return torch.stack([stream[0], branch[0]])

    def _seen(self) -> None:
        if not self.made:
            raise NotSeen("no state of the draft's own was captured (concat-last)")

    def _explain(self, kinds: Sequence[str]) -> str | None:
        return self._named(self.errors, kinds)

    def _named(self, errors: Mapping[str, Sequence[float | None]], kinds: Sequence[str]) -> str | None:
        """The way that gives the states of these kinds of forward: as configured, another, or None."""
        worst = {name: max(self._of(found, kinds)) for name, found in errors.items() if self._of(found, kinds)}
        best = min(worst, key=worst.__getitem__)
        own, bound = worst[AS_CONFIGURED], self.bound
        if own <= bound and own <= CLEARER * worst[best] + bound / 30:
            return AS_CONFIGURED
        return best if worst[best] <= bound and CLEARER * worst[best] < own else None

    def _worst(self, way: str, kinds: Sequence[str]) -> float:
        return max(self._of(self.errors[way], kinds), default=float("inf"))

    def _of(self, errors: Sequence[float | None], kinds: Sequence[str]) -> list[float]:
        """The errors of these kinds of forward; none where one is not known."""
        chosen = [error for one, error in zip(self.made, errors, strict=True) if one.kind in kinds]
        known = [error for error in chosen if error is not None]
        return known if len(known) == len(chosen) else []

    @property
    def bound(self) -> float:
        event = self.made[0].event
        return rounding(event.dtype, 4 * event.width)

    @cached_property
    def _table(self) -> dict[tuple[int, int], int]:
        places = [(forward.number, row) for one in self.made for forward, row in one.sees]
        return {place: number for number, place in enumerate(dict.fromkeys(places))}

    @cached_property
    def _asks(self) -> list[Ask]:
        return [
            Ask(
                self._table[one.forward.number, one.row],
                tuple(self._table[forward.number, row] for forward, row in one.sees),
                one.fresh,
            )
            for one in self.made
        ]

    @cached_property
    def _rows(self) -> Rows:
        import torch

        by_forward: dict[int, Forward] = {f.number: f for one in self.made for f, _ in one.sees}
        held = {number: inputs_of(self.reference, forward) for number, forward in by_forward.items()}
        parts = [[part[row] for part in held[number]] for number, row in self._table]
        embeds, states, positions = (torch.stack(each) for each in zip(*parts, strict=True))
        return Rows(embeds, states, positions)

    def _errors(self, ways: Sequence[Way], asks: Sequence[int] | None = None) -> dict[str, list[float | None]]:
        """For each way the error of each state; of all states, or of those numbered `asks`, with None for the rest."""
        chosen = range(len(self.made)) if asks is None else asks
        streams, _ = self.reference.layer(self._rows, [self._asks[i] for i in chosen], ways)
        found: dict[str, list[float | None]] = {}
        for way, stream in zip(ways, streams, strict=True):
            made = self.reference.hidden_out(stream, way.normed)
            errors = [far(error) for error in relative(self._recorded[list(chosen)], made)]
            by_number = dict(zip(chosen, errors, strict=True))
            found[way.name] = [by_number.get(i) for i in range(len(self.made))]
        return found

    @cached_property
    def _recorded(self) -> torch.Tensor:
        import torch

        return torch.stack([one.event.file.rows("hidden_states", one.recorded, 1)[0] for one in self.made]).double()

    def _ways(self) -> list[Way]:
        """The configured way first; others that a config may have named."""
        own, window = self.reference.theta, self.reference.window
        others = {theta for theta in (self.target_theta, 10000.0, 500000.0, 1000000.0) if theta and theta != own}
        normed = not self.reference.norms_output
        return [
            Way(name=AS_CONFIGURED, theta=own, window=window),
            *(Way(name=f"rope theta {theta:g}", theta=theta, window=window) for theta in sorted(others)),
            Way(name="without rotary embedding", theta=None, window=window),
            *([Way(name="attention to all tokens before", theta=own)] if window else []),
            Way(
                name="with a norm of its output" if normed else "without the norm of its output",
                theta=own,
                window=window,
                normed=normed,
            ),
        ]

    def _further_ways(self) -> list[Way]:
        """What no config names: a part left out, inputs in the other order, attention that misses rows."""
        own = self.reference.theta
        usual = Way(name="", theta=own, window=self.reference.window)
        left_out = (AFTER_ATTENTION, AFTER_MLP, EMBEDS_NORM, STATES_NORM, INNER_NORM)
        return [
            *(replace(usual, name=f"without {part}", without=part) for part in left_out),
            *(
                replace(usual, name=f"without {part} in its newest rows", without=part, fresh=True)
                for part in (EMBEDS_NORM, STATES_NORM)
            ),
            replace(usual, name="with its two inputs in each other's place", swapped=True),
            replace(usual, name="attention to none of the rows that were drafted just before", sees=Sees.COMMITTED),
            replace(usual, name="attention to all tokens but the one before", sees=Sees.NOT_THE_NEWEST),
            Way(name="attention to itself alone", theta=own, window=1),
        ]

    def _search_windows(self, found: dict[str, list[float | None]]) -> None:
        """A window that no config names, searched in prefills, then held against the other forwards."""
        prefills = [i for i, one in enumerate(self.made) if one.kind == PREFILL]
        longest = max((len(self.made[i].sees) for i in prefills), default=0)
        sizes = [size for size in range(1, longest) if size != self.reference.window]
        if not sizes:
            return
        ways = [Way(name=attention_to(size), theta=self.reference.theta, window=size) for size in sizes]
        errors = self._errors(ways, prefills)
        best = min(ways, key=lambda way: max(self._of(errors[way.name], (PREFILL,))))
        found |= self._errors([best])


def attention_to(window: int) -> str:
    return "attention to itself alone" if window == 1 else f"attention to the last {window} tokens alone"


def rounding(dtype: str, width: int) -> float:
    """What rounding may cost in one projection, or in one layer; derived, not measured."""
    return 16 * ROUNDOFF.get(dtype, 2.0**-8) / 2 + 4 * ROUNDOFF["float32"] * math.sqrt(width)


def far(error: float) -> float:
    """A row that is not finite is as far off as can be."""
    return error if error == error else float("inf")


def inputs_of(reference: Reference, forward: Forward) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings, states after fc, and positions of all rows of a forward."""
    file = forward.input.file
    states = file.rows("hidden_states").double()
    if forward.fc is not None:
        states = forward.fc.file.rows("output").double()
    elif forward.kind != STEP:
        states = reference.fc(states)
    return file.rows("embeds").double(), states, file.rows("positions").flatten()


def states_made(rounds: Rounds) -> list[Made]:
    """The states of the first few requests that can be recomputed: all of their rows are known."""
    found: list[Made] = []
    room = TOKENS
    for request in [request for request in rounds.requests if request.seed is not None][: 4 * REQUESTS]:
        prefills = [
            (forward, block)
            for forward in rounds.forwards
            if forward.kind == PREFILL
            for block in forward.blocks
            if block.request is request
        ]
        rows = sum(block.rows for _, block in prefills)
        if rows > room or not request.whole or not all(complete(forward) for forward, _ in prefills):
            continue
        own = [*_of_prefills(request, prefills), *_of_rounds(request)]
        if own:
            room -= rows
            found += own
        if len({id(one.block.request) for one in found}) == REQUESTS:
            break
    return found


def complete(forward: Forward) -> bool:
    event = forward.input
    return "embeds" in event.file.tensors and event.positions is not None and len(event.positions) == event.rows


def _of_prefills(request: Request, prefills: Sequence[tuple[Forward, Block]]) -> Iterator[Made]:
    for forward, block in prefills:
        row = block.first + block.rows - 1
        recorded = forward.made_row(block, row)
        if recorded is not None and block.place is not None:
            sees = tuple(request.rows[place] for place in range(block.place + block.rows))
            yield Made(forward, block, row, recorded, sees, 1)


def _of_rounds(request: Request) -> Iterator[Made]:
    chosen = [*request.rounds[:FIRST], *request.rounds[FIRST:][-LAST:]]
    for one in chosen:
        if one.place is None:
            continue
        before = tuple(request.rows[place] for place in range(one.place) if place in request.rows)
        if len(before) != one.place:
            continue
        yield from _of_steps(one, before)
        if one.extend is not None:
            yield from _of_extend(one, one.extend, before)


def _of_steps(one: Round, before: tuple[tuple[Forward, int], ...]) -> Iterator[Made]:
    for depth, (forward, block) in enumerate(one.steps):
        if not complete(forward) or any(theirs.rows != block.rows for _, theirs in one.steps):
            return
        for branch in range(block.rows):
            row = block.first + branch
            fresh = tuple((f, theirs.first + branch) for f, theirs in one.steps[: depth + 1])
            if (recorded := forward.made_row(block, row)) is not None:
                yield Made(forward, block, row, recorded, before + fresh, len(fresh))


def _of_extend(one: Round, extend: tuple[Forward, Block], before: tuple[tuple[Forward, int], ...]) -> Iterator[Made]:
    forward, block = extend
    if not complete(forward):
        return
    for k in range(min(one.accepted or one.matched or 1, block.rows)):
        row = block.first + k
        fresh = tuple((forward, block.first + i) for i in range(k + 1))
        if (recorded := forward.made_row(block, row)) is not None:
            yield Made(forward, block, row, recorded, before + fresh, len(fresh))
