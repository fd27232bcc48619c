"""Names and attributes: of modules, of instances of the tree's classes, of classes, of configs and plain values."""

from __future__ import annotations

import ast
from typing import Any

from specwire.preflight.interpreter import execute, plain
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.values import (
    QUIET,
    UNKNOWN,
    Builtin,
    ClassRef,
    Config,
    External,
    Frame,
    Function,
    Method,
    Raised,
    Sink,
    Thing,
)

# Properties of a pipeline group, of whatever object: one engine process per pipeline stage reads these, and with one
# stage, which is what is read here, both hold. Nothing else in SGLang's models has these names.
_ALWAYS = {"is_last_rank": True, "is_first_rank": True}


def module_name(machine: Machine, module: Module, name: str) -> Any:
    """What a name stands for where no function binds it."""
    found = machine.source.resolve(module, name)
    if found is None:
        return Builtin(name) if name in plain.BUILTINS else UNKNOWN
    if isinstance(found, (ast.Assign, ast.AnnAssign)):
        if machine.depth > 20:
            return UNKNOWN
        with machine.deeper():
            return machine.value(found.value, Frame(module, {}))
    return found


def attribute(machine: Machine, node: ast.Attribute, frame: Frame) -> Any:
    if node.attr in _ALWAYS:
        return _ALWAYS[node.attr]
    if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super":
        return _super(machine, node.attr, frame)
    return get_attribute(machine, machine.value(node.value, frame), node.attr, frame.module.where(node))


def _super(machine: Machine, name: str, frame: Frame) -> Any:
    if isinstance(frame.this, Thing) and isinstance(frame.this.cls, ClassRef) and frame.owner is not None:
        found = machine.source.attribute(frame.this.cls, name, after=frame.owner)
        if found and isinstance(found[1], ast.FunctionDef):
            return Function(found[0].module, found[1], bound=frame.this, owner=found[0])
    return UNKNOWN


def get_attribute(machine: Machine, of: Any, name: str, where: str = "") -> Any:
    """`of.name`. None has no attributes; what an unknown has is unknown."""
    if of is QUIET:
        return QUIET
    if isinstance(of, Thing):
        return _of_thing(machine, of, name)
    if isinstance(of, Config):
        found = of.lookup(name, UNKNOWN)
        if found is UNKNOWN and name in of.never:
            raise Raised("AttributeError", f"the config has no {name!r}", where)
        return Method(of, name) if found is UNKNOWN and name in ("get", "to_dict", "update") else found
    if isinstance(of, Module):
        return module_name(machine, of, name)
    if isinstance(of, External):
        return External(f"{of.name}.{name}")
    if isinstance(of, ClassRef):
        return _of_class(machine, of, name, bound=None)
    if of is None:
        raise Raised("AttributeError", f"None has no attribute {name!r}", where)
    if isinstance(of, (Sink, str, list, tuple, dict, set)):
        return Method(of, name)
    return UNKNOWN


def _of_thing(machine: Machine, of: Thing, name: str) -> Any:
    if name in of.attrs:
        return of.attrs[name]
    if isinstance(of.cls, External):
        return UNKNOWN
    if machine.source.may_set(of.cls, name):
        execute.build(machine, of)
    if name in of.attrs:
        return of.attrs[name]
    if name == "__class__":
        return of.cls
    return _of_class(machine, of.cls, name, bound=of)


def _of_class(machine: Machine, cls: ClassRef, name: str, bound: Thing | None) -> Any:
    if name == "__name__":
        return cls.name
    found = machine.source.attribute(cls, name)
    if found is None:
        return UNKNOWN
    ref, node = found
    if isinstance(node, ast.FunctionDef):
        decorators = {machine.source.text(decorator).rpartition(".")[2] for decorator in node.decorator_list}
        if "staticmethod" in decorators:
            return Function(ref.module, node)
        function = Function(ref.module, node, bound=cls if "classmethod" in decorators else bound, owner=ref)
        if bound is not None and decorators & {"property", "cached_property"}:
            return execute.call(machine, function, [], {})
        return function
    if isinstance(node, ast.ClassDef):
        return ClassRef(ref.module, node)
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return UNKNOWN  # what an `if` or an import in the class binds is not followed
    return machine.value(node.value, Frame(ref.module, {}))


def has_attribute(machine: Machine, of: Any, name: str) -> Any:
    if isinstance(of, Thing) and isinstance(of.cls, ClassRef):
        if name not in of.attrs and machine.source.may_set(of.cls, name):
            execute.build(machine, of)
        return name in of.attrs or machine.source.attribute(of.cls, name) is not None
    if isinstance(of, Config):
        return of.has(name)
    if isinstance(of, (dict, list, tuple, str, int, float)) or of is None:
        return hasattr(of, name)
    return UNKNOWN
