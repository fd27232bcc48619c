"""Evidence: everything that the checks go by, gathered once from a golden and a capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.capture import Alignment, Capture, Event, Piece, align, places
from specwire.compare import Comparison, compare, matched_ranks
from specwire.context import Context
from specwire.golden import Golden, LogGolden
from specwire.noise import Floor, floor

if TYPE_CHECKING:
    import torch

SAMPLE_ELEMENTS = 4 * 1024 * 1024
SAMPLE_ROWS = 512


@dataclass(frozen=True)
class Cause:
    """A named fault. `steps` counts what had to be assumed: of two causes that both fit, the one with fewer is first."""

    confidence: str
    evidence: str
    fix: str
    steps: int = 1
    id: str = ""


@dataclass(frozen=True)
class Skipped:
    """A check that could not look, and what it would have needed. Never a pass."""

    why: str


class NotSeen(Exception):
    """A check asked for rows, and there are none to look at: the check is skipped, never passed."""


@dataclass(frozen=True)
class Sample:
    """Some rows, held in memory. `captured` has [rows, slots, hidden] in float32 for each rank whose bytes differ;
    `distances` is [slots, boundaries, rows], the first rank's relative L2 to every boundary of the golden."""

    places: tuple[tuple[int, int], ...]
    rows: tuple[tuple[Piece, int], ...]
    captured: Mapping[int, torch.Tensor]
    boundaries: tuple[int, ...]
    distances: torch.Tensor


@dataclass(frozen=True)
class Evidence:
    """What reached the draft, beside what should have. Tensors are read when a check asks for them."""

    golden: Golden | LogGolden
    context: Context
    site: str
    width: int | None
    dtype: str
    sample: Sample | None
    capture: Capture | None = None
    pieces: tuple[Piece, ...] = ()
    alignment: Alignment | None = None
    odd_ranks: tuple[int, ...] = ()
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    columns: int | None = None  # how much of each row is known: all of it, or only the first so many values

    # What was expected, and what came.
    @property
    def trained(self) -> tuple[int, ...]:
        return self.golden.trained

    @property
    def slot_count(self) -> int:
        """How many target hidden sizes wide the states are; 0 when that is not a whole number."""
        if not self.width or self.width % self.golden.hidden:
            return 0
        return self.width // self.golden.hidden

    def floor(self, boundary: int) -> Floor:
        return floor(self.golden, self.dtype, boundary)

    @property
    def seen(self) -> Sample:
        """The sampled rows; NotSeen when no row of the golden's prompts was captured, or none of a known width."""
        if self.sample is None:
            raise NotSeen("no captured rows to look at")
        return self.sample

    # Which boundary is in which slot.
    def errors(self, slot: int, boundary: int) -> list[float]:
        """Relative L2 of each sampled row of `slot` to `boundary`."""
        return self.seen.distances[slot, self.seen.boundaries.index(boundary)].tolist()

    def exact(self, slot: int, boundary: int) -> bool:
        return boundary in self.seen.boundaries and self.floor(boundary).allows(self.errors(slot, boundary))

    @cached_property
    def nearest(self) -> tuple[tuple[int, float], ...]:
        """Per slot, the boundary whose median row is nearest, and that distance."""
        medians = self.seen.distances.nan_to_num(nan=float("inf")).median(dim=-1).values
        best = medians.min(dim=-1)
        return tuple(
            (self.seen.boundaries[int(k)], float(distance)) for k, distance in zip(best.indices, best.values, strict=True)
        )

    @cached_property
    def found(self) -> tuple[int | None, ...]:
        """Per slot, the boundary that it holds within the noise floor; None where it holds none."""
        return tuple(k if self.exact(slot, k) else None for slot, (k, _) in enumerate(self.nearest))

    @cached_property
    def not_finite(self) -> tuple[tuple[int, int, int], ...]:
        """(rank, sampled row, slot) of every row that holds NaN or infinity."""
        return tuple(
            (rank, row, slot) for rank, states in self.seen.captured.items() for row, slot in (~states.isfinite().all(dim=-1)).nonzero().tolist()
        )

    @cached_property
    def nearest_rows(self) -> tuple[tuple[int | None, ...], ...]:
        """Per slot and sampled row, the index of the sampled golden row (at the slot's trained boundary) that it is.

        None where it is none of them within the noise floor. Empty when the slots are not the trained ones in number.
        """
        if self.slot_count != len(self.trained):
            return ()
        return tuple(self._rows_of(slot, k) for slot, k in enumerate(self.trained))

    def _rows_of(self, slot: int, boundary: int) -> tuple[int | None, ...]:
        import torch

        if boundary not in self.seen.boundaries:
            return ()
        wanted, states = self.wanted(boundary).double(), self.captured(slot).double()
        ratio = torch.cdist(states, wanted, compute_mode="donot_use_mm_for_euclid_dist") / wanted.norm(dim=-1).clamp_min(1e-300)
        best = ratio.nan_to_num(nan=float("inf")).min(dim=-1)
        bound = self.floor(boundary).usual
        return tuple(int(i) if error <= bound else None for i, error in zip(best.indices, best.values, strict=True))

    @property
    def any_row_known(self) -> bool:
        """Whether any captured row is some row of the golden, at the boundary its slot was trained with."""
        return any(row is not None for slot in self.nearest_rows for row in slot)

    # Rows, for the checks that try a transform.
    def captured(self, slot: int, rank: int | None = None) -> torch.Tensor:
        """The sampled rows of one slot, [rows, hidden], float32."""
        held = self.seen.captured
        return held.get(rank, next(iter(held.values())))[:, slot]

    def wanted(self, what: int | str, shift: int = 0) -> torch.Tensor:
        """The golden's rows for the sample, float32: a boundary, or a tensor's name; `shift` rows further on.

        Rows that a shift moves out of their prompt are NaN.
        """
        name = f"boundary.{what}" if isinstance(what, int) else what
        return _golden_rows(self.golden, name, self.seen.places, shift)[:, :self.columns]

    def holds(self, slot: int, expected: torch.Tensor, boundary: int) -> bool:
        """Whether the slot's sampled rows are those of `expected`, within the floor of `boundary`; NaN rows are left out."""
        kept = expected.isfinite().all(dim=-1)
        return self.floor(boundary).allows(relative(self.captured(slot)[kept], expected[kept]))

    @property
    def tokens(self) -> list[int]:
        return [self.golden.prompts[prompt].token_ids[position] for prompt, position in self.seen.places]


