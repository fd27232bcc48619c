"""One source file as LibCST sees it: walked by statement, cut into functions, and rewritten by whole lines.

Positions are never used. A place is a statement node, and lines are inserted before or after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

Statement = cst.BaseStatement

# Fields that hold layout, not meaning: never descended into.
_LAYOUT = frozenset(
    "leading_lines lines_after_decorators lines_after_module_docstring header footer indent lpar rpar comma "
    "semicolon equal trailing_whitespace colon dot lbracket rbracket".split()
)


@dataclass(frozen=True)
class Function:
    """A function or method, with what encloses it."""

    node: cst.FunctionDef
    qualname: str
    owner: cst.ClassDef | None

    @property
    def body(self) -> Sequence[Statement]:
        return _block(self.node.body)

    @cached_property
    def parameters(self) -> frozenset[str]:
        given = self.node.params
        each = [*given.posonly_params, *given.params, *given.kwonly_params]
        each += [extra for extra in (given.star_arg, given.star_kwarg) if isinstance(extra, cst.Param)]
        return frozenset(parameter.name.value for parameter in each)


@dataclass(frozen=True)
class Place:
    """A statement inside a function, with the suites that lead to it, outermost first."""

    function: Function
    statement: Statement
    suites: tuple[tuple[Statement, ...], ...]
    parents: tuple[Statement, ...]


class Source:
    """`name` relative to the tree's root, and its bytes as they would be without any tap."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data

    @cached_property
    def module(self) -> cst.Module:
        """Raises cst.ParserSyntaxError when the file does not parse."""
        return cst.parse_module(self.data)

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods outside other functions, in file order."""
        return list(_functions(self.module.body, "", None))

    @cached_property
    def imported(self) -> frozenset[str]:
        """Names that the module's own import statements bind, at any depth outside functions."""
        return frozenset(_imported(self.module.body))

    def text(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)


def places(function: Function) -> Iterator[Place]:
    """Every statement of the function that stands on lines of its own, outer before inner."""
    yield from _places(function, tuple(function.body), (), ())


def suites(statement: cst.CSTNode) -> Iterator[tuple[Statement, ...]]:
    """The indented blocks directly below a compound statement; those of an `elif` count as its `if`'s."""
    for part in _parts(statement):
        block = getattr(part, "body", None)
        if isinstance(block, cst.IndentedBlock):
            yield tuple(block.body)
        if isinstance(part, cst.If) and part.orelse is not None:
            yield from suites(part.orelse) if isinstance(part.orelse, cst.If) else suites(part.orelse)


