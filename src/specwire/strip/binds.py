"""What a syntax node binds, and in which scope."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from specwire.strip.words import is_flag

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.GeneratorExp)


def bound(target: ast.expr) -> Iterator[str]:
    """Names and `.attributes` that an assignment target binds; `[]` for anything that changes an object's content."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield "." + target.attr
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from bound(element)
    elif isinstance(target, ast.Starred):
        yield from bound(target.value)
    else:
        yield "[]"


def set_by(node: ast.AST) -> tuple[str, ...]:
    """The name or `.attribute` that this very node binds, `setattr` of a debug flag included."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return (node.id,)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return ("." + node.attr,)
    if isinstance(node, ast.Call) and (name := flag_set_by(node)):
        return (name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return tuple(imported(node))
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return tuple(node.names)
    if isinstance(node, ast.ExceptHandler) and node.name:
        return (node.name,)
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        return (node.name,)
    return ()


def binds(node: ast.AST) -> tuple[str, ...]:
    """The plain names that this very node binds in its scope."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return (node.id,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return tuple(imported(node))
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return (node.name,)
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        return (node.name,)
    return ()


def imported(statement: ast.Import | ast.ImportFrom) -> Iterable[str]:
    for alias in statement.names:
        yield alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.partition(".")[0])


def flag_set_by(call: ast.expr) -> str | None:
    """`.attribute` for `setattr(x, "_debug_done", value)`, None for any other call."""
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "setattr"
        and len(call.args) == 3
    ):
        name = getattr(call.args[1], "value", None)
        if isinstance(name, str) and is_flag(name):
            return "." + name
    return None


def own_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that are local to a function or lambda: its parameters and all that its own statements bind."""
    arguments = function.args
    each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in each if argument is not None}
    outer: set[str] = set()
    if isinstance(function, ast.Lambda):
        return names
    for node in function.body:
        for part in in_scope(node):
            if isinstance(part, (ast.Global, ast.Nonlocal)):
                outer.update(part.names)
            names.update(binds(part))
    return names - outer


def in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it that binds names in the same scope; nested scopes are yielded, not entered."""
    yield node
    if isinstance(node, SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):  # its target is the comprehension's own
            yield from in_scope(child.iter)
            for condition in child.ifs:
                yield from in_scope(condition)
        else:
            yield from in_scope(child)


def plain_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """A function's statements without its docstring."""
    first = function.body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return function.body[1:] if has_docstring else function.body
