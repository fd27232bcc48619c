"""The document of `check` as one self-contained page: no script, no network, readable on paper."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from specwire.diagnosis.scope import described
from specwire.goldens.show import SHOWN_PROMPTS, words_line
from specwire.outgoing import write_text
from specwire.regular import read_text

SVG_WIDTH = 900  # of a full row of cells or bars, in pixels
LABEL = 90  # pixels for a slot's name and the numbers of its axis, left of its row


def write_page(path: Path | str, document: dict[str, Any], reproduce: str) -> None:
    """Write the page; `reproduce` is the command to show. The file appears whole or not at all."""
    write_text(path, page(document, reproduce))


def page(document: dict[str, Any], reproduce: str) -> str:
    """The page's text."""
    title = f"specwire {'verify' if 'run' in document else 'check'}"
    verdict = document["verdict"]
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{title}: {verdict}</title><style>{_style()}</style></head><body>",
            f'<h1>{title}: <span class="{verdict}">{verdict}</span></h1>',
            _unjudged(document["why"]),
            _causes(document["causes"]),
            _slots(document["slots"]),
            _heatmap(document),
            _rows(document),
            _facts(document),
            _checks(document["checks"]),
            _notes(document["notes"][:20]),
            f"<h2>How to reproduce</h2><pre>{escape(reproduce)}</pre></body></html>\n",
        )
    )


def _style() -> str:
    return read_text(Path(__file__).with_name("page.css"))


def _unjudged(why: list[str]) -> str:
    return f"<p>No verdict, because:</p>{_list(why)}" if why else ""


def _causes(causes: list[dict[str, Any]]) -> str:
    if not causes:
        return "<h2>Causes</h2><p>None found.</p>"
    blocks = (
        f'<div class="cause {cause["confidence"]}"><p><b>{number}. {escape(cause["id"])}</b> ({cause["confidence"]})</p>'
        f"<p>{escape(cause['evidence'])}</p><p><b>Fix:</b> {escape(cause['fix'])}</p></div>"
        for number, cause in enumerate(causes, 1)
    )
    return f"<h2>Causes, most probable first</h2>{''.join(blocks)}"


def _slots(slots: list[dict[str, Any]]) -> str:
    numbers = "slot", "wanted", "nearest", "relative L2", "bound", "cosine", "rows off"
    head = "".join(f"<th>{name}</th>" for name in numbers)
    head += '<th class="text">first five: captured, golden</th><th class="text">state</th>'
    body = "".join(f"<tr>{_slot(slot)}</tr>" for slot in slots)
    return f'<h2>Slots</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _slot(slot: dict[str, Any]) -> str:
    cells = (
        slot["slot"],
        slot["expected_boundary"],
        slot["nearest_boundary"],
        _short(slot["rel_l2"]),
        _short(slot["tolerance"]),
        None if slot["cosine"] is None else f"{slot['cosine']:.6f}",
        f"{slot['failed_rows']} of {slot['rows']}" if slot["rows"] else None,
    )
    first_five = f"{escape(_five(slot['hs_first5']))}<br>{escape(_five(slot['golden_first5']))}"
    return (
        "".join(f"<td>{'-' if cell is None else escape(str(cell))}</td>" for cell in cells)
        + f'<td class="mono text">{first_five}</td><td class="text {slot["state"]}">{slot["state"]}</td>'
    )


