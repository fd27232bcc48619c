"""Checks from log lines alone: the first five values that each tap printed, beside the golden's.

Five values of a row are weak evidence, and they are judged for what they are: what printing and the dtype's spacing
may have cost is taken off each, and what is left is held to the noise floor that whole rows are held to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specwire.capture import PREFILL
from specwire.diagnosis import labels
from specwire.diagnosis.check import Summary, report
from specwire.diagnosis.context import Context
from specwire.diagnosis.evidence import Evidence, Sample
from specwire.diagnosis.judge import Element, Slot, Worst
from specwire.diagnosis.logs import SHOWN_VALUES, Line, printed_share, printed_to, read_log
from specwire.diagnosis.noise import ROUNDOFF, Floor, floor
from specwire.errors import SpecwireError
from specwire.goldens.golden import Golden, open_golden
from specwire.goldens.log import LogGolden, is_log_golden, open_log_golden

# Values that were rounded to a dtype on two ways may end up two of its numbers apart.
SPACINGS = 2
# Taps print six significant digits.
PRINTED = 5e-6
# The floor bounds a row as a whole: of rows that are as far off as it allows, single values lie so much further.
TAIL = 2.0
SHOWN = 3  # values of the worst line
CLOSELY = 128  # lines that the checks look at


def check_log(golden_path: Path | str, log: Path | str, context: Context | None = None) -> dict[str, Any]:
    """Compare the draft-input lines of a log with a golden of either kind; returns the document of `check`.

    Raises SpecwireError for files that cannot be used.
    """
    context = context or Context()
    if is_log_golden(golden_path):
        if context.trained:
            raise SpecwireError(
                f"{golden_path} holds the printed values of its own slots alone: --trained cannot choose others"
            )
        golden = open_log_golden(golden_path)
    else:
        golden = open_golden(golden_path, context.trained)
    lines = [line for line in read_log(log) if line.site == "draft-input" and (line.mode in PREFILL or not line.mode)]
    if isinstance(golden, LogGolden):
        return _against_log(golden, lines, context, str(log))
    return _against_tensors(golden, lines, context, str(log))


def _against_log(golden: LogGolden, lines: Sequence[Line], context: Context, origin: str) -> dict[str, Any]:
    """The golden's values are one row's, and a log may hold other rows too: those of the golden's shape are
    compared."""
    shape = golden.concat_shape
    fitting = (
        [line for line in lines if shape and line.shape[1] != shape[1]]  # wrong, whatever the others are
        or [line for line in lines if line.shape == shape]
        or list(lines)
    )
    compared = _first_of_each_rank(fitting)
    width = compared[0].shape[1] if compared else None
    evidence = Evidence(
        golden=golden, context=context, site="draft-input", width=width, dtype=golden.dtype, sample=None, columns=5
    )
    count = max(len(golden.slots), evidence.slot_count)
    slots = [_slot_of_log(golden, compared, evidence.slot_count, slot) for slot in range(count)]
    known = [slot for slot, values in enumerate(golden.slots) if values is not None]
    reasons = (
        []
        if any(slots[slot].state != "not-compared" for slot in known)
        else ["no slot that the golden knows was printed"]
    )
    # A slot that the golden does not know says nothing, for or against.
    judged = [slot for slot in slots if slot.slot in known or slot.state == "mismatch"]
    return report(evidence, judged, _summary(golden, compared, reasons, origin))


def _against_tensors(golden: Golden, lines: Sequence[Line], context: Context, origin: str) -> dict[str, Any]:
    placed = [(line, place) for line in lines if (place := _place(golden, line))]
    compared = [line for line, _ in placed]
    # Lines that are not as wide as was trained are wrong: where there are any, those are judged.
    trained = golden.hidden * len(golden.trained)
    widths = [line.shape[1] for line in compared or lines]
    width = next((width for width in widths if width != trained), trained if widths else None)
    placed = [(line, place) for line, place in placed if line.shape[1] == width]
    compared = [line for line, _ in placed]
    count = width // golden.hidden if width and width % golden.hidden == 0 else 0
    printed = min((len(line.slots) if line.slots else 1 for line, _ in placed), default=0)
    whole = [row for row in placed if row[0].whole] if golden.hidden >= SHOWN_VALUES else []
    few = whole[:: 1 + len(whole) // CLOSELY]  # every line is judged, some are looked at closely
    evidence = Evidence(
        golden=golden,
        context=context,
        site="draft-input",
        width=width,
        dtype=compared[0].dtype if compared else golden.dtype,
        sample=_sample(golden, few, min(count, printed)) if few and count else None,
        notes=(f"only the first {printed} of {count} slots were printed",) if printed < count else (),
        columns=5,
        rounding=_rounding(golden, placed),
    )
    if taken := labels.as_captured(evidence):
        return _against_tensors(taken, lines, context, origin)
    slots = [_slot_of_tensors(evidence, placed, slot) for slot in range(max(count, len(golden.trained)))]
    reasons = [] if placed else ["no draft-input line of a prefill of the golden's prompts is in the log"]
    reasons += [f"slot {slot.slot}: {slot.why}" for slot in slots if slot.state == "not-compared" and placed]
    reasons += labels.reasons(evidence)
    return report(evidence, slots, _summary(golden, compared, reasons, origin))


def _summary(golden: Golden | LogGolden, compared: Sequence[Line], reasons: list[str], origin: str) -> Summary:
    line = compared[0] if compared else None
    dtype = line.dtype if line and line.dtype else golden.dtype
    floors = [_floor(golden, dtype, k) for k in golden.trained]
    if isinstance(golden, LogGolden):
        golden_shape = list(golden.concat_shape) if golden.concat_shape else None
    else:
        prompt = next((p for p in golden.prompts if line and len(p.token_ids) == line.shape[0]), golden.prompts[0])
        golden_shape = [len(prompt.token_ids), golden.hidden * len(golden.trained)]
    return Summary(
        concat_shape=list(line.shape) if line else None,
        golden_concat_shape=golden_shape,
        ranks=len({one.rank for one in compared}),
        ranks_agree=_agree(compared, golden) if line else None,
        rank_difference=None,
        repeat_difference=None,
        rows=len(compared),
        noise=max(one.measured for one in floors),
        noise_source=f"{floors[-1].source}; value by value, with the dtype's spacing and the printed digits",
        reasons=reasons,
        origin=origin,
    )


def _floor(golden: Golden | LogGolden, dtype: str, boundary: int | None) -> Floor:
    """The floor that whole rows are held to. A log golden that does not say which boundary a slot holds allows for one
    rounding alone."""
    return floor(golden, dtype or golden.dtype, boundary or 0)


def _agree(compared: Sequence[Line], golden: Golden | LogGolden) -> bool:
    """Whether all ranks printed the same, each line as the first rank's of the same number."""
    by_rank: dict[int, list[Line]] = {}
    for line in compared:
        by_rank.setdefault(line.rank, []).append(line)
    first, *others = by_rank.values()
    return all(
        len(mine) == len(first)
        and all(
            len(one.first5) == len(two.first5)
            and not any(_beyond(one, one.first5, two.first5, _rms(two.first5), golden.dtype))
            for one, two in zip(mine, first)
        )
        for mine in others
    )


