"""Puts taps into one file: whole lines, each proven removable before anything is written."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from specwire import marks, sites
from specwire.errors import SpecwireError
from specwire.probe import Absent, Probe, Site, Tap, Unrecognised
from specwire.source import Source, names, readable, sha256


@dataclass(frozen=True)
class Rendered:
    """A file with its taps: equal to the original when no probe had a site in it."""

    data: bytes
    sites: tuple[Site, ...]


def render(name: str, original: bytes, probes: Mapping[str, Probe]) -> Rendered:
    """`original` with every tap that `probes` place in it.

    Raises SpecwireError when the file does not parse, uses the taps' own name, or when deleting the
    inserted lines would not give back the original byte for byte.
    """
    if marks.NAME in original:
        raise SpecwireError(f"{name}: already uses the name _specwire, which the taps need for themselves. Nothing was written.")
    source = Source(name, original)
    try:
        source.module
    except cst.ParserSyntaxError as error:
        raise SpecwireError(f"{name}:{error.raw_line}: not Python that LibCST can read ({error.message}). Nothing was written.") from error
    found = [(probe, result) for probe, recipe in probes.items() for result in recipe.find(source, sites)]
    taps = [(probe, result) for probe, result in found if isinstance(result, Tap)]
    others = [_other(probe, name, result) for probe, result in found if not isinstance(result, Tap)]
    if not taps:
        return Rendered(original, tuple(others))
    for probe, tap in taps:
        _check_names(source, probe, tap)
    data = _with_lines(source, taps)
    _prove(name, original, data, len(taps))
    return Rendered(data, (*_located(name, data, taps), *others))


def _other(probe: str, name: str, result: Absent | Unrecognised) -> Site:
    return Site(probe, name, result.qualname, 0, "absent" if isinstance(result, Absent) else "failed", result.why)


def _check_names(source: Source, probe: str, tap: Tap) -> None:
    """A tap may only read what is surely bound where it stands: an unbound name would raise into the engine."""
    if tap.where == "above":
        return
    call = cst.parse_expression(tap.code)
    for used in {name for argument in call.args for name in names(argument)} - {"None"}:
        if used not in source.imported and not readable(tap.place, tap.where, used):
            raise SpecwireError(
                f"{source.name}: {probe} in {tap.place.function.qualname} would read {used}, "
                "which may not be bound there. Nothing was written."
            )


def _with_lines(source: Source, taps: Sequence[tuple[str, Tap]]) -> bytes:
    lines = _Lines({}, {}, {})
    for probe, tap in taps:
        if tap.where == "above":
            comment = marks.marked(f"@_specwire.{tap.code}", probe)
            lines.above.setdefault(id(tap.place.statement), []).append(_decorator(comment))
        else:
            where = lines.before if tap.where == "before" else lines.after
            line = marks.marked(f"if _specwire.on: _specwire.{tap.code}", probe)
            where.setdefault(id(tap.place.statement), []).append(_statement(source.module, line))
    line = marks.marked(marks.IMPORT_CODE, marks.IMPORT, sha256(source.data))
    lines.after.setdefault(id(_first_import(source)), []).append(_statement(source.module, line))
    return source.module.with_changes(body=_rewritten(source.module.body, lines)).bytes


@dataclass(frozen=True)
class _Lines:
    """What to insert, by the identity of the statement it goes to."""

    before: dict[int, list[cst.BaseStatement]]
    after: dict[int, list[cst.BaseStatement]]
    above: dict[int, list[cst.Decorator]]


def _rewritten(body, lines: _Lines) -> list:
    out = []
    for statement in body:
        out += lines.before.get(id(statement), ())
        out.append(_inside(statement, lines))
        out += lines.after.get(id(statement), ())
    return out


def _inside(node: cst.CSTNode, lines: _Lines) -> cst.CSTNode:
    """The node with lines inserted anywhere below it; the very same node when there are none."""
    changes = {}
    if isinstance(getattr(node, "body", None), cst.IndentedBlock):
        body = _rewritten(node.body.body, lines)
        if len(body) != len(node.body.body) or any(new is not old for new, old in zip(body, node.body.body, strict=True)):
            changes["body"] = node.body.with_changes(body=body)
    for field in ("orelse", "finalbody"):
        if (clause := getattr(node, field, None)) is not None and not isinstance(clause, cst.BaseExpression):
            if (new := _inside(clause, lines)) is not clause:
                changes[field] = new
    for field in ("handlers", "cases"):
        if clauses := getattr(node, field, None):
            new = [_inside(clause, lines) for clause in clauses]
            if any(one is not other for one, other in zip(new, clauses, strict=True)):
                changes[field] = new
    if id(node) in lines.above:
        changes["decorators"] = [*lines.above[id(node)], *node.decorators]
    return node.with_changes(**changes) if changes else node


def _statement(module: cst.Module, line: str) -> cst.BaseStatement:
    return cst.parse_statement(line, config=module.config_for_parsing)


def _decorator(line: str) -> cst.Decorator:
    return cst.parse_statement(f"{line}\ndef f(): ...\n").decorators[0]


def _first_import(source: Source) -> cst.BaseStatement:
    """The first import that is not from `__future__`: after it, a further import is never out of place."""
    for statement in source.module.body:
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], (cst.Import, cst.ImportFrom)):
            module = getattr(statement.body[0], "module", None)
            if not (isinstance(module, cst.Name) and module.value == "__future__"):
                return statement
    raise SpecwireError(f"{source.name}: imports nothing at its top level, so it is no engine module. Nothing was written.")


def _prove(name: str, original: bytes, data: bytes, taps: int) -> None:
    """The promise, kept before anything is written: ours are whole lines, and without them nothing has changed."""
    inserted = marks.marks(data)
    if len(inserted) != taps + 1 or not all(mark.intact for mark in inserted):
        raise SpecwireError(f"{name}: {taps + 1} lines were to be inserted, {len(inserted)} were. Nothing was written.")
    if marks.stripped(data) != original:
        raise SpecwireError(f"{name}: LibCST would change other bytes of this file (a form feed, a lone CR?). Nothing was written.")
    try:
        ast.parse(data)
    except (SyntaxError, ValueError) as error:
        raise SpecwireError(f"{name}: would no longer be Python ({error}). Nothing was written.") from error


def _located(name: str, data: bytes, taps: Sequence[tuple[str, Tap]]) -> list[Site]:
    """Where each tap has come to stand. Taps of one probe come in file order, and so do their lines."""
    lines: dict[tuple[str, str], list[int]] = {}
    for mark in marks.marks(data):
        call = mark.code.split("_specwire.", 2)[-1]
        lines.setdefault((mark.probe, call), []).append(mark.line)
    return [
        Site(probe, name, tap.place.function.qualname, lines[probe, tap.code].pop(0), "applied") for probe, tap in taps
    ]
