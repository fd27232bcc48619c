"""Does a layer loop capture the whole stream, or leave out the residual that travels beside it?"""

from __future__ import annotations

import ast

from specwire.preflight.interpreter.module import Module


def bare_capture(module: Module, forward: ast.FunctionDef) -> str | None:
    """`file:line` of an append of the branch alone, in a forward whose layers hand on a residual that the
    final norm adds; None when there is none."""
    if not (_layers_return_residual(forward) and _norm_adds_residual(forward)):
        return None
    bare = [node for node in ast.walk(forward) if isinstance(node, ast.Call) and _appends_branch(node)]
    return module.where(min(bare, key=lambda node: node.lineno)) if bare else None


def _appends_branch(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"):
        return False
    holder, taken = node.func.value, node.args[0] if node.args else None
    collects = isinstance(holder, ast.Name) and "aux" in holder.id
    return collects and isinstance(taken, ast.Name) and taken.id == "hidden_states"


def _layers_return_residual(forward: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(target, ast.Tuple) and "residual" in _names(target) for target in node.targets)
        for loop in ast.walk(forward)
        if isinstance(loop, ast.For)
        for node in ast.walk(loop)
    )


def _norm_adds_residual(forward: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and "norm" in node.func.attr
        and any("residual" in _names(argument) for argument in node.args)
        for node in ast.walk(forward)
    )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
