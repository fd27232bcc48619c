"""The structural matcher for speculative workers: which of their methods are the stages of a cycle.

A worker is a class with a method that drafts, verifies and extends the draft, through itself or through a
draft worker that it holds. Nothing here knows releases, file positions or the workers' own names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.source import Function, Place, Source, calls, dotted

_RUNS_A_MODEL = {"forward", "replay", "execute"}


@dataclass(frozen=True)
class Stage:
    """One method that takes part in a cycle: `cycle`, `draft`, `verify`, `draft-extend` or `target`."""

    name: str
    function: Function

    @property
    def place(self) -> Place:
        return Place(self.function, self.function.node, (), ())


@dataclass(frozen=True)
class Missing:
    """A worker of which no method could be told to be this stage, and what was looked for."""

    qualname: str
    why: str


def stages(source: Source) -> Iterator[Stage | Missing]:
    """The stages of every speculative worker in the file, each worker's in file order."""
    found: list[Stage | Missing] = []
    for owner in _classes(source):
        if cycle := _cycle(source, owner):
            found += _worker_stages(source, cycle)
        elif "EAGLEWorker" in owner.name.value:
            found.append(Missing(owner.name.value, "no method of it drafts (.draft), verifies (.verify) and extends the draft"))
    yield from _in_file_order(source, found)


def target_forwards(source: Source) -> Iterator[Stage | Missing]:
    """The target worker's forward of one batch: the `forward_batch_…` that also knows how to verify."""
    owners = [owner for owner in _classes(source) if owner.name.value == "TpModelWorker"]
    for owner in owners:
        methods = [each for each in _methods(source, owner) if _is_target_forward(each)]
        if len(methods) == 1:
            yield Stage("target", methods[0])
        else:
            wanted = "a generation forward that calls self.model_runner.forward and can leave out sampling"
            yield Missing(owner.name.value, f"wanted one {wanted}, found {len(methods)}")


def _worker_stages(source: Source, cycle: Function) -> Iterator[Stage | Missing]:
    yield Stage("cycle", cycle)
    wanted = {"draft": {"draft"}, "verify": {"verify"}, "draft-extend": set()}
    for method in _methods(source, cycle.owner):
        wanted["draft-extend"] |= {name for name in _called(method) if "draft_extend" in name}
    for stage, names in wanted.items():
        functions = [each for each in source.functions if _serves(each, cycle, stage, names)]
        yield from (Stage(stage, each) for each in functions)
        if not functions:
            yield Missing(cycle.qualname, f"calls {' or '.join(sorted(names)) or 'no draft extend'}, which no class of the file defines")


def _serves(function: Function, cycle: Function, stage: str, names: set[str]) -> bool:
    """Whether the function is one of these methods, of the worker itself or of the file's draft worker."""
    if function.owner is None or function.node.name.value not in names:
        return False
    if function.owner is not cycle.owner and (stage == "verify" or "Draft" not in function.owner.name.value):
        return False
    return stage != "draft-extend" or bool(_called(function) & _RUNS_A_MODEL)


def _cycle(source: Source, owner: cst.ClassDef) -> Function | None:
    """The outermost method that drafts, verifies and extends: the one that no other such method calls."""
    methods = _methods(source, owner)
    whole = [each for each in methods if {"draft", "verify"} <= _called(each) and any("draft_extend" in name for name in _called(each))]
    inner = {name for method in whole for name in _called(method)}
    outermost = [each for each in whole if each.node.name.value not in inner or "forward_batch" in each.node.name.value]
    return outermost[0] if outermost else None


def _is_target_forward(function: Function) -> bool:
    runs = any(dotted(call.func) == "self.model_runner.forward" for call in calls(function.node))
    return runs and bool(function.parameters & {"is_verify", "skip_sample"})


def _classes(source: Source) -> list[cst.ClassDef]:
    owners = {id(each.owner): each.owner for each in source.functions if each.owner is not None}
    return list(owners.values())


def _methods(source: Source, owner: cst.ClassDef | None) -> list[Function]:
    return [each for each in source.functions if each.owner is owner]


def _called(function: Function) -> set[str]:
    """Names of the methods that the function calls, on whatever object."""
    return {call.func.attr.value for call in calls(function.node) if isinstance(call.func, cst.Attribute)}


def _in_file_order(source: Source, found: list[Stage | Missing]) -> Iterator[Stage | Missing]:
    order = {id(each.node): number for number, each in enumerate(source.functions)}
    stages = {id(each.function.node): each for each in found if isinstance(each, Stage)}
    yield from sorted(stages.values(), key=lambda each: order[id(each.function.node)])
    yield from (each for each in found if isinstance(each, Missing))
