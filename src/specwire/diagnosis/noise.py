"""How far from the golden a row may lie and still be the same row: measured where it was, derived where it
was not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specwire.goldens.golden import STRAY
from specwire.goldens.reference import GoldenLike

# Unit roundoff: half the distance between 1 and the next number.
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
# The golden measured one computation against a more exact one. An engine is another one, with roundings of
# its own.
MARGIN = STRAY
WORST_MARGIN = 1.5
STRAY_MARGIN = 3.0


@dataclass(frozen=True)
class Floor:
    """Bounds on a row's relative L2: rows lie below `usual`, but a share `stray` of them only below `worst`.

    Rows stray where rounding flips a choice inside the model, such as an expert. Only a golden that saw it
    happen allows it. `measured` is the noise itself, before any margin.
    """

    usual: float
    worst: float
    stray: float
    measured: float
    source: str

    def allows(self, errors: list[float]) -> bool:
        """Whether rows with these errors can be the golden's rows. No row, or a row that is not finite, never
        can."""
        if not errors or not all(error <= self.worst for error in errors):
            return False
        return sum(error > self.usual for error in errors) <= self.strays(len(errors))

    def strays(self, rows: int) -> int:
        return math.ceil(STRAY_MARGIN * self.stray * rows) + 1 if self.stray else 0


def floor(golden: GoldenLike, dtype: str, boundary: int) -> Floor:
    """The bounds for a state of `dtype` at `boundary`."""
    own = ROUNDOFF.get(dtype, 2.0**-4)
    stored = ROUNDOFF.get(golden.dtype, own)
    table = golden.noise.get(dtype, {})
    if boundary not in table:
        bound = MARGIN * _derived(max(own, stored), boundary, golden.hidden)
        return Floor(bound, bound, 0.0, bound / MARGIN, f"derived from the unit roundoff of {dtype}, not measured")
    noise = table[boundary]
    usual = max(MARGIN * noise.median, 2 * max(own, stored))
    stray = max(one.stray for one in table.values())
    worst = max(usual, WORST_MARGIN * noise.worst) if stray else usual
    return Floor(usual, worst, stray, noise.worst, f"measured in {dtype} when the golden was built")


def _derived(roundoff: float, boundary: int, hidden: int) -> float:
    # Each layer adds two branches to the stream, each rounded, by half a unit roundoff in the mean; a
    # branch's dot products are as long as the hidden size and are summed in float32 at best. All of it adds
    # up as a random walk.
    steps = math.sqrt(2 * boundary + 1)
    return steps * (roundoff / 2 + ROUNDOFF["float32"] * math.sqrt(hidden))
