"""The document of `check` as one self-contained page: no script, no network, readable on paper."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from specwire.regular import written_whole

_STYLE = """
body {
  font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
  color: #1c2128; background: #fff;
}
h1 { font-size: 1.4rem; margin: 0 0 .5rem } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
table { border-collapse: collapse }
td, th { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #d8dee4 }
th { font-weight: 600; color: #57606a } td.text, th.text { text-align: left }
code, td.mono { font: 13px ui-monospace, monospace }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem }
dt { color: #57606a } dd { margin: 0 }
.match { color: #1a7f37 } .mismatch { color: #cf222e } .inconclusive, .not-compared { color: #9a6700 }
.cause { border-left: 4px solid #cf222e; padding: .1rem 1rem; margin: 1rem 0 }
.cause.possible { border-color: #d4a72c } .cause p { margin: .3rem 0 }
svg { max-width: 100%; height: auto } svg text { font: 11px ui-monospace, monospace; fill: #57606a }
.scroll { overflow-x: auto } pre { background: #f6f8fa; padding: .8rem; overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3 } td, th { border-color: #30363d } pre { background: #161b22 }
  .match { color: #3fb950 } .mismatch { color: #f85149 } .inconclusive, .not-compared { color: #d29922 }
}
"""


def write_page(path: Path | str, document: dict[str, Any], reproduce: str | None = None) -> None:
    """Write the page; `reproduce` is the command to show. The file appears whole or not at all."""
    with written_whole(path) as file:
        file.write(page(document, reproduce).encode())


def page(document: dict[str, Any], reproduce: str | None = None) -> str:
    """The page's text."""
    parts = [
        _head(document),
        _causes(document),
        _slots(document),
        _heatmap(document),
        _rows(document),
        _checks(document),
        f"<h2>How to reproduce</h2><pre>{escape(reproduce or _command(document))}</pre>",
    ]
    title = f"specwire: {document['verdict']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _head(document: dict[str, Any]) -> str:
    agree = {True: "all equal", False: "they differ", None: "-"}[document["ranks_agree"]]
    facts = {
        "target": document["golden"]["target"],
        "golden": f"{document['golden']['path'] or 'none'} ({document['golden']['source']})",
        "compared": f"{document['compared']}, {document['rows_compared']} rows at {document['site']}",
        "target side": document["target_side"],
        "concat": f"{document['concat_shape']} {document['dtype'] or ''}, golden "
        f"{document['golden_concat_shape']}",
        "ranks": f"{document['ranks']} ({agree})" if document["ranks"] > 1 else str(document["ranks"]),
        "noise floor": f"{_short(document['noise_floor'])}, {document['noise_source']}",
    }
    found = document["self_check"]
    if found["subjects"]:
        told = "; ".join(f"{one['name']} {one['state']}, {one['rows']} rows" for one in found["subjects"])
        facts["self-check"] = f"lm_head(norm(x)) against returned {found['by']}: {told}"
    if document["acceptance"]["said"]:
        facts["acceptance"] = document["acceptance"]["said"]
    rows = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    why = "".join(f"<li>{escape(reason)}</li>" for reason in document["why"])
    return (
        "<h1>specwire check: <span "
        f'class="{document["verdict"]}">{document["verdict"]}</span></h1><dl>{rows}</dl>'
        + (f"<p>No verdict, because:</p><ul>{why}</ul>" if why else "")
    )


def _causes(document: dict[str, Any]) -> str:
    if not document["causes"]:
        return "<h2>Causes</h2><p>None found.</p>"
    blocks = "".join(
        f'<div class="cause {cause["confidence"]}"><p><b>{number}. {escape(cause["id"])}</b> '
        f"({cause['confidence']})</p>"
        f"<p>{escape(cause['evidence'])}</p><p><b>Fix:</b> {escape(cause['fix'])}</p></div>"
        for number, cause in enumerate(document["causes"], 1)
    )
    return f"<h2>Causes, most probable first</h2>{blocks}"


def _slots(document: dict[str, Any]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("slot", "wanted", "nearest", "relative L2", "bound", "cosine", "rows off")
    )
    body = ""
    for slot in document["slots"]:
        off = f"{slot['failed_rows']} of {slot['rows']}" if slot["rows"] else "-"
        cosine = "-" if slot["cosine"] is None else f"{slot['cosine']:.6f}"
        cells = [
            slot["slot"],
            slot["expected_boundary"],
            slot["nearest_boundary"],
            _short(slot["rel_l2"]),
            _short(slot["tolerance"]),
            cosine,
            off,
        ]
        body += (
            "<tr>"
            + "".join(f"<td>{'-' if cell is None else escape(str(cell))}</td>" for cell in cells)
            + '<td class="mono '
            f'text">{escape(_five(slot["hs_first5"]))}<br>{escape(_five(slot["golden_first5"]))}</td>'
            + f'<td class="text {slot["state"]}">{slot["state"]}</td></tr>'
        )
    return (
        '<h2>Slots</h2><div class="scroll"><table><tr>'
        + head
        + '<th class="text">first five: captured, golden</th><th '
        f'class="text">state</th></tr>{body}</table></div>'
    )


def _heatmap(document: dict[str, Any]) -> str:
    """Slots by boundaries: how far the median row is, on a logarithmic scale; the wanted boundary is
    outlined."""
    table = document["distances"]
    if not table or not table["boundaries"]:
        return ""
    count = len(table["boundaries"])
    cell = max(10, min(40, 900 // count))
    lowest = max(1e-7, document["noise_floor"] or 1e-7) / 2
    shapes = []
    for row, distances in enumerate(table["slots"]):
        expected = document["slots"][row]["expected_boundary"] if row < len(document["slots"]) else None
        shapes.append(f'<text x="0" y="{30 + row * 34 + 18}">slot {row}</text>')
        for column, (k, value) in enumerate(zip(table["boundaries"], distances)):
            edge = ' stroke="#cf222e" stroke-width="2"' if k == expected else ""
            shapes.append(
                f'<rect x="{50 + column * cell}" y="{30 + row * 34}" width="{cell - 2}" height="28" '
                f'fill="{_shade(value, lowest)}"{edge}>'
                f"<title>slot {row}, boundary {k}: relative L2 {_short(value)}</title></rect>"
            )
    step = max(1, math.ceil(34 / cell))
    shapes += [
        f'<text x="{50 + i * cell}" y="22">{k}</text>'
        for i, k in enumerate(table["boundaries"])
        if i % step == 0
    ]
    width, height = 60 + count * cell, 40 + len(table["slots"]) * 34
    return (
        f"<h2>Distance of each slot to each boundary</h2><p>Relative L2 of the median of {table['rows']} "
        "rows, logarithmic: dark is near. "
        f"Outlined: the boundary that was trained. Point at a cell for its number.</p>"
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="distance of slots to '
        f'boundaries">{"".join(shapes)}</svg>'
    )


def _shade(value: float | None, lowest: float) -> str:
    if value is None:
        return "#cf222e"
    near = 1 - (math.log10(max(value, lowest)) - math.log10(lowest)) / (math.log10(2.0) - math.log10(lowest))
    near = max(0.0, min(1.0, near))
    red, green, blue = (round(a + (b - a) * near) for a, b in zip((233, 237, 242), (9, 58, 120)))
    return f"rgb({red},{green},{blue})"


def _rows(document: dict[str, Any]) -> str:
    """Error of each sampled row, one line per slot."""
    tokens = document.get("rows")
    if not tokens:
        return ""
    blocks = []
    highest = (
        max((error for slot in tokens["errors"] for error in slot if error is not None), default=0.0) or 1.0
    )
    lowest = max(1e-8, (document["noise_floor"] or 1e-7) / 30)
    count = len(tokens["places"])
    step = max(3.0, min(18.0, 900 / count))
    for slot, errors in enumerate(tokens["errors"]):
        bound = document["slots"][slot]["tolerance"] or 0
        bars = []
        for row, (error, (prompt, position)) in enumerate(zip(errors, tokens["places"])):
            size = 60 if error is None else 60 * _height(error, lowest, highest)
            colour = "#cf222e" if error is None or (bound and error > bound) else "#1a7f37"
            bars.append(
                f'<rect x="{50 + row * step:.1f}" y="{70 - size:.1f}" width="{step - 1:.1f}" '
                f'height="{max(size, 1):.1f}" fill="{colour}">'
                f"<title>prompt {prompt}, position {position}: {_short(error)}</title></rect>"
            )
        line = 70 - 60 * _height(bound, lowest, highest) if bound else None
        rule = (
            f'<line x1="50" x2="{50 + count * step:.0f}" y1="{line:.1f}" y2="{line:.1f}" stroke="#57606a" '
            'stroke-dasharray="4 3"/>'
            if line
            else ""
        )
        width = 60 + count * step
        blocks.append(
            f'<svg viewBox="0 0 {width:.0f} 76" width="{width:.0f}"><text x="0" y="44">slot '
            f"{slot}</text>{''.join(bars)}{rule}</svg><br>"
        )
    return (
        "<h2>Error of each token</h2><p>Relative L2 to the trained boundary, logarithmic, in the order of "
        "prompts and positions; "
        f'dashed: the bound. {count} rows.</p><div class="scroll">{"".join(blocks)}</div>'
    )


def _height(value: float, lowest: float, highest: float) -> float:
    if value <= lowest:
        return 0.0
    return min(
        1.0,
        (math.log10(value) - math.log10(lowest))
        / max(1e-9, math.log10(max(highest, 2 * lowest)) - math.log10(lowest)),
    )


def _checks(document: dict[str, Any]) -> str:
    lines = "".join(
        f'<tr><td class="text">{escape(check["id"])}</td><td class="text">{check["state"]}</td><td '
        f'class="text">{escape(check["why"])}</td></tr>'
        for check in document["checks"]
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in document["notes"][:20])
    return (
        f"<h2>Checks</h2><details><summary>{len(document['checks'])} checks, "
        f"{sum(check['state'] == 'skipped' for check in document['checks'])} "
        f"skipped</summary><table>{lines}</table></details>"
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "")
    )


def _command(document: dict[str, Any]) -> str:
    if document["golden"]["path"] is None:
        return f"specwire check --target TARGET --capture {document['compared']}"
    kind = "--capture" if document["distances"] is None or document.get("rows") else "--log"
    return f"specwire check --golden {document['golden']['path']} {kind} {document['compared']}"


def _five(values: list[float | None] | None) -> str:
    return (
        "-"
        if values is None
        else "[" + ", ".join("nan" if value is None else f"{value:.4f}" for value in values) + "]"
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"
