"""Judges each slot, row by row and on every rank, and finds rows that should have been there and were not."""

from __future__ import annotations

from dataclasses import dataclass

from specwire.diagnosis.align import Piece, gaps
from specwire.diagnosis.distance import relative
from specwire.diagnosis.evidence import Evidence

# A second boundary this much further off than the nearest can be told from it.
APART = 1.2


@dataclass(frozen=True)
class Slot:
    """The judgement on one slot; numbers that could not be had are None."""

    slot: int
    state: str
    why: str
    expected: int | None
    nearest: int | None = None
    rel_l2: float | None = None
    nearest_rel_l2: float | None = None
    cosine: float | None = None
    tolerance: float | None = None
    rows: int = 0
    failed_rows: int = 0
    worst: tuple[int, int, float] | None = None
    first5: tuple[float, ...] | None = None
    golden5: tuple[float, ...] | None = None


def judge(evidence: Evidence) -> list[Slot]:
    """One judgement per slot of the golden or of the capture, whichever has more."""
    if evidence.alone:
        seen = range(evidence.slot_count if evidence.pieces else 0)
        return [
            Slot(slot, "not-compared", "no golden to compare with", None, first5=_first5(evidence, slot))
            for slot in seen
        ]
    count = max(len(evidence.trained), evidence.slot_count)
    return [_slot(evidence, slot) for slot in range(count)]


def _slot(evidence: Evidence, slot: int) -> Slot:
    trained = evidence.trained
    expected = trained[slot] if slot < len(trained) else None
    if not evidence.pieces:
        return Slot(slot, "not-compared", "no states of the golden's prompts were captured", expected)
    if evidence.slot_count == 0:
        return Slot(
            slot,
            "mismatch",
            f"the states are {evidence.width} wide, no multiple of the hidden size",
            expected,
        )
    if slot >= evidence.slot_count:
        return Slot(
            slot,
            "mismatch",
            "this slot was not captured",
            expected,
            golden5=_first5_golden(evidence, expected),
        )
    nearest, distance = evidence.nearest[slot]
    basics = dict(
        nearest=nearest,
        nearest_rel_l2=distance,
        first5=_first5(evidence, slot),
        golden5=_first5_golden(evidence, expected),
    )
    if expected is None:
        return Slot(slot, "mismatch", "the draft was not trained with this slot", None, **basics)
    if evidence.comparison is None:
        return _by_sample(evidence, slot, expected, basics)
    return _by_rows(evidence, slot, expected, basics)


def _by_rows(evidence: Evidence, slot: int, expected: int, basics: dict) -> Slot:
    """Every row of every rank counts: one that is beyond the floor is enough."""
    floor = evidence.floor(expected)
    failed, worst, off = 0, None, False
    for squares in evidence.comparison.squares.values():
        errors = squares.errors[:, slot].masked_fill(~squares.finite[:, slot], float("inf"))
        bad = errors > (floor.worst if floor.stray else floor.usual)
        off = off or not floor.allows(errors.tolist())
        failed = max(failed, int((bad if bad.any() else errors > floor.usual).sum()) if off else 0)
        top = int(errors.argmax())
        if worst is None or errors[top] > worst[2]:
            worst = (*evidence.comparison.place(top), float(errors[top]))
    first = evidence.comparison.of_rank(evidence.pieces[0].event.rank)
    total = len(first.difference)
    numbers = dict(
        rel_l2=first.rel_l2(slot),
        cosine=first.cosine(slot),
        tolerance=floor.usual,
        rows=total,
        failed_rows=failed,
        worst=worst,
    )
    if off:
        return Slot(
            slot,
            "mismatch",
            f"{failed} of {total} rows are further off than the noise floor allows",
            expected,
            **basics,
            **numbers,
        )
    return _told_apart(evidence, slot, expected, basics, numbers)


