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
_ASKED_BY_NAME = frozenset(("getattr", "hasattr", "setattr", "delattr"))
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


def docstrings_made(tree: ast.Module, gone: set[int]) -> dict[int, str]:
    """Statements in `gone` without which a string would become a docstring: a change that no syntax tree shows."""
    found = {}
    for node in outside(tree, gone):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and id(node.body[0]) in gone:
            first = next((at for at, each in enumerate(node.body) if id(each) not in gone), 0)
            value = getattr(node.body[first], "value", None)
            if isinstance(node.body[first], ast.Expr) and isinstance(getattr(value, "value", None), str) and first:
                found[id(node.body[first - 1])] = "stands before a string that would become the docstring"
    return found


def bindings(tree: ast.Module, gone: set[int]) -> Iterator[Binding]:
    """All that statements in `gone` bind, scope by scope."""
    yield from _bindings(tree, tree, None, gone)


def loads(tree: ast.AST, name: str, gone: set[int]) -> Iterator[ast.AST]:
    """Nodes outside `gone` that read `name`: a plain name, or an `.attribute` by its name or by a string."""
    for node in outside(tree, gone):
        if name.startswith("."):
            if isinstance(node, ast.Attribute) and node.attr == name[1:] and not isinstance(node.ctx, ast.Store):
                yield node
            elif isinstance(node, ast.AugAssign) and getattr(node.target, "attr", None) == name[1:]:
                yield node
            elif isinstance(node, ast.Constant) and node.value == name[1:]:
                yield node
            elif _made_up(node, name[1:]):
                yield node
        elif isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", None) == name:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_in(node.value, name):
            yield node
        elif _made_up(node, name):
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
            named for node in ast.walk(scope) if isinstance(node, (ast.Global, ast.Nonlocal)) for named in node.names
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


def _made_up(node: ast.AST, name: str) -> bool:
    """Whether this asks for a name that is put together as it runs, and could be this one: `getattr(x, f"_buf_{n}")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _ASKED_BY_NAME and len(node.args) > 1:
        asked = node.args[1]
    elif isinstance(node, ast.Subscript) and _is_namespace(node.value):
        asked = node.slice
    else:
        return False
    parts = _pattern(asked)
    return len(parts.replace(".*", "")) > 1 and re.fullmatch(parts, name, re.S) is not None


def _is_namespace(node: ast.expr) -> bool:
    called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
    return called in ("globals", "locals", "vars") or getattr(node, "attr", None) == "__dict__"


def _pattern(text: ast.expr) -> str:
    """A regular expression for what a string can be; `.*` for what is not known of it."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return re.escape(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(map(_pattern, text.values))
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return _pattern(text.left) + _pattern(text.right)
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Mod):
        return re.sub(r"%\\?[-0-9.]*[a-z]", ".*", _pattern(text.left))
    if isinstance(text, ast.Call) and getattr(text.func, "attr", "") == "format":
        return re.sub(r"\\\{[^{}]*\\\}", ".*", _pattern(text.func.value))
    return ".*"


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
