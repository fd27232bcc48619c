"""What a file says about its own names: which of them are debug switches, and what a condition on them means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from specwire.strip.calls import Names
from specwire.strip.words import Words, is_flag

_FALSE = ("", "0", "false", "no", "off", "n", "f")
_READERS = frozenset(("os.environ.get", "os.getenv"))
_PASSES = frozenset(("bool", "int", "str", "float"))
_PASSING_METHODS = frozenset(("lower", "upper", "strip", "casefold", "title"))


@dataclass
class Facts:
    """A file's imports and switches. A name counts as a switch only if nothing else ever binds it in the file."""

    words: Words
    names: Names
    switches: set[str] = field(
        default_factory=set
    )  # names that hold a switch's value; `name()` for functions
    reads: set[int] = field(default_factory=set)  # ids of nodes that read an attribute that holds one
    pure_helpers: frozenset[str] = frozenset()  # functions of this file that only look
    report_helpers: frozenset[str] = frozenset()  # functions of this file that only report
    single: frozenset[str] = frozenset()  # names that the file binds exactly once
    texts: dict[str, str] = field(default_factory=dict)  # names that only ever stand for one string

    def polarity(self, test: ast.expr) -> bool | None:
        """True when the condition can hold only while a debug switch is on, False when only while it is off."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.polarity(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            sides = [self.polarity(value) for value in test.values]
            if isinstance(test.op, ast.And):
                known = {side for side in sides if side is not None}
                return known.pop() if len(known) == 1 else None
            return sides[0] if len(set(sides)) == 1 else None
        if isinstance(test, ast.Compare):
            return self._compared(test)
        return True if self.is_switch(test) else None

    def is_switch(self, node: ast.expr) -> bool:
        """Whether the value is that of a debug switch, true or filled while it is on."""
        if isinstance(node, ast.NamedExpr):
            return self.is_switch(node.value)
        if isinstance(node, ast.Name):
            return node.id in self.switches
        if id(node) in self.reads:
            return True
        if isinstance(node, ast.Subscript):
            return self.names.dotted(node.value) == "os.environ" and self._is_switch_name(node.slice)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return self.polarity(node) is True
        if not isinstance(node, ast.Call):
            return False
        name = self.names.dotted(node.func) or ""
        if name in _PASSES and len(node.args) == 1:
            return self.is_switch(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PASSING_METHODS:
            return self.is_switch(node.func.value)
        if name + "()" in self.switches and not node.args and not node.keywords:
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and not node.args:
            owner = node.func.value  # envs.EAGLE3_DEBUG.get()
            return isinstance(owner, ast.Attribute) and self.words.is_switch(owner.attr)
        reads = name in _READERS or "env" in name.rpartition(".")[2].lower()
        return reads and bool(node.args) and self._is_switch_name(node.args[0])

    def mentions_switch(self, node: ast.AST) -> bool:
        return any(isinstance(part, ast.expr) and self.is_switch(part) for part in ast.walk(node))

    def is_tag(self, node: ast.AST) -> bool:
        """Whether this is a string that a debug message begins with, or a name that stands for one."""
        text = self.texts.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return (
            isinstance(node, (ast.Name, ast.Constant)) and isinstance(text, str) and self.words.is_tag(text)
        )

    def is_pure_helper(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id in self.pure_helpers

    def is_report_helper(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id in self.report_helpers

    def _is_switch_name(self, node: ast.expr) -> bool:
        text = self.texts.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return isinstance(text, str) and self.words.is_switch(text)

    def _compared(self, test: ast.Compare) -> bool | None:
        if len(test.ops) != 1:
            return None
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operator, (ast.In, ast.NotIn)) and self.names.dotted(right) == "os.environ":
            known = self._is_switch_name(left)
            return isinstance(operator, ast.In) if known else None
        if self.is_switch(right) and not self.is_switch(left):
            left, right = right, left
            operator = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}.get(
                type(operator), type(operator)
            )()
        if not self.is_switch(left):
            return None
        values = _constants(right)
        if not values:
            return None
        if isinstance(operator, (ast.Gt, ast.GtE)):
            floor = (
                values[0]
                if isinstance(operator, ast.GtE)
                else values[0] + 1
                if isinstance(values[0], int)
                else 0
            )
            return True if isinstance(floor, int) and floor > 0 else None
        truths = {_means_on(value) for value in values}
        if len(truths) != 1:
            return None
        same = isinstance(operator, (ast.Eq, ast.Is, ast.In))
        different = isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn))
        return truths.pop() == same if same or different else None


def one_time_flags(test: ast.expr, any_name: bool = False) -> Iterator[str]:
    """Names and `.attributes` of debug flags whose being unset the condition asks for: `not hasattr(x, "_debug_done")`.

    `any_name`: of all flags, whether their names speak of debugging or not.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from one_time_flags(value, any_name)
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked = test.operand
    elif (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Eq, ast.Is))
    ):
        asked = test.left
    else:
        return
    name = ""
    if (
        isinstance(asked, ast.Call)
        and isinstance(asked.func, ast.Name)
        and asked.func.id in ("hasattr", "getattr")
    ):
        if len(asked.args) >= 2 and isinstance(asked.args[1], ast.Constant):
            name = f".{asked.args[1].value}"
    elif isinstance(asked, ast.Attribute):
        name = "." + asked.attr
    elif isinstance(asked, ast.Name):
        name = asked.id
    if name and (any_name or is_flag(name[1:] if name[0] == "." else name)):
        yield name


def _constants(node: ast.expr) -> list[object]:
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and all(
        isinstance(part, ast.Constant) for part in node.elts
    ):
        return [part.value for part in node.elts]
    return []


def _means_on(value: object) -> bool:
    return value.lower() not in _FALSE if isinstance(value, str) else bool(value)
