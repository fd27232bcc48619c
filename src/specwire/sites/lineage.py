"""Says where a file that speaks of capturing, and has no capture loop, gets its loop from.

A wrapper hands the layer ids to a model that it holds; a subclass inherits `forward`. Both are followed by
reading the classes, in this file and in those that it imports them from, until one has a loop.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specwire.probe import Absent, Unrecognised
from specwire.sites.loops import CaptureLoop, capture_loops
from specwire.sites.source import UNREADABLE, Source, opened

_SPEAKS = "to_capture"
_DEPTH = 8


@dataclass(frozen=True)
class _Class:
    source: Source
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class _Open:
    """Where following ended without a known loop: the class is not to be had, or is chosen at run time."""

    why: str


@functools.lru_cache(maxsize=16)
def elsewhere(source: Source) -> list[Absent | Unrecognised]:
    """For each class and function that speaks of layers to capture: whose loop collects for it."""
    said: list[Absent | Unrecognised] = []
    for node in source.syntax.body:
        if isinstance(node, ast.ClassDef) and _paths(node):
            said.append(_class_says(_Class(source, node)))
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (line := _asks(node)):
            said.append(
                Absent(
                    node.name,
                    f"asks what is captured (line {line}: {source.text(line)}) and collects nothing itself",
                )
            )
    return said or [Absent("", "speaks of layers to capture in comments or strings alone")]


def heirs(source: Source) -> list[Absent]:
    """For each model of a file that only inherits the setting of ids: whose loop collects for it."""
    said = []
    for node in source.syntax.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
            listed = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
            classes = [
                found
                for each in listed
                if isinstance(found := _class_in(source, ast.unparse(each)), _Class) and found.source is source
            ]
            said += [_class_says(each) for each in classes if any(_sets_ids(one) for one in _lineage(each))]
    return [each for each in said if isinstance(each, Absent)]


def _sets_ids(found: _Class) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name.endswith(_SPEAKS) for each in found.node.body)


def _class_says(found: _Class) -> Absent | Unrecognised:
    ends = list(_followed(found, _paths(found.node) or {""}, 0))
    loops = sorted({(end.source.name, end.name) for end in ends if isinstance(end, _Class)})
    loose = [end for end in ends if isinstance(end, _Open)]
    if loops:
        where = " and ".join(f"{name} ({file})" for file, name in loops)
        return Absent(found.name, f"has no layer loop of its own: it goes through {where}, tapped there")
    if loose:
        return Absent(found.name, f"has no layer loop of its own: {loose[0].why}")
    line = _asks(found.node) or found.node.lineno
    if not any(_reads(owner.node) for owner in _lineage(found)):
        text = found.source.text(line)
        return Absent(found.name, f"sets ids that nothing reads (line {line}: `{text}`): dead, and no loop to tap")
    return Unrecognised(
        found.name,
        "looked for the loop over the layers that these ids are meant for, here and in the classes that this "
        f"one holds or inherits from; nearest is {found.source.name}:{line}: {found.source.text(line)}",
    )


def _followed(found: _Class, paths: set[str], depth: int) -> Iterator[_Class | _Open]:
    """The classes with loops that the ids reach: through attributes, or in the class itself ('')."""
    if depth > _DEPTH:
        return
    for path in sorted(paths):
        if not path:
            yield from _own_loop(found, depth)
            continue
        first, _, rest = path.partition(".")
        for held in _held(found, first):
            if isinstance(held, _Open):
                yield held
            else:
                yield from _followed(held, {rest or ""}, depth + 1)


def _own_loop(found: _Class, depth: int) -> Iterator[_Class | _Open]:
    """The class that `forward` comes from when it has a loop, else the models held for its `forward`."""
    for owner in _lineage(found):
        mine = [loop for loop in capture_loops(owner.source) if loop.function.owner == owner.name]
        if mine:
            known = any(isinstance(loop, CaptureLoop) for loop in mine)
            yield (
                owner
                if known
                else _Open(f"it goes through {owner.name} ({owner.source.name}), whose loop is not recognised")
            )
            return
        forward = _method(owner.node, "forward")
        if forward is not None and not any(ast.unparse(call.func) == "super().forward" for call in _calls(forward)):
            yield from _followed(found, (_paths(owner.node) - {""}) or {"model"}, depth + 1)
            return


def _held(found: _Class, attribute: str) -> list[_Class | _Open]:
    """What `self.ATTRIBUTE` is made from, in the class or in one that it inherits from."""
    loose: list[_Class | _Open] = []
    for owner in _lineage(found):
        for scope in owner.node.body:
            made = [value for value in _values(scope, f"self.{attribute}") if isinstance(value, ast.Call)]
            if ends := [end for value in made for end in _classes(found, owner, scope, value.func)]:
                return ends
            for value in made:
                line = value.lineno
                loose.append(
                    _Open(
                        f"{owner.source.name}:{line}: `{owner.source.text(line)}` chooses the model's class at run time"
                    )
                )
        init = _method(owner.node, "__init__")
        if init is not None and not any(ast.unparse(call.func) == "super().__init__" for call in _calls(init)):
            break  # those further up are never asked
    return loose


def _classes(found: _Class, owner: _Class, scope: ast.AST, callee: ast.expr) -> list[_Class | _Open]:
    """The classes that a callee may stand for.

    It may name one, choose between some, be held in a local or a class attribute, or be a method that returns one.
    """
    if isinstance(callee, ast.IfExp):
        return [*_classes(found, owner, scope, callee.body), *_classes(found, owner, scope, callee.orelse)]
    if (named := _named(owner.source, callee)) is not None:
        return [named]
    if isinstance(callee, ast.Name):
        values = [(owner, value) for value in _values(scope, callee.id)] or _defaults(found, callee.id)
        return [end for where, value in values for end in _classes(found, where, scope, value)]
    text = ast.unparse(callee)
    if not text.startswith("self."):
        return []
    for heir in _lineage(found):
        if (method := _method(heir.node, text[5:])) is not None:
            given = [node.value for node in ast.walk(method) if isinstance(node, ast.Return) and node.value is not None]
            made = [
                each
                for value in given
                for each in ([value] if isinstance(value, ast.Call) else _values(method, ast.unparse(value)))
            ]
            return [
                end for call in made if isinstance(call, ast.Call) for end in _classes(found, heir, method, call.func)
            ]
        for node in heir.node.body:
            if (
                isinstance(node, (ast.Assign, ast.AnnAssign))
                and node.value is not None
                and ast.unparse(_target(node)) == text[5:]
            ):
                return _classes(found, heir, heir.node, node.value)
    return []


def _defaults(found: _Class, name: str) -> list[tuple[_Class, ast.expr]]:
    """A parameter's default in `__init__`, of the class or the nearest that it inherits from."""
    for heir in _lineage(found):
        if (made := _method(heir.node, "__init__")) is not None:
            given = made.args.posonlyargs + made.args.args
            defaults = dict(zip((each.arg for each in reversed(given)), reversed(made.args.defaults), strict=False))
            defaults |= {
                each.arg: value
                for each, value in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
                if value is not None
            }
            if name in defaults:
                return [(heir, defaults[name])]
    return []


