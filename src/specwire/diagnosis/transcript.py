"""Replays a capture's forwards into what was said: which token each row of the target is at, which came next, and
how many drafted tokens each verification accepted.

Only batch tensors are read (token ids, positions, requests), so it needs no golden and no answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specwire.answers import Answer, Answers
from specwire.capture import Capture, Event

# Sites whose rows are those of the forward that a forward-end closes.
BEFORE_THE_END = ("hidden-state-dump", "layer-capture")


@dataclass
class Spoken:
    """One request: its tokens by place as far as they are known, and its verifications."""

    tokens: dict[int, int] = field(default_factory=dict)
    prompt: int = 0  # how many of the tokens are the prompt's
    cycles: list[Cycle] = field(default_factory=list)
    answer: Answer | None = None
    again: bool = False  # another's answer that was sent as a prompt
    drafts: tuple[int, ...] = ()  # the last verification's ids, if they are a chain: its first token, then drafts

    @property
    def asked(self) -> tuple[int, ...]:
        """The prompt; empty when a part of it came from a cache and was not seen."""
        places = range(min(self.prompt, len(self.tokens)))
        whole = len(places) == self.prompt and all(place in self.tokens for place in places)
        return tuple(self.tokens[place] for place in places) if whole else ()


@dataclass(frozen=True)
class Cycle:
    """One verification: the place of its first token, how many drafts deep it went, how many were accepted (None:
    nothing followed that tells), and how many requests were in the batch."""

    place: int
    drafted: int
    accepted: int | None
    batch: int


@dataclass(frozen=True)
class Row:
    """A row of a forward: the request that it is of, and its token's place there."""

    row: int
    spoken: Spoken
    place: int


@dataclass(frozen=True)
class Forward:
    """One forward of the target on one rank; `beside` has its other sites' events by (site, boundary), the draft's input
    among them."""

    end: Event
    rows: tuple[Row, ...]
    beside: dict[tuple[str, int | None], Event]


@dataclass(frozen=True)
class Transcript:
    """All requests and all forwards of the first rank that recorded the end of one."""

    spoken: tuple[Spoken, ...]
    forwards: tuple[Forward, ...]


def transcript(capture: Capture, answers: Answers | None) -> Transcript:
    """Replay what the first rank with a forward-end recorded."""
    ends = capture.at("forward-end", prefill=False)
    events = [event for event in capture.events if ends and event.rank == ends[0].rank]
    spoken: list[Spoken] = []
    by_slot: dict[int, Spoken] = {}
    forwards: list[tuple[Event, list[tuple[int, Spoken, int]], dict]] = []
    beside: dict[tuple[str, int | None], Event] = {}
    given = True  # whether the forward's concat, which comes before all of the draft's, can no more come
    for event in events:
        if event.site in BEFORE_THE_END:
            beside[event.site, event.boundary] = event
        elif event.site == "forward-end":
            blocks = list(_prefill(event, by_slot, spoken) if event.prefill else _verification(event, by_slot))
            same = {key: other for key, other in beside.items() if other.rows == event.rows}
            forwards.append((event, blocks, same))
            beside, given = {}, False
        elif event.site == "concat-full" and forwards and not given and event.mode == forwards[-1][0].mode:
            if event.rows == forwards[-1][0].rows:
                forwards[-1][2]["concat-full", None] = event
            given = True
        elif event.site == "draft-input" and event.prefill and forwards:
            given = True
            end, blocks, same = forwards[-1]
            if end.prefill and end.rows == event.rows and ("draft-input", None) not in same:
                same["draft-input", None] = event
                _next_tokens(event, blocks)
    _match(spoken, answers)
    return Transcript(
        tuple(spoken), tuple(Forward(end, tuple(_known(end, blocks)), same) for end, blocks, same in forwards)
    )


def _prefill(event: Event, by_slot: dict[int, Spoken], spoken: list[Spoken]) -> Iterator[tuple[int, int, Spoken, int]]:
    """The blocks of a prefill, as (first row, rows, request, place of its first token); requests begin here."""
    slots, ids = event.slots, event.token_ids
    if not ids or len(ids) != event.rows:
        return
    for number, (first, rows, prefix) in enumerate(event.requests):
        if rows <= 0 or first + rows > event.rows:
            return
        slot = slots[number] if number < len(slots) else -1 - number
        start = prefix if prefix is not None else event.positions[first] if event.positions else 0
        one = by_slot.get(slot)
        if not start or one is None or one.cycles or start != one.prompt:  # else: the next chunk of a long prompt
            one = by_slot[slot] = Spoken()
            spoken.append(one)
        one.tokens.update(enumerate(ids[first : first + rows], start))
        one.prompt = start + rows
        yield first, rows, one, start


def _verification(event: Event, by_slot: dict[int, Spoken]) -> Iterator[tuple[int, int, Spoken, int]]:
    """The blocks of a verification or a plain decode: as many rows for each request, its last token first."""
    slots, ids, positions = event.slots, event.token_ids, event.positions
    if not slots or not ids or not positions or event.rows % len(slots) or len(ids) != event.rows:
        return
    each = event.rows // len(slots)
    for number, slot in enumerate(slots):
        first = number * each
        one = by_slot.get(slot)
        if one is None:
            continue
        start = positions[first]
        if one.cycles and (last := one.cycles[-1]).accepted is None and 0 < start - last.place <= last.drafted + 1:
            one.cycles[-1] = Cycle(last.place, last.drafted, start - last.place - 1, last.batch)
            one.tokens.update(enumerate(one.drafts[1 : start - last.place], last.place + 1))
        one.tokens[start] = ids[first]
        one.cycles.append(Cycle(start, max(positions[first : first + each]) - start, None, len(slots)))
        chain = positions[first : first + each].tolist() == list(range(start, start + each))
        one.drafts = tuple(ids[first : first + each]) if chain else ()
        yield first, each if chain else 1, one, start  # of a tree, no row but the first has a place of its own


def _next_tokens(event: Event, blocks: Sequence[tuple[int, int, Spoken, int]]) -> None:
    """The draft's ids are the target's, one further on: each request's last is what the target said, or what the
    prompt's next chunk, which will overwrite it, begins with."""
    ids = event.token_ids
    for first, rows, one, start in blocks if ids and len(ids) == event.rows else ():
        one.tokens[start + rows] = ids[first + rows - 1]


def _match(spoken: Sequence[Spoken], answers: Answers | None) -> None:
    """Each request's answer; of several with one prompt, in turn."""
    left = list(answers.answers) if answers else []
    for one in spoken:
        asked = one.asked
        found = next((answer for answer in left if asked and answer.prompt == asked), None)
        if found is not None:
            left.remove(found)
            one.answer = found
            one.tokens.update(enumerate(found.tokens))
    sent = {answer.tokens[:-1] for answer in answers.answers} if answers else set()
    for one in spoken:
        one.again = one.answer is None and one.asked in sent


def _known(end: Event, blocks: Sequence[tuple[int, int, Spoken, int]]) -> Iterator[Row]:
    """Rows whose token is the one that was said at that place, and all before it in the block as well: what the
    target computed in a row after a rejected draft was never said."""
    for first, rows, one, start in blocks:
        for offset in range(rows):
            place = start + offset
            if end.token_ids[first + offset] != one.tokens.get(place):
                break
            yield Row(first + offset, one, place)
