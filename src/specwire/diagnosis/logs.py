"""Reads the taps' lines in a log: where each was printed, and the first five values that it shows."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specwire.errors import SpecwireError, shortened
from specwire.regular import open_stream

LINE_LIMIT = 16 * 1024 * 1024
MARK = "[EAGLE3-DEBUG]"
SHOWN_VALUES = 5
SLOT_LIMIT = 1024
WIDTH_LIMIT = 1 << 20  # 61 layers of a target 16,384 wide are not wider
NUMBER_LIMIT = 1 << 53
# Possessive: the text of a prompt may stand in the same line, and has words of any length.
_FIELD = re.compile(r"(?<!\w)(\w++)=(\[(?:[^\[\]]++|\[[^\[\]]*+\])*+\]|\S++)")
_NUMBER = re.compile(r"[-+]?(?:\d++\.?\d*+(?:[eE][-+]?\d++)?|\.\d++|nan|inf)", re.I)


@dataclass(frozen=True)
class Line:
    """One log line of a tap. `slots` holds the first five values of each slot; without them only slot 0 is
    known."""

    number: int
    site: str
    rank: int
    step: int
    mode: str
    shape: tuple[int, int]
    dtype: str
    norm: float | None
    first5: tuple[float, ...]
    slots: tuple[tuple[float, ...], ...] | None
    boundary: int | None
    token: int | None
    position: int | None
    digits: float

    @property
    def whole(self) -> bool:
        """Whether each slot shows as many values as a tap prints of a row."""
        return all(len(values) == SHOWN_VALUES for values in self.slots or (self.first5,))

    def of_slot(self, slot: int) -> tuple[float, ...] | None:
        if self.slots is not None:
            return self.slots[slot] if slot < len(self.slots) else None
        return self.first5 if slot == 0 else None


def read_log(path: Path | str) -> list[Line]:
    """The taps' lines in a log; whatever stands before the mark (time, rank, level) is passed over.

    Raises SpecwireError when there is none, or when one of them cannot be read.
    """
    lines = []
    for number, text in enumerate(_text(path), 1):
        at = text.find(MARK)
        if at >= 0 and "site=" in text[at:] and "hs_first5=" in text[at:]:
            lines.append(_line(path, number, text[at + len(MARK) :]))
    if not lines:
        raise SpecwireError(
            f"no {MARK} line with hs_first5 in {path}: was the engine patched and started with EAGLE3_DEBUG=1?"
        )
    return lines


def _text(path: Path | str) -> Iterable[str]:
    if str(path) == "-":
        yield from _bounded(path, getattr(sys.stdin, "buffer", sys.stdin))
        return
    try:
        with open_stream(path) as file:  # may be a pipe, as of `ssh HOST cat LOG`
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and not file.isatty():
                raise SpecwireError(f"cannot read {path}: a device, no log")
            yield from _bounded(path, file)
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {error.strerror or error}") from error


def _bounded(path: Path | str, file: IO[Any]) -> Iterator[str]:
    while line := file.readline(LINE_LIMIT):
        if len(line) == LINE_LIMIT:
            raise SpecwireError(f"{path} has a line of more than {LINE_LIMIT:,} bytes: it is no log")
        yield line.decode("utf-8", "replace") if isinstance(line, bytes) else line


def _line(path: Path | str, number: int, text: str) -> Line:
    fields = dict(_FIELD.findall(text))
    try:
        shape = _shape(fields["shape"])
        first5 = _floats(fields["hs_first5"])
        slots = (
            tuple(_floats(part) for part in re.findall(r"\[([^\[\]]*+)\]", fields["slots"]))
            if "slots" in fields
            else None
        )
        if slots is not None and not 0 < len(slots) <= SLOT_LIMIT:
            raise ValueError(f"{len(slots):,} slots")
        return Line(
            number,
            fields["site"],
            _integer(fields.get("rank")) or 0,
            _integer(fields.get("step")) or 0,
            fields.get("mode", ""),
            shape,
            fields.get("dtype", "").removeprefix("torch."),
            _floating(fields.get("norm")),
            first5,
            slots,
            _integer(fields.get("boundary")),
            _integer(fields.get("token")),
            _integer(fields.get("position")),
            printed_to(_NUMBER.findall(fields["hs_first5"])),
        )
    except (KeyError, ValueError, RecursionError, MemoryError) as error:
        raise SpecwireError(f"{path}:{number}: a {MARK} line that cannot be read ({str(error)[:200]})") from error


def _shape(text: str) -> tuple[int, int]:
    sizes = json.loads(text)
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
        raise ValueError("shape is not [rows, width]")
    rows, width = sizes
    if not (0 <= rows < NUMBER_LIMIT and 0 <= width <= WIDTH_LIMIT):
        raise ValueError(f"shape is beyond any batch's and any width up to {WIDTH_LIMIT:,}")
    return rows, width


def _floats(text: str) -> tuple[float, ...]:
    words = _NUMBER.findall(text)
    if not 0 < len(words) <= SHOWN_VALUES:
        raise ValueError(f"{len(words):,} values where a tap prints {SHOWN_VALUES}")
    return tuple(map(float, words))


def _integer(text: str | None) -> int | None:
    if not text or not re.fullmatch(r"-?[0-9]{1,15}", text):
        return None
    return int(text)


def _floating(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def printed_to(words: Iterable[str]) -> float:
    """Half a unit of the last decimal place that numbers printed together use: what rounding for print may
    have cost.

    The one with the most decimals tells; 0 where none has any, since a lone `0` is not a number rounded to
    units.
    """
    places = []
    for word in words:
        mantissa, _, exponent = word.lower().partition("e")
        if len(exponent) > 6:
            raise ValueError(f"the exponent of {shortened(word)} is beyond any number's")
        if "n" not in mantissa:
            places.append(len(mantissa.partition(".")[2].rstrip()) - int(exponent or 0))
    most = max(places, default=0)
    return 0.5 * 10.0**-most if most > 0 else 0.0


def printed_share(words: Iterable[str]) -> float:
    """What rounding for print may have cost, as a share of a value, where numbers were printed to as many significant
    digits: the one with the most tells how many. A trailing zero may have been dropped: three are assumed at least."""
    most = 3
    for word in words:
        digits = word.lower().partition("e")[0].lstrip("+-").replace(".", "").lstrip("0")
        if digits.isdigit():
            most = max(most, len(digits))
    return 5.0 * 10.0**-most
