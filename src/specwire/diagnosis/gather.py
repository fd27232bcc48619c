"""Gathers the evidence from a golden and a capture: aligned, compared row by row, and sampled for a closer
look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from specwire.capture import Capture, Event
from specwire.diagnosis.align import Piece, align, asked_of_the_target
from specwire.diagnosis.compare import Comparison, compare, locate, matched_ranks
from specwire.diagnosis.context import Context
from specwire.diagnosis.evidence import Evidence, Sample
from specwire.diagnosis.noise import Floor, floor
from specwire.goldens.golden import Golden
from specwire.goldens.none import NoGolden

SAMPLE_ELEMENTS = 1024 * 1024
SAMPLE_ROWS = 512


def gather(golden: Golden | NoGolden, capture: Capture, context: Context) -> Evidence:
    """Align the capture with the golden, compare all of its rows, and look closely at some."""
    site, events = _main_events(capture)
    asked = asked_of_the_target(capture, events)
    events = [event for event in events if not _said_again(asked.get(id(event)), golden, capture)]
    alignment = align(events, golden, asked)
    pieces, notes = _one_width(alignment.pieces, golden.hidden * len(golden.trained))
    by_rank, odd = matched_ranks(pieces)
    lead = tuple(next(iter(by_rank.values()), ()))
    slots = lead[0].event.width // golden.hidden if lead and lead[0].event.width % golden.hidden == 0 else 0
    comparison = None
    whole = golden if isinstance(golden, Golden) else None
    if whole and slots == len(golden.trained) and all(golden.has(f"boundary.{k}") for k in golden.trained):
        comparison = compare(by_rank, whole, golden.trained, golden.hidden)
    dtype = lead[0].event.dtype if lead else golden.dtype
    floors = [floor(golden, dtype, k) for k in golden.trained] if comparison else []
    looks = whole and lead and slots and golden.boundaries
    sample = _sample(whole, by_rank, slots, comparison, floors) if whole and looks else None
    return Evidence(
        golden=golden,
        context=context,
        site=site,
        width=lead[0].event.width if lead else None,
        dtype=dtype,
        sample=sample,
        capture=capture,
        by_rank={rank: tuple(own) for rank, own in by_rank.items()},
        alignment=alignment,
        odd_ranks=tuple(odd),
        comparison=comparison,
        notes=tuple(notes) + alignment.strange,
    )


def _shards(capture: Capture) -> list[str]:
    """Sites whose states were of another number of rows than their token ids."""
    found: dict[str, Event] = {}
    for event in capture.events:
        if event.shard is not None:
            found.setdefault(event.site, event)
    return [
        f"{site} recorded {event.rows} rows for {event.shard} token ids ({event}): a shard of the batch, or the rows of "
        "all ranks; they are compared with nothing"
        for site, event in sorted(found.items())
    ]


def _main_events(capture: Capture) -> tuple[str, list[Event]]:
    """What reached the draft in a prefill; else the nearest thing to it that was captured."""
    for site in ("draft-input", "concat-full"):
        if events := capture.at(site):
            return site, events
    return "draft-input", []


def _said_again(ids: Sequence[int] | None, golden: Golden | NoGolden, capture: Capture) -> bool:
    """Whether a prefill is of an answer that was sent as a prompt: it is held against that answer's own rows."""
    if not ids or capture.answers is None or tuple(ids) in {prompt.token_ids for prompt in golden.prompts}:
        return False
    return tuple(ids) in {one.tokens[:-1] for one in capture.answers.answers}


def _one_width(pieces: Iterable[Piece], trained: int) -> tuple[list[Piece], list[str]]:
    """The pieces to compare, all of one width: where some are not as wide as was trained, those, since they are wrong."""
    pieces = list(pieces)
    widths = Counter(piece.event.width for piece in pieces)
    if len(widths) < 2:
        return pieces, []
    chosen = max(widths, key=lambda width: (width != trained, widths[width]))
    return (
        [piece for piece in pieces if piece.event.width == chosen],
        [f"states were {' and '.join(map(str, sorted(widths)))} wide; those {chosen} wide are compared"],
    )


def _sample(
    golden: Golden,
    by_rank: Mapping[int, Sequence[Piece]],
    slots: int,
    comparison: Comparison | None,
    floors: Sequence[Floor],
) -> Sample:
    """The rank that is looked at closely comes first: the first one, unless its rows are right and another's are not."""
    import torch

    ranks = list(comparison.squares) if comparison else list(by_rank)
    if comparison and (odd := _odd_rank(comparison, floors)) is not None:
        ranks.insert(0, ranks.pop(ranks.index(odd)))
    lead_pieces = by_rank[ranks[0]]
    limit = max(8, min(SAMPLE_ROWS, SAMPLE_ELEMENTS // (slots * golden.hidden)))
    chosen = _choose(sum(piece.count for piece in lead_pieces), limit, comparison, ranks[0])
    lead = [locate(lead_pieces, row) for row in chosen]
    where = tuple((piece.prompt, piece.position + index) for piece, index in lead)
    captured = {
        rank: torch.stack(
            [
                piece.event.file.rows(piece.event.states, piece.row + index, 1)[0].float().view(slots, -1)
                for piece, index in (locate(by_rank[rank], row) for row in chosen)
            ]
        )
        for rank in ranks
    }
    first = captured[ranks[0]].double()
    distances = torch.empty((slots, len(golden.boundaries), len(where)), dtype=torch.float64)
    for number, k in enumerate(golden.boundaries):
        wanted = golden.rows(f"boundary.{k}", where).double()
        size = wanted.norm(dim=-1).clamp_min(1e-300)
        for slot in range(slots):
            distances[slot, number] = (first[:, slot] - wanted).norm(dim=-1) / size
    return Sample(where, tuple(lead), captured, golden.boundaries, distances)


def _odd_rank(comparison: Comparison, floors: Sequence[Floor]) -> int | None:
    """The first rank with rows that are off, when the first of all has none."""
    off = [
        any(not floor.allows(errors) for floor, errors in zip(floors, squares.errors.T.tolist(), strict=True))
        for squares in comparison.squares.values()
    ]
    return list(comparison.squares)[off.index(True)] if True in off[1:] and not off[0] else None


def _choose(count: int, limit: int, comparison: Comparison | None, rank: int) -> list[int]:
    """At most `limit` of `count` rows, spread out; half of the room goes to those that are furthest off."""
    if count <= limit:
        return list(range(count))
    worst: list[int] = []
    if comparison:
        errors = comparison.of_rank(rank).errors.nan_to_num(nan=float("inf")).max(dim=-1).values
        worst = errors.topk(limit // 2).indices.tolist()
    room = limit - len(worst)
    return sorted({*worst, *(round(i * (count - 1) / (room - 1)) for i in range(room))})
