"""The golden's end beside the engine's: the stream after the last layer, which a draft need not be trained on to be
trained towards. Data saved after the norm, or one layer early, shows here and in no slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specwire.diagnosis.align import align
from specwire.diagnosis.compare import locate, matched_ranks
from specwire.diagnosis.distance import relative
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.fits import normed_rows
from specwire.diagnosis.head import head_of
from specwire.diagnosis.noise import floor
from specwire.diagnosis.self_check import AS_RECORDED

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.evidence import Evidence

ROWS = 256
SLACK = 2.0  # a norm weighs each channel: a row's relative error may grow a little
SHIFTS = (1, -1)


@dataclass(frozen=True)
class Rows:
    """Rows of the golden's prompts that one site recorded: [rows, hidden] for each rank, each at a place, which is
    (prompt, position)."""

    places: tuple[tuple[int, int], ...]
    states: Mapping[int, torch.Tensor]

    @property
    def first(self) -> torch.Tensor:
        return next(iter(self.states.values()))


@dataclass(frozen=True, kw_only=True)
class TargetEnd:
    """The golden's rows of the last boundary against the engine's final states. `way` is what makes the one the other:
    "" (they agree), "normed", "layer" with `boundary`, "shift" with `shift`, "zeros", or "unknown".

    `rows` were compared of `of`, on `ranks`; `failed` of them are off, by up to `worst` where `bound` is allowed.
    """

    way: str
    rows: int
    of: int
    failed: int = 0
    worst: float = 0.0
    bound: float = 0.0
    boundary: int | None = None
    shift: int = 0
    certain: bool = True

    @property
    def agrees(self) -> bool:
        return not self.way


def rows_at(evidence: Evidence, site: str, boundary: int | None = None, limit: int = ROWS) -> Rows:
    """What `site` recorded in prefills of the golden's prompts, at most `limit` rows; NotSeen when nothing."""
    import torch

    hidden = evidence.golden.hidden
    events = [
        event
        for event in (evidence.capture.at(site) if evidence.capture else ())
        if event.width == hidden and (boundary is None or event.boundary == boundary)
    ]
    by_rank, _ = matched_ranks(align(events, evidence.golden).pieces)
    lead = next(iter(by_rank.values()), [])
    count = sum(piece.count for piece in lead)
    if not count:
        raise NotSeen(f"no row of the golden's prompts was captured at {site}")
    chosen = sorted({round(i * (count - 1) / max(1, min(limit, count) - 1)) for i in range(min(limit, count))})
    placed = [locate(lead, row) for row in chosen]
    states = {
        rank: torch.cat(
            [
                piece.event.file.rows(piece.event.states, piece.row + index, 1)
                for piece, index in (locate(pieces, row) for row in chosen)
            ]
        ).double()
        for rank, pieces in by_rank.items()
    }
    return Rows(tuple((piece.prompt, piece.position + index) for piece, index in placed), states)


