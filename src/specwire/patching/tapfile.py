"""The file that taps call, in a tree: put in, told from others, taken out with its compiled form."""

from __future__ import annotations

import os
from pathlib import Path

from specwire import runtime
from specwire.errors import SpecwireError
from specwire.patching import marks
from specwire.probe import Site
from specwire.regular import read_bytes, read_source
from specwire.trees.transaction import Change
from specwire.trees.tree import Tree

PROBE = "runtime"  # what it goes by where probes are named


def source() -> bytes:
    """The tap file as `apply` writes it."""
    return marks.sealed(read_bytes(Path(runtime.__file__).with_name("_specwire.py")))


def read(tree: Tree) -> bytes | None:
    """What is at the tap file's place; None when nothing is.

    Raises SpecwireError when it is no readable file.
    """
    path = tree.path(marks.RUNTIME)
    try:
        return read_source(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise SpecwireError(
                f"{path}: a link that leads nowhere is in the way. Delete it. Nothing was written."
            ) from None
        return None
    except OSError as error:
        raise SpecwireError(f"{path}: cannot be read ({error.strerror}). Nothing was written.") from error


def edited(data: bytes) -> Site | None:
    """The tap file as a site when a hand has been on it."""
    state = marks.seal(data)
    if state == "intact":
        return None
    why = (
        "the tap file is not as it was written"
        if state == "edited"
        else "a file that is not specwire's is in the tap file's place"
    )
    return Site(PROBE, marks.RUNTIME, "", 1, "edited" if state == "edited" else "failed", why)


def coming(tree: Tree, now: bytes | None) -> Change:
    """The tap file put in, or brought up to date."""
    return Change(tree.path(marks.RUNTIME), now, source())


def leaving(tree: Tree, now: bytes) -> list[Change]:
    """The tap file taken out, and what Python compiled from it."""
    path = tree.path(marks.RUNTIME)
    compiled = sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc*"))
    return [Change(path, now, None), *(Change(each, read_bytes(each), None) for each in compiled)]
