"""What a check says of the evidence: a cause, or how much of what it asks for it could look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specwire.finding import Finding


@dataclass(frozen=True)
class Cause:
    """A named fault. `steps` counts what had to be assumed: of two causes that both fit, the one with fewer is first.

    A `last_resort` says that nothing known explains the numbers, and is dropped when something does. `fits`: the rows
    are, within the noise floor, what the evidence says they are. Of two faults at once each names the other:
    `besides` is the id of the one that has to be undone as well, `of` the boundaries whose rows it was done to. `rank` is the
    one that was looked at, where the first one's rows are right.
    """

    confidence: str
    evidence: str
    fix: str
    steps: int = 1
    last_resort: bool = False
    id: str = ""
    fits: bool = False
    besides: str = ""
    of: tuple[int, ...] = ()
    rank: int | None = None

    @property
    def finding(self) -> Finding:
        return Finding(self.id, self.confidence, self.said, self.fix)

    @property
    def said(self) -> str:
        """The evidence as it is shown, with what belongs to it."""
        return "".join(
            (
                self.evidence,
                ", and fits within the noise floor" if self.fits and not self.besides else "",
                f", once {self.besides} is undone as well" if self.besides else "",
                f", of boundaries {listed(self.of)}" if self.of else "",
                "" if self.rank is None else f" (on rank {self.rank}; the rows of the first rank are right)",
            )
        )


@dataclass(frozen=True)
class Skipped:
    """A check that could not look, and what it would have needed. Never a pass."""

    why: str


@dataclass(frozen=True)
class Partly:
    """A check that found nothing wrong in less than its name says: `seen` is what it looked at ("prefill only")."""

    seen: str


class NotSeen(Exception):
    """A check asked for rows, and there are none to look at: the check is skipped, never passed."""


def listed(boundaries: Sequence[int | None]) -> str:
    """A list of boundaries, with `?` for one that is not known."""
    return "[" + ", ".join("?" if k is None else str(k) for k in boundaries) + "]"
