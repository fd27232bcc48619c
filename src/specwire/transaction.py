"""Many files change together or not at all, whatever happens in between.

The order of events, each one safe to be killed after:

1. a journal names every file, its old and new hash, and the names of what is about to be written;
2. new contents are staged beside their targets, old ones kept beside them under a second name;
3. the journal is replaced by one that says `commit`: from here on the change will be finished;
4. staged files are renamed over their targets;
5. the second names go, then the journal.

`recover` finishes a change whose journal says `commit` and undoes any other. A file that somebody has
edited in between is left as it is, and named.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specwire.errors import SpecwireError

JOURNAL = ".specwire-journal.json"


@dataclass(frozen=True)
class Change:
    """One file's change. `before` None: the file must not exist yet; `after` None: it goes."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Recovery:
    """What became of an unfinished change: `finished` or `undone`, and the files left as found."""

    outcome: str
    files: tuple[str, ...]
    left_alone: tuple[str, ...]


def commit(root: Path, changes: list[Change]) -> None:
    """Make all `changes`, or none.

    Raises SpecwireError, with nothing changed, when a file is no longer what `before` says, cannot be
    written, or another specwire is at work below `root`.
    """
    changes = [change for change in changes if change.before != change.after]
    if not changes:
        return
    with locked(root):
        _refuse_pending(root)
        for change in changes:
            _require(change.path, change.before)
        entries = [_entry(change) for change in changes]
        journal = root / JOURNAL
        try:
            _write_journal(journal, "prepare", entries)
            for change, entry in zip(changes, entries, strict=True):
                _stage(change, entry)
            for change in changes:
                _require(change.path, change.before)
            _write_journal(journal, "commit", entries)
            for entry in entries:
                _swap(entry)
        except BaseException as error:
            _undo(entries)
            _forget(journal, entries)
            if isinstance(error, OSError):
                raise SpecwireError(
                    f"{error.filename or root}: cannot be written ({error.strerror}). Nothing was changed. "
                    "Make it writable, or use --overlay to patch a view of the tree instead."
                ) from error
            raise
        _forget(journal, entries)


def recover(root: Path) -> Recovery | None:
    """Finish or undo what a killed process had begun below `root`; None when nothing was pending.

    Raises SpecwireError when another specwire is still at work there.
    """
    journal = root / JOURNAL
    if not journal.exists():
        return None
    with locked(root):
        pending = _read_journal(journal)
        if pending is None:
            return None
        entries = pending["entries"]
        if pending["state"] == "commit":
            left = [entry["path"] for entry in entries if not _swap_if_untouched(entry)]
            outcome = "finished"
        else:
            _undo(entries)
            left, outcome = [], "undone"
        _forget(journal, entries)
        return Recovery(outcome, tuple(entry["path"] for entry in entries), tuple(left))


def pending(root: Path) -> bool:
    """Whether a change below `root` was begun and not ended."""
    return (root / JOURNAL).exists()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the directory's own lock: it leaves nothing behind, and a killed process gives it back."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecwireError(f"{root}: another specwire is at work there. Wait for it, then run this again.") from None
        yield
    finally:
        os.close(handle)


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _entry(change: Change) -> dict[str, str | None]:
    # A link keeps being a link: what is replaced is the file that it leads to.
    path = Path(os.path.realpath(change.path))
    return {
        "path": str(path),
        "new": str(path.with_name(f".{path.name}.specwire-new")),
        "old": str(path.with_name(f".{path.name}.specwire-old")),
        "before": digest(change.before),
        "after": digest(change.after),
    }


def _stage(change: Change, entry: dict[str, str | None]) -> None:
    path, new, old = Path(entry["path"]), Path(entry["new"]), Path(entry["old"])
    if change.before is not None:
        # A second name for the old file, not a copy: undoing gives back the very same inode.
        try:
            os.link(path, old)
        except OSError:
            _write(old, change.before, os.stat(path))
    if change.after is not None:
        _write(new, change.after, os.stat(path) if change.before is not None else None)


def _write(path: Path, data: bytes, like: os.stat_result | None) -> None:
    """Write a new file that takes mode and owner from `like`; never an existing one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if like is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(handle, like.st_uid, like.st_gid)
            os.fchmod(handle, stat.S_IMODE(like.st_mode))
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(entry: dict[str, str | None]) -> None:
    """Put the new state in place; the old one stays reachable under its second name."""
    path = Path(entry["path"])
    if _hash_of(path) == entry["after"]:
        return
    if entry["after"] is None:
        os.unlink(path)
    else:
        os.replace(entry["new"], path)
    _sync_folder(path.parent)


def _swap_if_untouched(entry: dict[str, str | None]) -> bool:
    if _hash_of(Path(entry["path"])) in (entry["before"], entry["after"]):
        _swap(entry)
        return True
    return False


def _undo(entries: list[dict[str, str | None]]) -> None:
    """Give every file its old state back, where the new one had been put in place."""
    for entry in entries:
        path, old = Path(entry["path"]), Path(entry["old"])
        now = _hash_of(path)
        if now == entry["before"] or now != entry["after"]:
            continue
        if entry["before"] is None:
            os.unlink(path)
        elif old.exists():
            os.replace(old, path)


def _forget(journal: Path, entries: list[dict[str, str | None]]) -> None:
    for entry in entries:
        for name in (entry["new"], entry["old"]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    for name in (journal, _draft_of(journal)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    _sync_folder(journal.parent)


def _write_journal(journal: Path, state: str, entries: list[dict[str, str | None]]) -> None:
    draft = _draft_of(journal)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    _write(draft, json.dumps({"state": state, "entries": entries}).encode(), None)
    os.replace(draft, journal)
    _sync_folder(journal.parent)


def _read_journal(journal: Path) -> dict | None:
    try:
        return json.loads(journal.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SpecwireError(
            f"{journal}: not a journal of specwire's ({error}). Look at it, then delete it."
        ) from error


def _draft_of(journal: Path) -> Path:
    return journal.with_name(journal.name + ".new")


def _refuse_pending(root: Path) -> None:
    if pending(root):
        raise SpecwireError(f"{root / JOURNAL}: an earlier change was not finished. Run `specwire status` on the tree first.")


def _require(path: Path, before: bytes | None) -> None:
    if _hash_of(path) != digest(before):
        raise SpecwireError(f"{path}: changed while specwire was at work. Nothing was changed. Run this again.")


def _hash_of(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
