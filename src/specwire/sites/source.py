"""One source file: which functions it has, the lines they stand on, and each as LibCST sees it.

`ast` reads the whole file: it is ten times quicker and knows every line. LibCST reads only the functions that
a matcher asks about. A place is a statement; taps are whole lines before or after it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from specwire.syntax import first_line, last_line

Statement = cst.BaseStatement
Suite = tuple[Statement, ...]

# Fields that hold layout, not meaning: never descended into.
_LAYOUT = frozenset(
    "leading_lines lines_after_decorators lines_after_module_docstring header footer indent lpar rpar comma "
    "semicolon equal trailing_whitespace colon dot lbracket rbracket".split()
)

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # of a parser: no Python, or nested too deeply


class Source:
    """`name` relative to the tree's root, and its bytes as they are without any tap.

    `read` gives the bytes of another file of the tree by name; None, or OSError, where there is none.
    """

    def __init__(self, name: str, data: bytes, read: Callable[[str], bytes | None] = lambda name: None) -> None:
        self.name = name
        self.data = data
        self.read = read

    @cached_property
    def syntax(self) -> ast.Module:
        """Raises one of UNREADABLE when the file is no Python."""
        return ast.parse(self.data)

    @cached_property
    def lines(self) -> list[bytes]:
        return self.data.splitlines(keepends=True)

    @cached_property
    def encoding(self) -> str:
        return tokenize.detect_encoding(io.BytesIO(self.data).readline)[0]

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods outside other functions, in file order."""
        return list(_functions(self, self.syntax.body, None))

    @cached_property
    def imported(self) -> frozenset[str]:
        """Names that the module's own import statements bind, at any depth outside functions."""
        return frozenset(_imported(self.syntax))

    def text(self, line: int) -> str:
        """A line of the file (counted from 1), stripped."""
        return self.lines[line - 1].decode(self.encoding, "replace").strip()


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method, and the qualified name of the class it belongs to."""

    source: Source
    name: str
    owner: str | None
    first: int
    last: int
    syntax: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def qualname(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @cached_property
    def bytes(self) -> bytes:
        return b"".join(self.source.lines[self.first - 1 : self.last])

    @cached_property
    def node(self) -> cst.FunctionDef:
        """Raises cst.ParserSyntaxError when LibCST cannot read the function."""
        text = self.bytes.decode(self.source.encoding)
        indented = text[:1].isspace()
        first: cst.CSTNode = cst.parse_module("if 0:\n" + text if indented else text).body[0]
        if isinstance(first, cst.If):
            first = first.body.body[0]
        return cst.ensure_type(first, cst.FunctionDef)

    @property
    def body(self) -> Sequence[Statement]:
        return block(self.node.body)

    @cached_property
    def parameters(self) -> frozenset[str]:
        given = self.syntax.args
        each = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return frozenset(argument.arg for argument in each if argument is not None)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every statement that stands on lines of its own, outer before inner, in file order."""
        return tuple(_places(self, tuple(self.body), (), ()))

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """First and last line of each of those statements, by identity."""
        return dict(_spans(self.body, self.syntax.body))


@dataclass(frozen=True, eq=False)
class Place:
    """A statement inside a function, with the suites that lead to it, outermost first."""

    function: Function
    statement: Statement
    suites: tuple[Suite, ...]
    parents: tuple[Statement, ...]

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line in the file, counted from 1. A function is one whole: its decorators count."""
        if self.statement is self.function.node:
            return self.function.first, self.function.last
        return self.function.spans[id(self.statement)]

    @property
    def suite(self) -> Suite:
        return self.suites[-1]

    def next(self) -> Place | None:
        """The statement after it in the same suite."""
        after = next((index for index, each in enumerate(self.suite) if each is self.statement), -1) + 1
        return Place(self.function, self.suite[after], self.suites, self.parents) if after < len(self.suite) else None


@functools.lru_cache(maxsize=16)
def opened(name: str, data: bytes, read: Callable[[str], bytes | None]) -> Source:
    """The file, parsed once however often it is asked for."""
    return Source(name, data, read)


def suites(statement: cst.CSTNode) -> Iterator[Suite]:
    """The indented blocks directly below a compound statement; those of an `elif` count as its `if`'s."""
    for part in _parts(statement):
        if suite := tuple(block(getattr(part, "body", None))):
            yield suite
        if isinstance(part, cst.If) and part.orelse is not None:
            yield from suites(part.orelse)


