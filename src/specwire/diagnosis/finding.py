"""What a check says of the evidence: a cause, or why it could not look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A named fault. `steps` counts what had to be assumed: of two causes that both fit, the one with fewer
    is first.

    A `last_resort` says that nothing known explains the numbers, and is dropped when something does.
    """

    confidence: str
    evidence: str
    fix: str
    steps: int = 1
    last_resort: bool = False
    id: str = ""


@dataclass(frozen=True)
class Skipped:
    """A check that could not look, and what it would have needed. Never a pass."""

    why: str


class NotSeen(Exception):
    """A check asked for rows, and there are none to look at: the check is skipped, never passed."""
