"""Judges each slot, row by row and on every rank, and finds rows that should have been there and were not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specwire.diagnosis.align import Piece, gaps
from specwire.diagnosis.compare import Comparison, locate
from specwire.diagnosis.distance import relative
from specwire.diagnosis.evidence import APART, Evidence
from specwire.goldens.golden import Golden

LARGEST = 3  # differences that are shown of a slot's worst row


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The judgement on one slot; numbers that could not be had are None."""

    slot: int
    expected: int | None = None
    state: str = "not-compared"
    why: str = ""
    nearest: int | None = None
    rel_l2: float | None = None
    nearest_rel_l2: float | None = None
    cosine: float | None = None
    tolerance: float | None = None
    rows: int = 0
    failed_rows: int = 0
    worst: Worst | None = None
    first5: tuple[float, ...] | None = None
    golden5: tuple[float, ...] | None = None

    def match(self) -> Slot:
        return replace(self, state="match", why="")

    def mismatch(self, why: str) -> Slot:
        return replace(self, state="mismatch", why=why)

    def not_compared(self, why: str) -> Slot:
        return replace(self, state="not-compared", why=why)


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The row of a slot that is furthest off, on the rank where it is. `elements` are its largest differences."""

    rank: int
    prompt: int
    position: int
    token: int | None
    rel_l2: float
    bound: float
    elements: tuple[Element, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Element:
    """One value of a row, beside the golden's. `index` counts from the slot's first column."""

    index: int
    captured: float
    golden: float


def judge(evidence: Evidence) -> list[Slot]:
    """One judgement per slot of the golden or of the capture, whichever has more."""
    if evidence.alone:
        seen = range(evidence.slot_count if evidence.pieces else 0)
        return [
            Slot(slot=slot, first5=_first5(evidence, slot)).not_compared("no golden to compare with") for slot in seen
        ]
    return [_slot(evidence, slot) for slot in range(max(len(evidence.trained), evidence.slot_count))]


def _slot(evidence: Evidence, slot: int) -> Slot:
    trained = evidence.trained
    expected = trained[slot] if slot < len(trained) else None
    found = Slot(slot=slot, expected=expected)
    if not evidence.pieces:
        return found.not_compared("no states of the golden's prompts were captured")
    if evidence.slot_count == 0:
        return found.mismatch(f"the states are {evidence.width} wide, no multiple of the hidden size")
    found = replace(found, golden5=_first5_golden(evidence, expected))
    if slot >= evidence.slot_count:
        return found.mismatch("this slot was not captured")
    nearest, distance = evidence.nearest[slot]
    found = replace(found, nearest=nearest, nearest_rel_l2=distance, first5=_first5(evidence, slot))
    if expected is None:
        return found.mismatch("the draft was not trained with this slot")
    if (comparison := evidence.comparison) is None:
        return _by_sample(evidence, found, expected)
    return _by_rows(evidence, comparison, found, expected)


def _by_rows(evidence: Evidence, comparison: Comparison, found: Slot, expected: int) -> Slot:
    """Every row of every rank counts: one that is beyond the floor is enough."""
    slot, floor = found.slot, evidence.floor(expected)
    failed, off = 0, False
    worst = 0, 0, -1.0
    for rank, squares in comparison.squares.items():
        errors = squares.errors[:, slot].masked_fill(~squares.finite[:, slot], float("inf"))
        bad = errors > (floor.worst if floor.stray else floor.usual)
        off = off or not floor.allows(errors.tolist())
        failed = max(failed, int((bad if bad.any() else errors > floor.usual).sum()) if off else 0)
        top = int(errors.argmax())
        if not errors[top] <= worst[2]:
            worst = rank, top, float(errors[top])
    first = comparison.of_rank(next(iter(evidence.seen.captured)))
    total = len(first.difference)
    found = replace(
        found,
        rel_l2=first.rel_l2(slot),
        cosine=first.cosine(slot),
        tolerance=floor.usual,
        rows=total,
        failed_rows=failed,
        worst=_worst(evidence, comparison, slot, expected, *worst),
    )
    if off:
        return found.mismatch(f"{failed} of {total} rows are further off than the noise floor allows")
    return _told_apart(evidence, found, expected)


def _worst(
    evidence: Evidence, comparison: Comparison, slot: int, expected: int, rank: int, row: int, error: float
) -> Worst:
    """The row, its token, and where the captured values are furthest from the golden's."""
    import torch

    golden = evidence.whole
    prompt, position = comparison.place(row)
    piece, index = locate(evidence.of_rank(rank), row)
    columns = slice(slot * golden.hidden, (slot + 1) * golden.hidden)
    mine = piece.event.file.rows(piece.event.states, piece.row + index, 1)[0, columns].double()
    wanted = golden.rows(f"boundary.{expected}", [(prompt, position)])[0].double()
    away = (mine - wanted).abs().nan_to_num(nan=float("inf"))
    top = torch.topk(away, min(LARGEST, len(away))).indices.tolist()
    ids = golden.prompts[prompt].token_ids
    return Worst(
        rank=rank,
        prompt=prompt,
        position=position,
        token=ids[position],
        rel_l2=error,
        bound=evidence.floor(expected).usual,
        elements=tuple(
            Element(index=at, captured=float(mine[at]), golden=float(wanted[at])) for at in top if away[at] > 0
        ),
    )


