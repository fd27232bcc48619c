"""What `strip` and `gate` are told to leave out."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase


class Excluded:
    """Paths that are not to be looked at: names or globs, of a file or directory anywhere, or of a path from `base`."""

    def __init__(self, patterns: tuple[str, ...] = (), base: str = os.curdir) -> None:
        self._patterns = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
        self._base = base

    def __contains__(self, path: str) -> bool:
        if not self._patterns:
            return False
        parts = os.path.relpath(path, self._base).split(os.sep)
        heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return any(
            fnmatchcase(text, pattern) for pattern in self._patterns for text in (heads if "/" in pattern else parts)
        )
