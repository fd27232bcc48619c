"""Expressions: the value of a syntax tree, UNKNOWN where the source alone does not tell."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from specwire.preflight.interpreter import attributes, calls, execute, plain
from specwire.preflight.interpreter.machine import Expression, Machine
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    ClassRef,
    Config,
    External,
    Frame,
    Function,
    Raised,
    Thing,
    known,
    truth,
)


def machine_for(source: Source, on_call: Callable[..., Any] | None = None) -> Machine:
    """A machine that reads this source, at its start."""
    return Machine(source, _EXPRESSIONS, on_call=on_call)


def _constant(machine: Machine, node: ast.Constant, frame: Frame) -> Any:
    return node.value


def _name(machine: Machine, node: ast.Name, frame: Frame) -> Any:
    scope: Frame | None = frame
    while scope is not None:
        if node.id in scope.names:
            return scope.names[node.id]
        scope = scope.closure
    return attributes.module_name(machine, frame.module, node.id)


def _subscript(machine: Machine, node: ast.Subscript, frame: Frame) -> Any:
    of = machine.value(node.value, frame)
    if isinstance(node.slice, ast.Slice):
        parts = [machine.value(part, frame) for part in (node.slice.lower, node.slice.upper, node.slice.step)]
        if isinstance(of, (list, tuple, str)) and known(*parts):
            return plain.slice_of(machine, of, parts, frame.module.where(node))
        return UNKNOWN
    index = machine.value(node.slice, frame)
    where = frame.module.where(node)
    if of is None:
        raise Raised("TypeError", "None cannot be indexed", where)
    if isinstance(of, Config):
        found = of.lookup(index, UNKNOWN) if isinstance(index, str) else UNKNOWN
        if found is UNKNOWN and isinstance(index, str):
            raise Raised("KeyError", index, where)
        return found
    if isinstance(of, (list, tuple, dict, str)) and known(index):
        return plain.item_of(machine, of, index, where)
    return UNKNOWN


def _binary(machine: Machine, node: ast.BinOp, frame: Frame) -> Any:
    left, right = machine.value(node.left, frame), machine.value(node.right, frame)
    if (left is None or right is None) and isinstance(node.op, ast.Add):
        raise Raised("TypeError", f"`{ast.unparse(node)}` adds None", frame.module.where(node))
    return plain.binary(machine, node.op, left, right, frame.module.where(node))


def _unary(machine: Machine, node: ast.UnaryOp, frame: Frame) -> Any:
    operand = machine.value(node.operand, frame)
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
        result = machine.value(part, frame)
        held = truth(result)
        if held is None:
            unknown = True
        elif held is decisive:
            return result if not unknown else decisive
    return UNKNOWN if unknown else result


def _compare(machine: Machine, node: ast.Compare, frame: Frame) -> Any:
    left = machine.value(node.left, frame)
    result: Any = True
    for op, right_node in zip(node.ops, node.comparators):
        right = machine.value(right_node, frame)
        result = _compared(machine, op, left, right)
        if result is not True:
            return result
        left = right
    return result


def _compared(machine: Machine, op: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if not known(left, right):
            return UNKNOWN
        same = left == right if isinstance(left, (ClassRef, External)) else left is right
        return same == isinstance(op, ast.Is)
    if isinstance(op, (ast.In, ast.NotIn)):
        return _contained(machine, op, left, right)
    if not known(left, right) or isinstance(left, (External, Thing)) or isinstance(right, (External, Thing)):
        return UNKNOWN
    return plain.compare(machine, op, left, right)


def _contained(machine: Machine, op: ast.cmpop, left: Any, right: Any) -> Any:
    if right is None:
        raise Raised("TypeError", "argument of type 'NoneType' is not iterable")
    if isinstance(right, Config) and isinstance(left, str):
        return right.has(left) == isinstance(op, ast.In)
    if not isinstance(right, (list, tuple, dict, set, str, range)) or not known(left):
        return UNKNOWN
    found = plain.contains(machine, right, left)
    return UNKNOWN if found is UNKNOWN else found == isinstance(op, ast.In)


def _conditional(machine: Machine, node: ast.IfExp, frame: Frame) -> Any:
    held = truth(machine.value(node.test, frame))
    if held is not None:
        return machine.value(node.body if held else node.orelse, frame)
    one, two = machine.value(node.body, frame), machine.value(node.orelse, frame)
    if known(one, two) and type(one) is type(two) and plain.compare(machine, ast.Eq(), one, two) is True:
        return one
    return one if isinstance(one, Thing) and two is None else UNKNOWN


def _sequence(machine: Machine, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Any:
    items: list[Any] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            more = machine.value(element.value, frame)
            if not isinstance(more, (list, tuple, set, range)):
                return UNKNOWN
            machine.charge(len(more))
            items += more
        else:
            items.append(machine.value(element, frame))
    if isinstance(node, ast.Set):
        return set(items) if all(isinstance(item, (int, str)) for item in items) else UNKNOWN
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(machine: Machine, node: ast.Dict, frame: Frame) -> Any:
    made: dict[Any, Any] = {}
    for key_node, value_node in zip(node.keys, node.values):
        item = machine.value(value_node, frame)
        if key_node is None:
            if not isinstance(item, dict):
                return UNKNOWN
            machine.charge(len(item))
            made.update(item)
            continue
        key = machine.value(key_node, frame)
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
            (machine.value(node.key, scope), machine.value(node.value, scope))
            if pair
            else machine.value(node.elt, scope)
        )
        return True
    first, rest = generators[0], generators[1:]
    items = plain.iterable(machine, machine.value(first.iter, scope))
    if items is None:
        return False
    for item in items:
        execute.assign(machine, first.target, item, scope)
        held = [truth(machine.value(test, scope)) for test in first.ifs]
        if None in held:
            return False
        if all(held) and not _each(machine, node, rest, scope, rows):
            return False
    return True


def _text(machine: Machine, node: ast.JoinedStr, frame: Frame) -> Any:
    parts = []
    for part in node.values:
        inner = machine.value(part.value if isinstance(part, ast.FormattedValue) else part, frame)
        if not isinstance(inner, (str, int, float)):
            return UNKNOWN
        parts.append(inner)
    return plain.text_of(machine, parts)


def _lambda(machine: Machine, node: ast.Lambda, frame: Frame) -> Any:
    return Function(frame.module, node, closure=frame, owner=frame.owner)


def _walrus(machine: Machine, node: ast.NamedExpr, frame: Frame) -> Any:
    result = machine.value(node.value, frame)
    machine.set_name(frame, node.target.id, result)
    return result


_EXPRESSIONS: dict[type, Expression] = {
    ast.Call: calls.call,
    ast.Attribute: attributes.attribute,
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
