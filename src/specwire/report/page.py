"""Writes a report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from specwire.regular import read_text
from specwire.report.blocks import Block, Code, Figure, Heading, Table, Text


def page(title: str, blocks: Sequence[Block]) -> str:
    style = read_text(Path(__file__).with_name("page.css"))
    body = "\n".join(_written(block) for block in blocks)
    return f"""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>
{style}</style></head>
<body><h1>{escape(title)}</h1>
{body}
</body></html>
"""


def _written(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Text(text, tone):
            return f'<p class="{tone}">{escape(text)}</p>'
        case Table():
            return _table(block)
        case Figure(svg, caption):
            return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
        case Code(text, caption):
            head = f'<div class="caption">{escape(caption)}</div>' if caption else ""
            return f"{head}<pre>{escape(text)}</pre>"


def _table(table: Table) -> str:
    head = _row(table.head, "th", table.words)
    rows = "".join(_row(cells, "td", table.words) for cells in table.rows)
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _row(cells: Sequence[str], tag: str, words: frozenset[int]) -> str:
    written = [
        f'<{tag} class="{_kind(cell, number in words)}">{escape(cell)}</{tag}>' for number, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(written)}</tr>"


def _kind(cell: str, words: bool) -> str:
    """Left for words; and what has no place to break in, such as a hash, may break anywhere."""
    long = any(len(word) > 24 for word in cell.split())
    return " ".join(name for name, has in (("w", words), ("l", long)) if has)
