"""Classes whose bodies mean more than attributes: what one binds in it is a field that others pass, copy and show."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from specwire.strip.binds import FUNCTIONS, set_by

# Bases that take nothing from the body of a class.
_PLAIN = frozenset("object Module ABC Protocol Generic Exception RuntimeError ValueError".split())
# A class with one of these sees each attribute that is set or asked for.
_WATCHING = frozenset("__setattr__ __getattribute__ __getattr__ __delattr__ __init_subclass__".split())
WATCHING = re.compile(rb"def __(?:" + "|".join(name[2:] for name in sorted(_WATCHING)).encode() + rb")\b")


@dataclass(frozen=True)
class Fields:
    """`statements`: ids of statements in such bodies that bind something, with the reason why they are to stay.

    `names`: the names that they bind, with the class.
    """

    statements: dict[int, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def fields(tree: ast.Module, plain_elsewhere: Callable[[str], bool]) -> Fields:
    found = Fields()
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef) or (why := special(owner, classes, plain_elsewhere)) is None:
            continue
        for statement in _body(owner.body):
            names = [name for node in ast.walk(statement) for name in set_by(node)]
            if names:
                found.statements[id(statement)] = f"belongs to the class {owner.name}, which {why}"
                found.names.update((name.lstrip("."), owner.name) for name in names)
    return found


def watches(owner: ast.ClassDef) -> bool:
    """Whether a class sees each attribute that is set on its objects, or asked for."""
    return any(isinstance(node, FUNCTIONS) and node.name in _WATCHING for node in owner.body)


def special(
    owner: ast.ClassDef,
    classes: dict[str, ast.ClassDef],
    plain_elsewhere: Callable[[str], bool],
    seen: frozenset[str] = frozenset(),
) -> str | None:
    """Why the body of a class may mean more than attributes; None for a plain class."""
    if owner.decorator_list:
        return f"is decorated with {_last(owner.decorator_list[0])}"
    if owner.keywords:
        return "has a metaclass or takes part in one"
    for base in owner.bases:
        name = _last(base)
        if name in _PLAIN or name in seen:
            continue
        if name in classes and name != owner.name:
            if special(classes[name], classes, plain_elsewhere, seen | {owner.name}) is None:
                continue
        elif plain_elsewhere(name):
            continue
        return f"builds on {name}"
    return "sees each attribute that is set" if watches(owner) else None


def _body(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run in the class's own scope."""
    for node in block:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        yield node
        for name in ("body", "orelse", "finalbody"):
            yield from _body(getattr(node, name, []))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _body(part.body)


def _last(node: ast.expr) -> str:
    """The last name of `dataclasses.dataclass(frozen=True)` or `Generic[T]`."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "something")
