"""What a report is made of. Contents build these; the page and the Markdown each write them their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` is good, bad, unsure or plain."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True)
class Table:
    """Figures to the right, the first column and any other named in `words` to the left."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """A drawing. All that it shows is also in a table or a sentence beside it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Code:
    text: str
    caption: str = ""


Block = Heading | Text | Table | Figure | Code
