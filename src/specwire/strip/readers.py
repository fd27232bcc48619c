"""Who reads what the statements that go have bound: in the same file, and in the rest of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specwire.strip import flow
from specwire.strip.binds import FUNCTIONS, binds, in_scope, set_by

# `elsewhere(kind, name)`: where another file reads the `attribute` or `global` of this name, or None.
Elsewhere = Callable[[str, str], str | None]
_ANNOTATION = re.compile(r"[\w.]+(?:[\[.|][\w.,|\[\] ]+)?")
_PEEKERS = frozenset(("locals", "vars", "eval", "exec"))


@dataclass(frozen=True)
class Binding:
    """One thing that a statement binds; `scope` is the module, class or function whose name it is."""

    name: str
    statement: ast.stmt
    scope: ast.AST
    declared: bool  # a `global` or `nonlocal` statement, which only says whose name it is


def conflicts(tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> dict[int, str]:
    """Statements in `gone` whose bindings something outside `gone` may read: id -> reason."""
    found: dict[int, str] = {}
    known: dict[tuple[int, str, bool], str | None] = {}
    for binding in bindings(tree, gone):
        key = id(binding.scope), binding.name, binding.declared
        if key not in known:
            known[key] = _read_by(binding, tree, gone, elsewhere)
        if known[key]:
            found.setdefault(id(binding.statement), known[key])
    return found


def bindings(tree: ast.Module, gone: set[int]) -> Iterator[Binding]:
    """All that statements in `gone` bind, scope by scope."""
    yield from _bindings(tree, tree, None, gone)


def loads(tree: ast.AST, name: str, gone: set[int]) -> Iterator[ast.AST]:
    """Nodes outside `gone` that read `name`: a plain name, or an `.attribute` by its name or by a string."""
    for node in outside(tree, gone):
        if name.startswith("."):
            if (
                isinstance(node, ast.Attribute)
                and node.attr == name[1:]
                and not isinstance(node.ctx, ast.Store)
            ):
                yield node
            elif isinstance(node, ast.AugAssign) and getattr(node.target, "attr", None) == name[1:]:
                yield node
            elif isinstance(node, ast.Constant) and node.value == name[1:]:
                yield node
        elif isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", None) == name:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_in(node.value, name):
            yield node


def outside(tree: ast.AST, gone: set[int]) -> Iterator[ast.AST]:
    if id(tree) in gone:
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from outside(child, gone)


def _read_by(binding: Binding, tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> str | None:
    name, scope = binding.name, binding.scope
    if binding.declared:
        used = next((node for node in outside(scope, gone) if getattr(node, "id", None) == name), None)
        return f"declares {name}, which line {used.lineno} uses" if used is not None else None
    if name.startswith("."):
        return _elsewhere("attribute", name, tree, gone, elsewhere)
    if isinstance(scope, FUNCTIONS):
        declared = {
            named
            for node in ast.walk(scope)
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for named in node.names
        }
        if name not in declared:
            return _read_in(scope, name, gone)
    if isinstance(scope, ast.ClassDef):
        return _elsewhere("attribute", "." + name, tree, gone, elsewhere) or _at(
            next(loads(scope, name, gone), None), name
        )
    return _elsewhere("global", name, tree, gone, elsewhere)


def _read_in(function: ast.AST, name: str, gone: set[int]) -> str | None:
    """The same for a function's local name, with regard to the order of its statements."""
    stays = list(outside(function, gone))
    for node in stays:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PEEKERS:
            return f"binds {name}, and line {node.lineno} calls {node.func.id}()"
    alive = {id(node) for node in stays}
    own = (node for statement in function.body for node in in_scope(statement) if id(node) in alive)
    if name not in _parameters(function) and not any(name in binds(node) for node in own):
        return _at(next((node for node in stays if _is_read(node, name)), None), name)
    return _at(flow.reader(function, name, gone), name)


def _is_read(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)


def _parameters(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _elsewhere(kind: str, name: str, tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> str | None:
    here = next(loads(tree, name, gone), None)
    if here is not None:
        return _at(here, name)
    place = elsewhere(kind, name.lstrip("."))
    return f"binds {name.lstrip('.')}, which {place} reads" if place else None


def _at(node: ast.AST | None, name: str) -> str | None:
    return f"binds {name.lstrip('.')}, which line {node.lineno} reads" if node is not None else None


def _names_in(text: str, name: str) -> bool:
    """Whether a string names a thing: an entry of `__all__`, a key for `getattr`, an annotation in quotes."""
    return text == name or (bool(_ANNOTATION.fullmatch(text)) and name in re.split(r"[^\w]+", text))


def _bindings(node: ast.AST, scope: ast.AST, statement: ast.stmt | None, gone: set[int]) -> Iterator[Binding]:
    if isinstance(node, ast.stmt) and (id(node) in gone):
        statement = node
    if statement is not None:
        for name in set_by(node):
            yield Binding(name, statement, scope, isinstance(node, (ast.Global, ast.Nonlocal)))
    inner = node if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else scope
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            parts = (child.iter, *child.ifs)
        elif isinstance(child, ast.Lambda):
            parts = ()
        else:
            parts = (child,)
        for part in parts:
            yield from _bindings(part, inner, statement, gone)
