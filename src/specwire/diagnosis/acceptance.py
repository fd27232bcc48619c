"""How drafted tokens were accepted, and which faults are known to look like that. A prior, never a proof: it orders
causes that explain the numbers equally well, and makes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from specwire.answers import Answer, Answers
from specwire.capture import Capture, open_capture
from specwire.diagnosis.transcript import Cycle, Transcript, transcript

LONG = 8  # tokens of an answer; the first few depend on the prompt's end alone
ENOUGH = 8  # verifications, on each side of a comparison
LOW, SURE = 0.5, 3.0  # a fall is to less than half, and by three standard errors

# The pattern, and the causes that public reports of it had.
POINTS_TO = {
    "exactly 1.00": ("algo-flag", "hook-dead", "weights-random", "embed-head", "vocab-map"),
    "every draft accepted": ("non-finite",),
    "only with several ranks": ("rank-partial", "rank-shard"),
    "only in batches": ("row-select", "position"),
    "decaying with position": ("norm", "position"),
    "falling past a length": ("rope", "kv-attn"),
}


@dataclass(frozen=True)
class Share:
    """`hits` of `trials`; no share without a trial."""

    hits: int
    trials: int

    @property
    def value(self) -> float | None:
        return self.hits / self.trials if self.trials else None

    def falls_from(self, other: Share) -> bool:
        """Whether this share is clearly the lower one, with enough seen of both."""
        if self.value is None or other.value is None:
            return False
        if min(self.trials, other.trials) < ENOUGH or not self.value < LOW * other.value:
            return False
        both = (self.hits + other.hits) / (self.trials + other.trials)
        error = math.sqrt(both * (1 - both) * (1 / self.trials + 1 / other.trials))
        return other.value - self.value > SURE * error


@dataclass(frozen=True)
class Acceptance:
    """`by_position[i]`: draft i, of those whose predecessors were all accepted. The others: the first draft's share, by
    request, by whether it was verified before or after the median place, by batch size and by ranks."""

    steps: int
    length: float | None  # tokens per verification, the target's own among them
    by_position: tuple[Share, ...] = ()
    by_request: tuple[Share, ...] = ()
    by_place: tuple[tuple[int, Share], ...] = ()
    by_batch: Mapping[int, Share] = field(default_factory=dict)
    by_ranks: Mapping[int, Share] = field(default_factory=dict)

    @property
    def pattern(self) -> str | None:
        """The first of the known patterns; None when too little was seen, or nothing stands out."""
        drafts = self.by_position
        if self.steps < ENOUGH:
            return "exactly 1.00" if self.length == 1 and not self.steps else None
        if not drafts or not drafts[0].hits:
            return self._between(self.by_ranks, "only with several ranks") or "exactly 1.00"
        if all(share.hits == share.trials for share in drafts):
            return "every draft accepted"
        return (
            self._between(self.by_ranks, "only with several ranks")
            or self._between(self.by_batch, "only in batches")
            or ("decaying with position" if len(drafts) > 1 and _rest(drafts).falls_from(drafts[0]) else None)
            or ("falling past a length" if self._past_a_length() else None)
        )

    @property
    def points_to(self) -> tuple[str, ...]:
        return POINTS_TO.get(self.pattern or "", ())

    def _between(self, shares: Mapping[int, Share], name: str) -> str | None:
        """`name`, when one alone does well and several do not."""
        several = [share for size, share in shares.items() if size > 1]
        if 1 not in shares or not several:
            return None
        return name if _sum(several).falls_from(shares[1]) else None

    def _past_a_length(self) -> bool:
        return len(self.by_place) == 2 and self.by_place[1][1].falls_from(self.by_place[0][1])


def acceptance(
    said: Transcript | None,
    answers: Answers | None,
    ranks: int,
    length: float | None,
    others: Iterable[Acceptance] = (),
) -> Acceptance:
    """What a run recorded: the engine's own counts if it gave them, else the verifications in the capture. `length` is
    what somebody saw, and counts only where nothing was recorded. `others` are runs of the same system on other ranks."""
    spoken = [one for one in said.spoken if one.answer is None or _long(one.answer)] if said else []
    cycles = [[one for one in each.cycles if one.drafted and one.accepted is not None] for each in spoken]
    flat = [one for each in cycles for one in each]
    counted = [one.accepted for one in answers.answers if sum(one.accepted) and _long(one)] if answers else []
    histograms = counted or [_histogram(each) for each in cycles if each]
    steps = sum(map(sum, histograms))
    if not steps:
        return Acceptance(0, length)
    accepted = sum(count * times for each in histograms for count, times in enumerate(each))
    most = max((one.drafted for one in flat), default=max(map(len, histograms)) - 1)
    own = Share(steps - sum(each[0] for each in histograms), steps)
    return Acceptance(
        steps,
        1 + accepted / steps,
        _by_position(histograms, max(most, max(map(len, histograms)) - 1)),
        tuple(Share(sum(each) - each[0], sum(each)) for each in histograms),
        _by_place(flat),
        _grouped(flat, lambda one: one.batch),
        {ranks: own} | {size: share for other in others for size, share in other.by_ranks.items() if size != ranks},
    )


def of_capture(
    capture: Capture, length: float | None, beside: Iterable[Path] = (), said: Transcript | None = None
) -> Acceptance:
    """A capture's acceptance, with that of other captures of the same system set beside it."""
    answers = capture.answers
    others = [of_capture(open_capture(place), None) for place in beside]
    said = said or transcript(capture, answers)
    return acceptance(said, answers, answers.ranks if answers else capture.world_size, length, others)


