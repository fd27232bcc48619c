"""Replays what one rank's draft was given, forward by forward: prefills, rows that the target has just verified, and
its own steps; and says of each row whose it is, at which place, and where its state was made.

Only batch tensors are read (token ids, positions, requests), and they are not trusted: what a request's place must be
is counted from its tokens, and what the engine says instead is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specwire.capture import Capture, Event

PREFILL, EXTEND, STEP = "prefill", "extend", "step"
TARGET_SITES = ("embedding-capture", "layer-capture", "hidden-state-dump", "forward-end")


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward of the draft. `made` has its own states, of every row or of each request's last; `given` the concat
    that the target made just before, of as many requests; `verified` the ids that the target was then given."""

    number: int
    kind: str
    input: Event
    fc: Event | None
    made: Event | None
    given: Event | None
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        return f"{self.input}"

    def made_row(self, block: Block, row: int) -> int | None:
        """Where `made` has the state of this row of the input; None where it has not."""
        if self.made is None:
            return None
        if self.made.rows == self.input.rows and self.made.site != "concat-last" or self.kind == STEP:
            return row if row < self.made.rows else None
        kept = row == self.kept_row(block)
        return self.blocks.index(block) if kept and self.made.rows == len(self.blocks) else None

    @property
    def padded(self) -> bool:
        """Whether each request has as many rows as drafts are verified, the accepted ones first."""
        return self.input.mode == "DRAFT_EXTEND_V2"

    def kept_row(self, block: Block) -> int | None:
        """The row of a request whose state is kept where one is: its last, or the last that was accepted; None where how
        many were is not known."""
        rows: int | None = block.rows
        if self.kind == EXTEND and self.padded:
            rounds = [one for one in block.request.rounds if one.extend is not None and one.extend[1] is block]
            rows = rounds[0].accepted if rounds else None
        return None if rows is None else block.first + rows - 1


@dataclass(frozen=True, eq=False)
class Block:
    """The rows of one request in one forward: `place` is that of its first row by what was said before (None where that
    is not known). `depth` counts the draft's own steps since rows came from the target, from 1; 0 for those rows."""

    request: Request
    first: int
    rows: int
    place: int | None
    depth: int = 0


@dataclass(eq=False)
class Round:
    """What a request's draft proposed between two verifications, and from which states.

    `seed` is the row whose state the first proposals come from. `verified` are the ids and positions that the target
    was then given, the root first. `accepted` is how many rows of `extend`, which followed, the engine went on from.
    """

    request: Request
    place: int | None
    seed: tuple[Forward, Block, int] | None
    steps: list[tuple[Forward, Block]] = field(default_factory=list)
    verified: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    asked: Event | None = None  # the forward in which it was
    extend: tuple[Forward, Block] | None = None
    accepted: int | None = None
    matched: int | None = None  # of a chain: how many rows the target's own answers confirm
    claimed_place: int | None = None  # where the engine itself begins this round, if not at `place`

    @property
    def chain(self) -> bool:
        """Whether the drafts are a chain, so that each is verified at the place after the one before it."""
        if self.verified is None:
            return all(block.rows == 1 for _, block in self.steps)
        ids, positions = self.verified
        return all(b == a + 1 for a, b in zip(positions, positions[1:]))