def _told_apart(evidence: Evidence, slot: int, expected: int, basics: dict, numbers: dict) -> Slot:
    """Rows that are near enough still have to be nearer to their own boundary than to any other."""
    medians = dict(
        zip(
            evidence.sample.boundaries,
            evidence.sample.distances[slot].median(dim=-1).values.tolist(),
            strict=True,
        )
    )
    own = medians.pop(expected)
    other = min(medians, key=medians.get, default=None)
    if other is None or medians[other] > APART * own:
        if _rows_alike(evidence, expected):
            why = f"the golden's rows of boundary {expected} are all alike: rows in the wrong place would not show"
            return Slot(slot, "not-compared", why, expected, **basics, **numbers)
        return Slot(slot, "match", "", expected, **basics, **numbers)
    if own > APART * medians[other]:
        return Slot(
            slot,
            "mismatch",
            f"boundary {other} is nearer than boundary {expected}",
            expected,
            **basics,
            **numbers,
        )
    return Slot(
        slot,
        "not-compared",
        f"the noise is too high to tell boundary {expected} from {other}",
        expected,
        **basics,
        **numbers,
    )


def _rows_alike(evidence: Evidence, boundary: int) -> bool:
    """Whether no sampled row can be told from the one that follows it, as when a prompt is one token repeated."""
    golden = evidence.golden
    ends = [len(prompt.token_ids) for prompt in golden.prompts]
    places = [(prompt, at) for prompt, at in evidence.sample.places if at + 1 < ends[prompt]]
    if not places:
        return False
    rows, next_rows = (
        golden.rows(f"boundary.{boundary}", [(prompt, at + step) for prompt, at in places]) for step in (0, 1)
    )
    return max(relative(next_rows, rows)) <= evidence.floor(boundary).usual


def _by_sample(evidence: Evidence, slot: int, expected: int, basics: dict) -> Slot:
    """The capture has another number of slots than the golden, or the golden lacks a trained boundary."""
    if expected not in evidence.sample.boundaries:
        return Slot(slot, "not-compared", f"the golden does not hold boundary {expected}", expected, **basics)
    errors = evidence.errors(slot, expected)
    floor = evidence.floor(expected)
    good = floor.allows(errors)
    median = sorted(errors)[len(errors) // 2]
    return Slot(
        slot,
        "match" if good else "mismatch",
        "" if good else "its rows are further off than the noise floor allows",
        expected,
        **basics,
        rel_l2=median,
        tolerance=floor.usual,
        rows=len(errors),
        failed_rows=sum(not e <= floor.usual for e in errors),
    )


def missing_rows(evidence: Evidence) -> list[tuple[int, int, int]]:
    """(prompt, first position, end) of stretches that no event covers, and that no prefix cache explains."""
    cached = {piece.prompt: piece.position for piece in evidence.pieces if _from_cache(piece)}
    return [
        (number, max(first, cached.get(number, 0)), end)
        for number, prompt in enumerate(evidence.golden.prompts)
        for first, end in gaps(evidence.pieces, number, len(prompt.token_ids))
        if end > cached.get(number, 0)
    ]


def _from_cache(piece: Piece) -> bool:
    prefix = next((prefix for first, _, prefix in piece.event.requests if first == piece.row), None)
    return bool(prefix) and prefix == piece.position


def _first5(evidence: Evidence, slot: int) -> tuple[float, ...] | None:
    """The first five values of the slot, in the first row of the first prompt that was captured."""
    piece = evidence.pieces[0]
    hidden = evidence.golden.hidden
    start = piece.row * piece.event.width + slot * hidden
    return tuple(piece.event.file.values(piece.event.states, start, min(5, hidden)))


def _first5_golden(evidence: Evidence, boundary: int | None) -> tuple[float, ...] | None:
    golden = evidence.golden
    if boundary is None or not evidence.pieces:
        return None
    piece = evidence.pieces[0]
    name = f"{golden.prompts[piece.prompt].prefix}boundary.{boundary}"
    if name not in golden.file.tensors:
        return None
    return tuple(golden.file.values(name, piece.position * golden.hidden, min(5, golden.hidden)))
