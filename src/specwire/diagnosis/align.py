"""Finds each captured row's place in the golden's prompts: by token ids, and by where each request begins."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specwire.capture import Event
from specwire.goldens.golden import Golden

DRAFT_SITES = ("draft-input", "draft-fc")


@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one event that are neighbouring rows of one golden prompt."""

    event: Event
    row: int
    count: int
    prompt: int
    position: int


@dataclass(frozen=True)
class Alignment:
    """Pieces that were recognised, and a sentence for each request that was not, or whose positions are not
    its rows'."""

    pieces: tuple[Piece, ...]
    strange: tuple[str, ...]
    odd_positions: tuple[str, ...]
    shift: int


def align(events: Sequence[Event], golden: Golden) -> Alignment:
    """Find each event's rows in the golden's prompts, by token ids and positions.

    A draft gets its ids shifted left by one. When all of a run's ids fit unshifted only, that is a finding of
    its own, and `shift` is 0.
    """
    shift = 0 if events and events[0].site not in DRAFT_SITES else 1
    found = _align(events, golden, shift)
    if shift and not found.pieces:
        unshifted = _align(events, golden, 0)
        if unshifted.pieces:
            return unshifted
    return found


def _align(events: Sequence[Event], golden: Golden, shift: int) -> Alignment:
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    pieces: list[Piece] = []
    strange: list[str] = []
    odd: list[str] = []
    for event in events:
        for first, rows, prefix in event.requests:
            piece = _place(event, first, rows, prefix, prompts, shift)
            if not isinstance(piece, Piece):
                strange.append(f"{event}, rows {first}..{first + rows}: {piece}")
                continue
            pieces.append(piece)
            positions = _part(event.positions, first, rows)
            if positions and positions != array("q", range(piece.position, piece.position + rows)):
                odd.append(
                    f"{event}: prompt {piece.prompt} has positions {list(positions[:4])}... for its tokens "
                    f"{piece.position} on"
                )
    return Alignment(tuple(pieces), tuple(strange), tuple(odd), shift)


def _place(
    event: Event, first: int, rows: int, prefix: int | None, prompts: Sequence[array], shift: int
) -> Piece | str:
    if first < 0 or rows <= 0 or first + rows > event.rows:
        return f"only {event.rows} rows of states were recorded"
    positions, ids = _part(event.positions, first, rows), _part(event.token_ids, first, rows)
    if ids is None:
        start = positions[0] if positions else prefix or 0
        fits = [p for p, prompt in enumerate(prompts) if start == 0 and len(prompt) == rows]
        return (
            Piece(event, first, rows, fits[0], 0)
            if len(fits) == 1
            else "no token ids recorded, and its length fits no one prompt"
        )
    # Where a request begins is known from its cached prefix; its positions should say the same, and are not
    # trusted to.
    starts = [prefix] if prefix is not None else []
    starts += [positions[0]] if positions and positions[0] not in starts else []
    for start in starts or [0]:
        fits = [p for p, prompt in enumerate(prompts) if _fits(ids, prompt, start, shift)]
        if len({tuple(prompts[p][: start + rows]) for p in fits}) > 1:
            return f"its token ids fit {len(fits)} golden prompts"
        if fits:
            return Piece(event, first, rows, fits[0], start)
    return "its token ids are those of no golden prompt"


def _part(values: array | None, first: int, rows: int) -> array | None:
    return values[first : first + rows] if values and len(values) >= first + rows else None


def _fits(ids: array, prompt: array, start: int, shift: int) -> bool:
    # The draft's last id is the token that was sampled next, or the next chunk's first: not the prompt's to
    # say.
    sure = len(ids) - shift
    if start < 0 or start + len(ids) > len(prompt):
        return False
    if sure and ids[0] != prompt[start + shift]:
        return False
    return ids[:sure] == prompt[start + shift : start + shift + sure]


def knows(golden: Golden, event: Event) -> bool:
    """Whether the event's token ids, taken whole, are those of a golden prompt from its start on; shifted or
    not."""
    ids = event.token_ids
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    return (
        bool(ids)
        and len(ids) > 1
        and any(_fits(ids, prompt, 0, shift) for prompt in prompts for shift in (0, 1))
    )


def gaps(pieces: Sequence[Piece], prompt: int, length: int) -> Iterator[tuple[int, int]]:
    """The stretches of a prompt, as (first, end), that no piece covers."""
    reached = 0
    for piece in sorted(
        (piece for piece in pieces if piece.prompt == prompt), key=lambda piece: piece.position
    ):
        if piece.position > reached:
            yield reached, piece.position
        reached = max(reached, piece.position + piece.count)
    if reached < length:
        yield reached, length
