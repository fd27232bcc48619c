"""The preflight document as a page for a terminal: the wiring, the faults with their fixes, then every check."""

from __future__ import annotations

import textwrap
from typing import Any

from specwire.outgoing import columns

WIDTH = 110


def page(document: dict[str, Any]) -> str:
    parts = [_wiring(document)]
    if len(document["trees"]) > 1:
        parts.append(_table(document["trees"]))
    parts += [_cause(cause) for cause in document["causes"]]
    for state in ("skipped", "ok"):
        parts.append("\n".join(_grouped(state, document["checks"])))
    parts.append("\n".join(_line("note", row["id"], row["text"]) for row in document["notes"]))
    parts.append(_summary(document))
    return "\n\n".join(part for part in parts if part)


def _grouped(state: str, checks: list[dict[str, Any]]) -> list[str]:
    """One line per reason: checks that say the same stand together."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check["state"] == state:
            reasons.setdefault(check["why"], []).append(check["id"])
    return [_line(state, ", ".join(names), why) for why, names in reasons.items()]


def _wiring(document: dict[str, Any]) -> str:
    rows = [
        ("tree", f"SGLang {document['version'] or '(no version)'}  {document['tree']}"),
        (
            "algorithm",
            document["algorithm"] or ("none" if document["algorithm"] == "" else "no launch given"),
        ),
        ("layer ids", _list(document["layer_ids"], "none: the release's defaults")),
        ("captured", _list(document["captured_boundaries"], "not read")),
        ("trained", _list(document["trained_boundaries"], "not known") + " (assumed)" * document["trained_assumed"]),
        ("widths", f"concat {_number(document['concat_width'])}, fc takes {_number(document['fc_in'])}"),
        ("rule", document["rule"]["text"]),
    ]
    return "\n".join(_wrapped(f"{name:<10} ", text) for name, text in rows)


def _table(rows: list[dict[str, Any]]) -> str:
    """What each tree would capture for this draft's config, and the ids that would make it right."""
    cells = [("tree", "version", "ids", "captures", "trained?", "ids to write")]
    for row in rows:
        word = {True: "match", False: "MISMATCH", None: "unknown"}[row["matches"]]
        word += " in graphs" * (row["matches"] is False and bool(row["graph_order"]))
        word += " without graphs" * (row["matches"] is True and bool(row["graph_order"]))
        captured = _list(row["captured_boundaries"], "-")
        cells.append(
            (
                _short(row["tree"]),
                row["version"] or "-",
                _list(row["layer_ids"], "default"),
                captured,
                word,
                "as they are" if row["layer_ids"] == row["ids_to_write"] else _list(row["ids_to_write"], "none"),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
    problems = [
        _wrapped(f"{_short(row['tree'])}: ", row[key]) for row in rows for key in ("problem", "graph_order") if row[key]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], *problems])


def _cause(cause: dict[str, Any]) -> str:
    word = "SUSPECT" if cause["confidence"] == "possible" else "FAULT"
    head = _wrapped(f"{word} {cause['id']} ({cause['confidence']}): ", cause["evidence"], "      ")
    return f"{head}\n{_wrapped('      fix: ', cause['fix'])}"


def _line(state: str, name: str, text: str) -> str:
    return _wrapped(f"{state:<8}", f"{name}: {text}")


def _summary(document: dict[str, Any]) -> str:
    states = [check["state"] for check in document["checks"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "fault", "skipped") if state in states)
    return f"verdict: {document['verdict']} ({counts})"


def _wrapped(lead: str, text: str, indent: str | None = None) -> str:
    rest = " " * len(lead) if indent is None else indent
    return textwrap.fill(
        text,
        columns(WIDTH),
        initial_indent=lead,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _list(values: list[int] | None, otherwise: str) -> str:
    return otherwise if values is None else "[" + ", ".join(map(str, values)) + "]"


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _short(name: str) -> str:
    return name if len(name) <= 40 else "..." + name[-37:]
