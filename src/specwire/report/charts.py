"""The report's drawings, as inline SVG: no script, no font, colours from the page's own variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL, ROW, TOP, RIGHT = 760, 210, 30, 26, 74


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
    scale = _Scale(min(ends), max(ends))
    height = TOP + ROW * len(rows) + 26
    parts = [_axis(scale, height, unit), _reference(scale(reference), height, reference_name)]
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        parts.append(_label(row.name, y))
        if row.low is not None and row.high is not None:
            parts.append(f'<line class="range {row.tone}" x1="{scale(row.low):.1f}" x2="{scale(row.high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot {row.tone}" cx="{scale(row.value):.1f}" cy="{y}" r="5"/>')
        parts.append(f'<text class="value" x="{WIDTH - RIGHT + 10}" y="{y + 4}">{escape(row.note)}</text>')
    return _svg(height, parts, "; ".join(f"{row.name}: {row.note}" for row in rows))


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str, order: Sequence[str]) -> str:
    """One bar per row, its parts side by side; `order` gives each part its colour, the same in every drawing."""
    total = max((sum(value for _, value in parts) for _, parts in rows), default=0.0) or 1.0
    span = WIDTH - LABEL - RIGHT
    used = {name for _, parts in rows for name, _ in parts}
    names = [*order, *sorted(used - set(order))]
    parts, height = _legend([(number, name) for number, name in enumerate(names) if name in used]), TOP + 14 + ROW * len(rows) + 6
    for number, (label, pieces) in enumerate(rows):
        y, x = TOP + 14 + ROW * number, float(LABEL)
        parts.append(_label(label, y + ROW / 2 - 2))
        for name, value in pieces:
            width = span * value / total
            parts.append(f'<rect class="part p{names.index(name)}" x="{x:.1f}" y="{y}" width="{max(width, 0):.1f}" height="{ROW - 8}"><title>{escape(name)}: {value:.3g} {unit}</title></rect>')
            if width > 44:
                parts.append(f'<text class="inside i{names.index(name)}" x="{x + width / 2:.1f}" y="{y + 15}">{value:.3g}</text>')
            x += width
        parts.append(f'<text class="value" x="{x + 8:.1f}" y="{y + 15}">{sum(value for _, value in pieces):.3g} {unit}</text>')
    return _svg(height, parts, "; ".join(f"{label}: " + ", ".join(f"{name} {value:.3g} {unit}" for name, value in pieces) for label, pieces in rows))


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
        parts.append(f'<line class="grid" x1="{left}" x2="{left + group * most:.1f}" y1="{y}" y2="{y}"/><text class="tick end" x="{left - 6}" y="{y + 4}">{share:.0%}</text>')
    for position in range(most):
        middle = left + group * (position + 0.5)
        parts.append(f'<text class="tick" x="{middle:.1f}" y="{base + 16}">{position + 1}</text>')
        for number, (name, values) in enumerate(series):
            if position < len(values):
                x = middle + width * (number - len(series) / 2)
                y = base - tall * values[position]
                parts.append(f'<rect class="part p{number}" x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{base - y:.1f}"/><text class="tick" x="{x + width / 2 - 1:.1f}" y="{y - 4:.1f}">{values[position]:.0%}</text>')
    parts.append(f'<text class="tick" x="{left + group * most / 2:.1f}" y="{base + 32}">position of the draft token</text>')
    return _svg(base + 40, parts, "; ".join(f"{name}: " + " ".join(f"{value:.0%}" for value in values) for name, values in series))


class _Scale:
    """From values to places on the drawing, with round numbers at the ends."""

    def __init__(self, low: float, high: float) -> None:
        span = (high - low) or abs(high) or 1.0
        self.step = _round_step(span / 5)
        self.low = math.floor((low - span * 0.04) / self.step) * self.step
        self.high = math.ceil((high + span * 0.04) / self.step) * self.step

    def __call__(self, value: float) -> float:
        return LABEL + (WIDTH - LABEL - RIGHT) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [self.low + self.step * number for number in range(round((self.high - self.low) / self.step) + 1)]


def _round_step(step: float) -> float:
    power = 10 ** math.floor(math.log10(step))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= step * 0.999)


def _axis(scale: _Scale, height: float, unit: str) -> str:
    base = height - 24
    lines = [f'<line class="grid" x1="{scale(tick):.1f}" x2="{scale(tick):.1f}" y1="{TOP - 6}" y2="{base}"/><text class="tick" x="{scale(tick):.1f}" y="{base + 15}">{tick:.6g}</text>' for tick in scale.ticks()]
    return "".join(lines) + f'<text class="tick start" x="{WIDTH - RIGHT + 10}" y="{base + 15}">{escape(unit)}</text>'


def _reference(x: float, height: float, name: str) -> str:
    return f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 24}"/><text class="tick" x="{x:.1f}" y="{TOP - 12}">{escape(name)}</text>'


def _label(text: str, y: float) -> str:
    shown = text if len(text) <= 32 else text[:31] + "…"
    return f'<text class="label" x="{LABEL - 10}" y="{y + 4}">{escape(shown)}<title>{escape(text)}</title></text>'


def _legend(names: Sequence[tuple[int, str]]) -> list[str]:
    parts, x = [], 2.0
    for number, name in names:
        parts.append(f'<rect class="part p{number}" x="{x:.0f}" y="4" width="11" height="11"/><text class="legend" x="{x + 16:.0f}" y="14">{escape(name)}</text>')
        x += 16 + 6.4 * len(name) + 22
    return parts


def _svg(height: float, parts: Sequence[str], told: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(told, quote=True)}">{"".join(parts)}</svg>'
