"""Many files change together or not at all, whatever happens in between.

The order of events, each one safe to be killed before, during and after:

1. a journal names every file, its old and its new hash; where a file really lies outside, a witness there says so;
2. each new content is staged beside its target, and the old file kept beside it under a second name;
3. the staged files are renamed over their targets;
4. the journal is renamed to say that the change is done: from here on it stays, before it will be undone;
5. the second names go, then the witnesses, then the journal.

So `recover` never needs to know how far a killed process came: it puts the old files back while the journal
says `begun`, and sweeps up when it says `done`. Neither needs space on the disk. A file that somebody has
edited in between is left as it is, and named.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.regular import create, open_directory
from specwire.trees.journal import (
    DONE,
    DRAFT,
    JOURNAL,
    JOURNALS,
    Change,
    JournalEntry,
    digest,
    entries_of,
    hash_of,
    new_journal,
    read_journal,
    temporary,
    vouched,
    witness_of,
)
from specwire.trees.lock import locked

__all__ = [
    "JOURNAL", "Change", "Recovery", "begun_around", "commit", "digest", "locked", "pending", "recover", "temporary",
]  # fmt: skip


@dataclass(frozen=True)
class Recovery:
    """What became of an unfinished change: `finished` or `undone`, its files, and those left as found."""

    outcome: str
    files: tuple[str, ...]
    left_alone: tuple[str, ...]


def commit(root: Path, changes: list[Change], replace_links: bool = False) -> list[str]:
    """Make all `changes` below `root`, or none. Returns what could not be swept up: mostly nothing.

    A file that is a link keeps being one, and what it leads to is changed; with `replace_links` the link
    itself becomes a file, and what it leads to is never touched.

    Raises SpecwireError, with nothing changed, when a file is no longer what `before` says, cannot be
    written, or another specwire is at work below `root`.
    """
    changes = [change for change in changes if change.before != change.after]
    if not changes:
        return []
    with locked(root):
        document, entries = _checked(root, changes, replace_links)
        try:
            _begin(root, document, changes, entries)
            for entry in entries:
                _require(entry.path, entry.before, entry.name)  # now, or what an editor saves meanwhile is lost
                _swap(entry)
            _sync_folders(entries)
            for entry in entries:
                if entry.before is not None:
                    _require(entry.old, entry.before, entry.name)
            os.rename(root / JOURNAL, root / DONE)
        except BaseException as error:
            left = _undo_at_once(root, entries, error)
            if isinstance(error, (OSError, SpecwireError)):
                raise SpecwireError(_sentence(error, root) + _named(left)) from error
            raise
        try:
            _sync(root)
            _sweep(root, entries)
        except OSError as error:
            return [os.fspath(error.filename or root)]
        return []


def recover(root: Path) -> Recovery | None:
    """Finish or undo what a killed process had begun below `root`; None when nothing was pending.

    Raises SpecwireError when another specwire is still at work there, or the files cannot be written.
    """
    if not pending(root):
        return None
    with locked(root):
        try:
            if (document := read_journal(root / DONE)) is not None:
                entries = entries_of(root, document)
                _sweep(root, vouched(root, document, entries, done=True))
                return Recovery("finished", tuple(entry.name for entry in entries), ())
            document = read_journal(root / JOURNAL)
            entries = entries_of(root, document) if document is not None else []
            left = _undo(root, vouched(root, document or {}, entries, done=False))
        except OSError as error:
            raise SpecwireError(
                f"{error.filename or root}: an earlier change was cut off and cannot be put right "
                f"({error.strerror}). "
                "Make the tree writable and run `specwire status` on it."
            ) from error
        return Recovery("undone", tuple(entry.name for entry in entries), tuple(left))


def pending(root: Path) -> bool:
    """Whether a change below `root` was begun and not ended."""
    return any(os.path.lexists(root / name) for name in JOURNALS)


def begun_around(place: Path) -> list[Path]:
    """`place` and the directories above it in which a change was begun and not ended, the outermost first.

    `strip` may change several packages at once, and records that above them. Above `place` only what this user
    began counts: anybody may write into a directory such as /tmp.
    """
    place = Path(os.path.abspath(place))
    above = [each for each in place.parents if pending(each) and _is_ours(each)]
    return [*reversed(above), *([place] if pending(place) else [])]


def _is_ours(root: Path) -> bool:
    names = [root / name for name in JOURNALS if os.path.lexists(root / name)]
    return all(os.lstat(name).st_uid == os.geteuid() for name in names)


# --- the steps ----------------------------------------------------------------------------------------


def _checked(root: Path, changes: list[Change], replace_links: bool) -> tuple[dict[str, Any], list[JournalEntry]]:
    """The journal and its files, once everything is found to be as the changes say."""
    if pending(root):
        raise SpecwireError(
            f"{root}: an earlier change was cut off. The next specwire command on it finishes or undoes that. "
            "Nothing was changed."
        )
    try:
        for change in changes:
            _require(change.path, digest(change.before))
        document = new_journal(root, changes, replace_links)
        entries = entries_of(root, document)
        for entry in entries:
            if entry.witness and entry.before is None:
                raise SpecwireError(
                    f"{entry.path}: would be a new file outside of {root}, where a link leads. Nothing was changed."
                )
            _require_writable(entry, replace_links)
        return document, entries
    except OSError as error:
        raise SpecwireError(_sentence(error, root)) from error


def _begin(root: Path, document: dict[str, Any], changes: list[Change], entries: list[JournalEntry]) -> None:
    """Steps 1 and 2: afterwards everything is on the disk, and no file has changed yet."""
    _write(root / DRAFT, json.dumps(document).encode(), None, mode=0o600)
    os.rename(root / DRAFT, root / JOURNAL)
    _sync(root)
    for witness in _witnesses(entries):
        _write(witness, witness_of(document), None, mode=0o600)
        _sync(witness.parent)
    for change, entry in zip(changes, entries, strict=True):
        _stage(change, entry)
    _sync_folders(entries)


def _stage(change: Change, entry: JournalEntry) -> None:
    like = None
    if change.before is not None:
        like = entry.path
        # A second name for the old file, not a copy: undoing gives back the very same file, owner and all.
        try:
            os.link(entry.path, entry.old, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (
                errno.EPERM,
                errno.EACCES,
                errno.EMLINK,
                errno.EOPNOTSUPP,
                errno.ENOSYS,
                errno.EXDEV,
            ):
                raise
            if entry.path.is_symlink():
                os.symlink(os.readlink(entry.path), entry.old)
            else:
                _write(entry.old, change.before, like)
    if change.after is not None:
        _write(entry.new, change.after, like)


def _write(path: Path, data: bytes, like: Path | None, mode: int = 0o666) -> None:
    """Write a new file with mode, owner and attributes of the file `like`; never an existing one."""
    handle = create(path, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if like is not None:
            status = os.stat(like)
            _own(handle, status)
            _attribute(handle, like)
            os.fchmod(handle, stat.S_IMODE(status.st_mode))
        os.fsync(handle)
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise
    finally:
        os.close(handle)


def _own(handle: int, like: os.stat_result) -> None:
    try:
        os.fchown(handle, like.st_uid, like.st_gid)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):  # not ours to give away, or no owner we can name
            raise


def _attribute(handle: int, like: Path) -> None:
    """Extended attributes: access lists, labels, what people noted. Some are the system's, and not ours to give."""
    if not hasattr(os, "listxattr"):
        return
    theirs = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENODATA)
    try:
        names = os.listxattr(like)
    except OSError as error:
        if error.errno in theirs:
            return
        raise
    for name in names:
        try:
            os.setxattr(handle, name, os.getxattr(like, name))
        except OSError as error:
            if error.errno not in theirs:
                raise


