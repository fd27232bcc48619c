"""The journal of a change under way: which files, what each was and will be, and their names meanwhile.

Names in a journal are relative to the directory that holds it, so a tree that was moved or copied half done
recovers by itself; and a journal from elsewhere reaches nothing outside of its tree. A tree may have links that
lead out of it, and a change may go through them: then a *witness*, in the directory where the file really is,
says so. Without one, whatever a journal says of that directory is not believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.regular import open_regular, read_bytes

JOURNAL = ".specwire-journal.json"
DRAFT, DONE = ".specwire-journal.draft", ".specwire-journal.done"
JOURNALS = (JOURNAL, DRAFT, DONE)
_SCHEMA = "specwire.journal/1"


@dataclass(frozen=True)
class Change:
    """One file's change. `before` None: the file must not exist yet; `after` None: it goes."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """One file of a change under way: where it really is, what it was and will be, its two other names.

    `witness`: the file that must lie beside one that is outside of the tree; None for one inside.
    """

    name: str
    path: Path
    before: str | None
    after: str | None
    new: Path
    old: Path
    witness: Path | None


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def hash_of(path: Path) -> str | None:
    """What the file at `path` is, a link followed; None when nothing is there, not even a link."""
    try:
        return digest(read_bytes(path))
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.lexists(path) else None


def temporary(name: str) -> bool:
    """Whether a file of this name is one of a transaction's own, there only while it lasts."""
    return name.startswith(".") and ".specwire-" in name and name.endswith((".new", ".old", ".json", ".draft", ".done"))


def new_journal(root: Path, changes: list[Change], replace_links: bool) -> dict[str, Any]:
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
        raise SpecwireError(
            f"{path}: does not lie below {root}, where the change would be recorded. Nothing was changed."
        )
    return name


def entries_of(root: Path, document: dict[str, Any]) -> list[JournalEntry]:
    """The journal's files. It may come from anywhere: see `vouched` for what it names outside of its tree."""
    try:
        token, replace_links = document["token"], document["replace_links"]
        if document["schema"] != _SCHEMA or not (isinstance(token, str) and token.isalnum() and len(token) <= 32):
            raise ValueError("an unknown schema")
        return [_entry(root, os.path.realpath(root), file, token, replace_links) for file in document["files"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecwireError(
            f"{root / JOURNAL}: not a journal that this specwire can read ({error!r}). "
            "Look at the files that it names, then delete it."
        ) from error


def _entry(root: Path, real_root: str, file: dict[str, Any], token: str, replace_links: bool) -> JournalEntry:
    name, before, after = file["name"], file["before"], file["after"]
    if os.path.isabs(name) or ".." in Path(name).parts or not name:
        raise ValueError(f"{name} lies outside of the tree")
    if not all(each is None or isinstance(each, str) for each in (before, after)):
        raise ValueError(f"{name}: no hash")
    # Also where the link itself is to be replaced, a link on the way to it may lead out.
    folder = os.path.realpath((root / name).parent)
    path = Path(folder, os.path.basename(name)) if replace_links else Path(os.path.realpath(root / name))
    inside = os.path.commonpath((path.parent, real_root)) == real_root and path != Path(real_root)
    short = path.name
    if len(os.fsencode(short)) > 200:  # with what is added here, too long for a file system
        short = hashlib.sha256(os.fsencode(short)).hexdigest()[:32]
    new, old = (path.with_name(f".{short}.specwire-{token}.{side}") for side in ("new", "old"))
    witness = None if inside else path.with_name(f".witness.specwire-{token}.json")
    return JournalEntry(name=name, path=path, before=before, after=after, new=new, old=old, witness=witness)


def witness_of(document: dict[str, Any]) -> bytes:
    """What a witness holds: the hash of the journal that it vouches for."""
    return f"{digest(json.dumps(document, sort_keys=True).encode())}\n".encode()


def vouched(root: Path, document: dict[str, Any], entries: list[JournalEntry], done: bool) -> list[JournalEntry]:
    """The entries that a journal which was found may have something done about.

    A run that was killed before it made a witness, or after it took it away, has left nothing to do there. Raises
    SpecwireError when the journal would have something done outside of its tree all the same.
    """
    kept = []
    for entry in entries:
        if entry.witness is None or _vouches(entry.witness, witness_of(document)):
            kept.append(entry)
        elif any(map(os.path.lexists, (entry.new, entry.old))) or (not done and hash_of(entry.path) == entry.after):
            raise _foreign(root, f"{entry.name} leads to {entry.path}, outside of the tree")
    return kept


def _vouches(witness: Path, held: bytes) -> bool:
    """Whether this user's own witness is there; one that was cut off while it was written is to be swept up."""
    try:
        with open_regular(witness, follow=False) as file:
            return os.fstat(file.fileno()).st_uid == os.geteuid() and held.startswith(file.read(len(held) + 1))
    except OSError:
        return False


def read_journal(journal: Path) -> dict[str, Any] | None:
    """The document of a journal of this user's own; None when there is none.

    Raises SpecwireError for one of another user, or that another one could have written to.
    """
    try:
        status = os.lstat(journal)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _foreign(journal.parent, "it is no file")
    if status.st_uid != os.geteuid():
        raise _foreign(journal.parent, f"it belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _foreign(journal.parent, "others may write to it")
    try:
        document = json.loads(read_bytes(journal, follow=False))
    except (ValueError, RecursionError) as error:
        raise SpecwireError(f"{journal}: not a journal of specwire's ({error}). Look at it, then delete it.") from error
    if not isinstance(document, dict):
        raise _foreign(journal.parent, "it holds no object")
    return document


def _foreign(root: Path, why: str) -> SpecwireError:
    return SpecwireError(
        f"{root}: has the journal of a change that was cut off, and it is not to be trusted: {why}. Nothing was "
        f"done. Look at the files that {JOURNAL} there names, then delete it."
    )
