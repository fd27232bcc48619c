"""Many files change together or not at all, whatever happens in between.

The order of events, each one safe to be killed before, during and after:

1. a journal names every file, its old and its new hash;
2. each new content is staged beside its target, and the old file kept beside it under a second name;
3. the staged files are renamed over their targets;
4. the journal is renamed to say that the change is done: from here on it stays, before it will be undone;
5. the second names go, then the journal.

So `recover` never needs to know how far a killed process came: it puts the old files back while the journal
says `begun`, and sweeps up when it says `done`. Neither needs space on the disk. Names in a journal are
relative to the directory that holds it, so a tree that was moved or copied half done recovers by itself. A
file that somebody has edited in between is left as it is, and named.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError

JOURNAL = ".specwire-journal.json"
_DRAFT, _DONE = ".specwire-journal.draft", ".specwire-journal.done"
_SCHEMA = "specwire.journal/1"


@dataclass(frozen=True)
class Change:
    """One file's change. `before` None: the file must not exist yet; `after` None: it goes."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Recovery:
    """What became of an unfinished change: `finished` or `undone`, its files, and those left as found."""

    outcome: str
    files: tuple[str, ...]
    left_alone: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """One file of a change under way: where it really is, what it was and will be, and its two other names."""

    name: str
    path: Path
    before: str | None
    after: str | None
    new: Path
    old: Path


def commit(root: Path, changes: list[Change], replace_links: bool = False) -> list[str]:
    """Make all `changes`, which lie below `root`, or none. Returns what could not be swept up, mostly nothing.

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
                _swap(entry)
            _sync_folders(entries)
            for entry in entries:
                if entry.before is not None:
                    _require(entry.old, entry.before, entry.name)
            os.rename(root / JOURNAL, root / _DONE)
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
            if (document := _read(root / _DONE)) is not None:
                entries = _entries(root, document)
                _sweep(root, entries)
                return Recovery("finished", tuple(entry.name for entry in entries), ())
            document = _read(root / JOURNAL)
            entries = _entries(root, document) if document is not None else []
            left = _undo(root, entries)
        except OSError as error:
            raise SpecwireError(
                f"{error.filename or root}: an earlier change was cut off and cannot be put right ({error.strerror}). "
                "Make the tree writable and run `specwire status` on it."
            ) from error
        return Recovery("undone", tuple(entry.name for entry in entries), tuple(left))


def pending(root: Path) -> bool:
    """Whether a change below `root` was begun and not ended."""
    return any(os.path.lexists(root / name) for name in (JOURNAL, _DRAFT, _DONE))


def temporary(name: str) -> bool:
    """Whether a file of this name is one of a transaction's own, there only while it lasts."""
    return name.startswith(".") and ".specwire-" in name and name.endswith((".new", ".old", ".json", ".draft", ".done"))


_held: set[tuple[int, int]] = set()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the directory's own lock: it leaves nothing behind, and a killed process gives it back.

    May be held more than once by one process. Raises SpecwireError when another process holds it.
    """
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SpecwireError(f"{root}: cannot be opened ({error.strerror}). Nothing was changed.") from error
    try:
        status = os.fstat(handle)
        mine = (status.st_dev, status.st_ino)
        if mine in _held:
            yield
            return
        _lock(handle, root)
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
    finally:
        os.close(handle)


def _lock(handle: int, root: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpecwireError(f"{root}: another specwire is at work there. Wait for it, then run this again.") from None
    except OSError as error:
        raise SpecwireError(
            f"{root}: this file system locks no directories ({error.strerror}), so two runs could not be kept apart. "
            "Nothing was changed. Use a local copy of the tree, or `specwire apply --overlay DIR` with a local DIR."
        ) from error


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


# --- the journal --------------------------------------------------------------------------------------


def _document(root: Path, changes: list[Change], replace_links: bool) -> dict[str, Any]:
    files = [
        {
            "name": _below(root, change.path),
            "before": digest(change.before),
            "after": digest(change.after),
        }
        for change in changes
    ]
    return {"schema": _SCHEMA, "token": secrets.token_hex(4), "replace_links": replace_links, "files": files}


def _below(root: Path, path: Path) -> str:
    """The path as seen from `root`; a link on the way to either is no obstacle."""
    name = os.path.relpath(path, root)
    if name.startswith(os.pardir):
        name = os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), os.path.realpath(root))
    if name.startswith(os.pardir):
        raise SpecwireError(f"{path}: does not lie below {root}, where the change would be recorded. Nothing was changed.")
    return name


def _entries(root: Path, document: dict[str, Any]) -> list[_Entry]:
    """The journal's files. What a journal can name lies below its own directory: it may come from anywhere."""
    try:
        token, replace_links = document["token"], document["replace_links"]
        if document["schema"] != _SCHEMA or not (isinstance(token, str) and token.isalnum()):
            raise ValueError("an unknown schema")
        entries = []
        for file in document["files"]:
            name = file["name"]
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"{name} lies outside of the tree")
            path = root / name
            if not replace_links:
                path = Path(os.path.realpath(path))
            new, old = (path.with_name(f".{path.name}.specwire-{token}.{side}") for side in ("new", "old"))
            entries.append(_Entry(name, path, file["before"], file["after"], new, old))
        return entries
    except (KeyError, TypeError, ValueError) as error:
        raise SpecwireError(
            f"{root / JOURNAL}: not a journal that this specwire can read ({error!r}). "
            "Look at the files that it names, then delete it."
        ) from error


