"""Checks from log lines alone: the first five values that each tap printed, beside the golden's.

Five values of a row are weak evidence, and they are judged for what they are: each value on its own, against
the spacing of the dtype's numbers and the digits that were printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specwire.capture import PREFILL
from specwire.diagnosis import labels
from specwire.diagnosis.check import Summary, report
from specwire.diagnosis.context import Context
from specwire.diagnosis.evidence import Evidence, Sample
from specwire.diagnosis.gather import SAMPLE_ROWS
from specwire.diagnosis.judge import Slot
from specwire.diagnosis.logs import Line, printed_to, read_log
from specwire.diagnosis.noise import MARGIN, ROUNDOFF
from specwire.errors import SpecwireError
from specwire.goldens.golden import Golden, open_golden
from specwire.goldens.log import LogGolden, is_log_golden, open_log_golden

# Values that were rounded to a dtype on two ways may end up two of its numbers apart.
SPACINGS = 2
# Taps print six significant digits.
PRINTED = 5e-6


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
    evidence = Evidence(golden, context, "draft-input", width, golden.dtype, None, columns=5)
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
    return report(
        evidence,
        judged,
        _summary(golden, compared, reasons, origin),
    )


def _against_tensors(golden: Golden, lines: Sequence[Line], context: Context, origin: str) -> dict[str, Any]:
    placed = [(line, place) for line in lines if (place := _place(golden, line))]
    compared = [line for line, _ in placed]
    # Lines that are not as wide as was trained are wrong: where there are any, those are judged.
    trained = golden.hidden * len(golden.trained)
    widths = [line.shape[1] for line in compared or lines]
    width = next((width for width in widths if width != trained), trained if widths else None)
    placed = [(line, place) for line, place in placed if line.shape[1] == width]
    compared = [line for line, _ in placed]
    dtype = compared[0].dtype if compared else golden.dtype
    count = width // golden.hidden if width and width % golden.hidden == 0 else 0
    printed = min((len(line.slots) if line.slots else 1 for line, _ in placed), default=0)
    few = placed[:: 1 + len(placed) // SAMPLE_ROWS]  # every line is judged, some are looked at closely
    sample = _sample(golden, few, min(count, printed)) if placed and count else None
    notes = (f"only the first {printed} of {count} slots were printed",) if printed < count else ()
    rounding = _rounding(golden, placed)
    evidence = Evidence(golden, context, "draft-input", width, dtype, sample, notes=notes, columns=5, rounding=rounding)
    if taken := labels.as_captured(evidence):
        return _against_tensors(taken, lines, context, origin)
    slots = [_slot_of_tensors(evidence, placed, slot) for slot in range(max(count, len(golden.trained)))]
    reasons = [] if placed else ["no draft-input line of a prefill of the golden's prompts is in the log"]
    reasons += [f"slot {slot.slot}: {slot.why}" for slot in slots if slot.state == "not-compared" and placed]
    reasons += labels.reasons(evidence)
    return report(evidence, slots, _summary(golden, compared, reasons, origin))


def _summary(golden: Golden | LogGolden, compared: Sequence[Line], reasons: list[str], origin: str) -> Summary:
    line = compared[0] if compared else None
    if isinstance(golden, LogGolden):
        golden_shape = list(golden.concat_shape) if golden.concat_shape else None
        dtype, source = golden.dtype, f"{SPACINGS} spacings of {golden.dtype} and the printed digits, value by value"
    else:
        prompt = next((p for p in golden.prompts if line and len(p.token_ids) == line.shape[0]), golden.prompts[0])
        golden_shape = [len(prompt.token_ids), golden.hidden * len(golden.trained)]
        dtype = line.dtype if line else golden.dtype
        source = "the dtype's spacing, the golden's noise and the printed digits, value by value"
    return Summary(
        concat_shape=list(line.shape) if line else None,
        golden_concat_shape=golden_shape,
        ranks=len({one.rank for one in compared}),
        ranks_agree=_agree(compared, golden) if line else None,
        rank_difference=None,
        repeat_difference=None,
        rows=len(compared),
        noise=2 * SPACINGS * ROUNDOFF.get(dtype, 2.0**-8),
        noise_source=source,
        reasons=reasons,
        origin=origin,
    )


def _agree(compared: Sequence[Line], golden: Golden | LogGolden) -> bool:
    by_rank: dict[int, list[Line]] = {}
    for line in compared:
        by_rank.setdefault(line.rank, []).append(line)
    first, *others = by_rank.values()
    return all(
        len(mine) == len(first)
        and all(
            near(a, b, tolerance(b, golden.dtype, one.digits))
            for one, two in zip(mine, first)
            for a, b in zip(one.first5, two.first5)
        )
        for mine in others
    )


def near(value: float, wanted: float, bound: float) -> bool:
    """NaN is near nothing."""
    return abs(value - wanted) <= bound


def tolerance(wanted: float, dtype: str, digits: float, noise: float = 0.0) -> float:
    """How far a printed value may lie from `wanted`: spacings of the dtype there, what printing rounded, the
    row's noise."""
    roundoff = ROUNDOFF.get(dtype, 2.0**-8)
    # Numbers of p bits in [2^e, 2^(e+1)) are 2^(e+1-p) apart, and the unit roundoff is 2^-p.
    spacing = 2 * roundoff * 2.0 ** math.floor(math.log2(abs(wanted))) if wanted else 0.0
    return max(SPACINGS * spacing, noise) + digits + PRINTED * abs(wanted)