def _values(scope: ast.AST, name: str) -> list[ast.expr]:
    """What is assigned to a name or an attribute anywhere in the scope."""
    return [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        if node.value is not None and ast.unparse(_target(node)) == name
    ]


def _target(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _lineage(found: _Class) -> list[_Class]:
    """The class and those it inherits from, as far as they can be read."""
    line: list[_Class] = []
    waiting = [found]
    while waiting and len(line) < 3 * _DEPTH:
        one = waiting.pop(0)
        line.append(one)
        waiting += [base for each in one.node.bases if isinstance(base := _named(one.source, each), _Class)]
    return line


def _named(source: Source, node: ast.expr) -> _Class | _Open | None:
    """The class that a name (`K`) or an attribute of an imported module (`module.K`) stands for."""
    text = ast.unparse(node)
    if text.isidentifier():
        return _class_in(source, text)
    module, _, name = text.rpartition(".")
    place = _imports(source).get(module)
    other = _other(source, f"{place[0]}.{place[1]}") if place else None
    return _class_in(other, name) if other else None


def _class_in(source: Source, name: str, left: int = 2 * _DEPTH) -> _Class | _Open | None:
    if not left:  # names that lead to each other, in this file or in two
        return None
    for node in source.syntax.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Class(source, node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Name):
            return _class_in(source, node.value.id, left - 1)
    if place := _imports(source).get(name):
        if other := _other(source, place[0]):
            return _class_in(other, place[1], left - 1)
        if place[0].startswith("sglang."):
            return _Open(f"{source.name}:{place[2]}: {name} comes from {place[0]}, which is not at hand here")
    return None


def _other(source: Source, module: str) -> Source | None:
    name = module.replace(".", "/") + ".py"
    return source if name == source.name else _loaded(source.read, name)


def _loaded(read: Callable[[str], bytes | None], name: str) -> Source | None:
    """Another file of the tree; None when there is none, or none that can be read."""
    try:
        data = read(name)
        source = opened(name, data, read) if data is not None else None
        return source if source and source.syntax else None
    except (OSError, *UNREADABLE):
        return None


@functools.lru_cache(maxsize=64)
def _imports(source: Source) -> dict[str, tuple[str, str, int]]:
    """(module, name there, line) of everything that `from … import …` binds in the file, at any depth."""
    return {
        alias.asname or alias.name: (node.module, alias.name, node.lineno)
        for node in ast.walk(source.syntax)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _paths(node: ast.ClassDef) -> set[str]:
    """Paths from `self` to what holds the ids: `inner` in `self.inner.layers_to_capture = …`."""
    found = set()
    for part in ast.walk(node):
        stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        named = part if stored else part.func if isinstance(part, ast.Call) else None
        if isinstance(named, ast.Attribute) and named.attr.endswith(_SPEAKS):
            holder = ast.unparse(named.value)
            if holder == "self" or holder.startswith("self."):
                found.add(holder[5:])
    return found


def _reads(node: ast.AST) -> bool:
    """Whether anything below the node may look at ids to capture: not when they are only assigned."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr.endswith(_SPEAKS) and not isinstance(part.ctx, ast.Store))
        or (isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.endswith(_SPEAKS))
        or (isinstance(part, ast.FunctionDef) and part.name.endswith(_SPEAKS))
        for part in ast.walk(node)
    )


def _asks(node: ast.AST) -> int | None:
    """The first line below the node that names layers to capture."""
    lines = [
        part.lineno
        for part in ast.walk(node)
        if (isinstance(part, ast.Attribute) and part.attr.endswith(_SPEAKS))
        or (isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.endswith(_SPEAKS))
        or (isinstance(part, ast.FunctionDef) and part.name.endswith(_SPEAKS))
    ]
    return min(lines, default=None)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))
