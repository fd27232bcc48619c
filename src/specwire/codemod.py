"""The probes as LibCST codemods, for those who run codemods with LibCST's own tool:

    python -m libcst.tool codemod -x specwire.codemod.LayerCapture --no-format sglang/srt/models/llama.py

A command is named as its probe is, in capitals: `LayerCapture` for `layer-capture`. It writes the bytes that
`specwire apply --probe layer-capture` writes for the file. It does not bring the tap file that taps call, and
its writes are LibCST's: file by file, in place. `specwire apply` does the one and needs not the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from specwire.errors import SpecwireError
from specwire.patching import marks, surgery
from specwire.patching.insert import render
from specwire.patching.taps import TappedFile
from specwire.regular import read_source
from specwire.trees.tree import PACKAGE


def __getattr__(name: str) -> type[InsertTaps]:
    """The command called `name`, for any probe there is."""
    if (probe := _probes().get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(_probes())}")
    return _command(name, probe)


class InsertTaps(CodemodCommand):
    """Inserts one probe's taps into a file."""

    probe: str

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """Raises SkipFile for a file without a site, SpecwireError for one whose site was not recognised."""
        name, read = _in_tree(self.context)
        data = tree.bytes
        after = _inserted(name, data, self.probe, read)
        if after == data:
            return tree
        self.warn(f"{name}: the taps call {marks.RUNTIME}, which `specwire apply` brings")
        return cst.parse_module(after)


@functools.cache
def _command(name: str, probe: str) -> type[InsertTaps]:
    about = f"Insert specwire's {probe} taps: {surgery.probes()[probe].reports}."
    return type(name, (InsertTaps,), {"DESCRIPTION": about, "__doc__": about, "__module__": __name__, "probe": probe})


@functools.cache
def _probes() -> dict[str, str]:
    return {"".join(word.capitalize() for word in probe.split("-")): probe for probe in surgery.probes()}


def _in_tree(context: CodemodContext) -> tuple[str, Callable[[str], bytes]]:
    """The file's name in its tree, and how to read others of the tree."""
    path = Path(context.filename or "").absolute()
    inside = [depth for depth, part in enumerate(path.parts) if part == PACKAGE]
    if not inside:
        raise SkipFile(f"{path}: lies in no {PACKAGE} package, so it is no file of the engine's")
    root = Path(*path.parts[: inside[-1]])
    return path.relative_to(root).as_posix(), lambda name: read_source(root / name)


def _inserted(name: str, data: bytes, probe: str, read: Callable[[str], bytes]) -> bytes:
    """The file with the probe's taps, beside those that it has."""
    known, file = surgery.probes(), TappedFile(data)
    if edited := [each for each in file.found if not each.intact or each.probe not in (*known, marks.IMPORT)]:
        raise SpecwireError(
            f"{name}:{edited[0].first}: not as it was inserted; take it out first with `specwire remove`."
        )
    had = {each.probe for each in file.found}
    if probe not in had and not known[probe].takes(name, data):
        raise SkipFile(f"{name}: no place for {probe}")
    wanted = {each: recipe for each, recipe in known.items() if each in had or each == probe}
    done = render(name, file.without(file.found), wanted, read)
    mine = [site for site in done.sites if site.probe == probe]
    if failed := [site for site in mine if site.state == "failed"]:
        raise SpecwireError(f"{name}: {failed[0].qualname}: {failed[0].why}. Nothing was written.")
    if not any(site.state == "applied" for site in mine):
        raise SkipFile(
            "; ".join(f"{name}: {site.qualname} {site.why}" for site in mine) or f"{name}: no place for {probe}"
        )
    return data if marks.same_but_hash(done.data, data) else done.data
