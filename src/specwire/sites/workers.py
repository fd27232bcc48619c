"""The structural matcher for speculative workers: which of their methods are the stages of a cycle.

A worker is a class with a method that drafts, verifies and extends the draft, through itself or through a
draft worker that it holds. Nothing here knows releases, file positions or the workers' own names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from specwire.sites.source import Place, Source

_RUNS_A_MODEL = {"forward", "replay", "execute"}


@dataclass(frozen=True)
class Stage:
    """One method that takes part in a cycle: `cycle`, `draft`, `verify`, `draft-extend` or `target`."""

    name: str
    place: Place


@dataclass(frozen=True)
class Missing:
    """A worker of which no method could be told to be this stage, and what was looked for."""

    qualname: str
    why: str


@dataclass(frozen=True)
class _Method:
    name: str
    owner: ast.ClassDef
    line: int
    calls: frozenset[str]
    parameters: frozenset[str]

    @property
    def qualname(self) -> str:
        return f"{self.owner.name}.{self.name}"


def stages(source: Source) -> Iterator[Stage | Missing]:
    """The stages of every speculative worker in the file, in file order."""
    classes = _classes(source)
    found: dict[_Method, str] = {}
    missing: list[Missing] = []
    for owner, methods in classes:
        if cycle := _cycle(methods):
            found[cycle] = "cycle"
            for stage, names in _wanted(methods).items():
                serving = [each for _, others in classes for each in others if _serves(each, owner, stage, names)]
                found |= dict.fromkeys(serving, stage)
                if not serving:
                    missing.append(
                        Missing(
                            cycle.qualname,
                            f"{' or '.join(sorted(names))} is called, and no class of the file defines it",
                        )
                    )
        elif "EAGLEWorker" in owner.name:
            missing.append(
                Missing(owner.name, "no method of it drafts (.draft), verifies (.verify) and extends the draft")
            )
    yield from _placed(source, found)
    yield from missing


def target_forwards(source: Source) -> Iterator[Stage | Missing]:
    """The target worker's forward of one batch: the one that also serves a verify, which samples by itself."""
    for owner, methods in _classes(source):
        if owner.name == "TpModelWorker":
            fit = [
                each
                for each in methods
                if "self.model_runner.forward" in each.calls and each.parameters & {"is_verify", "skip_sample"}
            ]
            if len(fit) == 1:
                yield from _placed(source, {fit[0]: "target"})
            else:
                wanted = "a method that calls self.model_runner.forward and can leave out sampling"
                yield Missing(owner.name, f"wanted one {wanted}, found {len(fit)}")


def _cycle(methods: list[_Method]) -> _Method | None:
    """The method that drafts, verifies and extends; of several the one that no other of them calls."""
    whole = [each for each in methods if {".draft", ".verify"} <= each.calls and _extends(each)]
    inner = {name for method in whole for name in method.calls}
    outer = [each for each in whole if f"self.{each.name}" not in inner]
    return outer[0] if outer else None


def _wanted(methods: list[_Method]) -> dict[str, set[str]]:
    return {
        "draft": {"draft"},
        "verify": {"verify"},
        "draft-extend": {name[1:] for each in methods for name in _extends(each)},
    }


def _extends(method: _Method) -> set[str]:
    return {name for name in method.calls if name.startswith(".") and "draft_extend" in name}


def _serves(method: _Method, worker: ast.ClassDef, stage: str, names: set[str]) -> bool:
    """Whether it is one of these methods, of the worker itself or of the file's draft worker."""
    if method.name not in names:
        return False
    if method.owner is not worker and (stage == "verify" or "Draft" not in method.owner.name):
        return False
    return stage != "draft-extend" or bool({name[1:] for name in method.calls} & _RUNS_A_MODEL)


def _classes(source: Source) -> list[tuple[ast.ClassDef, list[_Method]]]:
    classes = [node for node in ast.parse(source.data).body if isinstance(node, ast.ClassDef)]
    return [
        (owner, [_method(owner, node) for node in owner.body if isinstance(node, ast.FunctionDef)]) for owner in classes
    ]


def _method(owner: ast.ClassDef, node: ast.FunctionDef) -> _Method:
    given = node.args
    parameters = frozenset(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    calls = [
        each.func for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)
    ]
    named = {f".{each.attr}" for each in calls} | {ast.unparse(each) for each in calls}
    return _Method(node.name, owner, node.lineno, frozenset(named), parameters)


def _placed(source: Source, found: dict[_Method, str]) -> Iterator[Stage]:
    """Each as the function of the source that it is; of several with one name, the first."""
    for method in sorted(found, key=lambda each: each.line):
        function = next(each for each in source.functions if each.qualname == method.qualname)
        yield Stage(found[method], Place(function, function.node, (), ()))
