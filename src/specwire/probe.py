"""What a probe is: where it goes, what it inserts, what it reports. One file of `codemods/` holds one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specwire.sites.source import Place, Source

GROUPS = ("debug", "capture", "profile")


@dataclass(frozen=True)
class Tap:
    """One line to insert `before` or `after` a place, or as its function's first decorator (`above`)."""

    place: Place
    where: str
    code: str


@dataclass(frozen=True)
class Absent:
    """A site that this release does not have, and how that is known."""

    qualname: str
    why: str


@dataclass(frozen=True)
class Unrecognised:
    """A site that should be there and was not recognised: what was looked for, and the nearest thing found."""

    qualname: str
    why: str


Found = Iterator[Tap | Absent | Unrecognised]


@dataclass(frozen=True)
class Site:
    """One probe at one site: `applied`, `already`, `removed`, `absent`, `failed` or `edited`."""

    probe: str
    file: str
    qualname: str
    line: int
    state: str
    why: str = ""


@dataclass(frozen=True)
class Probe:
    """`find(source)` yields what the probe does in a file, by the structural matchers of `specwire.sites`.

    A file is looked at when its name matches one of `files` and its bytes hold one of `needles`. A case is a
    source in which each line that starts with `+` is a tap's call: what stands there after insertion, and not
    before. A case without such lines says where the probe keeps out.
    """

    group: str
    reports: str
    site: str
    files: tuple[str, ...]
    needles: tuple[bytes, ...]
    find: Callable[[Source], Found]
    cases: tuple[str, ...] = field(default=(), repr=False)

    def takes(self, name: str, data: bytes) -> bool:
        """Whether a file, `name` relative to the tree's root, is one to look for the probe's sites in."""
        return any(fnmatch(name, pattern) for pattern in self.files) and any(needle in data for needle in self.needles)