@dataclass(frozen=True)
class _Read:
    """One line's values of one slot beside the golden's: `excess` is by how much each is further off than printing and
    spacing explain, as a share of the row's size."""

    line: Line
    place: tuple[int, int] | None
    values: tuple[float, ...]
    wanted: tuple[float, ...]
    excess: tuple[float, ...]

    def error(self, tail: float) -> float:
        """How far the row seems to be off: what its values say together, or one of them by itself."""
        if len(self.values) != len(self.wanted):
            return math.inf
        return max(_rms(self.excess), max(self.excess) / tail)


def _read(
    line: Line,
    place: tuple[int, int] | None,
    slot: int,
    wanted: Sequence[float],
    size: float,
    dtype: str,
    digits: float = 0.0,
    share: float = 0.0,
) -> _Read:
    values = line.of_slot(slot)
    return _Read(line, place, values, tuple(wanted), _beyond(line, values, wanted, size, dtype, digits, share))


def _beyond(
    line: Line,
    values: Sequence[float],
    wanted: Sequence[float],
    size: float,
    dtype: str,
    digits: float = 0.0,
    share: float = 0.0,
) -> tuple[float, ...]:
    """By how much each value is further from the wanted one than spacing and printing explain, over `size`.

    The wanted ones may have been printed as well: to half a last decimal place, `digits`, and to `share` of a value.

    Rounding for print and noise are independent: they add up in squares. NaN is infinitely far off.
    """
    coarse = max(ROUNDOFF.get(name, 2.0**-8) for name in (line.dtype or dtype, dtype))
    found = []
    for value, aim in zip(values, wanted):
        # Numbers of p bits in [2^e, 2^(e+1)) are 2^(e+1-p) apart, and the unit roundoff is 2^-p.
        spacing = SPACINGS * 2 * coarse * 2.0 ** math.floor(math.log2(abs(aim))) if aim else 0.0
        printed = line.digits + digits + (PRINTED + share) * abs(aim)
        away = abs(value - aim)
        if away <= math.hypot(spacing, printed):
            found.append(0.0)
        elif away < math.inf and size:
            found.append(math.sqrt(max(0.0, away**2 - printed**2)) / size)
        else:
            found.append(math.inf)
    return tuple(found)