def descend(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything below it that has meaning, depth first, in source order."""
    return iter(_below(node))


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` for a chain of names, None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr.value}"
    return None


def code(node: cst.CSTNode) -> str:
    """The node's source on one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (part for part in _below(node) if isinstance(part, cst.Call))


def names(node: cst.CSTNode) -> set[str]:
    """Plain names read or written anywhere in the node (attribute and keyword names do not count)."""
    below = _below(node)
    other = {id(part.attr) for part in below if isinstance(part, cst.Attribute)}
    other |= {id(part.keyword) for part in below if isinstance(part, cst.Arg) and part.keyword}
    return {part.value for part in below if isinstance(part, cst.Name) and id(part) not in other}


def words(node: cst.CSTNode) -> set[str]:
    """All names in the node: plain ones, attributes, keywords and what string constants hold."""
    found = set()
    for part in _below(node):
        if isinstance(part, (cst.Name, cst.SimpleString)):
            found.add(part.value)
        elif isinstance(part, cst.Attribute):
            found.add(part.attr.value)
        elif isinstance(part, cst.Arg) and part.keyword:
            found.add(part.keyword.value)
    return found


def assigned(statement: cst.CSTNode) -> Iterator[tuple[list[cst.BaseExpression], cst.BaseExpression]]:
    """(targets, value) of each assignment that a simple statement line makes."""
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Assign):
                yield [target.target for target in small.targets], small.value
            elif isinstance(small, (cst.AnnAssign, cst.AugAssign)) and small.value is not None:
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


def block(body: cst.CSTNode | None) -> Sequence[Statement]:
    """The statements of an indented block; none for a suite on its header's own line."""
    return body.body if isinstance(body, cst.IndentedBlock) else ()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=4096)
def _below(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    found: list[cst.CSTNode] = []
    _collect(node, found)
    return tuple(found)


def _collect(node: cst.CSTNode, found: list[cst.CSTNode]) -> None:
    found.append(node)
    for field in _fields(type(node)):
        value = getattr(node, field)
        if isinstance(value, cst.CSTNode):
            _collect(value, found)
        elif isinstance(value, (list, tuple)):
            for part in value:
                if isinstance(part, cst.CSTNode):
                    _collect(part, found)


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in names if name not in _LAYOUT and not name.startswith("whitespace"))


def _parts(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A compound statement and its own clauses: `else`, `except`, `finally`, `case`."""
    yield statement
    for field in ("orelse", "finalbody"):
        clause = getattr(statement, field, None)
        if clause is not None and not isinstance(statement, cst.If):
            yield clause
    yield from getattr(statement, "handlers", ())
    yield from getattr(statement, "cases", ())


def _places(function: Function, suite: Suite, outer: tuple[Suite, ...], parents: Suite) -> Iterator[Place]:
    for statement in suite:
        yield Place(function, statement, (*outer, suite), parents)
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            for inner in suites(statement):
                yield from _places(function, inner, (*outer, suite), (*parents, statement))


def _spans(body: Sequence[Statement], syntax: Sequence[ast.stmt]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Both parsers see the same statements in one order; a line `a; b` is one of LibCST's, two of ast's."""
    at = 0
    for statement in body:
        count = len(statement.body) if isinstance(statement, cst.SimpleStatementLine) else 1
        same = syntax[at : at + count]
        at += count
        yield id(statement), (first_line(same[0]), last_line(same[-1]))
        for inner, inner_syntax in _blocks(statement, same[0]):
            yield from _spans(block(inner), inner_syntax)


def _blocks(statement: cst.CSTNode, syntax: ast.stmt) -> Iterator[tuple[cst.CSTNode, Sequence[ast.stmt]]]:
    """Each suite of a compound statement, as both see it."""
    if isinstance(statement, (cst.SimpleStatementLine, cst.FunctionDef, cst.ClassDef)):
        return
    for field in ("body", "orelse", "finalbody"):
        part = getattr(statement, field, None)
        same: Sequence[ast.stmt] = getattr(syntax, field, ())
        if isinstance(part, cst.If):  # an `elif`, which ast holds as the one statement of an `else`
            yield from _blocks(part, same[0])
        elif part is not None:
            yield part if field == "body" else part.body, same
    for field in ("handlers", "cases"):
        for clause, case in zip(getattr(statement, field, ()), getattr(syntax, field, ()), strict=True):
            yield clause.body, case.body


def _functions(source: Source, body: Sequence[ast.stmt], owner: str | None) -> Iterator[Function]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(source, node.name, owner, first_line(node), last_line(node), node)
        elif isinstance(node, ast.ClassDef):
            yield from _functions(source, node.body, f"{owner}.{node.name}" if owner else node.name)
        else:
            for field in ("body", "handlers", "orelse", "finalbody", "cases"):
                parts = getattr(node, field, None)
                if isinstance(parts, list):
                    yield from _functions(source, parts, owner)


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            for alias in child.names:
                yield alias.asname or alias.name.split(".")[0]
        elif isinstance(child, (ast.stmt, ast.excepthandler)) and not isinstance(
            child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        ):
            yield from _imported(child)
