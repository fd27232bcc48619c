"""Finds EAGLE-3 drafts among the models that read a speculative batch's states.

An EAGLE-3 draft is handed the captured states side by side. It compares their width with the embeddings' and
projects them when they are wider. Heads that join one state with the embedding (EAGLE, MTP, NextN) never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.probe import Absent, Unrecognised
from specwire.sites.bindings import bound_before, made_from
from specwire.sites.source import (
    Function,
    Place,
    Source,
    assigned,
    calls,
    code,
    descend,
    dotted,
    names,
    target_names,
)

_READ = "spec_info.hidden_states"
_ABOUT = ("shape", "dtype", "device", "size", "ndim")


@dataclass(frozen=True)
class Draft:
    """`states` are read at `read` and compared with `embeds` at `test`; at `known` both are there."""

    function: Function
    read: Place
    test: Place
    known: Place
    known_where: str
    states: str
    embeds: str


def drafts(source: Source) -> Iterator[Draft | Absent | Unrecognised]:
    """What each reader of the states is, in file order: a draft, known to be none, or one that projects the states
    alone, as an EAGLE-3 draft does, and has no known width test."""
    for function in source.functions:
        if _READ.encode() in function.bytes:
            yield from _reader(function)


def _reader(function: Function) -> Iterator[Draft | Absent | Unrecognised]:
    read = next(
        (
            place
            for place in function.places
            if isinstance(place.statement, cst.SimpleStatementLine) and _reads(place.statement)
        ),
        None,
    )
    if read is None:
        return
    named = {name for targets, value in assigned(read.statement) if _is_read(value) for name in target_names(targets)}
    for place in function.places:
        if isinstance(place.statement, cst.If) and (pair := _width_test(place, made_from(function, named))):
            known = (read, "after") if bound_before(read, pair[1]) else (place, "before")
            yield Draft(function, read, place, *known, *pair)
            return
    join = _joined(function)
    if join is not None:
        line = join.lines[0]
        yield Absent(
            function.qualname,
            f"joins one state with the embedding (line {line}: `{function.source.text(line)}`): "
            "an EAGLE or MTP head, which never gets the captured states side by side",
        )
    else:
        line = read.lines[0]
        yield Unrecognised(
            function.qualname,
            "looked for `if STATES.shape[-1] != EMBEDS.shape[-1]` before the states are projected, or for "
            f"what joins them with the embedding; nearest is {function.source.name}:{line}: {function.source.text(line)}",
        )


def _reads(node: cst.CSTNode) -> bool:
    return any(_is_read(part) for part in descend(node) if isinstance(part, cst.Attribute))


def _is_read(node: cst.CSTNode) -> bool:
    return (dotted(node) or "").endswith(_READ)


def _joined(function: Function) -> Place | None:
    """The first statement in which states and embedding meet; None when the states are projected before."""
    states: set[str] = set()
    embeds = {name for name in function.parameters if "embeds" in name}
    for place in function.places:
        if isinstance(place.statement, cst.If) and _compares(place, states, embeds):
            return None
        if not isinstance(place.statement, cst.SimpleStatementLine):
            continue
        if any(_meets(part, states, embeds) for part in descend(place.statement)):
            return place
        for targets, value in assigned(place.statement):
            bound = set(target_names(targets))
            of_states = _reads(value) or bool(_contents(value) & states)
            if of_states and any(_last(call).startswith("fc") for call in calls(value)):
                return None
            of_embeds = bool(_contents(value) & embeds) or any("embed" in _last(call) for call in calls(value))
            states, embeds = (
                held | bound if of else held - bound for held, of in ((states, of_states), (embeds, of_embeds))
            )
    return None


def _compares(place: Place, states: set[str], embeds: set[str]) -> bool:
    """Whether a choice looks at both, then puts the states through a layer: a width test in other words."""
    if not isinstance(place.statement, cst.If):
        return False
    test = names(place.statement.test)
    if not (test & states and test & embeds):
        return False
    inside = [each for each in place.function.places if place.statement in each.parents]
    made = [
        value for each in inside for targets, value in assigned(each.statement) if set(target_names(targets)) & states
    ]
    return any((dotted(call.func) or "").startswith("self.") for value in made for call in calls(value))


def _meets(part: cst.CSTNode, states: set[str], embeds: set[str]) -> bool:
    """Whether of two operands, elements or arguments one is made of the states, one of the embedding."""
    if isinstance(part, cst.BinaryOperation):
        sides = [part.left, part.right]
    elif isinstance(part, (cst.Tuple, cst.List)):
        sides = [element.value for element in part.elements]
    elif isinstance(part, cst.Call):
        sides = [argument.value for argument in part.args]
    else:
        return False
    of = [(_reads(side) or bool(_contents(side) & states), bool(_contents(side) & embeds)) for side in sides]
    return (True, False) in of and (False, True) in of


def _contents(node: cst.CSTNode) -> set[str]:
    """Plain names whose values go into the node's, not only their shape, type or place."""
    if isinstance(node, cst.Attribute):
        return set() if node.attr.value in _ABOUT else _contents(node.value)
    if isinstance(node, cst.Arg):
        return _contents(node.value)
    return (
        {node.value} if isinstance(node, cst.Name) else {name for child in node.children for name in _contents(child)}
    )


def _last(call: cst.Call) -> str:
    return (dotted(call.func) or "").rsplit(".", 1)[-1]


def _width_test(place: Place, states: set[str]) -> tuple[str, str] | None:
    """(STATES, EMBEDS) of `STATES.shape[-1] != EMBEDS.shape[-1]`, in either order, or of a test of the states' width
    against what the projection takes or gives: `self.fc.in_features`, `self.fc.out_features`."""
    test = place.statement.test if isinstance(place.statement, cst.If) else None
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, (cst.NotEqual, cst.Equal)):
        return None
    sides = [test.left, test.comparisons[0].comparator]
    for one, other in (sides, sides[::-1]):
        held, width = _last_width(one), (dotted(other) or "").rsplit(".", 1)[-1]
        if held not in states:
            continue
        if (
            (embeds := _last_width(other))
            and embeds not in states
            and isinstance(test.comparisons[0].operator, cst.NotEqual)
        ):
            return held, embeds
        if width in ("in_features", "out_features") and (embeds := _embeds(place, states)):
            return held, embeds
    return None


def _embeds(place: Place, states: set[str]) -> str | None:
    """The name that holds the embeddings where the place is: what is made by a call of ….embed…, else a parameter."""
    made = [
        name
        for each in place.function.places
        for targets, value in assigned(each.statement)
        if any("embed" in _last(call) for call in calls(value))
        for name in target_names(targets)
    ]
    given = sorted(name for name in place.function.parameters if "embeds" in name)
    return next((name for name in (*made, *given) if name not in states and bound_before(place, name)), None)


def _last_width(node: cst.BaseExpression) -> str | None:
    """NAME in `NAME.shape[-1]` or `NAME.size(-1)`."""
    text = code(node)
    for ending in (".shape[-1]", ".size(-1)"):
        if text.endswith(ending) and text.removesuffix(ending).isidentifier():
            return text.removesuffix(ending)
    return None
