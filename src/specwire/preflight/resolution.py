"""What a tree makes of a launch once it is parsed: values that it adjusts, sets over the user's, or refuses.

Found in the tree's own source by what the statements say, for the few decisions that a verdict hangs on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import UNKNOWN

PLACES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups")
STEPS, TOPK, TOKENS = "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"


@dataclass(frozen=True)
class Resolution:
    """The decisions of one tree, each read when it is first asked for."""

    source: Source

    @cached_property
    def adjusts_tokens(self) -> str | None:
        """Where the tree sets the draft tokens to steps + 1 when top-k is 1; None where it never does."""
        for module in self._modules(TOKENS, TOPK):
            for node in ast.walk(module.node):
                if (
                    isinstance(node, ast.If)
                    and f"{TOPK} == 1" in ast.unparse(node.test)
                    and any(_sets(part, TOKENS) and f"{STEPS} + 1" in ast.unparse(part) for part in node.body)
                ):
                    return module.where(node)
        return None

    def refuses_pipeline(self, algorithm: str) -> tuple[str, str] | None:
        """Why the tree would not start this algorithm with several pipeline stages, and where it says so."""
        found = []
        for module in self._modules("speculative_algorithm", "ipeline"):
            for node in ast.walk(module.node):
                if not isinstance(node, ast.Assert) or "speculative_algorithm" not in ast.unparse(node.test):
                    continue
                message = _message(node)
                if "ipeline parallelism" in message and "DSPARK" not in message:
                    found.append((_truth(node.test, {"speculative_algorithm": algorithm}), message, module.where(node)))
        # One branch may be for another kind of device: sure is what every branch refuses.
        if not found or any(held is not False for held, _, _ in found):
            return None
        return found[-1][1], found[-1][2]

    def sets_dtype(self, target: Mapping[str, Any]) -> tuple[str, str] | None:
        """The element type that the tree serves a quantized target in, whatever is asked for, and where it says so."""
        quantization = target.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        names = [str(name) for name in target.get("architectures") or []]
        if not isinstance(method, str) or not names:
            return None
        for module in self._modules(method, names[0]):
            for node, around in _within(module.node, ()):
                if (dtype := _dtype(node)) and _speaks_of(around, names[0]) and _depends_on(around, method):
                    return dtype, module.where(node)
        return None

    def _modules(self, *words: str) -> Iterator[Module]:
        """The modules that settle arguments and hold all of these words."""
        names = [PLACES[0]]
        if self.source.tree.path(PLACES[1]).is_dir():
            names += self.source.tree.python_files(PLACES[1])
        for name in names:
            try:
                data = self.source.tree.read(name)
            except OSError:
                continue
            if all(word.encode() in data for word in words) and (module := self.source.module(name)) is not None:
                yield module


def _sets(node: ast.AST, name: str) -> bool:
    """Whether a statement assigns an attribute, or hands a value on by keyword, of this name."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr == name and isinstance(part.ctx, ast.Store))
        or (isinstance(part, ast.keyword) and part.arg == name)
        for part in ast.walk(node)
    )


def _message(node: ast.Assert) -> str:
    parts = [part.value for part in ast.walk(node.msg) if isinstance(part, ast.Constant)] if node.msg else []
    return "".join(part for part in parts if isinstance(part, str))


def _truth(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Whether a condition on the arguments holds; UNKNOWN where it hangs on others than `values`."""
    if isinstance(node, ast.BoolOp):
        held = [_truth(part, values) for part in node.values]
        deciding = not isinstance(node.op, ast.And)
        return deciding if deciding in held else UNKNOWN if UNKNOWN in held else not deciding
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        held = _truth(node.operand, values)
        return UNKNOWN if held is UNKNOWN else not held
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left, values), _value(node.comparators[0], values)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        operation = node.ops[0]
        if isinstance(operation, (ast.Is, ast.Eq)):
            return left == right
        if isinstance(operation, (ast.IsNot, ast.NotEq)):
            return left != right
        if isinstance(operation, (ast.In, ast.NotIn)) and isinstance(right, (list, tuple)):
            return (left in right) is isinstance(operation, ast.In)
    return UNKNOWN


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute):
        return values.get(node.attr, UNKNOWN)
    if isinstance(node, (ast.Tuple, ast.List)):
        items = [_value(item, values) for item in node.elts]
        return UNKNOWN if UNKNOWN in items else items
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "upper":
        of = _value(node.func.value, values)
        return of.upper() if isinstance(of, str) else UNKNOWN
    return UNKNOWN


def _within(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Each node with the functions and conditions whose body it stands in, outermost first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.If) and child in node.body:
            inner = (*around, node.test)
        else:
            inner = (*around, child) if isinstance(child, ast.FunctionDef) else around
        yield child, inner
        yield from _within(child, inner)


def _dtype(node: ast.AST) -> str | None:
    """The element type that an assignment gives the whole model."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return None
    target = node.targets[0]
    named = (isinstance(target, ast.Attribute) and target.attr == "dtype") or (
        isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "dtype"
    )
    return node.value.value if named and isinstance(node.value.value, str) else None


def _speaks_of(around: tuple[ast.AST, ...], architecture: str) -> bool:
    """Whether a condition, or a function's decorator, names the architecture."""
    places = [
        place for node in around for place in (node.decorator_list if isinstance(node, ast.FunctionDef) else [node])
    ]
    return any(
        isinstance(part, ast.Constant) and part.value == architecture for node in places for part in ast.walk(node)
    )


def _depends_on(around: tuple[ast.AST, ...], method: str) -> bool:
    """Whether the innermost condition asks for this quantization: by its name, or by a local that does."""
    conditions = [node for node in around if not isinstance(node, ast.FunctionDef)]
    functions = [node for node in around if isinstance(node, ast.FunctionDef)]
    if not conditions or not functions:
        return False
    test = conditions[-1]
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    asked = [test] + [
        node.value
        for node in ast.walk(functions[-1])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names
    ]
    return isinstance(test, ast.Name) and any(
        isinstance(part, ast.Constant) and part.value == method for node in asked for part in ast.walk(node)
    )
