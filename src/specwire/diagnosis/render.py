"""The document of `check` as a short table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill, wrap
from typing import Any

from specwire.diagnosis import replays
from specwire.diagnosis.acceptance import ENOUGH
from specwire.diagnosis.scope import described
from specwire.goldens.show import SHOWN_PROMPTS, words_line
from specwire.outgoing import columns

_COLOURS = {"match": "32", "mismatch": "31", "inconclusive": "33", "not-compared": "33"}


def render_text(document: dict[str, Any], colour: bool = False) -> str:
    """Verdict, one line per slot with the golden's values below the captured ones, then the causes with their
    fix."""
    alone = document["golden"]["path"] is None
    blocks = [*_alone(document, colour)] if alone else [_headline(document, colour), *_slots(document, colour)]
    if document["why"]:
        blocks.append("no verdict, because:\n" + "\n".join(f"  - {reason}" for reason in document["why"]))
    blocks += [_cause(number, cause) for number, cause in enumerate(document["causes"], 1)]
    seen = document["acceptance"]
    if seen["pattern"] or seen["verifications"] >= ENOUGH:
        blocks.append(seen["said"])
    if document["verdict"] == "mismatch" and not document["causes"]:
        blocks.append("no check knows this fault: the numbers above are all there is")
    if notes := document["notes"]:
        more = f"\n  - and {len(notes) - 5} more (--json lists all)" if len(notes) > 5 else ""
        blocks.append("notes:\n" + "\n".join(f"  - {note}" for note in notes[:5]) + more)
    blocks.append(_checks(document["checks"]))
    return "\n\n".join(blocks)


def _checks(checks: Sequence[dict[str, Any]]) -> str:
    """How many checks there are, and which of them could not look, or looked at a part alone."""
    skipped = [line["id"] for line in checks if line["state"] == "skipped"]
    partly: dict[str, list[str]] = {}
    for line in checks:
        if line["seen"]:
            partly.setdefault(line["seen"], []).append(line["id"])
    text = f"checks: {len(checks)}, of which {len(skipped)} could not look" + (" (--json says why)" if skipped else "")
    groups = {"could not look": skipped, **{f"looked at {seen}": names for seen, names in partly.items()}}
    for label, names in groups.items():
        if names:
            text += "\n" + fill(
                f"{label}: {', '.join(names)}", columns(118), initial_indent="  ", subsequent_indent="    "
            )
    return text


def _headline(document: dict[str, Any], colour: bool) -> str:
    verdict = document["verdict"].upper()
    lines = [
        f"{_paint(verdict, document['verdict'], colour)}  {document['rows_compared']} rows at "
        f"{document['site']}, "
        f"target side {document['target_side']}",
        f"concat    {document['concat_shape'] or 'none'} {document['dtype'] or ''}   golden "
        f"{document['golden_concat_shape']}",
        f"ranks     {document['ranks']}" + _agreement(document),
        *_sites(document),
        *_prompts(document),
        *(f"{'compared' if not number else '':8}  {line}" for number, line in enumerate(described(document["scope"]))),
        *_replays(document),
        f"noise     {_short(document['noise_floor'])} ({document['noise_source']})" + _repeats(document),
    ]
    return "\n".join(lines)


def _replays(document: dict[str, Any]) -> list[str]:
    """What was read of forwards that ran as CUDA graphs, if any did."""
    lines = replays.described(document["replays"], "eager" in document)
    text = [line for long in lines for line in wrap(long, columns(118) - 10)]
    return [f"{'' if number else 'replays':8}  {line}" for number, line in enumerate(text)]


def _prompts(document: dict[str, Any]) -> list[str]:
    """What each of the golden's prompts was, where it was made from text."""
    told = [(number, words_line(one)) for number, one in enumerate(document["golden"]["prompts"])]
    lines = [f"prompt {number:<2} {words}" for number, words in told if words]
    more = len(lines) - SHOWN_PROMPTS
    return lines[:SHOWN_PROMPTS] + ([f"          and {more} more (--json has all)"] if more > 0 else [])


