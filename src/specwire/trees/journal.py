"""The journal of a change under way: which files, what each was and will be, and their names meanwhile.

Names in a journal are relative to the directory that holds it, so a tree that was moved or copied half done
recovers by itself; and a journal from elsewhere reaches nothing outside of its tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError

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


@dataclass(frozen=True)
class Entry:
    """One file of a change under way: where it really is, what it was and will be, its two other names."""

    name: str
    path: Path
    before: str | None
    after: str | None
    new: Path
    old: Path


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


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


def entries_of(root: Path, document: dict[str, Any]) -> list[Entry]:
    """The journal's files. It may come from anywhere: what it names must lie below its own directory."""
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
            entries.append(Entry(name, path, file["before"], file["after"], new, old))
        return entries
    except (KeyError, TypeError, ValueError) as error:
        raise SpecwireError(
            f"{root / JOURNAL}: not a journal that this specwire can read ({error!r}). "
            "Look at the files that it names, then delete it."
        ) from error


def read_journal(journal: Path) -> dict[str, Any] | None:
    try:
        return json.loads(journal.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SpecwireError(f"{journal}: not a journal of specwire's ({error}). Look at it, then delete it.") from error
