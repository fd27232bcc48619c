"""Which statements use the taps' reserved name, and whether one does anything that would be missed."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from specwire.patching import marks
from specwire.syntax import Node, decorators, first_line, last_line

NAME = marks.NAME.decode()
BLOCK = (ast.stmt, ast.ExceptHandler, ast.match_case)


def uses(node: ast.AST, lines: list[int]) -> Iterator[Node]:
    """The outermost statements and the decorators that use the reserved name, which stands on `lines`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if bisect_left(lines, first_line(child)) == bisect_right(lines, last_line(child)):
                continue
            yield from (each for each in decorators(child) if _names_us(each))
            if any(_names_us(part) for part in _header(child)):
                yield child
                continue
        if isinstance(child, BLOCK):
            yield from uses(child, lines)


def _header(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's own parts, without the blocks and decorators that it holds."""
    if not any(isinstance(child, BLOCK) for child in ast.iter_child_nodes(statement)):
        yield statement
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.ExceptHandler):
            yield from [child.type] if child.type else []
        elif isinstance(child, ast.match_case):
            yield from [child.pattern, child.guard] if child.guard else [child.pattern]
        elif not isinstance(child, ast.stmt) and child not in decorators(statement):
            yield child


def _names_us(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == NAME:
            return True
        if isinstance(part, ast.Attribute) and part.attr == NAME or isinstance(part, ast.arg) and part.arg == NAME:
            return True
        if isinstance(part, (ast.Global, ast.Nonlocal)) and NAME in part.names:
            return True
        if isinstance(part, ast.alias) and NAME in (*part.name.split("."), part.asname):
            return True
        if isinstance(part, ast.ImportFrom) and NAME in (part.module or "").split("."):
            return True
    return False


def stuck(use: Node) -> str:
    """Why this use does more than call the tap file; empty when it does not."""
    if isinstance(use, ast.expr):
        return (
            ""
            if _rooted(use.func if isinstance(use, ast.Call) else use)
            else "the decorator does more than call the tap file"
        )
    if isinstance(use, (ast.Import, ast.ImportFrom)):
        if len(use.names) > 1:
            return "the import binds other names too: take _specwire out of it by hand"
        bound = use.names[0].asname or use.names[0].name
        return "" if bound == NAME else f"the import binds {bound}, which other code may use"
    if isinstance(use, ast.If):
        if use.orelse:
            return "an `else` hangs on it"
        if not _switch(use.test):
            return "its test asks for more than `_specwire.on`"
        other = next((each for each in use.body if not _reports(each)), None)
        return f"line {other.lineno} below it does more than report" if other is not None else ""
    return "" if _sets(use) or (_reports(use) and _calls_us(use)) else "the statement does more than call the tap file"


def _rooted(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == NAME


def _switch(test: ast.expr) -> bool:
    """`_specwire.on`, alone or as the first of an `and`: nothing else is evaluated while it is off."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _rooted(test.values[0]) and not _binds(test)
    return _rooted(test)


def _reports(statement: ast.stmt) -> bool:
    """An expression whose value nobody takes, or such expressions behind a test; it binds nothing."""
    if isinstance(statement, ast.If):
        return not statement.orelse and not _binds(statement.test) and all(map(_reports, statement.body))
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and not _binds(statement))


def _calls_us(statement: ast.stmt) -> bool:
    return (
        isinstance(statement.value, ast.Call) and _rooted(statement.value.func)
        if isinstance(statement, ast.Expr)
        else False
    )


def _sets(statement: ast.stmt) -> bool:
    """`_specwire.on = True`, by hand: it reaches the tap file alone."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and all(isinstance(target, ast.Attribute) and _rooted(target) for target in statement.targets)
    )


def _binds(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for part in ast.walk(node))