def _slot_of_log(golden: LogGolden, compared: Sequence[Line], captured: int, slot: int) -> Slot:
    wanted = golden.slots[slot] if slot < len(golden.slots) else None
    lines = [line for line in compared if line.of_slot(slot) is not None]
    found = Slot(
        slot=slot,
        expected=golden.trained[slot] if slot < len(golden.trained) else None,
        first5=lines[0].of_slot(slot) if lines else None,
        golden5=wanted,
    )
    if compared and (slot >= captured or slot >= len(golden.slots)):
        return found.mismatch(
            f"the states have {captured or 'no whole number of'} slots, the golden {len(golden.slots)}"
        )
    if wanted is None or not lines:
        return found.not_compared(f"its values are not in the {'golden' if wanted is None else 'log'}")
    words = [repr(value) for value in wanted]
    rounded = printed_to(words), printed_share(words)
    read = [_read(line, None, slot, wanted, _rms(wanted), golden.dtype, *rounded) for line in lines]
    # One row is all there is: each of its values is held to the floor by itself.
    return _judged(found, read, _floor(golden, lines[0].dtype, found.expected), tail=1.0)


def _slot_of_tensors(evidence: Evidence, placed: Sequence[tuple[Line, tuple[int, int]]], slot: int) -> Slot:
    golden, trained = evidence.golden, evidence.trained
    expected = trained[slot] if slot < len(trained) else None
    lines = [(line, place) for line, place in placed if line.of_slot(slot) is not None]
    found = Slot(slot=slot, expected=expected, first5=lines[0][0].of_slot(slot) if lines else None)
    if lines and evidence.sample and slot < len(evidence.nearest):
        nearest, distance = evidence.nearest[slot]
        found = replace(found, nearest=nearest, nearest_rel_l2=distance)
    if placed and (slot >= evidence.slot_count or expected is None):
        return found.mismatch(f"the states have {evidence.slot_count} slots, the golden {len(trained)}")
    if not lines or not golden.has(f"boundary.{expected}"):
        return found.not_compared(
            "its values are not in the log" if not lines else f"the golden does not hold boundary {expected}"
        )
    rows = [_row(golden, expected, place) for _, place in lines]
    read = [
        _read(line, place, slot, row[:5], _rms(row), golden.dtype)
        for (line, place), row in zip(lines, rows, strict=True)
    ]
    found = replace(found, golden5=tuple(rows[0][:5]))
    return _judged(found, read, _floor(golden, evidence.dtype, expected), TAIL, golden)


def _judged(found: Slot, read: Sequence[_Read], bound: Floor, tail: float, golden: Golden | None = None) -> Slot:
    """The lines as the rows that they show: by the rule that whole rows are judged by."""
    errors = [one.error(tail) for one in read]
    off = not bound.allows(errors)
    limit = bound.worst if any(error > bound.worst for error in errors) else bound.usual
    failed = sum(not error <= limit for error in errors) if off else 0
    at = max(range(len(errors)), key=errors.__getitem__)
    first5, golden5 = found.first5, found.golden5
    size = _rms(golden5)
    whole = len(first5) == len(golden5)
    found = replace(
        found,
        rel_l2=math.dist(first5, golden5) / math.sqrt(len(golden5)) / size if whole and size else None,
        tolerance=bound.usual,
        rows=len(read),
        failed_rows=failed,
        worst=_worst(read[at], errors[at], bound, golden),
    )
    return found.mismatch(_why(read[at], failed)) if off else found.match()


