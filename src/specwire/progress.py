"""How work says how far it is: the one callback that rooms take, so that none of them knows where it is shown."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears what is being done, in a few words, and how much of all is done (0 to 1) where that is known."""

    def __call__(self, text: str, share: float | None = None) -> None: ...


def within(progress: Progress, where: str) -> Progress:
    """The same listener, which hears `where` ahead of each text."""

    def say(text: str, share: float | None = None) -> None:
        progress(where + text, share)

    return say


def silent(text: str, share: float | None = None) -> None:
    """For callers who have nobody to tell."""