def _told_apart(evidence: Evidence, found: Slot, expected: int) -> Slot:
    """Rows that are near enough still have to be nearer to their own boundary than to any other."""
    distances: list[float] = evidence.seen.distances[found.slot].median(dim=-1).values.tolist()
    medians = dict(zip(evidence.seen.boundaries, distances, strict=True))
    own = medians.pop(expected)
    other = min(medians, key=medians.__getitem__, default=None)
    if other is None or medians[other] > APART * own:
        if _rows_alike(evidence, expected):
            return found.not_compared(
                f"the golden's rows of boundary {expected} are all alike: rows in the wrong place would not show"
            )
        return found.match()
    if own > APART * medians[other]:
        return found.mismatch(f"boundary {other} is nearer than boundary {expected}")
    return found.not_compared(f"the noise is too high to tell boundary {expected} from {other}")


def _rows_alike(evidence: Evidence, boundary: int) -> bool:
    """Whether no sampled row can be told from the one that follows it, as when a prompt is one token repeated."""
    golden = evidence.whole
    ends = [len(prompt.token_ids) for prompt in golden.prompts]
    places = [(prompt, at) for prompt, at in evidence.seen.places if at + 1 < ends[prompt]]
    if not places:
        return False
    rows, next_rows = (
        golden.rows(f"boundary.{boundary}", [(prompt, at + step) for prompt, at in places]) for step in (0, 1)
    )
    return max(relative(next_rows, rows)) <= evidence.floor(boundary).usual


def _by_sample(evidence: Evidence, found: Slot, expected: int) -> Slot:
    """The capture has another number of slots than the golden, or the golden lacks a trained boundary."""
    if expected not in evidence.seen.boundaries:
        return found.not_compared(f"the golden does not hold boundary {expected}")
    errors = evidence.errors(found.slot, expected)
    floor = evidence.floor(expected)
    found = replace(
        found,
        rel_l2=sorted(errors)[len(errors) // 2],
        tolerance=floor.usual,
        rows=len(errors),
        failed_rows=sum(not error <= floor.usual for error in errors),
    )
    good = floor.allows(errors)
    return found.match() if good else found.mismatch("its rows are further off than the noise floor allows")


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
    if boundary is None or not evidence.pieces or not isinstance(golden, Golden):
        return None
    piece = evidence.pieces[0]
    name = f"{golden.prompts[piece.prompt].prefix}boundary.{boundary}"
    if name not in golden.file.tensors:
        return None
    return tuple(golden.file.values(name, piece.position * golden.hidden, min(5, golden.hidden)))