@dataclass(eq=False)
class Request:
    """One request. `rows` has, by place, the row of the draft that is in its cache there."""

    slot: int
    length: int = 0
    rows: dict[int, tuple[Forward, int]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    seed: tuple[Forward, Block, int] | None = None

    @property
    def whole(self) -> bool:
        """Whether all rows before its last are known: none came from another request's cache."""
        return all(place in self.rows for place in range(self.length))


@dataclass(frozen=True)
class Rounds:
    """All forwards and requests of one rank's draft."""

    rank: int
    forwards: tuple[Forward, ...]
    requests: tuple[Request, ...]

    @property
    def unprojected(self) -> list[Forward]:
        """Forwards of the target's rows in which, by the tap's word, `fc` did not run."""
        return [
            forward
            for forward in self.forwards
            if forward.kind != STEP and forward.fc is not None and forward.fc.about.get("fc_ran") is False
        ]

    @property
    def rounds(self) -> list[Round]:
        return [one for request in self.requests for one in request.rounds]


def rounds_of(capture: Capture, rank: int) -> Rounds:
    """Replay one rank's events."""
    walk = _Walk()
    events = [event for event in capture.events if event.rank == rank]
    end: Event | None = None
    concat: Event | None = None
    for place, event in enumerate(events):
        if event.site == "forward-end":
            end, concat = event, None
            if event.mode == "TARGET_VERIFY":
                walk.verify(event)
        elif event.site == "concat-full" and end is not None and event.mode == end.mode:
            concat = event
        elif event.site == "draft-input":
            fc, made = _made(events[place + 1 :], event)
            walk.draft(event, fc, made, concat if event.mode != "DECODE" else None)
            end, concat = (end, concat) if event.mode == "DECODE" else (None, None)
    return Rounds(rank, tuple(walk.forwards), tuple(walk.requests))


def _made(events: Sequence[Event], given: Event) -> tuple[Event | None, Event | None]:
    """What the draft's forward recorded after its input: its projection, and its own states."""
    fc = None
    for event in events:
        if event.site in TARGET_SITES or event.site == "draft-input" or event.mode != given.mode:
            break
        if event.site == "draft-fc":
            fc = event
        elif event.site == "concat-last" or (event.site == "concat-full" and not given.prefill):
            return fc, event
    return fc, None


class _Walk:
    """The state of the replay."""

    def __init__(self) -> None:
        self.forwards: list[Forward] = []
        self.requests: list[Request] = []
        self._by_slot: dict[int, Request] = {}

    def verify(self, event: Event) -> None:
        """The target is given the drafts, as many rows for each request, its last token first."""
        slots, ids, positions = event.slots, event.token_ids, event.positions
        if not slots or not ids or not positions or event.rows % len(slots) or len(ids) != event.rows:
            return
        each = event.rows // len(slots)
        for number, slot in enumerate(slots):
            mine = slice(number * each, (number + 1) * each)
            if (request := self._by_slot.get(slot)) is None:
                continue
            current = self._current(request, positions[mine][0])
            current.verified, current.asked = (tuple(ids[mine]), tuple(positions[mine])), event

    def draft(self, event: Event, fc: Event | None, made: Event | None, given: Event | None) -> None:
        kind = PREFILL if event.prefill else STEP if event.mode == "DECODE" else EXTEND
        blocks = tuple({PREFILL: self._prefill, STEP: self._step, EXTEND: self._extend}[kind](event))
        if not blocks:
            return
        forward = Forward(len(self.forwards), kind, event, fc, made, given, blocks)
        self.forwards.append(forward)
        for block in blocks:
            self._keep(forward, block)

    def _prefill(self, event: Event) -> list[Block]:
        slots, blocks = event.slots, []
        if not event.token_ids or len(event.token_ids) != event.rows:
            return []
        for number, (first, rows, prefix) in enumerate(event.requests):
            if rows <= 0 or first + rows > event.rows:
                return []
            slot = slots[number] if number < len(slots) else -1 - number
            request = self._by_slot.get(slot)
            start = prefix or 0
            if request is None or request.rounds or not start or start != request.length:
                request = self._by_slot[slot] = Request(slot)
                self.requests.append(request)
            blocks.append(Block(request, first, rows, start))
        return blocks

    def _step(self, event: Event) -> list[Block]:
        slots = event.slots
        if not slots or event.rows % len(slots):
            return []
        each, claims, blocks = event.rows // len(slots), event.totals, []
        for number, slot in enumerate(slots):
            if (request := self._by_slot.get(slot)) is None:
                return []
            claim = claims[number] if number < len(claims) else None
            current = self._current(request, claim)
            depth = len(current.steps) + 1
            place = None if current.place is None else current.place + depth - 1
            blocks.append(Block(request, number * each, each, place, depth))
        return blocks

    def _extend(self, event: Event) -> list[Block]:
        slots, spans = event.slots, event.requests
        if len(spans) != len(slots) and slots and event.rows % len(slots) == 0:
            each = event.rows // len(slots)
            spans = [(number * each, each, None) for number in range(len(slots))]
        blocks = []
        for slot, (first, rows, _) in zip(slots, spans):
            request = self._by_slot.get(slot)
            if request is None or not request.rounds or first + rows > event.rows:
                return []
            blocks.append(Block(request, first, rows, request.rounds[-1].place))
        return blocks

    def _current(self, request: Request, claim: int | None) -> Round:
        """The round under way; a new one where the last has been verified. `claim`: where the engine begins it."""
        last = request.rounds[-1] if request.rounds else None
        if last is not None and last.verified is None and last.extend is None:
            return last
        place: int | None = request.length
        if last is not None and last.extend is not None:
            _accept(request, last, claim)
            place = request.length
        elif last is not None:  # verified, and what was accepted never reached the draft
            request.length, request.seed, place = claim or 0, None, None
        fresh = Round(request, place, request.seed, claimed_place=claim if claim != place else None)
        request.rounds.append(fresh)
        return fresh

    def _keep(self, forward: Forward, block: Block) -> None:
        request = block.request
        if forward.kind == PREFILL:
            request.rows |= {block.place + i: (forward, block.first + i) for i in range(block.rows)}
            request.length = block.place + block.rows
            request.seed = (forward, block, block.first + block.rows - 1)
        elif forward.kind == STEP:
            request.rounds[-1].steps.append((forward, block))
        else:
            request.rounds[-1].extend = (forward, block)
            request.rounds[-1].matched = _matched(request.rounds[-1], forward, block)


def _accept(request: Request, last: Round, claim: int | None) -> None:
    """Go on after a verification: by what the engine says, where its tokens allow it; else by what they confirm."""
    forward, block = last.extend
    said = None if claim is None else claim - request.length
    full = forward.padded or forward.made is None or forward.made.rows == forward.input.rows
    most = last.matched if last.matched is not None else block.rows
    accepted = said if said is not None and 1 <= said <= most else most
    last.accepted = min(accepted, block.rows)
    for i in range(last.accepted):
        request.rows[request.length + i] = (forward, block.first + i)
    request.length += last.accepted
    request.seed = (forward, block, block.first + (last.accepted if full else block.rows) - 1)


def _matched(one: Round, forward: Forward, block: Block) -> int | None:
    """How many rows the target's answers confirm: the root's, and one more for each draft that was said before it.

    Of a tree it is the most that tokens and depths allow.
    """
    said = forward.input.token_ids
    if one.verified is None or not said:
        return None
    ids, positions = one.verified
    count = 1
    for k in range(1, block.rows):
        at_depth = {token for token, position in zip(ids, positions) if position == positions[0] + k}
        if said[block.first + k - 1] not in at_depth:
            break
        count += 1
    return count
