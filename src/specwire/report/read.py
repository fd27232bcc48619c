"""Reads results for a report: files, or the directories that commands kept them in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.outgoing import know_document
from specwire.regular import read_json
from specwire.report.schema import SHAPES, Wrong, check

NAMES = ("verify.json", "bench.json", "sweep.json")


def read_results(places: Sequence[Path]) -> list[dict[str, Any]]:
    """The documents, in the order given. Raises SpecwireError for what is no result of verify, bench or sweep."""
    files = [file for place in places for file in _files(place)]
    return [_document(file) for file in files]


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = [place / name for name in NAMES if (place / name).is_file()]
    if not found:
        raise SpecwireError(
            f"{place}: holds none of {', '.join(NAMES)}. Name a result, or the --out directory of verify, bench or sweep."
        )
    return found


def _document(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = read_json(file)
    except (OSError, ValueError) as error:
        raise SpecwireError(
            f"{file}: no result that can be read ({said(error)}). Name the JSON of verify, bench or sweep."
        ) from error
    know_document(document)  # an earlier version kept what it was given
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or schema not in SHAPES:
        raise SpecwireError(
            f"{file}: schema {str(schema)[:60]!r} is none that a report is made of. There are: {', '.join(SHAPES)}."
        )
    try:
        check(document)
    except Wrong as error:
        raise SpecwireError(
            f"{file}: {schema} {error}: cut short, changed, or made by another version. Make it again."
        ) from error
    return document
