"""Decides what goes from one file: debug code by its looks that reports and nothing else, and that nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from specwire.errors import SpecwireError
from specwire.patching.marks import LITERAL as MARK
from specwire.strip.binds import FUNCTIONS
from specwire.strip.collect import gather
from specwire.strip.comments import Comment, comments, going_with
from specwire.strip.facts import Facts
from specwire.strip.helpers import with_helpers
from specwire.strip.judge import Judge
from specwire.strip.orphans import orphans
from specwire.strip.prove import prove
from specwire.strip.readers import Elsewhere, conflicts, docstrings_made
from specwire.strip.select import Root, Selector
from specwire.strip.text import Text
from specwire.strip.traces import traces
from specwire.strip.words import Words, is_comment


@dataclass(frozen=True)
class Piece:
    """One piece of debug code. `kind` says what it is: `guard`, `one-time guard`, `block`, `print`, `logger`, `call`,
    `dump`, `breakpoint`, `debugger`, `switch`, `trace` (any other), `tap` (specwire's own), `unused ...` for what only such code used.

    `why` is empty for what goes and the reason for what stays.
    """

    line: int
    end: int
    kind: str
    text: str
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """What `strip` makes of one file. `after` equals `before` when nothing goes."""

    name: str
    before: bytes
    after: bytes
    gone: tuple[Piece, ...]
    left: tuple[Piece, ...]


def plan(data: bytes, name: str, words: Words = Words(), elsewhere: Elsewhere = Elsewhere()) -> Plan:
    """Plan and prove the removal of debug code from a file's bytes. `elsewhere` knows the files that may read it.

    Raises SpecwireError when the bytes cannot be parsed, or are too deep for it, or when the result is not the
    original without exactly the planned statements (which would be a bug, and nothing is written then).
    """
    try:
        return _plan(data, name, words, elsewhere)
    except (RecursionError, MemoryError):
        raise SpecwireError(
            f"{name}: holds an expression too deep to be looked into. Break it up, or look at the file by hand."
        ) from None


def _plan(data: bytes, name: str, words: Words, elsewhere: Elsewhere) -> Plan:
    text = Text(data, name)
    facts = with_helpers(text, gather(text.tree, words.of_file(data)), elsewhere)
    known = comments(text)
    roots, left = _settle(text, facts, elsewhere, known)
    nodes = [node for root in roots for node in root.nodes]
    lines = {number for node in nodes for number in text.span(node)}
    lines |= {root.else_line for root in roots if root.else_line}
    if known:
        lines |= going_with(known, [(text.span(node)[0], node.col_offset) for node in nodes])
    after = text.without(lines)
    if lines:
        prove(text, after, nodes, lines)
    gone = [_piece(text, node, root.kind) for root in roots for node in root.nodes]
    stays = [_piece(text, node, kind, why) for node, kind, why in left if node.lineno not in lines]
    stays += _husks(text, {id(node) for node in nodes})
    stays += _comments_left(text, known, lines, [*gone, *stays])
    if MARK in data:
        stays += [
            Piece(number, number, "tap", text.text(number), "is specwire's own: `specwire remove` takes it out")
            for number, line in enumerate(text.lines, 1)
            if MARK in line
        ]
    return Plan(name, data, after, _sorted(gone), _sorted(stays))


def _husks(text: Text, gone: set[int]) -> Iterator[Piece]:
    """Handlers that do nothing any more but raise again what they have caught."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.ExceptHandler) and any(id(part) in gone for part in node.body):
            rest = [part for part in node.body if id(part) not in gone]
            if all(isinstance(part, ast.Raise) and part.exc is None for part in rest):
                yield _piece(text, node, "husk", "does nothing any more but raise again: take the `try` out by hand")


def _comments_left(text: Text, known: dict[int, Comment], lines: set[int], pieces: list[Piece]) -> Iterator[Piece]:
    """Comments on debug code that stay: those that say so plainly, and beside other debug code those that hint at it."""
    listed = {piece.line for piece in pieces}
    around = [
        text.span(node)
        for node in ast.walk(text.tree)
        if isinstance(node, FUNCTIONS) and any(piece.line in text.span(node) for piece in pieces)
    ]
    for line, comment in known.items():
        near = any(line in span for span in around)
        if line not in lines and line not in listed and is_comment(comment.text, weak=near):
            yield Piece(line, line, "comment", text.text(line), "speaks of debug code, and what it stands at stays")


def _settle(
    text: Text, facts: Facts, elsewhere: Elsewhere, known: dict[int, Comment]
) -> tuple[list[Root], list[tuple[ast.stmt, str, str]]]:
    """Drop from the selection what somebody reads, until nobody reads anything of the rest; then add the orphans."""
    kept: dict[int, str] = {}
    held: dict[int, str] = {}
    while True:
        selection = Selector(text, Judge(facts, kept | held)).select()
        if found := conflicts(text.tree, ids(selection.roots), elsewhere):
            kept |= found
            continue
        roots, notes = orphans(text, facts, selection.roots, elsewhere, held, known)
        gone = ids(roots)
        if not (found := docstrings_made(text.tree, gone)):
            break
        held |= found
    left = []
    for node, kind, why in selection.left.values():
        if id(node) in kept:  # who reads it now, with the orphans gone as well
            why = conflicts(text.tree, gone | {id(node)}, elsewhere).get(id(node), why)
        left.append((node, kind, why))
    left += [(node, "unused", why) for node, why in notes if id(node) not in kept]
    return roots, left + list(traces(text.tree, facts, gone, {node.lineno for node, _, _ in left}))


def ids(roots: list[Root]) -> set[int]:
    """Ids of all statements that go, those inside others included."""
    return {id(part) for root in roots for node in root.nodes for part in ast.walk(node) if isinstance(part, ast.stmt)}


def _piece(text: Text, node: ast.stmt | ast.ExceptHandler, kind: str, why: str = "") -> Piece:
    span = text.span(node)
    return Piece(span[0], span[-1], kind, text.text(span[0]), why)


def _sorted(pieces: list[Piece]) -> tuple[Piece, ...]:
    return tuple(sorted(set(pieces), key=lambda piece: (piece.line, piece.end)))
