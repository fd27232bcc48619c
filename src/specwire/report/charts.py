"""The report's drawings, as inline SVG: no script, no font, colours from the page's own style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, TOP, RIGHT = 760, 30, 26, 74
LETTER = 7.2  # the width of one, capitals and digits counted


@dataclass(frozen=True)
class Interval:
    """A value with its interval, where there is one; `tone` as in a text."""

    name: str
    value: float
    low: float | None
    high: float | None
    tone: str = "plain"
    note: str = ""


def intervals(rows: Sequence[Interval], reference: float, reference_name: str, unit: str = "") -> str:
    """One line each: a dot for the value, a bar for its interval, and a line at the reference."""
    ends = [reference, *(end for row in rows for end in (row.low, row.high, row.value) if end is not None)]
    left = _left(row.name for row in rows)
    scale = _Scale(min(ends), max(ends), left)
    height = TOP + ROW * len(rows) + 26
    at = scale(reference)
    parts = _axis(scale, height, unit)
    parts += [_line("reference", at, at, TOP - 8, height - 24), _text("tick", at, TOP - 12, reference_name)]
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        parts.append(_label(row.name, left, y))
        if row.low is not None and row.high is not None:
            parts.append(_line(f"range {row.tone}", scale(row.low), scale(row.high), y, y))
        parts.append(f'<circle class="dot {row.tone}" cx="{scale(row.value):.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(_text("value", WIDTH - RIGHT + 10, y + 4, row.note))
    return _svg(height, parts, [f"{row.name}: {row.note}" for row in rows])


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str, order: Sequence[str]) -> str:
    """One bar per row, its parts side by side; `order` gives each part its colour, the same in every drawing."""
    total = max((sum(value for _, value in pieces) for _, pieces in rows), default=0.0) or 1.0
    used = {name for _, pieces in rows for name, _ in pieces}
    names = [*order, *sorted(used - set(order))]
    parts = _legend([(number, name) for number, name in enumerate(names) if name in used])
    left, told = _left(label for label, _ in rows), []
    for number, (label, pieces) in enumerate(rows):
        y, x = TOP + 14 + ROW * number, left
        parts.append(_label(label, left, y + ROW / 2 - 2))
        for name, value in pieces:
            width = (WIDTH - left - RIGHT) * value / total
            shown = f"{value:.3g}"
            parts.append(_box(names.index(name), x, y, width, ROW - 8, f"{name}: {shown} {unit}"))
            if width > 44:
                parts.append(_text(f"inside i{names.index(name)}", x + width / 2, y + 15, shown))
            x += width
        whole = f"{sum(value for _, value in pieces):.3g} {unit}"
        parts.append(_text("value", x + 8, y + 15, whole))
        told.append(f"{label}: {whole}, of which " + ", ".join(f"{name} {value:.3g}" for name, value in pieces))
    return _svg(TOP + 20 + ROW * len(rows), parts, told)


def columns(series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Shares from 0 to 1 by position, one group of columns per position and one column per series."""
    most = max((len(values) for _, values in series), default=0)
    left, tall = 46, 150
    base = tall + (40 if len(series) > 1 else 20)
    group = min(120.0, (WIDTH - left - 20) / max(most, 1))
    width = min(34.0, group * 0.8 / max(len(series), 1))
    parts = _legend([(number, name) for number, (name, _) in enumerate(series)]) if len(series) > 1 else []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = base - tall * share
        parts += [_line("grid", left, left + group * most, y, y), _text("tick end", left - 6, y + 4, f"{share:.0%}")]
    for position in range(most):
        middle = left + group * (position + 0.5)
        parts.append(_text("tick", middle, base + 16, str(position + 1)))
        for number, (name, values) in enumerate(series):
            if position < len(values):
                share = values[position]
                x, y = middle + width * (number - len(series) / 2), base - tall * share
                parts.append(_box(number, x, y, width - 2, base - y, f"{name}, position {position + 1}: {share:.1%}"))
                parts.append(_text("tick", x + width / 2 - 1, y - 4, f"{share:.0%}"))
    parts.append(_text("tick", left + group * most / 2, base + 32, "position of the draft token"))
    return _svg(
        base + 40, parts, [f"{name}: " + " ".join(f"{value:.0%}" for value in values) for name, values in series]
    )


class _Scale:
    """From values to places on the drawing, with round numbers at the ends."""

    def __init__(self, low: float, high: float, left: float) -> None:
        self.left = left
        span = (high - low) or abs(high) or 1.0
        self.step = _round_step(span / 5)
        self.low = math.floor((low - span * 0.04) / self.step) * self.step
        if low >= 0:  # what cannot be negative is not drawn on an axis that goes there
            self.low = max(0.0, self.low)
        self.high = math.ceil((high + span * 0.04) / self.step) * self.step

    def __call__(self, value: float) -> float:
        return self.left + (WIDTH - self.left - RIGHT) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [self.low + self.step * number for number in range(round((self.high - self.low) / self.step) + 1)]


def _round_step(step: float) -> float:
    power: float = 10 ** math.floor(math.log10(step))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= step * 0.999)


def _axis(scale: _Scale, height: float, unit: str) -> list[str]:
    base = height - 24
    parts = [_text("tick start", WIDTH - RIGHT + 10, TOP - 12, unit)]
    for tick in scale.ticks():
        x = scale(tick)
        parts += [_line("grid", x, x, TOP - 6, base), _text("tick", x, base + 15, f"{tick:.6g}")]
    return parts


def _legend(names: Sequence[tuple[int, str]]) -> list[str]:
    parts, x = [], 2.0
    for number, name in names:
        parts += [_box(number, x, 4, 11, 11, name), _text("legend", x + 16, 14, name)]
        x += 16 + 6.4 * len(name) + 22
    return parts


def _left(names: Iterable[str]) -> float:
    """Where the drawing begins, right of its labels."""
    return min(max(LETTER * max(map(len, names), default=0) + 16, 90.0), 320.0)


def _label(text: str, left: float, y: float) -> str:
    """A row's name, its middle left out when it is too long, for the ends tell more."""
    most = int((left - 16) / LETTER)
    shown = text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
    return f"<g><title>{escape(text)}</title>{_text('label', left - 10, y + 4, shown)}</g>"


def _line(style: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _box(colour: int, x: float, y: float, width: float, height: float, told: str) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="p{colour % 8}" {size}><title>{escape(told)}</title></rect>'


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], told: Sequence[str]) -> str:
    label = escape("; ".join(told), quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
