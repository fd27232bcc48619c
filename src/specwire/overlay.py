"""A patched view of a tree: real directories, links to the tree's own files, and real files where taps are.

Directories are real so that Python's caches land in the view and never in the tree.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.surgery import Outcome
from specwire.transaction import JOURNAL
from specwire.tree import PACKAGE

MARKER = ".specwire-overlay"


def make_overlay(outcome: Outcome, where: str | os.PathLike[str]) -> Path:
    """Make, or make anew, the view of `outcome.tree` with `outcome.changes` in place of the tree's files.

    The view is built beside `where` and put in place whole. Raises SpecwireError when `where` holds
    something that is not a view, or lies inside the tree's package.
    """
    place = Path(os.path.abspath(where))
    tree = outcome.tree
    if place == tree.root or tree.package in (place, *place.parents):
        raise SpecwireError(f"{place}: lies in the tree itself. Name a directory outside {tree.package}.")
    if place.exists() and not (place / MARKER).is_file() and (not place.is_dir() or any(place.iterdir())):
        raise SpecwireError(f"{place}: is there and is no view of specwire's. Name a new or empty directory.")
    place.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        building.chmod(0o755)
        _link(tree.package, building / PACKAGE)
        for change in outcome.changes:
            target = building / change.path.relative_to(tree.root)
            target.unlink(missing_ok=True)
            if change.after is not None:
                target.write_bytes(change.after)
                if change.before is not None:
                    shutil.copymode(change.path, target)
        (building / MARKER).write_text(f"{tree.root}\n", "utf-8")
        if place.exists():
            shutil.rmtree(place)
        building.replace(place)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return place


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in ("__pycache__", JOURNAL):
                continue
            if entry.is_dir():
                _link(Path(entry.path), target / entry.name)
            else:
                os.symlink(os.path.realpath(entry.path), target / entry.name)