def _heatmap(document: dict[str, Any]) -> str:
    """Slots by boundaries: how far the median row is, on a logarithmic scale; the trained boundary is outlined."""
    table = document["distances"]
    if not table or not table["boundaries"]:
        return ""
    boundaries = table["boundaries"]
    cell = max(10, min(40, SVG_WIDTH // len(boundaries)))
    lowest = max(1e-7, document["noise_floor"] or 1e-7) / 2
    every = math.ceil(34 / cell)
    shapes = [
        f'<text x="{LABEL + column * cell}" y="22">{k}</text>'
        for column, k in enumerate(boundaries)
        if column % every == 0
    ]
    for row, (slot, distances) in enumerate(zip(document["slots"], table["slots"], strict=False)):
        top = 30 + row * 34
        shapes.append(f'<text x="0" y="{top + 18}">slot {row}</text>')
        for column, (k, value) in enumerate(zip(boundaries, distances, strict=True)):
            trained = " trained" if k == slot["expected_boundary"] else ""
            look = 'class="bad' if value is None else f'fill-opacity="{_nearness(value, lowest):.2f}" class="near'
            shapes.append(
                f'<rect x="{LABEL + column * cell}" y="{top}" width="{cell - 2}" height="28" {look}{trained}">'
                f"<title>slot {row}, boundary {k}: relative L2 {_short(value)}</title></rect>"
            )
    return (
        f"<h2>Distance of each slot to each boundary</h2><p>Relative L2 of the median of {table['rows']} rows, "
        "logarithmic: the stronger, the nearer. Outlined: the boundary that was trained. Point at a cell for its "
        "number.</p>" + _svg(LABEL + 10 + len(boundaries) * cell, 40 + len(table["slots"]) * 34, shapes)
    )


def _nearness(value: float, lowest: float) -> float:
    """1 for a distance of `lowest` or less, and near 0 for 2 or more."""
    near = 1 - math.log10(max(value, lowest) / lowest) / math.log10(2.0 / lowest)
    return max(0.06, min(1.0, near))


def _rows(document: dict[str, Any]) -> str:
    """Error of each sampled row, one line per slot."""
    table = document.get("rows")
    if not table:
        return ""
    errors = [error for slot in table["errors"] for error in slot if error is not None]
    bounds = [slot["tolerance"] for slot in document["slots"] if slot["tolerance"]]
    lowest = max(1e-8, (document["noise_floor"] or 1e-7) / 30)
    scale = lowest, max([*errors, *bounds, 2 * lowest])
    count = len(table["places"])
    step = max(3.0, min(18.0, SVG_WIDTH / count))
    blocks = []
    for slot, errors in enumerate(table["errors"]):
        bound = document["slots"][slot]["tolerance"] or 0
        shapes = [f'<text x="0" y="44">slot {slot}</text>', *_axis(*scale, LABEL + count * step)]
        for row, (error, (prompt, position)) in enumerate(zip(errors, table["places"], strict=True)):
            size = 60 if error is None else max(1, 60 * _height(error, *scale))
            tone = "bad" if error is None or (bound and error > bound) else "good"
            shapes.append(
                f'<rect x="{LABEL + row * step:.1f}" y="{70 - size:.1f}" width="{step - 1:.1f}" height="{size:.1f}" '
                f'class="{tone}"><title>prompt {prompt}, position {position}: {_short(error)}</title></rect>'
            )
        if bound:
            level, right = 70 - 60 * _height(bound, *scale), LABEL + count * step
            shapes.append(f'<line x1="{LABEL}" x2="{right:.0f}" y1="{level:.1f}" y2="{level:.1f}" class="bound"/>')
            shapes.append(f'<text x="{right + 6:.0f}" y="{level + 4:.1f}">{_short(bound)}</text>')
        blocks.append(_svg(LABEL + 80 + count * step, 82, shapes))
    return (
        "<h2>Error of each token</h2><p>Relative L2 to the trained boundary, logarithmic, in the order of prompts and "
        f"positions; dashed: the bound, with its number. {count} rows.</p>{''.join(blocks)}"
    )


def _axis(lowest: float, highest: float, right: float) -> Iterable[str]:
    """A line and a number at each whole power of ten between the ends, at most five of them."""
    powers = range(math.ceil(math.log10(lowest)), math.floor(math.log10(highest)) + 1)
    for power in powers[:: max(1, len(powers) // 5 + 1)]:
        level = 70 - 60 * _height(10.0**power, lowest, highest)
        yield f'<line x1="{LABEL}" x2="{right:.0f}" y1="{level:.1f}" y2="{level:.1f}" class="grid"/>'
        yield f'<text x="{LABEL - 4}" y="{level + 4:.1f}" text-anchor="end" class="tick">1e{power}</text>'


def _height(value: float, lowest: float, highest: float) -> float:
    return 0.0 if value <= lowest else min(1.0, math.log10(value / lowest) / math.log10(highest / lowest))


def _svg(width: float, height: float, shapes: Iterable[str]) -> str:
    """Drawn at its own size, so that text stays readable: a narrow window scrolls."""
    return f'<div class="scroll"><svg width="{width:.0f}" height="{height}" role="img">{"".join(shapes)}</svg></div>'


def _facts(document: dict[str, Any]) -> str:
    golden, run, found = document["golden"], document.get("run"), document["self_check"]
    agree = {True: "all equal", False: "they differ", None: "-"}[document["ranks_agree"]]
    facts = {}
    if run:
        facts["tree"] = f"{run['tree']}, SGLang {run['version'] or 'of unknown version'}, on {run['device']}"
        facts["target served"], facts["draft"] = run["target"], run["draft"]
        facts["engine arguments"] = shlex.join(run["engine_arguments"]) or "none"
    told = [(number, words_line(one)) for number, one in enumerate(golden["prompts"])]
    facts |= {f"prompt {number}": words for number, words in told[:SHOWN_PROMPTS] if words}
    facts |= {
        "target": golden["target"],
        "golden": f"{golden['path'] or 'none'} ({golden['source']})",
        "compared": f"{document['compared']}, {document['rows_compared']} rows at {document['site']}",
        "parts": "; ".join(described(document["scope"])),
        "target side": document["target_side"],
        "concat": f"{document['concat_shape']} {document['dtype'] or ''}, golden {document['golden_concat_shape']}",
        "ranks": f"{document['ranks']} ({agree})" if document["ranks"] > 1 else document["ranks"],
        "noise floor": f"{_short(document['noise_floor'])}, {document['noise_source']}",
    }
    if found["subjects"]:
        subjects = "; ".join(f"{one['name']} {one['state']}, {one['rows']} rows" for one in found["subjects"])
        facts["self-check"] = f"lm_head(norm(x)) against returned {found['by']}: {subjects}"
    if document["acceptance"]["said"]:
        facts["acceptance"] = document["acceptance"]["said"]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    return f"<h2>What was compared</h2><dl>{listed}</dl>"


def _checks(checks: list[dict[str, Any]]) -> str:
    skipped = sum(check["state"] == "skipped" for check in checks)
    lines = "".join(
        f'<tr><td class="text">{escape(check["id"])}</td><td class="text">{check["state"]}</td>'
        f'<td class="text why">{escape(check["why"] or check["seen"])}</td></tr>'
        for check in checks
    )
    summary = f"{len(checks)} checks, {skipped} skipped"
    return f"<h2>Checks</h2><details><summary>{summary}</summary><table>{lines}</table></details>"


def _notes(notes: list[str]) -> str:
    return f"<h2>Notes</h2>{_list(notes)}" if notes else ""


def _list(sentences: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _five(values: list[float | None] | None) -> str:
    if values is None:
        return "-"
    return "[" + ", ".join("nan" if value is None else f"{value:.4f}" for value in values) + "]"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}" if value else "0"
