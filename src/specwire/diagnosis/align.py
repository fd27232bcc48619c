"""Finds each captured row's place in the golden's prompts: by token ids, and by where each request begins."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specwire.capture import Capture, Event
from specwire.goldens.reference import GoldenLike

DRAFT_SITES = ("draft-input", "draft-fc")
TARGET_SITES = ("embedding-capture", "layer-capture", "hidden-state-dump", "forward-end", "concat-full")


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
    """Pieces that were recognised, and a sentence for each request that was not, or whose positions or token ids are
    not its rows'. A request whose ids are nobody's is known by what the target was given in the same forward."""

    pieces: tuple[Piece, ...]
    strange: tuple[str, ...]
    odd_positions: tuple[str, ...]
    shift: int
    odd_ids: tuple[str, ...] = ()


def align(events: Sequence[Event], golden: GoldenLike, asked: Mapping[int, array[int]] | None = None) -> Alignment:
    """Find each event's rows in the golden's prompts, by token ids and positions.

    A draft gets its ids shifted left by one. When all of a run's ids fit unshifted only, that is a finding of
    its own, and `shift` is 0. `asked` has, by the id() of an event, the ids that the target was given in the same
    forward: where the draft's fit several prompts, because only the first token differs, those tell.
    """
    shift = 0 if events and events[0].site not in DRAFT_SITES else 1
    found = _align(events, golden, shift, asked or {})
    if shift and not found.pieces:
        unshifted = _align(events, golden, 0, asked or {})
        if unshifted.pieces:
            return unshifted
    if shift and found.strange and asked:
        return _align(events, golden, shift, asked, by_the_target=True)
    return found


def asked_of_the_target(capture: Capture, events: Sequence[Event]) -> dict[int, array[int]]:
    """The token ids of the target's prefill before each of the draft's, where it was of as many rows."""
    wanted, found = {id(event) for event in events}, {}
    last: dict[int, array[int] | None] = {}
    for event in capture.events:
        if id(event) in wanted:
            ids = last.get(event.rank)
            if ids and len(ids) == event.rows:
                found[id(event)] = ids
        elif event.site in TARGET_SITES and event.prefill:
            last[event.rank] = event.token_ids
    return found


def _align(
    events: Sequence[Event],
    golden: GoldenLike,
    shift: int,
    asked: Mapping[int, array[int]],
    by_the_target: bool = False,
) -> Alignment:
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    placed: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
    pieces: list[Piece] = []
    strange: list[str] = []
    odd: list[str] = []
    odd_ids: list[str] = []
    for event in events:
        if odd_context := _odd_context(event):
            strange.append(f"{event}: {odd_context}")
            continue
        for first, rows, prefix in event.requests:
            asked_ids = asked.get(id(event))
            own = asked_ids[first : first + rows] if asked_ids else None
            piece = _place(event, first, rows, prefix, prompts, shift, own, placed)
            if by_the_target and not isinstance(piece, Piece) and own and rows > 1:
                by_target = _by_the_target(event, first, rows, prefix, prompts, own)
                if by_target:
                    ids = list(_part(event.token_ids, first, rows) or ())
                    odd_ids.append(
                        f"{event}: ids {ids[:4]}... for prompt {by_target.prompt}, {list(own[:4])}... at the target"
                    )
                    piece = by_target
            if not isinstance(piece, Piece):
                strange.append(f"{event}, rows {first}..{first + rows}: {piece}")
                continue
            pieces.append(piece)
            placed[event.rank, piece.prompt].append(piece)
            positions = _part(event.positions, first, rows)
            if positions and positions != array("q", range(piece.position, piece.position + rows)):
                odd.append(
                    f"{event}: prompt {piece.prompt} has positions {list(positions[:4])}... for its tokens "
                    f"{piece.position} on"
                )
    return Alignment(tuple(pieces), tuple(strange), tuple(odd), shift, tuple(odd_ids))


def _by_the_target(
    event: Event, first: int, rows: int, prefix: int | None, prompts: Sequence[array[int]], own: array[int]
) -> Piece | None:
    """A request of the draft whose own ids are nobody's, by those that the target was given; None unless one prompt fits."""
    start = prefix or 0
    if len(own) != rows or first + rows > event.rows:
        return None
    fits = [number for number, prompt in enumerate(prompts) if _fits(own, prompt, start, 0)]
    return Piece(event, first, rows, fits[0], start) if len(fits) == 1 else None