def target_end(evidence: Evidence) -> TargetEnd:
    """Compare the last boundary; NotSeen when golden or capture does not hold it, or a slot shows it already."""
    if evidence.alone or evidence.columns is not None:
        raise NotSeen("no golden's end to compare with" if evidence.alone else "a log does not hold whole states")
    golden, last = evidence.whole, evidence.whole.layers
    if not golden.has(f"boundary.{last}"):
        raise NotSeen(f"the golden does not hold boundary {last}")
    if _contradicted(evidence):
        raise NotSeen("the recorded final states are not those that the answers were made from (stream-end)")
    end = rows_at(evidence, "forward-end")
    wanted = golden.rows(f"boundary.{last}", end.places).double()
    every = sum(len(prompt.token_ids) for prompt in golden.prompts)
    ways = _normed(evidence, end.places, wanted)
    bound = SLACK * floor(golden, evidence.dtype, last).usual
    errors = min((_errors(end, made) for made in ways), key=lambda found: sorted(found)[len(found) // 2], default=[])
    if not errors:
        return _fitted(evidence, end, wanted, every, bound)
    if _allows(evidence, last, errors):
        return TargetEnd(way="", rows=len(set(end.places)), of=every)
    return _otherwise(evidence, end, wanted, every, errors, bound)


def _contradicted(evidence: Evidence) -> bool:
    try:
        return evidence.self_check.state == "fails"
    except NotSeen:
        return False


def seen_end(evidence: Evidence) -> TargetEnd | None:
    """How the golden's end differs from the engine's; None where it agrees, or cannot be seen."""
    try:
        found = evidence.end
    except NotSeen:
        return None
    return None if found.agrees else found


def _normed(evidence: Evidence, places: Sequence[tuple[int, int]], wanted: torch.Tensor) -> list[torch.Tensor]:
    """The golden's last boundary after the target's final norm, each way that is known; none without that norm."""
    try:
        return list(head_of(evidence.context).normed(wanted).values())
    except NotSeen:
        pass
    if not evidence.golden.has("final_norm"):
        return []
    final = evidence.whole.rows("final_norm", places).double()
    bound = SLACK * evidence.floor(evidence.whole.layers).usual
    return [final] if normed_rows(wanted, final, bound) else []


def _fitted(evidence: Evidence, end: Rows, wanted: torch.Tensor, every: int, bound: float) -> TargetEnd:
    """Without the target's own norm: one is fitted to some of the rows and tried on the others."""
    if len(wanted) < 8:
        raise NotSeen("the target's final norm is not known (--target), and too few rows were captured to fit one")
    if normed_rows(wanted, end.first, bound):
        return TargetEnd(way="", rows=len(set(end.places)), of=every)
    errors = relative(end.first, wanted)
    return _otherwise(evidence, end, wanted, every, errors, bound)


def _otherwise(
    evidence: Evidence, end: Rows, wanted: torch.Tensor, every: int, errors: list[float], bound: float
) -> TargetEnd:
    """What the golden's rows are instead."""
    failed = sum(not error <= bound for error in errors)
    worst = max(error if error == error else float("inf") for error in errors)
    rows = len(set(end.places))
    found = TargetEnd(way="unknown", rows=rows, of=every, failed=failed, worst=worst, bound=bound, certain=False)
    golden, last = evidence.whole, evidence.whole.layers
    if not wanted.any(dim=-1).all():
        return replace(found, way="zeros", certain=True)
    if _allows(evidence, last, _errors(end, wanted)):
        return replace(found, way="normed" if _is_normed(evidence, end) else "", certain=True)
    for shift in SHIFTS:
        if _shifted(evidence, end, shift):
            return replace(found, way="shift", shift=shift, certain=True)
    for boundary in range(last - 1, -1, -1):
        if golden.has(f"boundary.{boundary}"):
            if golden.rows(f"boundary.{boundary}", end.places).double().equal(wanted):
                return replace(found, way="layer", boundary=boundary, certain=True)
        try:
            dumped = rows_at(evidence, "hidden-state-dump", boundary)
        except NotSeen:
            continue
        own = golden.rows(f"boundary.{last}", dumped.places).double()
        if _allows(evidence, boundary, relative(dumped.first, own)):
            return replace(found, way="layer", boundary=boundary, certain=True)
    return found


def _is_normed(evidence: Evidence, end: Rows) -> bool:
    """Whether the engine's final states were recorded after the norm: by its answers, else by the dump before it.

    NotSeen when neither tells: some releases return them as they are.
    """
    try:
        return evidence.self_check.end.way == AS_RECORDED
    except NotSeen:
        pass
    try:
        last = evidence.whole.layers
        before = rows_at(evidence, "hidden-state-dump", last)
    except NotSeen:
        raise NotSeen("it is not known whether the final states were recorded before or after the norm") from None
    same = before.places == end.places and _allows(evidence, last, relative(before.first, end.first))
    return not same


def _shifted(evidence: Evidence, end: Rows, shift: int) -> bool:
    """Whether the golden's rows, taken `shift` further on, give the engine's after the norm."""
    golden, last = evidence.whole, evidence.whole.layers
    kept = [
        row
        for row, (prompt, position) in enumerate(end.places)
        if 0 <= position + shift < len(golden.prompts[prompt].token_ids)
    ]
    if 2 * len(kept) < len(end.places):
        return False
    places = [(end.places[row][0], end.places[row][1] + shift) for row in kept]
    moved = golden.rows(f"boundary.{last}", places).double()
    return any(_allows(evidence, last, relative(end.first[kept], made)) for made in _normed(evidence, places, moved))


def _errors(rows: Rows, wanted: torch.Tensor) -> list[float]:
    """Each row's worst error over the ranks."""
    every = [relative(states, wanted) for states in rows.states.values()]
    return [max(error if error == error else float("inf") for error in row) for row in zip(*every, strict=True)]


def _allows(evidence: Evidence, boundary: int, errors: list[float]) -> bool:
    return floor(evidence.golden, evidence.dtype, boundary).allows([error / SLACK for error in errors])