def descend(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything below it that has meaning, depth first, in source order."""
    yield node
    for field in _fields(type(node)):
        value = getattr(node, field)
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, cst.CSTNode):
                yield from descend(part)


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` for a chain of names, None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr.value}"
    return None


def calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (part for part in descend(node) if isinstance(part, cst.Call))


def names(node: cst.CSTNode) -> set[str]:
    """Plain names read or written anywhere in the node (attribute names do not count)."""
    attributes = {part.attr for part in descend(node) if isinstance(part, cst.Attribute)}
    keywords = {part.keyword for part in descend(node) if isinstance(part, cst.Arg) and part.keyword}
    return {
        part.value
        for part in descend(node)
        if isinstance(part, cst.Name) and part not in attributes and part not in keywords
    }


def assigned(statement: Statement) -> Iterator[tuple[list[cst.BaseExpression], cst.BaseExpression]]:
    """(targets, value) of each assignment that a simple statement line makes."""
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Assign):
                yield [target.target for target in small.targets], small.value
            elif isinstance(small, cst.AnnAssign) and small.value is not None:
                yield [small.target], small.value


def target_names(targets: Sequence[cst.BaseExpression]) -> list[str]:
    """The plain names that assignment targets bind, tuples unpacked."""
    found: list[str] = []
    for target in targets:
        if isinstance(target, cst.Name):
            found.append(target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            found += target_names([element.value for element in target.elements])
    return found


def bound_before(place: Place, name: str) -> bool:
    """Whether `name` is surely bound when control reaches the place: a parameter, or assigned on every way there."""
    if name in place.function.parameters:
        return True
    for suite, inside in zip(place.suites, (*place.parents, place.statement), strict=True):
        for statement in suite:
            if statement is inside:
                break
            if _binds(statement, name):
                return True
    loops = [parent for parent in place.parents if isinstance(parent, cst.For)]
    return any(name in target_names([loop.target]) for loop in loops)


def readable(place: Place, where: str, name: str) -> bool:
    """Whether a line `before` or `after` the place can read `name` without any way to a NameError.

    Sure are: parameters, what every way there binds, and what the statement itself reads at once.
    """
    if where == "after" and bound_after(place, name):
        return True
    return bound_before(place, name) or name in names(_head(place.statement))


def _head(statement: cst.CSTNode) -> cst.CSTNode:
    """The part of a statement that is evaluated whatever happens: of an `if`, its test."""
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], (cst.Assign, cst.AnnAssign)):
        return statement.body[0].value
    for field in ("test", "iter"):
        if hasattr(statement, field):
            return getattr(statement, field)
    return statement if isinstance(statement, cst.SimpleStatementLine) else cst.Pass()


def bound_after(place: Place, name: str) -> bool:
    """The same, once the statement at the place is done."""
    return _binds(place.statement, name) or bound_before(place, name)


def _binds(statement: cst.CSTNode, name: str) -> bool:
    if any(name in target_names(targets) for targets, _ in assigned(statement)):
        return True
    if isinstance(statement, cst.With):
        return any(_binds(inner, name) for inner in _block(statement.body))
    if isinstance(statement, cst.If):
        return statement.orelse is not None and all(
            _ends(suite) or any(_binds(inner, name) for inner in suite) for suite in _branches(statement)
        )
    if isinstance(statement, cst.FunctionDef):
        return statement.name.value == name
    return False


def _branches(statement: cst.If) -> Iterator[tuple[Statement, ...]]:
    yield tuple(_block(statement.body))
    if isinstance(statement.orelse, cst.If):
        yield from _branches(statement.orelse)
        if statement.orelse.orelse is None:
            yield ()  # no branch taken at all
    elif statement.orelse is not None:
        yield tuple(_block(statement.orelse.body))


def _ends(suite: Sequence[Statement]) -> bool:
    """Whether control surely leaves the function (or loop) at the end of the suite."""
    last = suite[-1] if suite else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(
        last.body[-1], (cst.Return, cst.Raise, cst.Continue, cst.Break)
    )


def _block(body: cst.CSTNode) -> Sequence[Statement]:
    return body.body if isinstance(body, cst.IndentedBlock) else ()


def _parts(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A compound statement and its own clauses: `else`, `except`, `finally`, `case`."""
    yield statement
    for field in ("orelse", "finalbody"):
        clause = getattr(statement, field, None)
        if clause is not None and not isinstance(statement, cst.If):
            yield clause
    yield from getattr(statement, "handlers", ())
    yield from getattr(statement, "cases", ())


def _places(function, suite, outer_suites, parents) -> Iterator[Place]:
    for statement in suite:
        yield Place(function, statement, (*outer_suites, suite), parents)
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            for inner in suites(statement):
                yield from _places(function, inner, (*outer_suites, suite), (*parents, statement))


def _functions(suite, prefix, owner) -> Iterator[Function]:
    for statement in suite:
        if isinstance(statement, cst.FunctionDef):
            yield Function(statement, prefix + statement.name.value, owner)
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(_block(statement.body), f"{prefix}{statement.name.value}.", statement)
        else:
            for inner in suites(statement):
                yield from _functions(inner, prefix, owner)


def _imported(suite) -> Iterator[str]:
    for statement in suite:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
                    for alias in small.names:
                        yield alias.evaluated_alias or alias.evaluated_name.split(".")[0]
        else:
            for inner in suites(statement):
                yield from _imported(inner)


_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(
            field for field in kind.__dataclass_fields__ if field not in _LAYOUT and not field.startswith("whitespace")
        )
    return _FIELDS[kind]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
