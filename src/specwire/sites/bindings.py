"""What a name is bound to where a tap would stand: a tap may only read what is surely bound there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from specwire.sites.source import (
    Function,
    Place,
    Suite,
    assigned,
    block,
    descend,
    dotted,
    names,
    target_names,
)


def bound_before(place: Place, name: str) -> bool:
    """Whether `name` is surely bound at the place: a parameter, or assigned on every way there."""
    bound = name in place.function.parameters
    for suite, inside in zip(place.suites, (*place.parents, place.statement), strict=True):
        for statement in suite:
            if statement is inside:
                break
            if _unbinds(place.function, statement, name):
                bound = False
            bound = _binds(statement, name) or bound
        if isinstance(inside, (cst.For, cst.While)) and inside is not place.statement:
            if _unbinds(place.function, inside, name):  # the turn before may have deleted it
                bound = False
            if isinstance(inside, cst.For) and name in target_names([inside.target]):
                bound = True
    return bound


def bound_after(place: Place, name: str) -> bool:
    """The same, once the statement at the place is done."""
    if _unbinds(place.function, place.statement, name) and not _binds(place.statement, name):
        return False
    return _binds(place.statement, name) or bound_before(place, name)


def readable(place: Place, where: str, name: str) -> bool:
    """Whether a line `before` or `after` the place can read `name` without any way to a NameError.

    Sure are: parameters, what every way there binds, and what the statement itself reads at once.
    """
    if where == "after" and _unbinds(place.function, place.statement, name):
        return bound_after(place, name)
    bound = bound_after(place, name) if where == "after" else bound_before(place, name)
    return bound or name in _surely_read(_head(place.statement))


def reading(place: Place, where: str, name: str) -> str | None:
    """How a tap there can read `name`: as it is, or under the condition that binds it; None: not surely."""
    if readable(place, where, name):
        return name
    guards = (guard for guard in _guards(place, name) if readable(place, where, guard))
    guard = next(guards, None)
    return f"{name} if {guard} else None" if guard else None


def unreadable(place: Place, where: str, expression: cst.BaseExpression) -> set[str]:
    """The names in a tap's argument that may not be bound where it would stand."""
    if (
        isinstance(expression, cst.IfExp)
        and isinstance(expression.test, cst.Name)
        and isinstance(expression.body, cst.Name)
    ):
        name = expression.body.value
        if reading(place, where, name) == f"{name} if {expression.test.value} else None":
            return set()
    return {name for name in names(expression) - {"None"} if not readable(place, where, name)}


def sources_of(function: Function, name: str) -> set[str]:
    """`name` and every name that some assignment of the function makes it from, at any remove."""
    found, waiting = set(), {name}
    makers = [
        (target_names(targets), names(value))
        for place in function.places
        for targets, value in assigned(place.statement)
    ]
    while waiting:
        one = waiting.pop()
        found.add(one)
        for targets, value in makers:
            if one in targets:
                waiting |= value - found
    return found


def made_from(function: Function, seeds: set[str], within: cst.CSTNode | None = None) -> set[str]:
    """`seeds` and every name that an assignment (below `within`, if given) makes from one, at any remove."""
    found = set(seeds)
    inside = [place for place in function.places if within is None or within in place.parents]
    growing = True
    while growing:
        growing = False
        for place in inside:
            for targets, value in assigned(place.statement):
                new = set(target_names(targets)) - found
                if new and names(value) & found:
                    found |= new
                    growing = True
    return found


def _guards(place: Place, name: str) -> Iterator[str]:
    """Plain names, not bound anew since, under whose truth an earlier statement binds `name`."""
    for suite, inside in zip(place.suites, (*place.parents, place.statement), strict=True):
        for index, statement in enumerate(suite):
            if statement is inside:
                break
            if (
                isinstance(statement, cst.If)
                and isinstance(statement.test, cst.Name)
                and _binds_any(block(statement.body), name)
            ):
                guard = statement.test.value
                if not any(_touches(later, guard) or _touches(later, name) for later in suite[index + 1 :]):
                    yield guard


def _touches(statement: cst.CSTNode, name: str) -> bool:
    """Whether anything at or below the statement assigns or deletes `name`."""
    for part in descend(statement):
        if isinstance(part, cst.Del) and name in names(part):
            return True
        if isinstance(part, cst.SimpleStatementLine) and any(
            name in target_names(targets) for targets, _ in assigned(part)
        ):
            return True
    return False


def _unbinds(function: Function, statement: cst.CSTNode, name: str) -> bool:
    return b"del " in function.bytes and any(
        isinstance(part, cst.Del) and name in names(part) for part in descend(statement)
    )


def _binds(statement: cst.CSTNode, name: str) -> bool:
    if any(name in target_names(targets) for targets, _ in assigned(statement)):
        return True
    if isinstance(statement, cst.With):
        quiet = any("suppress" in (dotted(part) or "") for item in statement.items for part in descend(item.item))
        return not quiet and _binds_any(block(statement.body), name)
    if isinstance(statement, cst.If):
        return statement.orelse is not None and all(
            _ends(suite) or _binds_any(suite, name) for suite in _branches(statement)
        )
    if isinstance(statement, cst.FunctionDef):
        return statement.name.value == name
    return False


def _binds_any(suite: Sequence[cst.BaseStatement], name: str) -> bool:
    return any(_binds(statement, name) for statement in suite)


def _branches(statement: cst.If) -> Iterator[Suite]:
    yield tuple(block(statement.body))
    if isinstance(statement.orelse, cst.If):
        yield from _branches(statement.orelse)
        if statement.orelse.orelse is None:
            yield ()  # no branch taken at all
    elif statement.orelse is not None:
        yield tuple(block(statement.orelse.body))


def _ends(suite: Suite) -> bool:
    """Whether control surely leaves the function (or loop) at the end of the suite."""
    last = suite[-1] if suite else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(
        last.body[-1], (cst.Return, cst.Raise, cst.Continue, cst.Break)
    )


def _head(statement: cst.CSTNode) -> cst.CSTNode:
    """The part of a statement that is evaluated whatever happens: of an `if`, its test."""
    if isinstance(statement, (cst.If, cst.While)):
        return statement.test
    if isinstance(statement, cst.For):
        return statement.iter
    if not isinstance(statement, cst.SimpleStatementLine):
        return cst.Pass()
    first = statement.body[0]
    return first.value or cst.Pass() if isinstance(first, (cst.Assign, cst.AnnAssign)) else statement


def _surely_read(expression: cst.CSTNode) -> set[str]:
    """Names that evaluating it reads whatever the values: not the far sides of `and`, `or` and `if`."""
    if isinstance(expression, cst.IfExp):
        return _surely_read(expression.test)
    if isinstance(expression, cst.BooleanOperation):
        return _surely_read(expression.left)
    if isinstance(expression, (cst.Lambda, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)):
        return set()
    if isinstance(expression, cst.Name):
        return {expression.value}
    if isinstance(expression, cst.Attribute):
        return _surely_read(expression.value)
    if isinstance(expression, cst.Arg):
        return _surely_read(expression.value)
    if isinstance(expression, cst.Comparison):
        return _surely_read(expression.left) | _surely_read(expression.comparisons[0].comparator)
    return {name for part in expression.children for name in _surely_read(part)}
