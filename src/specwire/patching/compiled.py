"""Compiled files that Python takes without asking whether the source has changed.

Images built to be reproducible hold such files (`compileall --invalidation-mode unchecked-hash`). Taps beside
one never run, and taps that one was compiled from stay when their lines are gone.
"""

from __future__ import annotations

from pathlib import Path

from specwire.errors import SpecwireError
from specwire.patching import marks
from specwire.regular import open_regular, read_bytes
from specwire.trees.transaction import Change

_HASHED, _CHECKED = 1, 2


def refuse_unchecked(changes: list[Change]) -> None:
    """Raises SpecwireError when Python would go on running what a changed file held before."""
    for change in changes:
        if found := next(iter(_unchecked(change.path)), None):
            raise SpecwireError(
                f"{found}: compiled so that Python never looks at the source: taps in it would not run. "
                "Nothing was written. Patch a view, which leaves compiled files behind "
                "(`specwire apply TREE --overlay DIR`), or delete that file first."
            )


def tapped(path: Path) -> list[Path]:
    """The unchecked compiled forms of a source file that were made while taps were in it."""
    return [each for each in _unchecked(path) if marks.NAME in read_bytes(each)]


def is_unchecked(compiled: Path) -> bool:
    """Whether Python takes this compiled file whatever its source holds by now."""
    with open_regular(compiled) as file:
        flags = int.from_bytes(file.read(8)[4:], "little")
    return bool(flags & _HASHED) and not flags & _CHECKED


def _unchecked(path: Path) -> list[Path]:
    if path.suffix != ".py":
        return []
    return [each for each in sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")) if is_unchecked(each)]
