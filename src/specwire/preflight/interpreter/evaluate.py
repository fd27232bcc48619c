"""Expressions: the value of a syntax tree, UNKNOWN where the source alone does not tell."""

from __future__ import annotations

import ast
import operator
from typing import Any

from specwire.preflight.interpreter import attributes, calls, execute
from specwire.preflight.interpreter.machine import Frame, Machine
from specwire.preflight.interpreter.modules import Module
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    Builtin,
    ClassRef,
    Config,
    External,
    Function,
    Raised,
    Thing,
    known,
    truth,
)

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
# Longer than any list of layers, heads or tensors that is walked here.
ITEMS = 100_000
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def value(machine: Machine, node: ast.expr | None, frame: Frame) -> Any:
    """Evaluate one expression. Raises Raised where Python would, NotUnderstood when out of steps."""
    if node is None:
        return None
    machine.tick(node, frame.module)
    if isinstance(node, ast.Call):
        return calls.call(machine, node, frame)
    if isinstance(node, ast.Attribute):
        return attributes.attribute(machine, node, frame)
    handler = _HANDLERS.get(type(node))
    return handler(machine, node, frame) if handler else UNKNOWN


def _constant(machine: Machine, node: ast.Constant, frame: Frame) -> Any:
    return node.value


def _name(machine: Machine, node: ast.Name, frame: Frame) -> Any:
    scope: Frame | None = frame
    while scope is not None:
        if node.id in scope.names:
            return scope.names[node.id]
        scope = scope.closure
    return module_name(machine, frame.module, node.id)


def module_name(machine: Machine, module: Module, name: str) -> Any:
    found = machine.source.resolve(module, name)
    if found is None:
        return Builtin(name) if name in calls.BUILTINS else UNKNOWN
    if isinstance(found, (ast.Assign, ast.AnnAssign)):
        if machine.depth > 20:
            return UNKNOWN
        with machine.deeper():
            return value(machine, found.value, Frame(module, {}))
    return found


def _subscript(machine: Machine, node: ast.Subscript, frame: Frame) -> Any:
    of = value(machine, node.value, frame)
    if isinstance(node.slice, ast.Slice):
        parts = [value(machine, part, frame) for part in (node.slice.lower, node.slice.upper, node.slice.step)]
        if isinstance(of, (list, tuple, str)) and known(*parts):
            return of[slice(*parts)]
        return UNKNOWN
    index = value(machine, node.slice, frame)
    where = frame.module.where(node)
    if of is None:
        raise Raised("TypeError", "None cannot be indexed", where)
    if isinstance(of, Config):
        found = of.lookup(index, UNKNOWN) if isinstance(index, str) else UNKNOWN
        if found is UNKNOWN and isinstance(index, str):
            raise Raised("KeyError", index, where)
        return found
    if isinstance(of, (list, tuple, dict, str)) and known(index):
        try:
            return of[index]
        except (KeyError, IndexError, TypeError) as error:
            raise Raised(type(error).__name__, f"{index!r}", where) from error
    return UNKNOWN


def _binary(machine: Machine, node: ast.BinOp, frame: Frame) -> Any:
    left, right = value(machine, node.left, frame), value(machine, node.right, frame)
    if (left is None or right is None) and isinstance(node.op, ast.Add):
        raise Raised("TypeError", f"`{ast.unparse(node)}` adds None", frame.module.where(node))
    plain = (int, float, str, list, tuple, set, dict)
    if isinstance(node.op, ast.Mult) and not _small(left, right):
        return UNKNOWN
    if isinstance(left, plain) and isinstance(right, plain) and type(node.op) in _BINARY:
        try:
            return _BINARY[type(node.op)](left, right)
        except (TypeError, ZeroDivisionError, OverflowError, ValueError) as error:
            raise Raised(type(error).__name__, str(error), frame.module.where(node)) from error
    return UNKNOWN


def _small(left: Any, right: Any) -> bool:
    """Whether a product is of numbers, or repeats a sequence a sane number of times."""
    counts = [count for count in (left, right) if isinstance(count, int)]
    repeated = any(isinstance(part, (str, list, tuple)) for part in (left, right))
    return not repeated or all(count <= ITEMS for count in counts)


def _unary(machine: Machine, node: ast.UnaryOp, frame: Frame) -> Any:
    operand = value(machine, node.operand, frame)
    if isinstance(node.op, ast.Not):
        held = truth(operand)
        return UNKNOWN if held is None else not held
    if isinstance(node.op, ast.USub) and isinstance(operand, (int, float)):
        return -operand
    return UNKNOWN


def _boolean(machine: Machine, node: ast.BoolOp, frame: Frame) -> Any:
    """`and` and `or` with unknowns: a side that decides alone decides, wherever it stands."""
    decisive = isinstance(node.op, ast.Or)
    unknown = False
    result: Any = UNKNOWN
    for part in node.values:
        result = value(machine, part, frame)
        held = truth(result)
        if held is None:
            unknown = True
        elif held is decisive:
            return result if not unknown else decisive
    return UNKNOWN if unknown else result


def _compare(machine: Machine, node: ast.Compare, frame: Frame) -> Any:
    left = value(machine, node.left, frame)
    result: Any = True
    for op, right_node in zip(node.ops, node.comparators):
        right = value(machine, right_node, frame)
        result = _compared(op, left, right)
        if result is not True:
            return result
        left = right
    return result


