"""Statements: running a function's body, following both ways where a test is not known."""

from __future__ import annotations

import ast
import copy
from typing import Any

from specwire.preflight.interpreter import plain
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    ClassRef,
    Config,
    Frame,
    Function,
    LayerList,
    NotUnderstood,
    Raised,
    Sink,
    Thing,
    truth,
)

# How a block ended: ran through, left the function, left or continued the loop.
RAN, RETURNED, BROKE, CONTINUED, RAISED = "ran", "returned", "broke", "continued", "raised"


def call(machine: Machine, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function of the tree. An argument that is not given and has no default is UNKNOWN."""
    frame = Frame(function.module, {}, function.closure, function.owner, function.bound)
    if function.bound is not None:
        args = [function.bound, *args]
    machine.charge(len(args) + len(kwargs))
    _bind(machine, function, args, dict(kwargs), frame)
    with machine.deeper():
        if isinstance(function.node, ast.Lambda):
            return machine.value(function.node.body, frame)
        how, result = block(machine, function.node.body, frame)
    return result if how == RETURNED else None


def _bind(machine: Machine, function: Function, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> None:
    spec = function.node.args
    names = [argument.arg for argument in [*spec.posonlyargs, *spec.args]]
    scope = Frame(function.module, {}, function.closure, function.owner)
    defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults))
    defaults |= {
        argument.arg: default for argument, default in zip(spec.kwonlyargs, spec.kw_defaults) if default is not None
    }
    for name, given in zip(names, args):
        frame.names[name] = given
    if spec.vararg:
        frame.names[spec.vararg.arg] = tuple(args[len(names) :])
    for name in [*names, *(argument.arg for argument in spec.kwonlyargs)]:
        if name in kwargs:
            frame.names[name] = kwargs.pop(name)
        elif name not in frame.names:
            frame.names[name] = machine.value(defaults[name], scope) if name in defaults else UNKNOWN
    if spec.kwarg:
        frame.names[spec.kwarg.arg] = kwargs


def build(machine: Machine, thing: Thing) -> None:
    """Run a thing's `__init__` once, when it is first looked into. Not part of any branch."""
    if thing.built or not isinstance(thing.cls, ClassRef):
        return
    thing.built = True
    found = machine.source.method(thing.cls, "__init__")
    if found is None:
        return
    ref, node = found
    undo, written, here = machine.undo, len(machine.written), machine.here
    machine.undo = []
    machine.building += 1
    try:
        call(machine, Function(ref.module, node, bound=thing, owner=ref), thing.args, thing.kwargs)
    except Raised as error:
        machine.broken.append(f"{thing.class_name} would not build: {error} at {error.where}")
    finally:
        machine.building -= 1
        machine.undo, machine.here = undo, here
        del machine.written[written:]


def block(machine: Machine, body: list[ast.stmt], frame: Frame) -> tuple[str, Any]:
    for node in body:
        how, result = statement(machine, node, frame)
        if how != RAN:
            return how, result
    return RAN, None


def statement(machine: Machine, node: ast.stmt, frame: Frame) -> tuple[str, Any]:
    """Run one statement. Kinds that are not named here, such as assert and while, are passed over."""
    machine.tick(node, frame.module)
    machine.here = frame.module.where(node)
    if isinstance(node, ast.Expr):
        machine.value(node.value, frame)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        _assignment(machine, node, frame)
    elif isinstance(node, ast.AugAssign):
        binary = ast.copy_location(ast.BinOp(_as_load(node.target), node.op, node.value), node)
        assign(machine, node.target, machine.value(binary, frame), frame)
    elif isinstance(node, ast.If):
        return _if(machine, node, frame)
    elif isinstance(node, ast.For):
        return _for(machine, node, frame)
    elif isinstance(node, ast.With):
        return block(machine, node.body, frame)
    elif isinstance(node, ast.Try):
        return _try(machine, node, frame)
    elif isinstance(node, ast.Return):
        return RETURNED, machine.value(node.value, frame)
    elif isinstance(node, ast.Raise):
        text = machine.source.text(node.exc) if node.exc else "Exception"
        raise Raised(text.partition("(")[0][:80], text[:160] if node.exc else "", frame.module.where(node))
    elif isinstance(node, ast.Break):
        return BROKE, None
    elif isinstance(node, ast.Continue):
        return CONTINUED, None
    elif isinstance(node, ast.FunctionDef):
        machine.set_name(frame, node.name, Function(frame.module, node, closure=frame, owner=frame.owner))
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            found = machine.source.imported(frame.module, node, alias.name)
            if isinstance(found, (ast.Assign, ast.AnnAssign)):
                found = UNKNOWN
            machine.set_name(frame, alias.asname or alias.name, found)
    return RAN, None


def _as_load(target: ast.expr) -> ast.expr:
    """The target of `target += value` as an expression that reads it."""
    copied: Any = copy.copy(target)
    copied.ctx = ast.Load()
    loaded: ast.expr = copied
    return loaded


def _assignment(machine: Machine, node: ast.Assign | ast.AnnAssign, frame: Frame) -> None:
    if node.value is None:
        return
    given = machine.value(node.value, frame)
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        # A list that a forward pass collects captured states in is told apart by its name: every release so far calls
        # it `aux_hidden_states` (or `dspark_aux_hidden_states`), and no other empty list of a forward has `aux` in its.
        if given == [] and isinstance(given, list) and isinstance(target, ast.Name) and "aux" in target.id:
            given = Sink()
        assign(machine, target, given, frame)


def assign(machine: Machine, target: ast.expr, given: Any, frame: Frame) -> None:
    if isinstance(target, ast.Name):
        machine.set_name(frame, target.id, given)
    elif isinstance(target, ast.Attribute):
        set_attribute(machine, machine.value(target.value, frame), target.attr, given)
    elif isinstance(target, ast.Subscript):
        of, index = machine.value(target.value, frame), machine.value(target.slice, frame)
        if isinstance(of, dict) and isinstance(index, (str, int)):
            of[index] = given
    elif isinstance(target, ast.Starred):
        assign(machine, target.value, UNKNOWN, frame)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part, item in zip(target.elts, _unpacked(given, len(target.elts))):
            assign(machine, part, item, frame)


def _unpacked(given: Any, count: int) -> list[Any]:
    if isinstance(given, LayerList) and count == 3:
        return [given, 0, len(given)]
    if isinstance(given, (list, tuple)) and len(given) == count:
        return list(given)
    return [UNKNOWN] * count


def set_attribute(machine: Machine, of: Any, name: str, given: Any) -> None:
    if isinstance(of, Thing):
        if isinstance(of.cls, ClassRef):
            build(machine, of)
        machine.set_attr(of, name, given)
        # Each target keeps its layers under this name; calling one of them is what moves the stream on.
        if name == "layers" and isinstance(given, list):
            machine.charge(len(given))
            for index, layer in enumerate(given):
                if isinstance(layer, Thing):
                    layer.layer = index
    elif isinstance(of, Config):
        of.data[name] = given


def _if(machine: Machine, node: ast.If, frame: Frame) -> tuple[str, Any]:
    held = truth(machine.value(node.test, frame))
    if held is not None:
        return block(machine, node.body if held else node.orelse, frame)

    def run(body: list[ast.stmt]) -> tuple[str, Any]:
        try:
            return block(machine, body, frame)
        except Raised as error:
            return RAISED, error

    first, second = machine.trial(lambda: run(node.body)), machine.trial(lambda: run(node.orelse))
    test = f"`{machine.source.text(node.test)[:60]}` at {frame.module.where(node)}"
    # A guard that raises or leaves early is for cases that are not ours: the way on is taken.
    for one, other, word in ((first, second, "not "), (second, first, "")):
        if one.outcome[0] != RAN and other.outcome[0] == RAN:
            if one.captures != other.captures or (one.outcome[0] == RETURNED and machine.depth == 1):
                machine.assume(f"{word}{test}")
            machine.merge(other, other, other)
            return other.outcome
    if first.outcome[0] == RAISED and second.outcome[0] == RAISED:
        raise first.outcome[1]
    chosen = first if len(first.captures) > len(second.captures) else second
    if first.captures != second.captures:
        if len(first.captures) == len(second.captures):
            raise NotUnderstood(f"what is captured depends on {test}")
        machine.assume(test if chosen is first else f"not {test}")
        machine.merge(chosen, chosen, chosen)
        return chosen.outcome
    machine.merge(first, second, first if first.position >= second.position else second)
    how = first.outcome[0]
    one, other = first.outcome[1], second.outcome[1]
    same = one is other or plain.compare(machine, ast.Eq(), one, other) is True
    return how, one if same else UNKNOWN


def _for(machine: Machine, node: ast.For, frame: Frame) -> tuple[str, Any]:
    items = plain.iterable(machine, machine.value(node.iter, frame))
    if items is None:
        return RAN, None
    for item in items:
        assign(machine, node.target, item, frame)
        how, result = block(machine, node.body, frame)
        if how == BROKE:
            return RAN, None
        if how == RETURNED:
            return how, result
    return block(machine, node.orelse, frame)


def _try(machine: Machine, node: ast.Try, frame: Frame) -> tuple[str, Any]:
    try:
        how, result = block(machine, node.body, frame)
    except Raised as error:
        for handler in node.handlers:
            names = machine.source.text(handler.type) if handler.type else "Exception"
            if "Exception" in names or error.kind in names:
                return block(machine, handler.body, frame)
        raise
    if how == RAN:
        how, result = block(machine, node.orelse, frame)
    if node.finalbody:
        block(machine, node.finalbody, frame)
    return how, result
