"""Finds EAGLE-3 drafts among the models that read a speculative batch's states.

An EAGLE-3 draft is handed the captured states side by side. It compares their width with the embeddings' and
projects them when they are wider. Heads that join one state with the embedding (EAGLE, MTP, NextN) never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.bindings import bound_before, made_from
from specwire.source import Function, Place, Source, assigned, calls, code, descend, dotted, names, target_names

_READ = "spec_info.hidden_states"


@dataclass(frozen=True)
class Draft:
    """`states` are read at `read`; at `test` they are compared with `embeds`. `known` is where both are there."""

    function: Function
    read: Place
    test: Place
    known: Place
    known_where: str
    states: str
    embeds: str


@dataclass(frozen=True)
class NoDraft:
    """A reader that is no EAGLE-3 draft, and how that is known."""

    function: Function
    why: str


@dataclass(frozen=True)
class UnknownDraft:
    """A reader that projects the states by themselves, as an EAGLE-3 draft does, and has no known width test."""

    function: Function
    why: str


def drafts(source: Source) -> Iterator[Draft | NoDraft | UnknownDraft]:
    """What each reader of the states is, in file order."""
    for function in source.functions:
        if _READ.encode() in function.bytes:
            yield from _reader(function)


def _reader(function: Function) -> Iterator[Draft | NoDraft | UnknownDraft]:
    read = next((place for place in function.places if _reads(place)), None)
    if read is None:
        return
    named = target_names([target for targets, value in assigned(read.statement) if (dotted(value) or "").endswith(_READ) for target in targets])
    states = made_from(function, set(named)) if named else set()
    for place in function.places:
        if isinstance(place.statement, cst.If) and (pair := _width_test(place.statement.test, states)):
            known = (read, "after") if bound_before(read, pair[1]) else (place, "before")
            yield Draft(function, read, place, *known, *pair)
            return
    line = read.lines[0]
    if projection := _projected_alone(function, set(named)):
        source = function.source
        yield UnknownDraft(
            function,
            "looked for `if STATES.shape[-1] != EMBEDS.shape[-1]` around the projection of the states; "
            f"nearest is {source.name}:{projection.lines[0]}: {source.text(projection.lines[0])}",
        )
    else:
        yield NoDraft(
            function,
            f"line {line} takes one state of the target's, as wide as the embedding, and joins the two ({_use(read)}): "
            "an EAGLE or MTP head, which never gets the captured states side by side",
        )


def _reads(place: Place) -> bool:
    return isinstance(place.statement, cst.SimpleStatementLine) and any((dotted(part) or "").endswith(_READ) for part in descend(place.statement))


def _use(read: Place) -> str:
    """The innermost call that the states go into where they are read, or what they are bound to."""
    holding = [call for call in calls(read.statement) if any((dotted(part) or "").endswith(_READ) for argument in call.args for part in descend(argument))]
    return code(holding[-1].func) if holding else code(read.statement)


def _projected_alone(function: Function, named: set[str]) -> Place | None:
    """Where `fc` is applied to the states before anything has joined them with the embedding."""
    alone = set(named)
    for place in function.places:
        for targets, value in assigned(place.statement):
            for call in calls(value):
                if (dotted(call.func) or "").rsplit(".", 1)[-1].startswith("fc"):
                    given = {name for argument in call.args for name in names(argument)}
                    direct = any((dotted(part) or "").endswith(_READ) for argument in call.args for part in descend(argument))
                    if (given & alone or direct) and not _embeds(given - alone) and not _joins(call):
                        return place
            if names(value) & alone and not isinstance(value, cst.Attribute):
                joined = _embeds(names(value) - alone) or _joins(value)
                alone = alone - set(target_names(targets)) if joined else alone | set(target_names(targets))
    return None


def _embeds(given: set[str]) -> bool:
    return any("embed" in name for name in given)


def _joins(node: cst.CSTNode) -> bool:
    """Whether two different things are put side by side: `torch.cat((EMBEDS, STATES))`, however they are called."""
    for call in calls(node):
        if (dotted(call.func) or "").rsplit(".", 1)[-1] in ("cat", "concat", "concatenate") and call.args:
            parts = call.args[0].value
            if isinstance(parts, (cst.Tuple, cst.List)) and len({code(element.value) for element in parts.elements}) > 1:
                return True
    return False


def _width_test(test: cst.BaseExpression, states: set[str]) -> tuple[str, str] | None:
    """(STATES, EMBEDS) of `STATES.shape[-1] != EMBEDS.shape[-1]`, in either order."""
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, cst.NotEqual):
        return None
    pair = _last_width(test.left), _last_width(test.comparisons[0].comparator)
    ordered = pair if pair[0] in states else pair[::-1]
    return ordered if ordered[0] in states and ordered[1] and ordered[1] not in states else None


def _last_width(node: cst.BaseExpression) -> str | None:
    """NAME in `NAME.shape[-1]`."""
    if isinstance(node, cst.Subscript) and code(node).endswith(".shape[-1]"):
        return code(node).removesuffix(".shape[-1]")
    return None