def _compared(op: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if not known(left, right):
            return UNKNOWN
        same = left == right if isinstance(left, (ClassRef, External)) else left is right
        return same == isinstance(op, ast.Is)
    if isinstance(op, (ast.In, ast.NotIn)):
        return _contained(op, left, right)
    if known(left, right) and type(op) in _COMPARE:
        if isinstance(left, (External, Thing)) or isinstance(right, (External, Thing)):
            return UNKNOWN
        try:
            return _COMPARE[type(op)](left, right)
        except TypeError:
            return UNKNOWN
    return UNKNOWN


def _contained(op: ast.cmpop, left: Any, right: Any) -> Any:
    if right is None:
        raise Raised("TypeError", "argument of type 'NoneType' is not iterable")
    if isinstance(right, Config) and isinstance(left, str):
        return right.has(left) == isinstance(op, ast.In)
    if not isinstance(right, (list, tuple, dict, set, str, range)) or not known(left):
        return UNKNOWN
    try:
        found = left in right
    except TypeError:
        return UNKNOWN
    if not found and not isinstance(right, (str, range)) and not known(*right):
        return UNKNOWN
    return found == isinstance(op, ast.In)


def _conditional(machine: Machine, node: ast.IfExp, frame: Frame) -> Any:
    held = truth(value(machine, node.test, frame))
    if held is not None:
        return value(machine, node.body if held else node.orelse, frame)
    one, two = value(machine, node.body, frame), value(machine, node.orelse, frame)
    if known(one, two) and type(one) is type(two) and one == two:
        return one
    return one if isinstance(one, Thing) and two is None else UNKNOWN


def _sequence(machine: Machine, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Any:
    items: list[Any] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            more = value(machine, element.value, frame)
            if not isinstance(more, (list, tuple, set, range)):
                return UNKNOWN
            items += more
        else:
            items.append(value(machine, element, frame))
    if isinstance(node, ast.Set):
        return set(items) if all(isinstance(item, (int, str)) for item in items) else UNKNOWN
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(machine: Machine, node: ast.Dict, frame: Frame) -> Any:
    made: dict[Any, Any] = {}
    for key_node, value_node in zip(node.keys, node.values):
        item = value(machine, value_node, frame)
        if key_node is None:
            if not isinstance(item, dict):
                return UNKNOWN
            made.update(item)
            continue
        key = value(machine, key_node, frame)
        if not isinstance(key, (str, int, bool, type(None))):
            return UNKNOWN
        made[key] = item
    return made


def _comprehension(machine: Machine, node: Any, frame: Frame) -> Any:
    rows: list[Any] = []
    scope = Frame(frame.module, {}, frame, frame.owner, frame.this)
    if not _each(machine, node, node.generators, scope, rows):
        return UNKNOWN
    if isinstance(node, ast.DictComp):
        return dict(rows) if all(isinstance(key, (str, int)) for key, _ in rows) else UNKNOWN
    if isinstance(node, ast.SetComp):
        return set(rows) if all(isinstance(row, (str, int)) for row in rows) else UNKNOWN
    return rows


def _each(machine: Machine, node: Any, generators: list[ast.comprehension], scope: Frame, rows: list[Any]) -> bool:
    """Append a row per pass; False when something that decides the number of rows is unknown."""
    if not generators:
        pair = isinstance(node, ast.DictComp)
        rows.append(
            (value(machine, node.key, scope), value(machine, node.value, scope))
            if pair
            else value(machine, node.elt, scope)
        )
        return True
    first, rest = generators[0], generators[1:]
    items = iterable(value(machine, first.iter, scope))
    if items is None:
        return False
    for item in items:
        execute.assign(machine, first.target, item, scope)
        held = [truth(value(machine, test, scope)) for test in first.ifs]
        if None in held:
            return False
        if all(held) and not _each(machine, node, rest, scope, rows):
            return False
    return True


def iterable(of: Any) -> list[Any] | None:
    """The items of a value, or None when they are not known, or are more than any model has."""
    if isinstance(of, range) and (of.stop - of.start) // of.step > ITEMS:
        return None
    if isinstance(of, (list, tuple, set, range, dict)):
        return list(of) if len(of) <= ITEMS else None
    return None


def _text(machine: Machine, node: ast.JoinedStr, frame: Frame) -> Any:
    parts = []
    for part in node.values:
        inner = value(machine, part.value if isinstance(part, ast.FormattedValue) else part, frame)
        if not isinstance(inner, (str, int, float)):
            return UNKNOWN
        parts.append(str(inner))
    return "".join(parts)


def _lambda(machine: Machine, node: ast.Lambda, frame: Frame) -> Any:
    return Function(frame.module, node, closure=frame, owner=frame.owner)


def _walrus(machine: Machine, node: ast.NamedExpr, frame: Frame) -> Any:
    result = value(machine, node.value, frame)
    machine.set_name(frame, node.target.id, result)
    return result


_HANDLERS: dict[type, Any] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.JoinedStr: _text,
    ast.Lambda: _lambda,
    ast.NamedExpr: _walrus,
}
