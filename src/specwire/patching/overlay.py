"""A patched view of a tree: real directories, links to the tree's own files, and real files where taps are.

Directories are real so that Python's caches land in the view and never in the tree. The tree's own caches of files that
are not changed are linked, too: to compile all of an engine anew takes seconds at each start. Python replaces such a link,
and never writes what it leads to. Commands that change a view replace its links by files, likewise.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.patching import marks
from specwire.patching.compiled import is_unchecked
from specwire.patching.outcome import Outcome
from specwire.regular import open_directory, read_source
from specwire.trees.transaction import digest, locked, temporary
from specwire.trees.tree import MARKER, PACKAGE

CACHES = "__pycache__"


def make_overlay(outcome: Outcome, where: str | os.PathLike[str], force: bool = False) -> Path:
    """Make, or make anew, the view of `outcome.tree` with `outcome.changes` in place of the tree's files.

    The view is built beside `where` and renamed into place: after a run that is killed there is the old view
    or none, and the next run sweeps up. Raises SpecwireError when `where` holds something that is not a view,
    a view with files that specwire did not write (unless `force`), or lies inside the tree's package.
    """
    place, tree = Path(os.path.abspath(where)), outcome.tree
    real, package = Path(os.path.realpath(place)), Path(os.path.realpath(tree.package))
    if real == package.parent or package in (real, *real.parents):
        raise SpecwireError(f"{place}: lies in the tree itself. Name a directory outside of {tree.package}.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        sweep(place)
        with _old_view(place, tree.root, force) as old, _building(place) as building:
            _fill(building, outcome)
            if old is not None:
                place.rename(old)
            building.rename(place)
            if old is not None:
                shutil.rmtree(old)
    except OSError as error:
        raise SpecwireError(
            f"{error.filename or place}: the view cannot be made ({error.strerror}). Make room or name another place."
        ) from error
    return place


def sweep(place: Path) -> None:
    """Put right what killed runs left beside the view `place`; what a living run has there stays."""
    for name in _left_beside(place, "replaced"):
        with _unused(f"{name}/{PACKAGE}") as unused:
            if unused and not os.path.lexists(place):
                os.rename(name, place)
            elif unused:
                shutil.rmtree(name)
    for name in _left_beside(place, "building"):
        with _unused(name) as unused:
            if unused:
                shutil.rmtree(name)


def _left_beside(place: Path, state: str) -> list[str]:
    """This user's own directories of that kind: a link, or what somebody else put there, is left alone."""
    pattern = f"{glob.escape(os.fspath(place.parent))}/.{glob.escape(place.name)}.specwire-*.{state}"
    status = {name: os.lstat(name) for name in sorted(glob.glob(pattern))}
    return [name for name, each in status.items() if stat.S_ISDIR(each.st_mode) and each.st_uid == os.geteuid()]


def _beside(place: Path, state: str) -> Path:
    return place.with_name(f".{place.name}.specwire-{secrets.token_hex(4)}.{state}")


@contextlib.contextmanager
def _unused(folder: str) -> Iterator[bool]:
    """Whether no living process holds the folder's lock."""
    import fcntl  # not on Windows, where the commands that only read work

    try:
        handle = open_directory(folder)
    except FileNotFoundError:
        yield os.path.basename(folder) == PACKAGE  # cut off while being deleted
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


@contextlib.contextmanager
def _old_view(place: Path, tree: Path, force: bool) -> Iterator[Path | None]:
    """Where an old view goes while its place is taken, locked until it is gone; None without one."""
    if not os.path.lexists(place) or (place.is_dir() and not place.is_symlink() and not any(place.iterdir())):
        yield None
        return
    if place.is_symlink() or not (place / PACKAGE / MARKER).is_file():
        raise SpecwireError(f"{place}: is there and is no view of specwire's. Name a new or an empty directory.")
    with locked(place / PACKAGE):
        if strange := next(_not_ours(place, tree, force), None):
            raise SpecwireError(
                f"{strange}: in a view that would be made anew, and not as specwire put it there. "
                "Move it away, or name another directory; --force discards edits below sglang/."
            )
        yield _beside(place, "replaced")


def _not_ours(place: Path, tree: Path, force: bool) -> Iterator[Path]:
    """What somebody put into a view: files beside the package, and real files that specwire did not write."""
    yield from (entry for entry in sorted(place.iterdir()) if entry.name != PACKAGE)
    if force:
        return
    for folder, folders, names in os.walk(place / PACKAGE):
        folders[:] = sorted(name for name in folders if name != CACHES)
        for path in (Path(folder, name) for name in sorted(names) if name != MARKER and not temporary(name)):
            if not path.is_symlink() and not _is_ours(path, tree / path.relative_to(place)):
                yield path


def _is_ours(path: Path, origin: Path) -> bool:
    data = read_source(path)
    bare = marks.stripped(data)
    if path.match(f"*/{marks.RUNTIME}"):
        return marks.seal(data) == "intact"
    return (
        digest(bare) in {mark.original for mark in marks.marks(data)}
        or origin.is_file()
        and read_source(origin) == bare
    )


@contextlib.contextmanager
def _building(place: Path) -> Iterator[Path]:
    """A new directory beside `place`, locked while we live; gone afterwards unless it was renamed."""
    import fcntl  # not on Windows, where the commands that only read work

    building = _beside(place, "building")
    building.mkdir()
    handle = open_directory(building)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield building
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _fill(building: Path, outcome: Outcome) -> None:
    tree = outcome.tree
    _link(os.fspath(tree.package), building / PACKAGE, ())
    for change in outcome.changes:
        target = building / change.path.relative_to(tree.root)
        target.unlink(missing_ok=True)
        for compiled in (target.parent / CACHES).glob(f"{glob.escape(target.stem)}.*"):
            compiled.unlink()  # of what was there before; some are taken without a look at the source
        if change.after is not None:
            target.write_bytes(change.after)
            if change.before is not None:
                shutil.copymode(change.path, target)
    (building / PACKAGE / MARKER).write_text(f"{tree.root}\n", "utf-8")


def _link(source: str, target: Path, outer: tuple[str, ...]) -> None:
    real = os.path.realpath(source)
    if real in outer:
        return  # a link back up
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name == MARKER or temporary(entry.name):
                continue
            if target.name == CACHES and not (entry.name.endswith(".pyc") and not is_unchecked(Path(entry.path))):
                continue  # such a file would hide what is put into the view later
            if entry.is_dir():
                _link(entry.path, target / entry.name, (*outer, real))
            else:
                os.symlink(os.path.realpath(entry.path), target / entry.name)
