"""What a command on a tree found, did or would do: as data, as JSON, as a patch, and written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from specwire.errors import FAULT, INCONCLUSIVE, OK
from specwire.probe import Site
from specwire.trees.patch import unified
from specwire.trees.transaction import Change, commit, digest
from specwire.trees.tree import Tree


@dataclass
class Outcome:
    """What a command found or would do; `changes` hold whole files, in tree order.

    `edits` shows, file by file, how edited taps differ from what `apply` would put there; `proofs` says what
    shows that a file is what it was: `original-hash` or `syntax-tree`; `clean`: nothing of ours will be left;
    `incomplete`: a site was not recognised while others are done.
    """

    tree: Tree
    result: str
    sites: list[Site] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    edits: dict[str, bytes] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)
    clean: bool = False
    incomplete: bool = False
    why: str = ""

    @property
    def exit_code(self) -> int:
        if self.result in ("failed", "refused"):
            return FAULT
        return INCONCLUSIVE if self.incomplete else OK

    def document(self) -> dict[str, Any]:
        named = {self._name(change): change for change in self.changes}
        return {
            "schema": "specwire.tree/1",
            "tree": str(self.tree.root),
            "engine": "sglang",
            "version": self.tree.version,
            "result": self.result,
            "why": self.why,
            "sites": [vars(site) for site in self.sites],
            "files": {
                name: {"before": digest(change.before), "after": digest(change.after)} for name, change in named.items()
            },
            "created": [name for name, change in named.items() if change.before is None],
            "deleted": [name for name, change in named.items() if change.after is None],
            "proofs": self.proofs,
            "edits": {name: diff.decode("utf-8", "replace") for name, diff in self.edits.items()},
        }

    def diff(self) -> bytes:
        """A patch that `patch -p1` takes, run in the tree's root."""
        return b"".join(
            unified(change.before, change.after, f"a/{self._name(change)}", f"b/{self._name(change)}")
            for change in self.changes
            if change.path.suffix == ".py"
        )

    def write(self) -> list[str]:
        """Make the changes, all or none. Returns what could not be swept up afterwards, mostly nothing."""
        return commit(self.tree.package, self.changes, replace_links=self.tree.overlay)

    def refused(self, why: str) -> Outcome:
        """The same, with nothing to be written."""
        return replace(self, result="refused", changes=[], clean=False, why=why)

    def _name(self, change: Change) -> str:
        return change.path.relative_to(self.tree.root).as_posix()