def _read(journal: Path) -> dict[str, Any] | None:
    try:
        return json.loads(journal.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SpecwireError(f"{journal}: not a journal of specwire's ({error}). Look at it, then delete it.") from error




# --- the steps ----------------------------------------------------------------------------------------


def _checked(root: Path, changes: list[Change], replace_links: bool) -> tuple[dict[str, Any], list[_Entry]]:
    """The journal and its files, once everything is found to be as the changes say."""
    if pending(root):
        raise SpecwireError(
            f"{root}: an earlier change was cut off. `specwire status` on the tree finishes or undoes it. "
            "Nothing was changed."
        )
    try:
        for change in changes:
            _require(change.path, digest(change.before))
        document = _document(root, changes, replace_links)
        entries = _entries(root, document)
        for entry in entries:
            _require_writable(entry, replace_links)
        return document, entries
    except OSError as error:
        raise SpecwireError(_sentence(error, root)) from error


def _begin(root: Path, document: dict[str, Any], changes: list[Change], entries: list[_Entry]) -> None:
    """Steps 1 and 2: afterwards everything is on the disk, and no file has changed yet."""
    _write(root / _DRAFT, json.dumps(document).encode(), None)
    os.rename(root / _DRAFT, root / JOURNAL)
    _sync(root)
    for change, entry in zip(changes, entries, strict=True):
        _stage(change, entry)
    _sync_folders(entries)
    for entry in entries:
        _require(entry.path, entry.before, entry.name)


def _stage(change: Change, entry: _Entry) -> None:
    like = None
    if change.before is not None:
        like = os.stat(entry.path)
        # A second name for the old file, not a copy: undoing gives back the very same file, owner and all.
        try:
            os.link(entry.path, entry.old, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                raise
            if entry.path.is_symlink():
                os.symlink(os.readlink(entry.path), entry.old)
            else:
                _write(entry.old, change.before, like)
    if change.after is not None:
        _write(entry.new, change.after, like)


def _write(path: Path, data: bytes, like: os.stat_result | None) -> None:
    """Write a new file that takes mode and owner from `like`; never an existing one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if like is not None:
            _own(handle, like)
            os.fchmod(handle, stat.S_IMODE(like.st_mode))
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


def _swap(entry: _Entry) -> None:
    """Put the new state in place; the old one stays reachable under its second name."""
    if entry.after is None:
        os.unlink(entry.path)
    else:
        os.rename(entry.new, entry.path)


def _undo_at_once(root: Path, entries: list[_Entry], cause: BaseException) -> list[str]:
    try:
        return _undo(root, entries)
    except OSError as error:
        raise SpecwireError(
            f"{_place(cause, root)}; and while undoing what was done until then, {_place(error, root)}. "
            "Part of it may be in place still: make the tree writable and run `specwire status` on it, which undoes the rest."
        ) from cause


def _undo(root: Path, entries: list[_Entry]) -> list[str]:
    """Give every file its old state back where the new one had been put in place; the names of those left alone."""
    left = []
    for entry in entries:
        now = _hash_of(entry.path)
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


def _sweep(root: Path, entries: list[_Entry]) -> None:
    """Delete every second name, and after them the journal, so that a sweep cut short is done again."""
    for entry in entries:
        for name in (entry.new, entry.old):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    _sync_folders(entries)
    for name in (_DRAFT, JOURNAL, _DONE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(root / name)
    _sync(root)


# --- what is there ------------------------------------------------------------------------------------


def _require(path: Path, before: str | None, name: str | None = None) -> None:
    if _hash_of(path) != before:
        raise SpecwireError(f"{name or path}: changed while specwire was at work. Nothing was changed. Run this again.")


def _require_writable(entry: _Entry, view: bool) -> None:
    """Renaming would get past a file that is marked read-only: somebody meant that mark. In a view it means nothing."""
    for place in (entry.path.parent,) if view else (entry.path, entry.path.parent):
        if os.path.lexists(place) and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(place))


def _hash_of(path: Path) -> str | None:
    """What the file at `path` is, a link followed; None when nothing is there, not even a link that leads nowhere."""
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.lexists(path) else None


def _sync_folders(entries: list[_Entry]) -> None:
    for folder in sorted({entry.path.parent for entry in entries}):
        with contextlib.suppress(FileNotFoundError):
            _sync(folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- what is said -------------------------------------------------------------------------------------


def _place(error: BaseException, root: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or root}: cannot be written ({error.strerror})"
    return str(error).removesuffix(".") or type(error).__name__


def _sentence(error: BaseException, root: Path) -> str:
    if isinstance(error, SpecwireError):
        return str(error)
    remedy = (
        "Make room, then run this again."
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "Make it writable, or leave the tree alone and patch a view of it: `specwire apply TREE --overlay DIR`."
    )
    return f"{_place(error, root)}. Nothing was changed. {remedy}"


def _named(left: list[str]) -> str:
    return f" Edited meanwhile and left as it is: {', '.join(left)}." if left else ""
