"""Writes a report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specwire.report.blocks import Block, Code, Figure, Heading, Table, Text

_STYLE = """
:root { --ink: #1c2128; --faint: #59636e; --line: #d8dee4; --paper: #ffffff; --well: #f6f8fa; --good: #1a7f37; --bad: #cf222e; --unsure: #9a6700;
  --p0: #3b6fb6; --p1: #e0a030; --p2: #b26a15; --p3: #8fb8e8; --p4: #8b949e; --p5: #cfd6dd; --p6: #7b5ea7; --p7: #3f9c8c }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #9198a1; --line: #343b43; --paper: #0d1117; --well: #161b22; --good: #3fb950;
  --bad: #f85149; --unsure: #d29922; --p0: #5b93dd; --p1: #e3a73a; --p2: #bf7a2c; --p3: #9cc3ee; --p4: #7d8590; --p5: #444c56; --p6: #a387d1; --p7: #56b8a6 } }
body { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--paper); max-width: 56rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.55rem; margin: 0 0 1rem } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line) } h3 { font-size: 1rem; margin: 1.5rem 0 .4rem }
p { margin: .5rem 0 } p.good, p.bad, p.unsure { border-left: 4px solid; padding: .15rem 0 .15rem .8rem; font-weight: 600 }
.good { color: var(--good) } .bad { color: var(--bad) } .unsure { color: var(--unsure) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
td, th { padding: .22rem .8rem .22rem 0; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top } th { color: var(--faint); font-weight: 600 } .w { text-align: left } .l { overflow-wrap: anywhere; min-width: 9rem }
figure { margin: .8rem 0 } figcaption, .caption { color: var(--faint); font-size: .87rem } svg { width: 100%; max-width: 48rem; height: auto; display: block }
pre { background: var(--well); padding: .7rem .9rem; font: 12.5px/1.5 ui-monospace, "SFMono-Regular", Menlo, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 .8rem }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) } svg .tick { font-size: 11px; fill: var(--faint); text-anchor: middle } svg .end, svg .label { text-anchor: end } svg .start { text-anchor: start }
svg .inside { font-size: 11px; fill: #fff; text-anchor: middle } svg .i1, svg .i3, svg .i5 { fill: #1c2128 } svg .grid { stroke: var(--line) } svg .reference { stroke: var(--ink); stroke-dasharray: 4 3 }
svg .range { stroke-width: 6; stroke-linecap: round; opacity: .4; stroke: var(--p4) } svg .dot { fill: var(--p4) }
svg .good { stroke: var(--good) } svg .dot.good { fill: var(--good) } svg .bad { stroke: var(--bad) } svg .dot.bad { fill: var(--bad) } svg .unsure { stroke: var(--unsure) } svg .dot.unsure { fill: var(--unsure) }
PARTS
@media print { body { margin: 0; max-width: none; font-size: 11pt } h2, h3 { break-after: avoid } figure, table, pre { break-inside: avoid } svg { max-width: 17cm } a { color: inherit } * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
""".replace("PARTS", " ".join(f"svg .p{number} {{ fill: var(--p{number}) }}" for number in range(8)))


def page(title: str, blocks: Sequence[Block]) -> str:
    body = "\n".join(_written(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


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
            return (f'<div class="caption">{escape(caption)}</div>' if caption else "") + f"<pre>{escape(text)}</pre>"


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} class="{_kind(cell, number in table.words)}">{escape(cell)}</{tag}>' for number, cell in enumerate(cells)) + "</tr>"

    rows = "".join(row(cells, "td") for cells in table.rows)
    return f'<div class="scroll"><table><thead>{row(table.head, "th")}</thead><tbody>{rows}</tbody></table></div>'


def _kind(cell: str, words: bool) -> str:
    """Left for words; and what has no place to break in, such as a hash, may break anywhere."""
    long = any(len(word) > 24 for word in cell.split())
    return " ".join(name for name, has in (("w", words), ("l", long)) if has)
