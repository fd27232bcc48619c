"""Writes a report as Markdown: everything but the drawings, which show what the tables say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specwire.report.blocks import Block, Code, Figure, Heading, Table, Text


def markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {_plain(title)}", *filter(None, map(_written, blocks))]
    return "\n\n".join(parts) + "\n"


def _written(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Text(text, tone):
            return _plain(text) if tone == "plain" else f"**{_plain(text)}**"
        case Table():
            return _table(block)
        case Figure():
            return ""  # all that it shows is beside it
        case Code(text, caption):
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return (f"{_plain(caption)}:\n\n" if caption else "") + f"{fence}\n{text}\n{fence}"


def _table(table: Table) -> str:
    ruler = ["---" if number in table.words else "--:" for number in range(len(table.head))]
    rows = [table.head, ruler, *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell, ruled=cells is ruler) for cell in cells) + " |" for cells in rows)


def _cell(text: str, ruled: bool) -> str:
    return text if ruled else _plain(text).replace("|", "\\|") or " "


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    for mark in ("\\", "`", "*", "_", "<", "["):
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())
