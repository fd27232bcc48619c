"""How a target holds its residual stream: which names carry it through the layers, and how to read it.

Three ways are known: one tensor; two whose sum it is; and an opaque handle that the engine's own
`residual_batch.snapshot` reads. What the function itself does at the stream's end decides which it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.sites.bindings import made_from, readable, sources_of
from specwire.sites.loops import CaptureLoop, layer_calls, layer_names
from specwire.sites.source import (
    Function,
    Place,
    Suite,
    assigned,
    block,
    calls,
    descend,
    dotted,
    names,
    suites,
    target_names,
    words,
)


@dataclass(frozen=True)
class Stream:
    """`hidden` carries the stream into the layer; `rest` are further tap arguments that complete it."""

    hidden: str
    rest: str


@dataclass(frozen=True)
class Unreadable:
    """No tap can read this loop's stream whole, and why."""

    why: str


def stream(loop: CaptureLoop) -> Stream | Unreadable:
    """How to read the stream of the loop just before the layer runs."""
    carried = _carried(loop)
    if not carried:
        return Unreadable("the layer call passes on no plain name for its states")
    hidden, others = carried[0], carried[1:]
    if loop.index is None:
        return Unreadable("nothing numbers the layers of this loop")
    if other_way := _captured_otherwise(loop) or _put_off(loop):
        return Unreadable(other_way)
    for other in others:
        if _summed(loop, hidden, other):
            return Stream(hidden, f", residual={other}")
    if opaque := _opaque(loop):
        return opaque if isinstance(opaque, Unreadable) else Stream(hidden, opaque)
    return _alone(loop, hidden, others)


def states(loop: CaptureLoop) -> str | None:
    """The name that carries the states into the layers."""
    carried = _carried(loop)
    return carried[0] if carried else None


def embedding(function: Function, hidden: str) -> tuple[Place, str] | None:
    """The statement after which the embeddings are there, computed or handed in, and their name.

    Only what flows into `hidden` counts; a norm or a factor applied to the embeddings belongs to them.
    """
    flowing = sources_of(function, hidden)
    for place in function.places:
        for targets, value in assigned(place.statement):
            if any(_is_embedding(call) for call in calls(value)) and set(target_names(targets)) & flowing:
                choice = _whole_choice(place)
                for name in _bound_below(choice):
                    if name in flowing and readable(choice, "after", name):
                        return _finished(choice, name), name
    return None


def handed_in(function: Function, hidden: str) -> str | None:
    """The parameter that brings the states in, when the function does not make them from token ids."""
    ordinary = {
        "self",
        "input_ids",
        "positions",
        "forward_batch",
        "input_embeds",
        "inputs_embeds",
        "pp_proxy_tensors",
    }
    given = [name for name in _ordered_parameters(function) if name in sources_of(function, hidden) - ordinary]
    return given[0] if given else None


def endings(function: Function) -> list[Place]:
    """The ways out at the end of the function: its last `return`, or the choice of returns just before it.

    Ways out that only other pipeline stages take are none.
    """
    return list(_endings(function, tuple(function.body), (), ()))


def other_endings(function: Function, last: list[Place]) -> list[Place]:
    """The `return`s of this pipeline stage before the end of the function, in file order."""
    ending = [statement for place in last for statement in place.suite[_index(place) :]]
    return [
        place
        for place in function.places
        if isinstance(place.statement, cst.SimpleStatementLine)
        and _is_return(place.statement)
        and not any(each is statement for each in (place.statement, *place.parents) for statement in ending)
        and not any(
            isinstance(parent, cst.If) and _for_other_ranks(parent, place.suites[depth + 1])
            for depth, parent in enumerate(place.parents)
        )
    ]


def _index(place: Place) -> int:
    return next(index for index, each in enumerate(place.suite) if each is place.statement)


def returned(place: Place) -> str | None:
    """The first plain name that a `return` at or below the place gives back."""
    for part in descend(place.statement):
        if isinstance(part, cst.Return) and part.value is not None:
            value = part.value.body if isinstance(part.value, cst.IfExp) else part.value
            while isinstance(value, cst.Tuple):
                value = value.elements[0].value
            return value.value if isinstance(value, cst.Name) else None
    return None