def relative(states: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    """Relative L2 of each row, summed in float64."""
    a, b = states.double(), wanted.double()
    return ((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-300)).tolist()


def gather(golden: Golden, capture: Capture, context: Context) -> Evidence:
    """Align the capture with the golden, compare all of its rows, and look closely at some."""
    site, events = _main_events(capture)
    alignment = align(events, golden)
    pieces, notes = _one_width(alignment.pieces)
    by_rank, odd = matched_ranks(pieces)
    lead = tuple(next(iter(by_rank.values()), ()))
    slots = lead[0].event.width // golden.hidden if lead and lead[0].event.width % golden.hidden == 0 else 0
    comparison = None
    if slots == len(golden.trained) and all(golden.has(f"boundary.{k}") for k in golden.trained):
        comparison = compare(by_rank, golden, golden.trained, golden.hidden)
    sample = _sample(golden, by_rank, slots, comparison) if lead and slots else None
    return Evidence(
        golden, context, site, lead[0].event.width if lead else None, lead[0].event.dtype if lead else golden.dtype, sample,
        capture, lead, alignment, tuple(odd), comparison, tuple(notes) + alignment.strange,
    )


def _main_events(capture: Capture) -> tuple[str, list[Event]]:
    """What reached the draft in a prefill; else the nearest thing to it that was captured."""
    for site in ("draft-input", "concat-full"):
        if events := capture.at(site):
            return site, events
    return "draft-input", []


def _one_width(pieces: Iterable[Piece]) -> tuple[list[Piece], list[str]]:
    pieces = list(pieces)
    widths = Counter(piece.event.width for piece in pieces)
    if len(widths) < 2:
        return pieces, []
    usual = widths.most_common(1)[0][0]
    return (
        [piece for piece in pieces if piece.event.width == usual],
        [f"states were {' and '.join(map(str, sorted(widths)))} wide; those {usual} wide are compared"],
    )


def _sample(golden: Golden, by_rank: Mapping[int, Sequence[Piece]], slots: int, comparison: Comparison | None) -> Sample:
    import torch

    ranks = list(comparison.squares) if comparison else list(by_rank)
    rows = [(number, index) for number, piece in enumerate(by_rank[ranks[0]]) for index in range(piece.count)]
    limit = max(8, min(SAMPLE_ROWS, SAMPLE_ELEMENTS // (slots * golden.hidden)))
    chosen = _choose(rows, limit, comparison)
    lead = [(by_rank[ranks[0]][number], index) for number, index in chosen]
    where = tuple((piece.prompt, piece.position + index) for piece, index in lead)
    captured = {
        rank: torch.stack([
            (piece := by_rank[rank][number]).event.file.rows(piece.event.states, piece.row + index, 1)[0].float().view(slots, -1)
            for number, index in chosen
        ])
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


def _choose(rows: list[tuple[int, int]], limit: int, comparison: Comparison | None) -> list[tuple[int, int]]:
    """At most `limit` rows, spread out; half of the room goes to the rows that are furthest off."""
    if len(rows) <= limit:
        return rows
    worst: list[int] = []
    if comparison:
        errors = next(iter(comparison.squares.values())).errors.nan_to_num(nan=float("inf")).max(dim=-1).values
        worst = errors.topk(limit // 2).indices.tolist()
    spread = [round(i * (len(rows) - 1) / (limit - len(worst) - 1)) for i in range(limit - len(worst))]
    return [rows[index] for index in sorted({*worst, *spread})]


def _golden_rows(golden: Golden, name: str, where: Sequence[tuple[int, int]], shift: int) -> torch.Tensor:
    import torch

    inside = [0 <= position + shift < len(golden.prompts[prompt].token_ids) for prompt, position in where]
    found = torch.full((len(where), golden.hidden), float("nan"))
    kept = [(prompt, position + shift) for (prompt, position), good in zip(where, inside, strict=True) if good]
    if kept:
        found[torch.tensor(inside)] = golden.rows(name, kept).float()
    return found
