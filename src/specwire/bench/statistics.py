"""The few statistics that the commands report, on plain lists of floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 4000
_EXACT_UP_TO = 50_000  # resamplings enumerated when there are no more of them than this


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of them lie, interpolated; None for no values."""
    return _at(sorted(values), share) if values else None


def _at(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and the percentiles that every table shows."""
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {"mean": rounded(mean(values)), **{name: rounded(quantile(values, share)) for name, share in at.items()}}


def rounded(value: float | None, digits: int = 6) -> float | None:
    """To as many significant digits, and None for what JSON has no word for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Ratio:
    """How many times as fast, with a 95 % interval: `low` and `high` are None when one run each is all there is."""

    value: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `within noise`, or `unknown` when repeats are missing."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "within noise"


def ratio(runs: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """The ratio of the runs' mean to the base's, with its interval; None when either has no positive run.

    The interval widens two ways, and the wider wins: by resampling the repeats, and by Student's t on the
    logarithms. With the usual three to five repeats resampling alone is too sure of itself.
    """
    if not runs or not base or min(*runs, *base) <= 0:
        return None
    value = _mean(runs) / _mean(base)
    if len(runs) < 2 or len(base) < 2:
        return Ratio(value, None, None)
    low, high = _resampled(runs, base)
    around = _student(runs, base)
    return Ratio(value, min(low, value / around), max(high, value * around))


def _resampled(runs: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    ratios = sorted(one / other for one in _means(runs) for other in _means(base))
    return _at(ratios, 0.025), _at(ratios, 0.975)


def _means(values: Sequence[float]) -> list[float]:
    """Means of resamples: all there are when that is few, else some hundred drawn with a fixed seed."""
    if len(values) ** len(values) <= math.isqrt(_EXACT_UP_TO):
        return [_mean(each) for each in itertools.product(values, repeat=len(values))]
    draw = random.Random(0)
    return [_mean(draw.choices(values, k=len(values))) for _ in range(math.isqrt(_RESAMPLES))]


def _student(runs: Sequence[float], base: Sequence[float]) -> float:
    """Factor to both sides of the ratio: Welch's interval for the difference of the logarithms."""
    parts = [(_variance([math.log(each) for each in values]) / len(values), len(values) - 1) for values in (runs, base)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 1.0
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    return math.exp(_t975(freedom) * math.sqrt(total))


def _t975(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, within 1 % from one degree of freedom on."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 15: 2.131, 30: 2.042}
    if freedom >= 30:
        return 1.96 + 2.46 / freedom
    keys = sorted(table)
    below = max(key for key in keys if key <= max(freedom, 1))
    above = min(key for key in keys if key >= max(freedom, 1))
    if below == above:
        return table[below]
    share = (1 / freedom - 1 / below) / (1 / above - 1 / below)
    return table[below] + share * (table[above] - table[below])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.fsum((each - middle) ** 2 for each in values) / (len(values) - 1)
