"""Evidence: everything that the checks go by. Gathered once, by `specwire.diagnosis.gather`; a check only reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median_low
from typing import TYPE_CHECKING

from specwire.capture import Capture, Event, told
from specwire.diagnosis.align import Alignment, Piece, knows
from specwire.diagnosis.compare import Comparison
from specwire.diagnosis.context import Context
from specwire.diagnosis.distance import relative
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.noise import Floor, floor
from specwire.goldens.golden import Golden
from specwire.goldens.none import NoGolden
from specwire.goldens.reference import GoldenLike

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.acceptance import Acceptance
    from specwire.diagnosis.draft_handed import Handed
    from specwire.diagnosis.draft_ranks import Ranks
    from specwire.diagnosis.draft_rounds import Rounds
    from specwire.diagnosis.draft_side import DraftSide
    from specwire.diagnosis.embeddings import Embeddings
    from specwire.diagnosis.said_again import Twice
    from specwire.diagnosis.self_check import SelfCheck
    from specwire.diagnosis.target_end import TargetEnd
    from specwire.diagnosis.transcript import Transcript

# A second boundary this much further off than the nearest can be told from it.
APART = 1.2


@dataclass(frozen=True)
class Sample:
    """Some rows, held in memory. `captured` has [rows, slots, hidden] in float32 for each rank whose bytes differ, the
    one that is looked at first; `distances` is [slots, boundaries, rows], that rank's relative L2 to every boundary of
    the golden."""

    places: tuple[tuple[int, int], ...]
    rows: tuple[tuple[Piece, int], ...]
    captured: Mapping[int, torch.Tensor]
    boundaries: tuple[int, ...]
    distances: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What reached the draft, beside what should have. Tensors are read when a check asks for them."""

    golden: GoldenLike
    context: Context
    site: str
    width: int | None
    dtype: str
    sample: Sample | None
    capture: Capture | None = None
    by_rank: Mapping[int, Sequence[Piece]] = field(default_factory=dict)
    alignment: Alignment | None = None
    odd_ranks: tuple[int, ...] = ()
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    columns: int | None = None  # how much of each row is known: all of it, or only the first so many values
    rounding: float = 0.0  # what printing the values may have cost, as a share of a row's size
    undone: tuple[int, ...] | None = None  # what the slots hold once a second fault, done to their rows, is undone

    # What was expected, and what came.
    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that recorded the same rows as the first one."""
        return tuple(self.by_rank)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The rows that are compared, as the first rank recorded them."""
        return tuple(next(iter(self.by_rank.values()), ()))

    @property
    def trained(self) -> tuple[int, ...]:
        return self.golden.trained

    @property
    def alone(self) -> bool:
        """Whether there is no golden: then no boundary is known, and `trained` is only what the engine says."""
        return isinstance(self.golden, NoGolden)

    @property
    def whole(self) -> Golden:
        """The golden that has whole rows; NotSeen where there is none, or only printed values of one."""
        if not isinstance(self.golden, Golden):
            raise NotSeen("no golden to compare with" if self.alone else "the golden does not hold whole rows")
        return self.golden

    @property
    def slot_count(self) -> int:
        """How many target hidden sizes wide the states are; 0 when that is not a whole number."""
        if not self.width or self.width % self.golden.hidden:
            return 0
        return self.width // self.golden.hidden

    @property
    def odd_rank(self) -> int | None:
        """The rank that is looked at in place of the first one, whose rows are right; None when that is the first."""
        if self.sample is None or not self.ranks:
            return None
        rank = next(iter(self.sample.captured))
        return rank if rank != self.ranks[0] else None

    @property
    def several(self) -> bool:
        """Whether ranks hold different rows, and the first one's are off as well: a matter between ranks, perhaps."""
        return len(self.seen.captured) > 1 and self.odd_rank is None

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of one rank that were compared, in the order of `pieces`, which are the first rank's."""
        return tuple(self.by_rank.get(rank, self.pieces))

    def floor(self, boundary: int) -> Floor:
        found = floor(self.golden, self.dtype, boundary)
        return replace(found, usual=found.usual + self.rounding, worst=found.worst + self.rounding)

    @property
    def seen(self) -> Sample:
        """The sampled rows; NotSeen when no row of the golden's prompts was captured, or none of a known
        width."""
        if self.sample is None:
            raise NotSeen("no golden to compare with" if self.alone else "no captured rows to look at")
        return self.sample

    @cached_property
    def short_events(self) -> tuple[Event, ...]:
        """Prefills of the golden's prompts that recorded fewer states than they had tokens."""
        events = self.capture.at(self.site) if self.capture else []
        return tuple(
            event
            for event in events
            if event.token_ids and event.rows < len(event.token_ids) and knows(self.golden, event)
        )

    @cached_property
    def draft(self) -> DraftSide:
        """The draft's side; NotSeen when the draft's checkpoint was not given, or nothing of the draft was
        captured."""
        from specwire.diagnosis.draft_side import draft_side

        return draft_side(self)

    @cached_property
    def rounds(self) -> Rounds:
        """What the first rank's draft was given, forward by forward; NotSeen for a log, which has no batches."""
        from specwire.diagnosis.draft_rounds import rounds_of

        if self.capture is None:
            raise NotSeen("a log does not hold whole states")
        ranks = sorted({event.rank for event in self.capture.at("draft-input")})
        if not ranks:
            raise NotSeen("nothing was captured at draft-input")
        return rounds_of(self.capture, ranks[0])

    @cached_property
    def handed(self) -> Handed:
        """What was handed to the draft, beside what was made for it."""
        from specwire.diagnosis.draft_handed import Handed

        return Handed(self.rounds)

    @cached_property
    def draft_ranks(self) -> Ranks:
        """Every rank's draft beside the first rank's; NotSeen for a log, and where there is one rank alone."""
        from specwire.diagnosis.draft_ranks import draft_ranks

        if self.capture is None:
            raise NotSeen("a log does not hold whole states")
        return draft_ranks(self.capture, self.context)

    @cached_property
    def transcript(self) -> Transcript:
        """The run's requests, as the target's forwards show them; NotSeen for a log, which has no batches."""
        from specwire.diagnosis.transcript import transcript

        if self.capture is None:
            raise NotSeen("a log does not hold whole states")
        return transcript(self.capture, self.capture.answers)

    @cached_property
    def twice(self) -> Twice:
        """The target's states of tokens that it verified, beside those of a prefill of the same; NotSeen without both."""
        from specwire.diagnosis.said_again import said_again

        return said_again(self)

    @property
    def told(self) -> Sequence[int] | None:
        """The boundaries that the engine itself says it captures; None without its word, as for a log."""
        return told(self.capture.events) if self.capture else None

    @cached_property
    def self_check(self) -> SelfCheck:
        """Whether the target's head makes the answer of the last states; NotSeen when it cannot be asked."""
        from specwire.diagnosis.head import head_of
        from specwire.diagnosis.self_check import self_check

        said, head = self.transcript, head_of(self.context)
        layers = head.config["num_hidden_layers"]
        captured = self.told or []
        return self_check(said, head, layers, captured.index(layers) if layers in captured else None)

    @cached_property
    def end(self) -> TargetEnd:
        """The golden's last boundary beside the engine's final states; NotSeen when one of them is not there."""
        from specwire.diagnosis.target_end import target_end

        return target_end(self)

    @cached_property
    def embeddings(self) -> Embeddings:
        """The golden's embeddings beside the engine's; NotSeen when one of them is not there."""
        from specwire.diagnosis.embeddings import embeddings

        return embeddings(self)

    @cached_property
    def acceptance(self) -> Acceptance:
        """How drafts were accepted in this run and in those beside it: a prior, which makes no cause."""
        from specwire.diagnosis.acceptance import acceptance, of_capture

        given = self.context.accept_length
        if self.capture is None:
            return acceptance(None, None, 1, given)
        return of_capture(self.capture, given, self.context.beside, self.transcript)

    # Which boundary is in which slot.
    def errors(self, slot: int, boundary: int) -> list[float]:
        """Relative L2 of each sampled row of `slot` to `boundary`."""
        if boundary not in self.seen.boundaries:
            raise NotSeen(f"the golden does not hold boundary {boundary}")
        if slot >= len(self.seen.distances):
            raise NotSeen(f"slot {slot} was not recorded")
        return self.seen.distances[slot, self.seen.boundaries.index(boundary)].tolist()

    def exact(self, slot: int, boundary: int) -> bool:
        return boundary in self.seen.boundaries and self.floor(boundary).allows(self.errors(slot, boundary))

    @cached_property
    def nearest(self) -> tuple[tuple[int, float], ...]:
        """Per slot, the boundary whose median row is nearest, and that distance."""
        medians = self.seen.distances.nan_to_num(nan=float("inf")).median(dim=-1).values
        best = medians.min(dim=-1)
        return tuple(
            (self.seen.boundaries[int(k)], float(distance))
            for k, distance in zip(best.indices, best.values, strict=True)
        )

    @cached_property
    def found(self) -> tuple[int | None, ...]:
        """Per slot, the boundary that it holds within the noise floor; None where it holds none. Where the noise is too
        high to tell the nearest from the trained one, it is the trained one."""
        if self.undone is not None:
            return self.undone
        return tuple(self._held(slot, k, away) for slot, (k, away) in enumerate(self.nearest))

    def _held(self, slot: int, nearest: int, away: float) -> int | None:
        if not self.exact(slot, nearest):
            return None
        wanted = self.trained[slot] if slot < len(self.trained) else nearest
        if wanted != nearest and self.exact(slot, wanted) and median_low(self.errors(slot, wanted)) <= APART * away:
            return wanted
        return nearest

    @cached_property
    def not_finite(self) -> tuple[tuple[int, int, int], ...]:
        """(rank, sampled row, slot) of every row that holds NaN or infinity."""
        return tuple(
            (rank, row, slot)
            for rank, states in self.seen.captured.items()
            for row, slot in (~states.isfinite().all(dim=-1)).nonzero().tolist()
        )

    @cached_property
    def nearest_rows(self) -> tuple[tuple[int | None, ...], ...]:
        """Per slot and sampled row, the index of the sampled golden row (at the slot's trained boundary) that
        it is.

        None where it is none of them within the noise floor. Empty when the slots are not the trained ones in
        number.
        """
        if self.slot_count != len(self.trained):
            return ()
        return tuple(self._rows_of(slot, k) for slot, k in enumerate(self.trained))

    def _rows_of(self, slot: int, boundary: int) -> tuple[int | None, ...]:
        import torch

        if boundary not in self.seen.boundaries:
            return ()
        wanted, states = self.wanted(boundary).double(), self.captured(slot).double()
        ratio = torch.cdist(states, wanted, compute_mode="donot_use_mm_for_euclid_dist") / wanted.norm(
            dim=-1
        ).clamp_min(1e-300)
        best = ratio.nan_to_num(nan=float("inf")).min(dim=-1)
        bound, own = self.floor(boundary).usual, ratio.diagonal()
        return tuple(
            row if own[row] <= bound else int(there) if error <= bound else None
            for row, (there, error) in enumerate(zip(best.indices, best.values, strict=True))
        )

    @cached_property
    def lost(self) -> tuple[int, ...]:
        """Slots that are off and hold no other boundary either."""
        return tuple(slot for slot in self.off if self.found[slot] is None)

    @cached_property
    def moved_rows(self) -> Mapping[int, tuple[tuple[int, int | None], ...]]:
        """Sampled rows that are not in their place, with the row that they are instead, or None where they are zero:
        of each lost slot whose every row is one of the golden's, or zero."""
        found = {slot: self._moved(slot) for slot in self.lost if self.nearest_rows}
        return {slot: moved for slot, moved in found.items() if moved}

    def _moved(self, slot: int) -> tuple[tuple[int, int | None], ...] | None:
        moved: list[tuple[int, int | None]] = []
        if not self.captured(slot).any():
            return None  # nothing was ever written there: no matter of rows
        for row, there in enumerate(self.nearest_rows[slot]):
            zero = not self.captured(slot)[row].any()
            if there is None and not zero:
                return None
            if zero or there != row:
                moved.append((row, None if zero else there))
        return tuple(moved)

    @property
    def any_row_known(self) -> bool:
        """Whether any captured row is some row of the golden, at the boundary its slot was trained with."""
        return any(row is not None for slot in self.nearest_rows for row in slot)

    # Rows, for the checks that try a transform.
    def captured(self, slot: int, rank: int | None = None) -> torch.Tensor:
        """The sampled rows of one slot, [rows, hidden], float32."""
        held = self.seen.captured
        if slot >= len(self.seen.distances):
            raise NotSeen(f"slot {slot} was not recorded")
        return held.get(rank, next(iter(held.values())))[:, slot]

    def wanted(self, what: int | str, shift: int = 0) -> torch.Tensor:
        """The golden's rows for the sample, float32: a boundary, or a tensor's name; `shift` rows further on.

        Rows that a shift moves out of their prompt are NaN.
        """
        name = f"boundary.{what}" if isinstance(what, int) else what
        if not self.golden.has(name):
            raise NotSeen(f"the golden does not hold {name}")
        return _golden_rows(self.whole, name, self.seen.places, shift)[:, : self.columns]

    @cached_property
    def off(self) -> tuple[int, ...]:
        """Slots with a sampled row, on any rank, that is not the row of the boundary that was trained.

        A slot whose boundary the golden lacks is not among them; none is when the slots are not as many
        as were trained.
        """
        if self.slot_count != len(self.trained):
            return ()
        others = list(self.seen.captured)[1:]
        return tuple(
            slot
            for slot, k in enumerate(self.trained[: len(self.seen.distances)])
            if k in self.seen.boundaries
            and not (self.exact(slot, k) and all(self.fits(self.captured(slot, rank), k) for rank in others))
        )

    def bad_rows(self, slot: int) -> list[int]:
        """Sampled rows of the first rank that are beyond the usual bound at the slot's trained boundary."""
        k = self.trained[slot]
        return [row for row, error in enumerate(self.errors(slot, k)) if not error <= self.floor(k).usual]

    def summed(self, slot: int) -> torch.Tensor:
        """The sampled rows of one slot, added up over all ranks."""
        return sum(self.captured(slot, rank).double() for rank in self.ranks)

    def fits(self, states: torch.Tensor, boundary: int, shift: int = 0, slack: float = 1.0) -> bool:
        """Whether these rows are the golden's at `boundary`, within `slack` times its noise floor.

        Rows for which a shift leaves no golden row are left out, as long as most remain.
        """
        if boundary not in self.seen.boundaries:
            return False
        wanted = self.wanted(boundary, shift)
        kept = wanted.isfinite().all(dim=-1)
        errors = [error / slack for error in relative(states[kept], wanted[kept])]
        return 2 * len(errors) >= len(wanted) and self.floor(boundary).allows(errors)

    def holds(self, slot: int, expected: torch.Tensor, boundary: int) -> bool:
        """Whether the slot's sampled rows are those of `expected`, within the floor of `boundary`; NaN rows
        are left out."""
        kept = expected.isfinite().all(dim=-1)
        return self.floor(boundary).allows(relative(self.captured(slot)[kept], expected[kept]))

    @property
    def tokens(self) -> list[int]:
        return [self.golden.prompts[prompt].token_ids[position] for prompt, position in self.seen.places]


def _golden_rows(golden: Golden, name: str, where: Sequence[tuple[int, int]], shift: int) -> torch.Tensor:
    import torch

    inside = [0 <= position + shift < len(golden.prompts[prompt].token_ids) for prompt, position in where]
    found = torch.full((len(where), golden.hidden), float("nan"))
    kept = [(prompt, position + shift) for (prompt, position), good in zip(where, inside, strict=True) if good]
    if kept:
        found[torch.tensor(inside)] = golden.rows(name, kept).float()
    return found