def _alone(document: dict[str, Any], colour: bool) -> list[str]:
    """Without a golden: what the self-check compared, and the slots' first values as they were captured."""
    found = document["self_check"]
    lines = [
        f"{_paint(document['verdict'].upper(), document['verdict'], colour)}  no golden; self-check {found['state']}",
        f"target    {document['golden']['target']}",
        f"concat    {document['concat_shape'] or 'none'} {document['dtype'] or ''}   ranks {document['ranks']}",
        *_replays(document),
    ]
    slots = [f"slot {slot['slot']}    {_five(slot['hs_first5'])}" for slot in document["slots"] if slot["hs_first5"]]
    if not found["subjects"]:
        return ["\n".join(lines + slots)]
    head = ("lm_head(norm(x)) against returned " + found["by"], "rows", "rows off", "worst", "bound", "other rows", "")
    rows = [head] + [
        (
            f"{one['name']}, {one['way']}" if one["way"] else one["name"],
            str(one["rows"]),
            str(one["failed_rows"]),
            _short(one["worst"]),
            _short(one["bound"]),
            _short(one["other_rows"]),
            one["state"] + (f": {one['why']}" if one["why"] else ""),
        )
        for one in found["subjects"]
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    table = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:])), row[6]])
        for row in rows
    ]
    return ["\n".join(lines + slots), "\n".join(line.rstrip() for line in table)]


def _sites(document: dict[str, Any]) -> list[str]:
    """Where along the way it is right, when that is not everywhere."""
    sites = document["target_sites"]
    if not sites or (document["verdict"] == "match" and all(site["state"] == "exact" for site in sites)):
        return []
    words = [f"{site['site']} {site['state']}" for site in sites]
    return [f"on the way {', '.join(words)}, {document['site']} {document['target_side']}"]


def _agreement(document: dict[str, Any]) -> str:
    if document["ranks_agree"] is None or document["ranks"] < 2:
        return ""
    if not document["ranks_agree"]:
        return f", which DIFFER by up to {_short(document['rank_difference'])}"
    return ", all equal" if not document["rank_difference"] else f", equal to {_short(document['rank_difference'])}"


def _repeats(document: dict[str, Any]) -> str:
    value = document["repeat_difference"]
    return "" if value is None else f"; the same rows twice differ by {_short(value)}"


def _slots(document: dict[str, Any], colour: bool) -> list[str]:
    if not document["slots"]:
        return []
    head = (
        "slot",
        "wanted",
        "nearest",
        "rel L2",
        "bound",
        "cosine",
        "rows off",
        "first five: captured, golden",
    )
    rows = []
    for slot in document["slots"]:
        off = f"{slot['failed_rows']}/{slot['rows']}" if slot["rows"] else "-"
        rows.append(
            (
                str(slot["slot"]),
                _word(slot["expected_boundary"]),
                _word(slot["nearest_boundary"]),
                _short(slot["rel_l2"]),
                _short(slot["tolerance"]),
                _word(slot["cosine"], ".6f"),
                off,
                _five(slot["hs_first5"]),
            )
        )
        rows.append(("",) * 7 + (_five(slot["golden_first5"]),))
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(7)]
    table = [_line(head, widths)]
    for number, row in enumerate(rows):
        state = document["slots"][number // 2]["state"]
        table.append(_line(row, widths) + (f"  {_paint(state, state, colour)}" if number % 2 == 0 else ""))
    whys = [
        f"slot {slot['slot']}: {slot['why']}" for slot in document["slots"] if slot["why"] and not slot["failed_rows"]
    ]
    worst = [line for slot in document["slots"] if slot["state"] == "mismatch" for line in _worst_row(slot)]
    return ["\n".join(lines) for lines in (table, whys, worst) if lines]


def _worst_row(slot: dict[str, Any]) -> list[str]:
    """The slot's worst row as torch.testing.assert_close would show it: index, both values, what was allowed."""
    row = slot["worst_row"]
    if not row or not slot["failed_rows"]:
        return []
    share = slot["failed_rows"] / slot["rows"]
    lines = [
        f"slot {slot['slot']}: {slot['failed_rows']} of {slot['rows']} rows ({share:.1%}) are off; worst: prompt "
        f"{row['prompt']}, position {row['position']} (token {row['token']}, rank {row['rank']}), relative L2 "
        f"{_short(row['rel_l2'])} (up to {_short(row['bound'])} allowed)"
    ]
    for one in row["largest"]:
        values = f"captured {_value(one['captured'])}, golden {_value(one['golden'])}"
        lines.append(
            f"  at index ({row['position']}, {one['index']}): {values}, difference {_short(one['difference'])}"
        )
    return lines


def _value(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths)), row[7]]).rstrip()


def _cause(number: int, cause: dict[str, Any]) -> str:
    head = f"{number}. {cause['id']} ({cause['confidence']})"
    return f"{head}\n   evidence  {cause['evidence']}\n   fix       {cause['fix']}"


def _five(values: Sequence[float | None] | None) -> str:
    if values is None:
        return "-"
    return (
        "["
        + ", ".join(
            "nan" if value is None else f"{value:8.4f}" if abs(value) < 1000 else f"{value:8.1e}" for value in values
        )
        + "]"
    )


def _short(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def _word(value: float | int | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _paint(text: str, state: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if colour else text
