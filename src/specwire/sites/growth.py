"""Finds the statements after which a collection of captured states may have grown.

A *collection* is a name bound to an empty list or to one of the engine's containers. It *grows* where a
statement calls a growing method on it under a test that speaks of capturing, or where it (or that method) is
handed on under a keyword that speaks of capturing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.sites.source import (
    Function,
    Place,
    assigned,
    block,
    calls,
    descend,
    dotted,
    target_names,
    words,
)

_METHODS = ("append", "extend", "slot", "capture")


@dataclass(frozen=True, eq=False)
class Growth:
    """`collected` may have grown once `place` is done.

    `means` is the method called on it, or the keyword that it is handed on under; `test` decides whether it
    grows, where something does; `by_callee`: the callee does it, at its input; `several`: by many entries.
    """

    place: Place
    collected: str
    means: str
    test: cst.BaseExpression | None
    by_callee: bool = False
    several: bool = False


def growths(function: Function) -> Iterator[Growth]:
    """All, in file order; what stands in both branches of one choice counts once, after the choice."""
    collections, seen = _collections(function), set()
    for place in function.places:
        for node in (
            (place.statement,)
            if isinstance(place.statement, cst.SimpleStatementLine)
            else _short_suites(place.statement)
        ):
            for growth in _grown_by(place, node, collections):
                if (id(growth.place.statement), growth.collected) not in seen:
                    seen.add((id(growth.place.statement), growth.collected))
                    yield growth


def speaks(node: cst.CSTNode) -> bool:
    """Whether the node names capturing anywhere: in a name, an attribute, a keyword or a string."""
    return any("captur" in word for word in words(node))


def in_loop(place: Place) -> bool:
    return any(isinstance(parent, (cst.For, cst.While)) for parent in place.parents)


def branch_test(statement: cst.If, suite: tuple[cst.BaseStatement, ...]) -> cst.BaseExpression | None:
    """The test that leads to one suite of an `if … elif …`; None for its `else`."""
    part: cst.CSTNode | None = statement
    while isinstance(part, cst.If):
        if tuple(block(part.body)) == suite:
            return part.test
        part = part.orelse
    return None


def _grown_by(place: Place, node: cst.CSTNode, collections: set[str]) -> Iterator[Growth]:
    for call in calls(node):
        method = call.func
        if isinstance(method, cst.Attribute) and isinstance(method.value, cst.Name) and method.attr.value in _METHODS:
            whole, test = _choice(place)
            # Outside any loop, what grows without a test carries on what an earlier stage has captured.
            if method.value.value in collections and (test is not None or not in_loop(place)):
                yield Growth(whole, method.value.value, method.attr.value, test, several=method.attr.value == "extend")
        for argument in call.args:
            if argument.keyword is not None and "captur" in argument.keyword.value:
                collected, test = _resolved(place.function, argument.value, None, collections)
                if collected:
                    yield Growth(place, collected, argument.keyword.value, test, by_callee=True)


def _collections(function: Function) -> set[str]:
    """Names bound to an empty list or a container of the engine's, or grown by a method somewhere."""
    made = (
        name
        for place in function.places
        for targets, value in assigned(place.statement)
        if _makes_collection(value)
        for name in target_names(targets)
    )
    grown = (
        part.value.value
        for part in descend(function.node)
        if isinstance(part, cst.Attribute) and part.attr.value in _METHODS and isinstance(part.value, cst.Name)
    )
    return {*made, *grown}


def _makes_collection(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.IfExp):
        return _makes_collection(value.body) or _makes_collection(value.orelse)
    if isinstance(value, cst.List):
        return not value.elements
    return isinstance(value, cst.Call) and any(word.startswith("Aux") for word in (dotted(value.func) or "").split("."))


def _resolved(
    function: Function, value: cst.BaseExpression, test: cst.BaseExpression | None, collections: set[str]
) -> tuple[str | None, cst.BaseExpression | None]:
    """The collection behind `X`, `X.capture`, `… if TEST else None` or a local that holds one; and TEST."""
    if isinstance(value, cst.IfExp):
        return _resolved(function, value.body, value.test, collections)
    if isinstance(value, cst.Attribute) and value.attr.value in _METHODS:
        return dotted(value.value), test
    if not isinstance(value, cst.Name):
        return None, None
    if value.value in collections:
        return value.value, test
    for place in function.places:
        if isinstance(place.statement, cst.FunctionDef) and place.statement.name.value == value.value:
            for call in calls(place.statement):
                if isinstance(call.func, cst.Attribute) and call.func.attr.value in _METHODS:
                    return dotted(call.func.value), test
        for targets, made in assigned(place.statement):
            if target_names(targets) == [value.value] and isinstance(made, (cst.IfExp, cst.Attribute)):
                return _resolved(function, made, test, collections)
            if target_names(targets) == [value.value] and isinstance(made, cst.Call) and test is not None:
                return value.value, test  # some container of a kind not known here
    return None, None


def _choice(place: Place) -> tuple[Place, cst.BaseExpression | None]:
    """The outermost `if` around the place, in its innermost loop, that decides on capturing; and its test.

    The place itself and None where nothing decides.
    """
    chain = (*place.parents, place.statement)
    loops = [depth for depth, parent in enumerate(place.parents) if isinstance(parent, (cst.For, cst.While))]
    for depth in range(loops[-1] + 1 if loops else 0, len(chain)):
        parent = chain[depth]
        if isinstance(parent, cst.If):
            test = parent.test if parent is place.statement else branch_test(parent, place.suites[depth + 1])
            if test is not None and speaks(test):
                if test is not parent.test:
                    return (
                        place,
                        test,
                    )  # an `elif`: after the whole choice it would be seen with its other branches
                return Place(place.function, parent, place.suites[: depth + 1], place.parents[:depth]), test
    return place, None


def _short_suites(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Suites that stand on their header's own line."""
    for part in (statement, getattr(statement, "orelse", None)):
        if isinstance(suite := getattr(part, "body", None), cst.SimpleStatementSuite):
            yield suite
