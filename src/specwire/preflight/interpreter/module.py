"""One parsed source file, and what its own statements bind."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(eq=False)
class Module:
    """One parsed source file. `name` is its path relative to the tree's root."""

    name: str
    node: ast.Module

    @cached_property
    def bindings(self) -> dict[str, list[tuple[int, ast.AST, Any]]]:
        """What the module's own statements bind, by name, in order: (line, node, original name)."""
        found: dict[str, list[tuple[int, ast.AST, Any]]] = {}
        for node in _module_level(self.node.body):
            if isinstance(node, (ast.ImportFrom, ast.Import)):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    found.setdefault(bound, []).append((node.lineno, node, alias.name))
            for name in bound_names(node):
                found.setdefault(name, []).append((node.lineno, node, name))
        return found

    def binding(self, name: str, before: int | None = None) -> tuple[int, ast.AST, Any] | None:
        """The last binding of `name`, or the last one above line `before`."""
        rows = self.bindings.get(name, [])
        return next((row for row in reversed(rows) if before is None or row[0] < before), None)

    def where(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


def bound_names(node: ast.stmt) -> list[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _module_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run on import, also those inside if, try and with. Where a name has two
    bindings of which one runs, the first branch comes last here, and so is the one that counts."""
    found: list[ast.stmt] = []
    left = list(reversed(body))  # no recursion: an `elif` is nested in the one before it
    while left:
        node = left.pop()
        inner: list[ast.stmt] = []
        if isinstance(node, ast.Try):
            inner += (statement for handler in node.handlers for statement in handler.body)
        if isinstance(node, (ast.If, ast.Try)):
            inner += node.orelse
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            left += reversed([*inner, *node.body])
        else:
            found.append(node)
    return found