def described(found: Acceptance) -> str | None:
    """A sentence for people; None when nothing is known."""
    if found.length is None:
        return None
    if not found.steps:
        words = f"acceptance length {found.length:.2f}, as it was given"
    else:
        shares = ", ".join(_percent(share) for share in found.by_position)
        words = f"acceptance length {found.length:.2f} over {found.steps} verifications"
        if shares:
            words += f", by draft {shares}"
    if found.steps and found.steps < ENOUGH:
        return f"{words}: too few to show a pattern"
    if found.pattern is None:
        return words
    return f"{words}: {found.pattern}, as seen with {', '.join(found.points_to)} (a prior, never a proof)"


def document(found: Acceptance) -> dict[str, Any]:
    """For the JSON: shares as [hits, trials]."""

    def pair(share: Share) -> list[int]:
        return [share.hits, share.trials]

    return {
        "length": None if found.length is None else round(found.length, 4),
        "verifications": found.steps,
        "by_position": [pair(share) for share in found.by_position],
        "by_request": [pair(share) for share in found.by_request],
        "by_place": [{"from": place, "first_draft": pair(share)} for place, share in found.by_place],
        "by_batch": {str(size): pair(share) for size, share in sorted(found.by_batch.items())},
        "by_ranks": {str(size): pair(share) for size, share in sorted(found.by_ranks.items())},
        "pattern": found.pattern,
        "points_to": list(found.points_to),
        "is": "a prior, never a proof",
    }


def _long(one: Answer) -> bool:
    return len(one.output) >= LONG


def _histogram(cycles: Sequence[Cycle]) -> tuple[int, ...]:
    counts = [one.accepted for one in cycles if one.accepted is not None]
    return tuple(counts.count(number) for number in range(max(counts, default=-1) + 1))


def _by_position(histograms: Sequence[Sequence[int]], most: int) -> tuple[Share, ...]:
    """Draft i was looked at when all before it were accepted, and accepted when more than i were."""
    reached = [sum(sum(each[i:]) for each in histograms) for i in range(most + 1)]
    return tuple(Share(reached[i + 1], reached[i]) for i in range(most) if reached[i])


def _by_place(cycles: Sequence[Cycle]) -> tuple[tuple[int, Share], ...]:
    if not cycles:
        return ()
    middle = int(median(one.place for one in cycles))
    halves = _grouped(cycles, lambda one: int(one.place > middle))
    starts = (min(one.place for one in cycles), middle + 1)
    return tuple((starts[half], halves[half]) for half in sorted(halves))


def _grouped(cycles: Sequence[Cycle], key: Callable[[Cycle], int]) -> dict[int, Share]:
    """The first draft's share in each group: later drafts depend on it."""
    groups: dict[int, list[Cycle]] = {}
    for one in cycles:
        groups.setdefault(key(one), []).append(one)
    return {name: Share(sum(bool(one.accepted) for one in group), len(group)) for name, group in groups.items()}


def _rest(shares: Sequence[Share]) -> Share:
    return _sum(shares[1:])


def _sum(shares: Sequence[Share]) -> Share:
    return Share(sum(share.hits for share in shares), sum(share.trials for share in shares))


def _percent(share: Share) -> str:
    return f"{100 * (share.value or 0.0):.0f} %"
