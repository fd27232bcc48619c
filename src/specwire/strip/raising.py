"""Whether debug code could raise an error that the program around it answers: without it, the answer would not come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specwire.strip.facts import SWITCHED, Facts
from specwire.strip.judge import Judge

_ALL = frozenset(("Exception", "BaseException"))
_PARENTS = {
    "KeyError": "LookupError", "IndexError": "LookupError", "ZeroDivisionError": "ArithmeticError",
    "OverflowError": "ArithmeticError", "UnboundLocalError": "NameError", "IOError": "OSError",
    "FileExistsError": "OSError", "UnicodeError": "ValueError", "OutOfMemoryError": "RuntimeError",
}  # fmt: skip
_NUMBERS = frozenset(("int", "float", "complex"))
_SYNCS = frozenset("item tolist cpu numpy to cuda float half double norm mean std sum max min".split())


def caught_by(node: ast.stmt) -> frozenset[str]:
    """The errors that a statement answers when its first block raises them, by their last names."""
    if isinstance(node, (ast.Try, ast.TryStar)):
        types = [handler.type for handler in node.handlers]
        return frozenset(name for each in types for name in (_names(each) if each is not None else ["BaseException"]))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        return frozenset(
            name
            for call in calls
            if ast.unparse(call.func).endswith(("suppress", "raises", "assertRaises"))
            for argument in call.args
            for name in _names(argument)
        )
    return frozenset()


def answered(node: ast.stmt, caught: frozenset[str], facts: Facts, guarded: int, judge: Judge) -> str | None:
    """The error, among those that are caught around it, that a statement could raise with no switch set."""
    if not caught or guarded == SWITCHED:
        return None
    for expression, inner in _run(node, guarded, judge):
        if inner < SWITCHED:
            for part in ast.walk(expression):
                for error in _errors(part, facts):
                    if error in caught or _PARENTS.get(error) in caught or (error in _LIKELY and caught & _ALL):
                        return error
    return None


# Of what anything may raise, an answer to every error counts for these alone.
_LIKELY = frozenset("KeyError IndexError ZeroDivisionError ValueError TypeError OSError".split())


def _run(node: ast.stmt, guarded: int, judge: Judge) -> Iterator[tuple[ast.AST, int]]:
    """What a statement evaluates, with how it is guarded."""
    _, blocks = judge.own(node, guarded, True)
    inside = {id(part) for block, _ in blocks for statement in block for part in ast.walk(statement)}
    for child in ast.iter_child_nodes(node):
        if id(child) not in inside and not isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield child, guarded
    for block, inner in blocks:
        for statement in block:
            yield from _run(statement, inner, judge)


def _errors(node: ast.AST, facts: Facts) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        yield from ("KeyError", "IndexError", "TypeError")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mod, ast.FloorDiv)):
        text = isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), str)
        yield "TypeError" if text else "ZeroDivisionError"
    elif isinstance(node, ast.Attribute):
        yield "AttributeError"
        if node.attr in _SYNCS:
            yield from ("RuntimeError", "OutOfMemoryError")
        if node.attr in ("index", "item"):
            yield "ValueError"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from ("NameError", "UnboundLocalError")
    elif isinstance(node, ast.Call):
        name = (facts.names.dotted(node.func) or "").rpartition(".")[2]
        if name in _NUMBERS:
            yield from ("ValueError", "TypeError")
        elif name == "getattr" and len(node.args) == 2:
            yield "AttributeError"
        elif name in ("open", "save", "makedirs", "mkdir", "write", "dump"):
            yield "OSError"


def _names(node: ast.expr) -> list[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return [part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "BaseException") for part in parts]
