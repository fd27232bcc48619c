"""Work on a tree that others use, too: one at a time, after what a killed run left, and not under a live server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.patching.outcome import Outcome
from specwire.patching.overlay import sweep
from specwire.trees.live import LiveServer, refuse_if_live
from specwire.trees.transaction import Recovery, begun_around, locked, recover
from specwire.trees.tree import Tree

Note = Callable[[str], None]


@contextlib.contextmanager
def opened(named: str | os.PathLike[str], python: str | None, note: Note, writes: bool = True) -> Iterator[Tree]:
    """The tree, with anything that a killed specwire left half done first finished or undone.

    With `writes` nobody else may work on it meanwhile, from the first look on: a plan made from what
    another run is about to change would be proven and wrong. `note` hears what was put right.
    """
    if not os.path.lexists(named):
        sweep(Path(os.path.abspath(named)))  # a view that was being made anew
    tree = Tree.find(named, python)
    if writes and tree.fetched:
        raise SpecwireError(
            f"{named}: a fetched release is kept as it was published. Use --overlay DIR, or a copy of {tree.root}."
        )
    with locked(tree.package) if writes else contextlib.nullcontext():
        put_right(begun_around(tree.package), note)
        if tree.overlay:
            sweep(tree.root)
        yield tree


@contextlib.contextmanager
def looked_at(named: str | os.PathLike[str], python: str | None) -> Iterator[Tree]:
    """The tree for whoever is to write nothing: not even what a killed run left is put right."""
    tree = Tree.find(named, python)
    refuse_begun(begun_around(tree.package))
    yield tree


def put_right(places: list[Path], note: Note) -> None:
    """Finish or undo what was begun in these directories."""
    for place in places:
        if done := recover(place):
            note(_recovered(done))


def refuse_begun(places: list[Path]) -> None:
    if places:
        raise SpecwireError(
            f"{places[0]}: an earlier change was cut off. `specwire status` on a tree, or `specwire strip` there, "
            "puts that right."
        )


def write(outcome: Outcome, note: Note, force: bool = False, wait: float = 0.0) -> Outcome:
    """Make the changes, unless a process runs from the tree: then the outcome is `refused`, and says who.

    `wait`: seconds that such a process is given to end.
    """
    try:
        refuse_if_live(outcome.tree.root, force, wait, note)
    except LiveServer as error:
        return outcome.refused(str(error))
    for name in outcome.write():
        note(f"{name}: could not be deleted yet; the next specwire command on the tree tries again")
    return outcome


def _recovered(done: Recovery) -> str:
    if not done.files:
        return "an earlier run was cut off before it changed anything: cleared away"
    count = f"{len(done.files)} file{'s' * (len(done.files) != 1)}"
    text = f"an earlier change that was cut off has been {done.outcome}: {count}"
    return text + (f"; edited since and left alone: {', '.join(done.left_alone)}" if done.left_alone else "")
