"""Where a node of a syntax tree stands: lines counted from 1, decorators included."""

from __future__ import annotations

import ast

Node = ast.stmt | ast.expr


def decorators(node: ast.AST) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else []


def first_line(node: Node | ast.ExceptHandler) -> int:
    """The line of its first decorator, or its own."""
    return min([node.lineno, *(each.lineno for each in decorators(node))])


def last_line(node: Node | ast.ExceptHandler) -> int:
    return node.end_lineno or node.lineno