def _swap(entry: JournalEntry) -> None:
    """Put the new state in place; the old one stays reachable under its second name."""
    if entry.after is None:
        os.unlink(entry.path)
    else:
        os.rename(entry.new, entry.path)


def _undo_at_once(root: Path, entries: list[JournalEntry], cause: BaseException) -> list[str]:
    try:
        return _undo(root, entries)
    except OSError as error:
        raise SpecwireError(
            f"{_place(cause, root)}; and while undoing what was done until then, {_place(error, root)}. "
            "Part of it may be in place still: make the tree writable and run `specwire status` on it, "
            "which undoes the rest."
        ) from cause


def _undo(root: Path, entries: list[JournalEntry]) -> list[str]:
    """Give every file its old state back where the new one is in place; the names of those left alone."""
    left = []
    for entry in entries:
        now = hash_of(entry.path)
        if now == entry.before:
            continue
        if now != entry.after or (entry.before is not None and not os.path.lexists(entry.old)):
            left.append(entry.name)
        elif entry.before is None:
            os.unlink(entry.path)
        else:
            os.rename(entry.old, entry.path)
    _sweep(root, entries)
    return left


def _sweep(root: Path, entries: list[JournalEntry]) -> None:
    """Delete every second name, and after them the journal, so that a sweep cut short is done again."""
    for entry in entries:
        for name in (entry.new, entry.old):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    _sync_folders(entries)
    for witness in _witnesses(entries):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(witness)
            _sync(witness.parent)
    for own in (DRAFT, JOURNAL, DONE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(root / own)
    _sync(root)


# --- what is there ------------------------------------------------------------------------------------


def _require(path: Path, before: str | None, name: str | None = None) -> None:
    if hash_of(path) != before:
        raise SpecwireError(f"{name or path}: changed while specwire was at work. Nothing was changed. Run this again.")


def _require_writable(entry: JournalEntry, view: bool) -> None:
    """Renaming would get past a read-only mark, which somebody meant. In a view it means nothing."""
    for place in (entry.path.parent,) if view else (entry.path, entry.path.parent):
        if os.path.lexists(place) and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(place))


def _witnesses(entries: list[JournalEntry]) -> list[Path]:
    return sorted({entry.witness for entry in entries if entry.witness})


def _sync_folders(entries: list[JournalEntry]) -> None:
    for folder in sorted({entry.path.parent for entry in entries}):
        with contextlib.suppress(FileNotFoundError):
            _sync(folder)


def _sync(folder: Path) -> None:
    handle = open_directory(folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- what is said -------------------------------------------------------------------------------------


def _place(error: BaseException, root: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or root}: cannot be written ({error.strerror})"
    return str(error).removesuffix(".") or type(error).__name__


def _sentence(error: OSError | SpecwireError, root: Path) -> str:
    if isinstance(error, SpecwireError):
        return str(error)
    remedy = (
        "Make room, then run this again."
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "Make it writable, or leave it alone: `specwire apply TREE --overlay DIR` patches a view."
    )
    return f"{_place(error, root)}. Nothing was changed. {remedy}"


def _named(left: list[str]) -> str:
    return f" Edited meanwhile and left as it is: {', '.join(left)}." if left else ""
