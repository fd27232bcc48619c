"""Log goldens: small JSON files with the first five values of each slot, for comparing with a log."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.goldens.golden import SCHEMA, Noise
from specwire.regular import open_regular, read_text


@dataclass(frozen=True)
class LogGolden:
    """First five values of each slot as a log line shows them; `None` where a slot's are not known."""

    path: Path
    trained: tuple[int | None, ...]
    slots: tuple[tuple[float, ...] | None, ...]
    layers: int | None
    hidden: int
    dtype: str
    concat_shape: tuple[int, int] | None
    target: str
    source: str
    boundaries: tuple[int, ...] = ()
    noise: Mapping[str, Mapping[int, Noise]] = field(default_factory=dict)
    assumed: None = None  # its slots are a server's own

    def has(self, what: str) -> bool:
        """No tensor is known."""
        return False


def is_log_golden(path: Path | str) -> bool:
    """Whether the file is JSON (a log golden) rather than safetensors; it is judged by its first bytes."""
    try:
        with open_regular(path) as file:
            start = file.read(64).lstrip()
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {error.strerror or error}") from error
    return start.startswith(b"{")


def open_log_golden(path: Path | str) -> LogGolden:
    """Check a log golden; SpecwireError names the first thing that is wrong."""
    path = Path(path)
    try:
        document = json.loads(read_text(path))
        if document.get("schema") != SCHEMA or document.get("kind") != "log":
            raise SpecwireError(
                f"{path} is no log golden: schema {document.get('schema')!r}, kind {document.get('kind')!r}"
            )
        slots = tuple(
            None if values is None else tuple(float(value) for value in values) for values in document["slots"]
        )
        trained = tuple(document.get("trained_boundaries") or [None] * len(slots))
        shape = document.get("concat_shape")
        golden = LogGolden(
            path,
            trained,
            slots,
            document.get("num_layers"),
            int(document["hidden_size"]),
            str(document["dtype"]),
            (int(shape[0]), int(shape[1])) if shape else None,
            str(document.get("target", "")),
            str(document.get("source", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise SpecwireError(f"{path} is no log golden: {type(error).__name__}: {error}") from error
    known = [values for values in slots if values is not None]
    if not known or len(trained) != len(slots) or not all(len(v) == 5 and all(map(math.isfinite, v)) for v in known):
        raise SpecwireError(
            f"{path} must give five finite values for at least one slot, and one trained boundary per slot"
        )
    return golden
