"""A unified diff in bytes that `patch -p1` takes, whatever the line ends and the encoding."""

from __future__ import annotations

import difflib
import os


def patch(name: str, before: bytes, after: bytes) -> bytes:
    """The diff of one file, named relative to the working directory (`-d /` for a file outside it)."""
    path = os.path.relpath(name)
    if path.startswith(os.pardir):
        path = os.path.abspath(name).lstrip(os.sep)
    shown = path.encode("utf-8", "surrogateescape")
    lines = difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), b"a/" + shown, b"b/" + shown)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def _lines(data: bytes) -> list[bytes]:
    # By line feeds alone: that is what `patch` calls a line.
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
