"""What a file says about its own names: which of them are debug switches, and what a condition on them means."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from specwire.strip.calls import ASKING, Names
from specwire.strip.classes import Fields
from specwire.strip.evidence import Evidence
from specwire.strip.readers import Elsewhere
from specwire.strip.words import Words, is_flag, is_own_name

# How debug code is guarded: not at all; by something that says what it is; by a switch that is off unless it is set.
UNGUARDED, MARKED, SWITCHED = range(3)

_FALSE = ("", "0", "false", "no", "off", "n", "f")
_READERS = frozenset(("os.environ.get", "os.getenv"))
_PASSES = {"bool": bool, "int": int, "str": str, "float": float}
_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
_PASSING_METHODS = frozenset(("lower", "upper", "strip", "casefold", "title"))


@dataclass
class Facts:
    """A file's imports and switches. A name counts as a switch only if nothing else ever binds it in the file."""

    words: Words
    names: Names
    switches: set[str] = field(default_factory=set)  # names that hold a switch's value; `name()` for functions
    reads: set[int] = field(default_factory=set)  # ids of nodes that read an attribute that holds one
    pure_helpers: frozenset[str] = frozenset()  # functions of this file that only look
    report_helpers: frozenset[str] = frozenset()  # functions of this file that only report
    single: frozenset[str] = frozenset()  # names that the file binds exactly once
    texts: dict[str, str] = field(default_factory=dict)  # names that only ever stand for one string
    values: dict[str, ast.expr] = field(default_factory=dict)  # names that only ever stand for one expression
    counters: frozenset[str] = frozenset()  # debug flags that numbers are added to, and that hold nothing else
    constants: frozenset[str] = frozenset()  # switches that are no more than constants: nobody knows who sets them
    evidence: Evidence = field(default_factory=Evidence)
    fields: Fields = field(default_factory=Fields)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    watching: frozenset[str] = frozenset()  # the file's classes that see each attribute that is set, or asked for
    spoken_of: tuple[str, ...] = ()  # names in the file that look like classes, or that classes build on
    around: dict[int, str] = field(default_factory=dict)  # id of a name's node -> the class around it
    carriers: dict[int, str] = field(default_factory=dict)  # id of a function that wraps others -> the name for it
    defined: frozenset[str] = frozenset()  # methods and properties of the file's classes
    properties: frozenset[str] = frozenset()  # the properties alone
    pure_methods: frozenset[str] = frozenset()  # those of them that only look

    def guard(self, test: ast.expr, branch: bool) -> int:
        """How a condition guards what runs when it is `branch`: MARKED when that also runs with the switch unset."""
        if self.polarity(test) is not branch:
            return UNGUARDED
        return MARKED if self.unset(test) is branch or self._set_elsewhere(test) else SWITCHED

    def _set_elsewhere(self, test: ast.expr) -> bool:
        """Whether a condition asks for a switch of which only the name is known: it may be on."""
        return any(
            (isinstance(part, ast.Name) and part.id in self.names.modules and self.is_switch(part))
            or (isinstance(part, ast.Attribute) and id(part) not in self.reads and self.is_switch(part))
            or (isinstance(part, ast.Name) and part.id in self.constants and part.id not in self.values)
            for part in ast.walk(test)
        )

    def unset(self, test: ast.expr) -> bool | None:
        """Whether a condition holds while no debug switch is set; None where that cannot be said."""
        if isinstance(test, ast.NamedExpr):
            return self.unset(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.unset(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            sides, decides = [self.unset(value) for value in test.values], isinstance(test.op, ast.Or)
            return decides if decides in sides else None if None in sides else not decides
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            if isinstance(test.ops[0], (ast.In, ast.NotIn)) and self.names.dotted(right) == "os.environ":
                return isinstance(test.ops[0], ast.NotIn) if self._is_switch_name(left) else None
            try:
                return bool(_COMPARES[type(test.ops[0])](self._default(left), self._default(right)))
            except (LookupError, TypeError):
                return None
        try:
            return bool(self._default(test))
        except LookupError:
            return None

    def _default(self, node: ast.expr) -> object:
        """An expression's value while no debug switch is set. Raises LookupError where that cannot be said."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return [self._default(part) for part in node.elts]
        if isinstance(node, ast.Name) and node.id in self.values:
            value = self.values[node.id]
            self = replace(self, values={name: each for name, each in self.values.items() if name != node.id})
            known = self.unset(value) if isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else None
            return self._default(value) if known is None else known
        if isinstance(node, (ast.Compare, ast.BoolOp)) and (known := self.unset(node)) is not None:
            return known
        if not isinstance(node, ast.Call):
            raise LookupError
        name = self.names.dotted(node.func) or ""
        if name in _PASSES and len(node.args) == 1:
            try:
                return _PASSES[name](self._default(node.args[0]))
            except (TypeError, ValueError):
                raise LookupError from None
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PASSING_METHODS and not node.args:
            text = self._default(node.func.value)
            return getattr(text, node.func.attr)() if isinstance(text, str) else text
        if node.args and self._is_switch_name(node.args[0]):
            given = [*node.args[1:], *(word.value for word in node.keywords)]
            return self._default(given[0]) if given else None
        raise LookupError

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
            if node.id in self.names.modules and node.id not in self.names.rebound:
                return self.words.is_switch(node.id) or is_own_name(node.id)
            return node.id in self.switches
        if id(node) in self.reads:
            return True
        if isinstance(node, ast.Attribute):
            return isinstance(node.ctx, ast.Load) and (self.words.is_switch(node.attr) or is_own_name(node.attr))
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
        return isinstance(node, (ast.Name, ast.Constant)) and isinstance(text, str) and self.words.is_tag(text)

    def is_pure_helper(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id in self.pure_helpers

    def is_pure_question(self, call: ast.Call) -> bool:
        """Whether a call that sounds like a question is one: by what the file, or the package, says of its name."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if not ASKING.fullmatch(name):
            return False
        return name in self.pure_methods if name in self.defined else self.elsewhere.looks(name)

    def runs_code(self, node: ast.Attribute, called: bool) -> bool:
        """Whether asking for an attribute, or calling it, runs code of the program's that does more than look."""
        name = node.attr
        if called:
            return name in self.defined and name not in self.pure_methods and not self.evidence.is_tensor(node.value)
        if name in self.properties:
            return name not in self.pure_methods
        return self.elsewhere.alters(name)

    def watched(self, holder: ast.expr) -> str | None:
        """The class that may see it when an attribute of this is set or asked for: one that the file speaks of."""
        around = self.around.get(id(holder)) if getattr(holder, "id", "") in ("self", "cls") else None
        for name in [around] if around else self.spoken_of:
            if name in self.watching or self.elsewhere.watches(name):
                return name
        return None

    def is_report_helper(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Name) and call.func.id in self.report_helpers

    def _is_switch_name(self, node: ast.expr) -> bool:
        text = self.texts.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return isinstance(text, str) and self.words.is_switch(text)

    def _compared(self, test: ast.Compare) -> bool | None:
        if len(test.ops) != 1:
            return None
        left, how, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(how, (ast.In, ast.NotIn)) and self.names.dotted(right) == "os.environ":
            known = self._is_switch_name(left)
            return isinstance(how, ast.In) if known else None
        if self.is_switch(right) and not self.is_switch(left):
            left, right = right, left
            how = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}.get(type(how), type(how))()
        if not self.is_switch(left):
            return None
        values = _constants(right)
        if not values:
            return None
        if isinstance(how, (ast.Gt, ast.GtE)):
            floor = values[0] if isinstance(how, ast.GtE) else values[0] + 1 if isinstance(values[0], int) else 0
            return True if isinstance(floor, int) and floor > 0 else None
        truths = {_means_on(value) for value in values}
        if len(truths) != 1:
            return None
        same = isinstance(how, (ast.Eq, ast.Is, ast.In))
        different = isinstance(how, (ast.NotEq, ast.IsNot, ast.NotIn))
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
    if isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) and asked.func.id in ("hasattr", "getattr"):
        key = asked.args[1] if len(asked.args) >= 2 else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            name = f".{key.value}"
    elif isinstance(asked, ast.Attribute):
        name = "." + asked.attr
    elif isinstance(asked, ast.Name):
        name = asked.id
    if name and (any_name or is_flag(name[1:] if name[0] == "." else name)):
        yield name


def _constants(node: ast.expr) -> list[object]:
    if isinstance(node, ast.Constant):
        return [node.value]
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
    values: list[object] = [part.value for part in parts if isinstance(part, ast.Constant)]
    return values if len(values) == len(parts) else []


def _means_on(value: object) -> bool:
    return value.lower() not in _FALSE if isinstance(value, str) else bool(value)