def _odd_context(event: Event) -> str:
    """What of the batch's recorded context makes no sense, so that no row's place can be told by it; else empty.

    Context that was not recorded is no contradiction. Positions of images are recorded as [3, rows].
    """
    file, rows = event.file, event.rows
    for name, dimensions in (("token_ids", 1), ("extend_seq_lens", 1), ("extend_prefix_lens", 1), ("positions", 2)):
        entry = file.tensors.get(name)
        if entry and (entry.dtype not in ("I64", "I32") or not 1 <= len(entry.shape) <= dimensions):
            return f"{name} is {entry.dtype} {list(entry.shape)}, not whole numbers, one for each row or request"
    lengths = file.tensors.get("extend_seq_lens")
    if lengths and (not event.lengths or min(event.lengths) <= 0):
        return f"extend_seq_lens is {list(event.lengths or ())}, for {rows} rows"
    if event.prefixes and min(event.prefixes) < 0:
        return f"extend_prefix_lens is {list(event.prefixes)}"
    asked = max(rows, sum(event.lengths or ()))  # an engine that keeps the last row alone still asked for all
    for name, values in (("token_ids", event.token_ids), ("positions", event.positions)):
        if values and len(values) not in (rows, asked):
            return f"{len(values)} {name} for {asked} rows"
    return ""


def _place(
    event: Event,
    first: int,
    rows: int,
    prefix: int | None,
    prompts: Sequence[array[int]],
    shift: int,
    own: array[int] | None,
    placed: Mapping[tuple[int, int], Sequence[Piece]],
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
        if own and rows <= shift:  # one id, and that not the prompt's to say: a decode among prefills looks the same
            fits = [p for p in fits if _fits(own, prompts[p], start, 0)]
        elif own and len({tuple(prompts[p][: start + rows]) for p in fits}) > 1:
            fits = [p for p in fits if _fits(own, prompts[p], start, 0)] or fits
        if len({tuple(prompts[p][: start + rows]) for p in fits}) > 1:
            return f"its token ids fit {len(fits)} golden prompts"
        if fits:
            return Piece(
                event,
                first,
                rows,
                min(fits, key=lambda p: _turn(placed[event.rank, p], prompts[p], start, rows)),
                start,
            )
    return "its token ids are those of no golden prompt"


def _turn(placed: Sequence[Piece], prompt: array[int], start: int, rows: int) -> tuple[int, bool, bool, int]:
    """Of prompts that are alike so far the least is taken: each in its turn, one that goes on here, one that ends here."""
    here = sum(piece.position == start for piece in placed)
    goes_on = start == max((piece.position + piece.count for piece in placed), default=0)
    return here, not goes_on, len(prompt) != start + rows, len(placed)


def _part(values: array[int] | None, first: int, rows: int) -> array[int] | None:
    return values[first : first + rows] if values and len(values) >= first + rows else None


def _fits(ids: array[int], prompt: array[int], start: int, shift: int) -> bool:
    # The draft's last id is the token that was sampled next, or the next chunk's first: not the prompt's to
    # say.
    sure = len(ids) - shift
    if start < 0 or start + len(ids) > len(prompt):
        return False
    if sure and ids[0] != prompt[start + shift]:
        return False
    return ids[:sure] == prompt[start + shift : start + shift + sure]


def knows(golden: GoldenLike, event: Event) -> bool:
    """Whether the event's token ids, taken whole, are those of a golden prompt from its start on; shifted or
    not."""
    ids = event.token_ids
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    if ids is None or len(ids) < 2:
        return False
    return any(_fits(ids, prompt, 0, shift) for prompt in prompts for shift in (0, 1))


def gaps(pieces: Sequence[Piece], prompt: int, length: int) -> Iterator[tuple[int, int]]:
    """The stretches of a prompt, as (first, end), that no piece covers."""
    reached = 0
    for piece in sorted((piece for piece in pieces if piece.prompt == prompt), key=lambda piece: piece.position):
        if piece.position > reached:
            yield reached, piece.position
        reached = max(reached, piece.position + piece.count)
    if reached < length:
        yield reached, length
