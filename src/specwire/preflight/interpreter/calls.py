"""Calls: builtins, methods of plain values, classes and functions of the tree, and layers.

A call of a layer moves the stream on by one boundary. A capture is an append to the container that
the model collects in, or that container handed to a layer, which then captures at its entry.
"""

from __future__ import annotations

import ast
from typing import Any

from specwire.preflight.interpreter import attributes, execute, plain
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.modules import MODELS
from specwire.preflight.interpreter.values import (
    QUIET,
    UNKNOWN,
    Builtin,
    ClassRef,
    Config,
    External,
    Frame,
    Function,
    LayerList,
    Method,
    Raised,
    Sink,
    Thing,
    truth,
)

# Functions that make a target's layers, by the names that `utils/common.py` has had for them in releases so far. Their own
# bodies ask for the pipeline group of a running engine, so what they come to is written down here.
_MAKE_LAYERS = {"make_layers", "make_pp_layers", "make_layers_non_pp"}
# The classes that newer releases collect captured states in, in the place of a list (`layers/aux_hidden_states.py`, from
# 0.5.20 on), and what puts one in: an append, a capture, or a slot that is written to.
_COLLECTOR = "AuxHiddenState"
_TAKE = ("append", "capture", "slot")


def call(machine: Machine, node: ast.Call, frame: Frame) -> Any:
    where = frame.module.where(node)
    try:
        function = machine.value(node.func, frame)
        args, kwargs = _arguments(machine, node, frame)
    except Raised as error:
        if _crashed_capture(machine, node, frame, error):
            return UNKNOWN
        raise
    if args is None:
        return UNKNOWN
    if machine.on_call is not None:
        handled = machine.on_call(machine, node, function, args, kwargs, frame)
        if handled is not None:
            return handled
    captured = _capture_at_entry(machine, kwargs)
    if _runs_layer(function):
        machine.position += 1
        return UNKNOWN
    return UNKNOWN if captured else _apply(machine, function, args, kwargs, where)


def _crashed_capture(machine: Machine, node: ast.Call, frame: Frame, error: Raised) -> bool:
    """An append whose value cannot be computed: the boundary is noted, and that the engine dies there."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in _TAKE):
        return False
    sink = machine.value(node.func.value, frame)
    if not isinstance(sink, Sink):
        return False
    machine.capture(sink)
    machine.crashes.append(f"{error.kind} at {error.where}: {error.detail}")
    return True


def _arguments(machine: Machine, node: ast.Call, frame: Frame) -> tuple[list[Any] | None, dict[str, Any]]:
    args: list[Any] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            more = machine.value(argument.value, frame)
            if not isinstance(more, (list, tuple)):
                return None, {}
            machine.charge(len(more))
            args += more
        else:
            args.append(machine.value(argument, frame))
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        given = machine.value(keyword.value, frame)
        if keyword.arg is not None:
            kwargs[keyword.arg] = given
        elif isinstance(given, dict):
            kwargs.update(given)
    return args, kwargs


def _runs_layer(function: Any) -> bool:
    """Whether a call of this runs one of the model's layers: the layer itself is called, or its forward."""
    if isinstance(function, Function):
        function = function.bound if getattr(function.node, "name", "") in ("forward", "__call__") else None
    return isinstance(function, Thing) and function.layer is not None


def _capture_at_entry(machine: Machine, named: dict[str, Any]) -> bool:
    """Capture once in each container that is handed on to be captured in; whether there was one.

    What it is handed on as is told by the argument's name: `captured_last_layer_outputs` of a layer that captures at its
    entry, `capture` or `capture_gathered` of the communicator and the final norm.
    """
    within = (_sink_in(machine, given) for name, given in named.items() if "capture" in name)
    sinks = dict.fromkeys(sink for sink in within if sink is not None)
    for sink in sinks:
        machine.capture(sink)
    return bool(sinks)


