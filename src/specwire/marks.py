"""The marks that make a line ours. Everything that finds or removes taps goes by these bytes alone.

A tap is one whole line, `CODE  # specwire:PROBE CHECKSUM`. The checksum tells an edited tap from an intact
one; the import line also carries the hash of the file as it was, so that removal can prove itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

LITERAL = b"# specwire:"
NAME = b"_specwire"
IMPORT = "import"
IMPORT_CODE = "from sglang.srt import _specwire"
RUNTIME = "sglang/srt/_specwire.py"
RUNTIME_MARK = b"# specwire:runtime"

_MARK = re.compile(rb"# specwire:([a-z][a-z0-9-]*) ([0-9a-f]{8})(?: original=([0-9a-f]{64}))?[ \t]*\r?\n?$")


@dataclass(frozen=True)
class Mark:
    """One marked line of a file, `line` counted from 1."""

    probe: str
    line: int
    code: str
    intact: bool
    original: str | None


def marked(code: str, probe: str, original: str | None = None) -> str:
    """The line for `code`, without indentation and line end."""
    suffix = f" original={original}" if original else ""
    return f"{code}  # specwire:{probe} {_checksum(code)}{suffix}"


def marks(data: bytes) -> list[Mark]:
    """The marked lines of a file, in order. A line that holds the literal but no whole mark is not intact."""
    if LITERAL not in data:
        return []
    found = []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        at = line.rfind(LITERAL)
        if at < 0:
            continue
        code = line[:at].decode("utf-8", "replace").strip()
        mark = _MARK.match(line, at)
        if mark is None:
            found.append(Mark(_named(line[at:]), number, code, False, None))
        else:
            intact = mark[2].decode() == _checksum(code)
            found.append(Mark(mark[1].decode(), number, code, intact, mark[3].decode() if mark[3] else None))
    return found


def without(data: bytes, lines: set[int]) -> bytes:
    """The file without these lines (counted from 1); every other byte as it was."""
    return b"".join(line for number, line in enumerate(data.splitlines(keepends=True), 1) if number not in lines)


def stripped(data: bytes) -> bytes:
    """The file without any marked line."""
    return without(data, {mark.line for mark in marks(data)}) if LITERAL in data else data


def _checksum(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:8]


def _named(tail: bytes) -> str:
    name = re.match(rb"# specwire:([a-z][a-z0-9-]*)", tail)
    return name[1].decode() if name else "unknown"