def _slot_of_log(golden: LogGolden, compared: Sequence[Line], captured: int, slot: int) -> Slot:
    wanted = golden.slots[slot] if slot < len(golden.slots) else None
    expected = golden.trained[slot] if slot < len(golden.trained) else None
    lines = [line for line in compared if line.of_slot(slot) is not None]
    first5 = lines[0].of_slot(slot) if lines else None
    numbers = dict(expected=expected, first5=first5, golden5=wanted)
    if compared and (slot >= captured or slot >= len(golden.slots)):
        return Slot(
            slot,
            "mismatch",
            f"the states have {captured or 'no whole number of'} slots, the golden {len(golden.slots)}",
            **numbers,
        )
    if wanted is None or not lines:
        return Slot(
            slot,
            "not-compared",
            "its values are not in the golden" if wanted is None else "its values are not in the log",
            **numbers,
        )
    off = []
    for line in lines:
        digits = line.digits + printed_to(map(repr, wanted))
        bounds = [tolerance(value, golden.dtype, digits) for value in wanted]
        off += _off(line, line.of_slot(slot), wanted, bounds)
    return _judged(slot, off, lines, numbers)


def _slot_of_tensors(evidence: Evidence, placed: Sequence[tuple[Line, tuple[int, int]]], slot: int) -> Slot:
    golden, trained = evidence.golden, evidence.trained
    expected = trained[slot] if slot < len(trained) else None
    lines = [(line, place) for line, place in placed if line.of_slot(slot) is not None]
    numbers: dict[str, Any] = dict(expected=expected, first5=lines[0][0].of_slot(slot) if lines else None)
    if lines and evidence.sample and slot < len(evidence.nearest):
        numbers["nearest"], numbers["nearest_rel_l2"] = evidence.nearest[slot]
    if placed and (slot >= evidence.slot_count or expected is None):
        return Slot(
            slot,
            "mismatch",
            f"the states have {evidence.slot_count} slots, the golden {len(trained)}",
            **numbers,
        )
    if not lines or not golden.has(f"boundary.{expected}"):
        return Slot(
            slot,
            "not-compared",
            "its values are not in the log" if not lines else f"the golden does not hold boundary {expected}",
            **numbers,
        )
    off = []
    for line, place in lines:
        row = _row(golden, expected, place)
        noise = golden.noise.get(line.dtype, {}).get(expected)
        stray = MARGIN * noise.median * _rms(row) if noise else 0.0
        bounds = [tolerance(value, line.dtype, line.digits, stray) for value in row[:5]]
        off += _off(line, line.of_slot(slot), row[:5], bounds)
    numbers["golden5"] = tuple(_row(golden, expected, lines[0][1])[:5])
    return _judged(slot, off, [line for line, _ in lines], numbers)


def _off(line: Line, values: Sequence[float], wanted: Sequence[float], bounds: Sequence[float]) -> list[str]:
    if len(values) != len(wanted):
        return [f"line {line.number}: {len(values)} values where the golden has {len(wanted)}"]
    return [
        f"line {line.number}: value {i} is {value:g}, the golden's {aim:g} +- {bound:.2g}"
        for i, (value, aim, bound) in enumerate(zip(values, wanted, bounds))
        if not near(value, aim, bound)
    ]


def _judged(slot: int, off: list[str], lines: Sequence[Line], numbers: dict[str, Any]) -> Slot:
    first5, golden5 = numbers["first5"], numbers["golden5"]
    size = math.sqrt(sum(value * value for value in golden5))
    distance = math.dist(first5, golden5) if len(first5) == len(golden5) else math.nan
    numbers |= dict(
        rel_l2=distance / size if size else None,
        rows=len(lines),
        failed_rows=len({text.split(":")[0] for text in off}),
    )
    why = off[0] + (f", and {len(off) - 1} more" if len(off) > 1 else "") if off else ""
    return Slot(slot, "mismatch" if off else "match", why, **numbers)


def _first_of_each_rank(lines: Sequence[Line]) -> list[Line]:
    first: dict[int, Line] = {}
    for line in lines:
        first.setdefault(line.rank, line)
    return list(first.values())


def _place(golden: Golden, line: Line) -> tuple[int, int] | None:
    """The golden row that a line's first row is: by its (shifted) token and position, else by the prompt's
    length."""
    position = line.position if line.position is not None else 0
    fits = [
        (number, position)
        for number, prompt in enumerate(golden.prompts)
        if position < len(prompt.token_ids)
        and (
            line.token is None or position + 1 == len(prompt.token_ids) or prompt.token_ids[position + 1] == line.token
        )
        and (line.token is not None or len(prompt.token_ids) == line.shape[0])
    ]
    return fits[0] if len(fits) == 1 else None


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
    return math.sqrt(sum(value * value for value in row) / len(row))


def _sample(golden: Golden, placed: Sequence[tuple[Line, tuple[int, int]]], slots: int) -> Sample:
    """The printed values as a sample five columns wide; distances are in units of the golden row's size."""
    import torch

    where = tuple(place for _, place in placed)
    captured = torch.tensor([[line.of_slot(slot) for slot in range(slots)] for line, _ in placed])
    distances = torch.empty((slots, len(golden.boundaries), len(where)), dtype=torch.float64)
    for number, k in enumerate(golden.boundaries):
        rows = golden.rows(f"boundary.{k}", where).double()
        size = rows.square().mean(dim=-1).sqrt().clamp_min(1e-300)
        distances[:, number] = (captured.double() - rows[:, None, :5]).square().mean(dim=-1).sqrt().T / size
    return Sample(where, (), {0: captured}, golden.boundaries, distances)