def _sink_in(machine: Machine, given: Any) -> Sink | None:
    """The container in an argument: itself, a method of it, or a local function that appends to it."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, Method) and isinstance(given.of, Sink):
        return given.of
    if isinstance(given, Function) and isinstance(given.closure, Frame):
        for name in machine.source.names_in(given.node):
            if isinstance(held := given.closure.names.get(name), Sink):
                return held
    return None


def _apply(machine: Machine, function: Any, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    if function is QUIET:
        return QUIET
    if isinstance(function, Builtin):
        return _builtin(machine, function.name, args, kwargs, where)
    if isinstance(function, Method):
        return _method(machine, function, args, kwargs, where)
    if isinstance(function, ClassRef):
        if function.name.startswith(_COLLECTOR):
            return Sink(_fixed_size(machine, function, args))
        return Thing(function, args, kwargs)
    if isinstance(function, Function):
        return _function(machine, function, args, kwargs)
    if isinstance(function, External):
        return _external(machine, function, args, kwargs, where)
    if function is None:
        raise Raised("TypeError", "None is not callable", where)
    return UNKNOWN


def _fixed_size(machine: Machine, cls: ClassRef, args: list[Any]) -> int | None:
    """How many captures the container insists on: its `finalize` raises otherwise."""
    found = machine.source.method(cls, "finalize")
    strict = found is not None and any(isinstance(node, ast.Raise) for node in ast.walk(found[1]))
    return next((given for given in args if isinstance(given, int)), None) if strict else None


def _function(machine: Machine, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = getattr(function.node, "name", "")
    if name in _MAKE_LAYERS:
        return _make_layers(machine, args, kwargs)
    if isinstance(function.bound, ClassRef) and function.bound.name.startswith(_COLLECTOR):
        return Sink(_fixed_size(machine, function.bound, args))
    # Helpers far from the models ask about devices, processes and batches: not followed. Methods are, wherever they stand,
    # for the models inherit them.
    if function.bound is None and not function.module.name.startswith(MODELS):
        _capture_at_entry(machine, dict(zip([argument.arg for argument in function.node.args.args], args)))
        return UNKNOWN
    return execute.call(machine, function, args, kwargs)


def _make_layers(machine: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    count = kwargs.get("num_hidden_layers", args[0] if args else UNKNOWN)
    make = kwargs.get("layer_fn", args[1] if len(args) > 1 else UNKNOWN)
    if not isinstance(count, int) or not 0 <= count <= plain.ITEMS:
        return UNKNOWN
    machine.charge(count)
    layers = LayerList()
    for index in range(count):
        made: Any = UNKNOWN
        if isinstance(make, Function):
            names = [argument.arg for argument in make.node.args.args]
            given = {"prefix": ""} if "prefix" in names else {}
            made = execute.call(
                machine, make, [] if "idx" in names else [index], given | ({"idx": index} if "idx" in names else {})
            )
        layers.append(made if isinstance(made, Thing) else Thing(External("layer")))
    return layers


def _external(machine: Machine, function: External, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    name = function.name.rpartition(".")[2]
    if name in _MAKE_LAYERS:
        return _make_layers(machine, args, kwargs)
    if name in ("ModuleList", "Sequential") and args and isinstance(args[0], list):
        return args[0]
    if function.name == "re.sub" and len(args) == 3 and all(isinstance(given, str) for given in args):
        return plain.substituted(machine, args[0], args[1], args[2], where)
    if name == "cast" and len(args) == 2:
        return args[1]
    if name == "deepcopy" and args:
        return Config(dict(args[0].data), args[0].defaults, args[0].never) if isinstance(args[0], Config) else args[0]
    if name[:1].isupper():
        return Thing(function, args, kwargs)
    return UNKNOWN


def _method(machine: Machine, function: Method, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    of, name = function.of, function.name
    if isinstance(of, Sink):
        if name in _TAKE:
            machine.capture(of)
        elif name == "finalize" and of.expected not in (None, of.count):
            raise Raised("RuntimeError", f"{of.count} of {of.expected} hidden states captured", where)
        return UNKNOWN
    if isinstance(of, Config):
        if name == "get" and args:
            return of.lookup(args[0], args[1] if len(args) > 1 else None)
        return dict(of.data) if name == "to_dict" else UNKNOWN
    return plain.call_method(machine, of, name, args, kwargs, where)


def _builtin(machine: Machine, name: str, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    if name == "getattr" and len(args) >= 2 and isinstance(args[1], str):
        return _getattr(machine, args, where)
    if name == "hasattr" and len(args) == 2 and isinstance(args[1], str):
        return attributes.has_attribute(machine, args[0], args[1])
    if name == "setattr" and len(args) == 3 and isinstance(args[1], str):
        execute.set_attribute(machine, args[0], args[1], args[2])
        return None
    if name == "isinstance" and len(args) == 2:
        return _isinstance(machine, args[0], args[1])
    if name == "bool" and args:
        held = truth(args[0])
        return UNKNOWN if held is None else held
    if name == "len" and args and isinstance(args[0], Sink):
        return args[0].count
    return plain.call_function(machine, name, args, kwargs, where)


def _getattr(machine: Machine, args: list[Any], where: str) -> Any:
    of, name = args[0], args[1]
    if isinstance(of, Config):
        return of.lookup(name, args[2] if len(args) > 2 else UNKNOWN)
    if len(args) > 2 and attributes.has_attribute(machine, of, name) is False:
        return args[2]
    # A layer that nothing was set on: the default, unless its own class says otherwise.
    if len(args) > 2 and isinstance(of, Thing) and isinstance(of.cls, External) and name not in of.attrs:
        return args[2] if of.layer is not None else UNKNOWN
    return attributes.get_attribute(machine, of, name, where)


def _isinstance(machine: Machine, of: Any, kinds: Any) -> Any:
    wanted = kinds if isinstance(kinds, (list, tuple)) else [kinds]
    plain = {"dict": dict, "list": list, "tuple": tuple, "str": str, "int": int, "set": set, "bool": bool}
    if isinstance(of, (dict, list, tuple, str, int, set)) or of is None:
        names = [kind.name for kind in wanted if isinstance(kind, Builtin)]
        return any(isinstance(of, plain[name]) for name in names if name in plain)
    if isinstance(of, Thing) and isinstance(of.cls, ClassRef):
        order = machine.source.mro(of.cls)
        if any(kind in order for kind in wanted if isinstance(kind, ClassRef)):
            return True
        return False if all(isinstance(kind, ClassRef) for kind in wanted) else UNKNOWN
    return UNKNOWN
