"""The marks that make a line ours. Everything that finds or removes taps goes by these bytes alone.

A tap is one whole line, `CODE  # specwire:PROBE CHECKSUM`. The checksum tells an edited tap from an intact
one; the import line also carries the hash of the file as it was, so that removal can prove itself. The tap
file carries, in its first line, a checksum of all the rest of it.

This module knows bytes alone: that a mark stands in a comment and not in a string, `specwire.patching.taps` finds out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

WORD = b"specwire"  # in every mark and in every use of the taps' name: the one thing to scan for
LITERAL = b"# specwire:"
NAME = b"_specwire"
IMPORT = "import"
IMPORT_CODE = "from sglang.srt import _specwire"
RUNTIME = "sglang/srt/_specwire.py"
RUNTIME_MARK = b"# specwire:runtime"
_TELLTALE = b"EAGLE3_CAPTURE_DIR"  # what a tap file that lost its first line is still known by

_MARK = re.compile(rb"# specwire:([a-z][a-z0-9-]*) ([0-9a-f]{8})(?: original=([0-9a-f]{64}))?[ \t]*\r?\n?$")
_ORIGINAL = re.compile(rb"(?<= )original=[0-9a-f]{64}(?=[ \t]*[\r\n])")


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


def sealed(source: bytes) -> bytes:
    """The tap file as it goes into a tree: a checksum of everything else of it in its first line."""
    if not source.startswith(RUNTIME_MARK + b" "):
        raise ValueError("no tap file: its first line does not begin with its mark")
    rest = source.removeprefix(RUNTIME_MARK)
    return RUNTIME_MARK + b" " + _seal(rest) + rest


def seal(data: bytes) -> str:
    """What a file at the tap file's place is: `intact` as some specwire wrote it, `edited`, or `foreign`."""
    if not data.startswith(RUNTIME_MARK):
        return "edited" if _TELLTALE in data or not data.strip() else "foreign"
    given, rest = data[len(RUNTIME_MARK) + 1 :][:8], data[len(RUNTIME_MARK) + 9 :]
    return "intact" if _seal(rest) == given else "edited"


def _seal(rest: bytes) -> bytes:
    # Line ends aside: version control may change them.
    return hashlib.sha256(rest.replace(b"\r\n", b"\n")).hexdigest()[:8].encode()


def same_but_hash(one: bytes, other: bytes) -> bool:
    """Whether two files differ in nothing but the hash of the original that their import line holds."""
    return one == other or _ORIGINAL.sub(b"", one) == _ORIGINAL.sub(b"", other)


def with_original(data: bytes, original: str) -> bytes:
    """The file with another hash in its import line."""
    return _ORIGINAL.sub(b"original=" + original.encode(), data)


def _checksum(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:8]


def _named(tail: bytes) -> str:
    name = re.match(rb"# specwire:([a-z][a-z0-9-]*)", tail)
    return name[1].decode() if name else "unknown"
