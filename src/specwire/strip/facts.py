"""What a file says about its own names: which of them are debug switches, and what a condition on them means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from specwire.strip.calls import OPENS, Names
from specwire.strip.words import Words, is_flag

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FALSE = ("", "0", "false", "no", "off", "n", "f")
_READERS = frozenset(("os.environ.get", "os.getenv"))
_PASSES = frozenset(("bool", "int", "str", "float"))
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
        return isinstance(node, (ast.Name, ast.Constant)) and isinstance(text, str) and self.words.is_tag(text)

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
            operator = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}.get(type(operator), type(operator))()
        if not self.is_switch(left):
            return None
        values = _constants(right)
        if not values:
            return None
        if isinstance(operator, (ast.Gt, ast.GtE)):
            floor = values[0] if isinstance(operator, ast.GtE) else values[0] + 1 if isinstance(values[0], int) else 0
            return True if isinstance(floor, int) and floor > 0 else None
        truths = {_means_on(value) for value in values}
        if len(truths) != 1:
            return None
        same = isinstance(operator, (ast.Eq, ast.Is, ast.In))
        different = isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn))
        return truths.pop() == same if same or different else None


def gather(tree: ast.Module, words: Words) -> Facts:
    """Read a file's facts. Switches may be made of switches, so this goes on until nothing new turns up."""
    bindings = list(_bindings(tree))
    modules = {name: value for name, value in bindings if isinstance(value, str)}
    rebound = frozenset(name for name, value in bindings if not isinstance(value, str))
    values: dict[str, list[ast.AST | str | None]] = {}
    for name, value in bindings:
        values.setdefault(name, []).append(value)
    handles = {name for name, all_ in values.items() if all(_is_open(value) for value in all_)}
    facts = Facts(words, Names(modules, rebound, frozenset(handles)))
    facts.single = frozenset(name for name, all_ in values.items() if len(all_) == 1)
    facts.texts = {
        name: all_[0].value
        for name, all_ in values.items()
        if len(all_) == 1 and isinstance(all_[0], ast.Constant) and isinstance(all_[0].value, str)
    }
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    before = None
    while before != (len(facts.switches), len(facts.reads)):
        before = len(facts.switches), len(facts.reads)
        for owner in classes:
            facts.reads |= _attribute_reads(facts, owner)
        for name, all_ in values.items():
            if all(isinstance(value, ast.AST) and _is_switch_value(facts, value) for value in all_):
                facts.switches.add(name + "()" if isinstance(all_[0], FUNCTIONS) else name)
    return facts


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
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Eq, ast.Is)):
        asked = test.left
    else:
        return
    name = ""
    if isinstance(asked, ast.Call) and isinstance(asked.func, ast.Name) and asked.func.id in ("hasattr", "getattr"):
        if len(asked.args) >= 2 and isinstance(asked.args[1], ast.Constant):
            name = f".{asked.args[1].value}"
    elif isinstance(asked, ast.Attribute):
        name = "." + asked.attr
    elif isinstance(asked, ast.Name):
        name = asked.id
    if name and (any_name or is_flag(name[1:] if name[0] == "." else name)):
        yield name


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


def plain_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """A function's statements without its docstring."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return function.body[1:] if has_docstring else function.body


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST | str | None]]:
    """Every binding of the file: (name or `.attribute`, its value's node, the import's dotted name, or None)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                single = isinstance(target, (ast.Name, ast.Attribute))
                for name in bound(target):
                    yield name, node.value if single else None
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                for name in bound(node.target):
                    yield name, node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            for name in bound(node.optional_vars):
                yield name, node.context_expr
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.arg):
            yield node.arg, None
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)):
            for name in bound(node.target):
                yield name, None
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, None


def _attribute_reads(facts: Facts, owner: ast.ClassDef) -> set[int]:
    """Nodes of a class that read `self.X`, for each X that the class sets from a debug switch and nothing else."""
    values: dict[str, list[ast.AST | None]] = {}
    reads: list[tuple[str, ast.expr]] = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in bound(target):
                    values.setdefault(name, []).append(node.value if isinstance(target, ast.Attribute) else None)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            values.setdefault("." + node.target.attr, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            values.setdefault("." + node.target.attr, []).append(None)
        elif _of_self(node) and isinstance(node.ctx, ast.Load):
            reads.append(("." + node.attr, node))
        elif isinstance(node, ast.Call) and facts.names.dotted(node.func) == "getattr" and len(node.args) > 1:
            if isinstance(node.args[0], ast.Name) and node.args[0].id == "self" and isinstance(node.args[1], ast.Constant):
                reads.append((f".{node.args[1].value}", node))
    held = {name for name, all_ in values.items() if all(value is not None and _is_switch_value(facts, value) for value in all_)}
    return {id(node) for name, node in reads if name in held}


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_switch_value(facts: Facts, value: ast.AST) -> bool:
    if isinstance(value, FUNCTIONS):
        body = plain_body(value)
        single = len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None
        arguments = ast.unparse(value.args)
        return single and not arguments and facts.is_switch(body[0].value)
    return isinstance(value, ast.expr) and facts.is_switch(value)


def _is_open(value: ast.AST | str | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in OPENS


def _constants(node: ast.expr) -> list[object]:
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and all(isinstance(part, ast.Constant) for part in node.elts):
        return [part.value for part in node.elts]
    return []


def _means_on(value: object) -> bool:
    return value.lower() not in _FALSE if isinstance(value, str) else bool(value)