def _why(worst: _Read, failed: int) -> str:
    more = f"; {failed - 1} more lines are off" if failed > 1 else ""
    if len(worst.values) != len(worst.wanted):
        return f"line {worst.line.number}: {len(worst.values)} values where the golden has {len(worst.wanted)}{more}"
    at = max(range(len(worst.excess)), key=worst.excess.__getitem__)
    return (
        f"line {worst.line.number}: value {at} is {worst.values[at]:g}, the golden's {worst.wanted[at]:g}, further off "
        f"than noise, spacing and print explain{more}"
    )


def _worst(read: _Read, error: float, bound: Floor, golden: Golden | None) -> Worst | None:
    if read.place is None or golden is None or len(read.values) != len(read.wanted):
        return None
    prompt, position = read.place
    order = sorted(range(len(read.values)), key=lambda at: -abs(read.values[at] - read.wanted[at]))
    return Worst(
        rank=read.line.rank,
        prompt=prompt,
        position=position,
        token=golden.prompts[prompt].token_ids[position],
        rel_l2=error,
        bound=bound.usual,
        elements=tuple(
            Element(index=at, captured=read.values[at], golden=read.wanted[at])
            for at in order[:SHOWN]
            if read.values[at] != read.wanted[at]
        ),
    )


def _first_of_each_rank(lines: Sequence[Line]) -> list[Line]:
    first: dict[int, Line] = {}
    for line in lines:
        first.setdefault(line.rank, line)
    return list(first.values())


def _place(golden: Golden, line: Line) -> tuple[int, int] | None:
    """The golden row that a line's first row is: by its (shifted) token and position, else by the prompt's length.

    Of prompts that are alike so far the rows are, too. Where prompts of other first tokens fit as well, the line's own
    values tell: five of them cannot say more than that they are one of these rows.
    """
    position = line.position if line.position is not None else 0
    fits = {
        prompt.token_ids[: position + 1]: number
        for number, prompt in reversed(list(enumerate(golden.prompts)))
        if position < len(prompt.token_ids)
        and (
            line.token is None or position + 1 == len(prompt.token_ids) or prompt.token_ids[position + 1] == line.token
        )
        and (line.token is not None or len(prompt.token_ids) == line.shape[0])
    }
    places = [(number, position) for number in fits.values()]
    k = golden.trained[0]
    if len(places) < 2 or line.token is None or not line.first5 or not golden.has(f"boundary.{k}"):
        return places[0] if len(places) == 1 else None
    rows = {place: _row(golden, k, place) for place in places}
    return min(places, key=lambda at: _read(line, at, 0, rows[at][:5], _rms(rows[at]), golden.dtype).error(TAIL))


def _row(golden: Golden, boundary: int, place: tuple[int, int]) -> list[float]:
    prompt, position = place
    return golden.file.values(
        f"{golden.prompts[prompt].prefix}boundary.{boundary}", position * golden.hidden, golden.hidden
    )


def _rounding(golden: Golden, placed: Sequence[tuple[Line, tuple[int, int]]]) -> float:
    """What printing cost, as a share of the rows' size: half a last digit, or the sixth significant one."""
    if not placed or not golden.boundaries:
        return 0.0
    size = min(_rms(_row(golden, golden.boundaries[0], place)) for _, place in placed)
    return max(line.digits for line, _ in placed) / size + 4 * PRINTED if size else 0.0


def _rms(row: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in row) / len(row)) if row else 0.0


def _sample(golden: Golden, placed: Sequence[tuple[Line, tuple[int, int]]], slots: int) -> Sample:
    """The printed values as a sample five columns wide; distances are those that the slots are judged by."""
    import torch

    where = tuple(place for _, place in placed)
    captured = torch.tensor([[line.of_slot(slot) for slot in range(slots)] for line, _ in placed])
    distances = torch.empty((slots, len(golden.boundaries), len(where)), dtype=torch.float64)
    for number, k in enumerate(golden.boundaries):
        for at, (line, place) in enumerate(placed):
            row = _row(golden, k, place)
            for slot in range(slots):
                read = _read(line, place, slot, row[:5], _rms(row), golden.dtype)
                distances[slot, number, at] = read.error(TAIL)
    return Sample(where, (), {0: captured}, golden.boundaries, distances)
