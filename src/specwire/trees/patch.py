"""Unified diffs of bytes, whatever the line ends and the encoding."""

from __future__ import annotations

import difflib


def unified(before: bytes | None, after: bytes | None, old: str, new: str, context: int = 3) -> bytes:
    """The diff between two files as `patch` takes it; None stands for a file that is not there."""
    source, result = (
        b"/dev/null" if data is None else name.encode("utf-8", "surrogateescape")
        for data, name in ((before, old), (after, new))
    )
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before or b""), _lines(after or b""), source, result, n=context
    )
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def _lines(data: bytes) -> list[bytes]:
    # By line feeds alone: that is what `patch` calls a line.
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
