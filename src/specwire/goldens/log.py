"""Log goldens: small JSON files with the first five values of each slot, for comparing with a log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said, shortened
from specwire.goldens.golden import SCHEMA, SLOT_LIMIT, Noise, Prompt
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
    prompts: tuple[Prompt, ...] = ()  # whoever made the log knows them
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
        document = json.loads(read_text(path), parse_constant=_refused)
        if document.get("schema") != SCHEMA or document.get("kind") != "log":
            raise SpecwireError(
                f"{path} is no log golden: schema {shortened(document.get('schema'))}, kind {shortened(document.get('kind'))}"
            )
        slots = tuple(
            None if values is None else tuple(map(_value, values)) for values in document["slots"][: SLOT_LIMIT + 1]
        )
        trained = tuple(document.get("trained_boundaries") or [None] * len(slots))
        shape = document.get("concat_shape")
        golden = LogGolden(
            path,
            tuple(None if k is None else _natural(k) for k in trained),
            slots,
            _natural(document["num_layers"]) if document.get("num_layers") is not None else None,
            _natural(document["hidden_size"], least=1),
            _text(document["dtype"]),
            (_natural(shape[0], least=1), _natural(shape[1], least=1)) if shape else None,
            _text(document.get("target", "")),
            _text(document.get("source", "")),
        )
    except (OSError, MemoryError) as error:
        raise SpecwireError(f"cannot read {path}: {said(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise SpecwireError(f"{path} is no log golden: {type(error).__name__}: {str(error)[:200]}") from error
    known = [values for values in slots if values is not None]
    if not known or len(trained) != len(slots) or len(slots) > SLOT_LIMIT or not all(len(one) == 5 for one in known):
        raise SpecwireError(
            f"{path} must give five finite values for at least one slot, and one trained boundary per slot, of at most "
            f"{SLOT_LIMIT:,}"
        )
    return golden


def _value(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e300:  # NaN is below nothing
        raise ValueError(f"{shortened(value)} is no printed value")
    return float(value)


def _natural(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 10**9:
        raise ValueError(f"{shortened(value)} is no size and no boundary")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shortened(value)} is no text")
    return value


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number of a golden")