# --- the stream -------------------------------------------------------------------------------------


def _carried(loop: CaptureLoop) -> list[str]:
    """Names that the layer call takes and that are bound anew from what it gives, in the call's order."""
    found: list[str] = []
    for call in layer_calls(loop.step):
        targets = {name for place in _at_or_below(loop.step) for name in _targets_of(place, call)}
        given = [name for argument in call.args for name in sorted(names(argument.value))]
        anew = made_from(loop.function, targets, loop.place.statement)
        found += [name for name in given if name in anew and name not in found and readable(loop.step, "before", name)]
    return found


def _targets_of(place: Place, call: cst.Call) -> list[str]:
    return [
        name
        for targets, value in assigned(place.statement)
        if any(part is call for part in calls(value))
        for name in target_names(targets)
    ]


def _at_or_below(step: Place) -> list[Place]:
    return [place for place in step.function.places if step.statement in (place.statement, *place.parents)]


def _captured_otherwise(loop: CaptureLoop) -> str | None:
    """Why what the loop itself captures is not what its layers hand on: a method of the model makes it of that."""
    for capture in loop.captures:
        for call in calls(capture.place.statement) if loop.place.statement in capture.place.parents else ():
            if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == loop.collected and call.args:
                made = _made_of(loop, call.args[0].value)
                helper = next(
                    (name for each in calls(made) if (name := dotted(each.func) or "").startswith("self.")), None
                )
                if helper:
                    line = capture.place.lines[0]
                    return (
                        f"what is captured is made by {helper} (line {line}), not by adding up what the layers hand on"
                    )
    return None


def _made_of(loop: CaptureLoop, value: cst.BaseExpression) -> cst.BaseExpression:
    """The expression behind a local of the loop that is bound once there."""
    made = [
        made
        for place in loop.function.places
        if loop.place.statement in place.parents
        for targets, made in assigned(place.statement)
        if isinstance(value, cst.Name) and target_names(targets) == [value.value]
    ]
    return made[0] if len(made) == 1 else value


def _put_off(loop: CaptureLoop) -> str | None:
    """Why the states between two layers are not whole: a layer's own module goes into the next one's call."""
    layers = layer_names(loop.function, loop.place.statement)
    for place in loop.function.places:
        if loop.place.statement in place.parents:
            for targets, value in assigned(place.statement):
                whole = isinstance(value, cst.Attribute) and dotted(value.value) in layers
                late = set(target_names(targets)) & {name for call in layer_calls(loop.step) for name in names(call)}
                if whole and late and _ran_before(loop, place):
                    return (
                        f"each layer leaves a part of its work to the next ({min(late)}, line {place.lines[0]}): "
                        "between them the stream is not whole"
                    )
    return None


def _ran_before(loop: CaptureLoop, place: Place) -> bool:
    return loop.step.lines[1] < place.lines[0]


def _opaque(loop: CaptureLoop) -> str | Unreadable | None:
    """The tap argument that reads an opaque stream, where `residual_batch` keeps the stream."""
    used = [dotted(call.func) or "" for call in calls(loop.function.node)]
    mine = [name for name in used if name.startswith("residual_batch.")]
    if not mine or "residual_batch" not in loop.function.source.imported:
        return None
    if "residual_batch.read_output" in mine:
        return Unreadable(
            "the stream ends in residual_batch.read_output: its updates are no plain sums, "
            "which the engine's own snapshot refuses (NotImplementedError)"
        )
    return ", stream=residual_batch"


def _summed(loop: CaptureLoop, hidden: str, other: str) -> bool:
    """Whether the function adds the two, or hands just these two to a norm, but for the layer call."""
    layers = {id(call) for call in layer_calls(loop.step)}
    for part in descend(loop.function.node):
        if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Add):
            if {dotted(part.left), dotted(part.right)} == {hidden, other}:
                return True
        if isinstance(part, cst.Call) and id(part) not in layers:
            if [dotted(argument.value) for argument in part.args if argument.keyword is None] == [
                hidden,
                other,
            ]:
                return True
    return False


def _alone(loop: CaptureLoop, hidden: str, others: list[str]) -> Stream | Unreadable:
    """One tensor: the one that the loop itself captures as it stands, if it captures inline."""
    for capture in loop.captures:
        for call in calls(capture.place.statement) if loop.place.statement in capture.place.parents else ():
            if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == loop.collected:
                value = call.args[0].value if call.args else None
                while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
                    value = value.func.value  # `stream.to(dtype)`
                if (name := dotted(value)) is not None and name in (hidden, *others):
                    return Stream(name, "")
                line = capture.place.lines[0]
                return Unreadable(
                    f"what is captured is made from several tensors (line {line}): no one tensor is the stream"
                )
    return Stream(hidden, "")


# --- the embedding ----------------------------------------------------------------------------------


def _is_embedding(call: cst.Call) -> bool:
    name = dotted(call.func) or ""
    return name.startswith("self.") and "embed" in name.rsplit(".", 1)[-1]


def _whole_choice(place: Place) -> Place:
    """The innermost choice between token ids and embeddings handed in, so that both count."""
    for depth in range(len(place.parents) - 1, -1, -1):
        parent = place.parents[depth]
        if isinstance(parent, cst.If) and _asks_for_input(parent.test):
            return Place(place.function, parent, place.suites[: depth + 1], place.parents[:depth])
    return place


def _asks_for_input(test: cst.BaseExpression) -> bool:
    if not isinstance(test, cst.Comparison) or not isinstance(test.left, cst.Name):
        return False
    return "embeds" in test.left.value or test.left.value == "input_ids"


def _bound_below(place: Place) -> Iterator[str]:
    """Names that assignments at or below the place bind, in order."""
    for each in _at_or_below(place):
        for targets, _ in assigned(each.statement):
            yield from target_names(targets)


def _finished(place: Place, name: str) -> Place:
    """The place, or the last of the statements after it that only norm or scale `name`."""
    after = place.next()
    while after is not None and _only_refines(after.statement, name):
        place, after = after, after.next()
    return place


def _only_refines(statement: cst.BaseStatement, name: str) -> bool:
    if isinstance(statement, cst.If):
        return (
            statement.orelse is None
            and all(_only_refines(each, name) for each in block(statement.body))
            and bool(block(statement.body))
        )
    made = list(assigned(statement))
    if len(made) != 1 or target_names(made[0][0]) != [name]:
        return False
    value = made[0][1]
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(made_by := statement.body[0], cst.AugAssign):
        return isinstance(made_by.operator, cst.MultiplyAssign)
    if isinstance(value, cst.BinaryOperation):
        return isinstance(value.operator, cst.Multiply) and name in names(value)
    return isinstance(value, cst.Call) and "norm" in (dotted(value.func) or "") and name in names(value)


def _ordered_parameters(function: Function) -> list[str]:
    given = function.syntax.args
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


# --- the end ----------------------------------------------------------------------------------------


def _endings(function: Function, suite: Suite, outer: tuple[Suite, ...], parents: Suite) -> Iterator[Place]:
    last = suite[-1] if suite else None
    if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return):
        first = len(suite) - 1
        while first and _only_returns(suite[first - 1]):
            first -= 1
        yield Place(function, suite[first], (*outer, suite), parents)
    elif isinstance(last, cst.If):
        for inner in suites(last):
            if not _for_other_ranks(last, inner):
                yield from _endings(function, inner, (*outer, suite), (*parents, last))
    elif isinstance(last, (cst.Try, cst.With)):
        yield from _endings(function, tuple(block(last.body)), (*outer, suite), (*parents, last))


def _only_returns(statement: cst.BaseStatement) -> bool:
    """Whether a statement is a choice of returns and nothing else, by any stage of a pipeline."""
    if not isinstance(statement, cst.If) or "is_last_rank" in words(statement.test):
        return False
    return all(len(suite) == 1 and _is_return(suite[0]) for suite in suites(statement)) and any(suites(statement))


def _is_return(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return)


def _for_other_ranks(choice: cst.If, suite: Suite) -> bool:
    """Whether only pipeline stages before the last one take this branch."""
    if "is_last_rank" not in words(choice.test):
        return False
    negated = isinstance(choice.test, cst.UnaryOperation) and isinstance(choice.test.operator, cst.Not)
    return (tuple(block(choice.body)) == suite) == negated
