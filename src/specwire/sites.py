"""The structural matchers: they find where EAGLE-3 passes through SGLang's source, whatever the release.

Matchers go by what the code binds and calls, never by line, text or version. The capture loop is the
centre: the innermost `for` over the target's layers in which a collection of intermediate states grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.source import (
    Function,
    Place,
    Source,
    assigned,
    bound_after,
    bound_before,
    calls,
    descend,
    dotted,
    names,
    places,
    readable,
    target_names,
)

_GROWS = ("append", "extend", "slot", "capture")
_NOT_FORWARD = ("__init__", "load_weights")


@dataclass(frozen=True)
class Capture:
    """A statement of the layer loop after which `collected` may have grown by `boundary` (an expression)."""

    place: Place
    collected: str
    boundary: str


@dataclass(frozen=True)
class CaptureLoop:
    """The loop over the target's layers in `function` that collects states for a draft."""

    function: Function
    place: Place
    index: str
    captures: tuple[Capture, ...]
    layer_call: Place | None

    @property
    def collected(self) -> str:
        return self.captures[-1].collected


def capture_loops(source: Source) -> Iterator[CaptureLoop]:
    """Every capture loop of the file, in file order."""
    for function in source.functions:
        if function.node.name.value in _NOT_FORWARD:
            continue
        loops = [place for place in places(function) if isinstance(place.statement, cst.For)]
        for place in loops:
            if not any(place.statement in other.parents for other in loops):
                if loop := _capture_loop(source, function, place):
                    yield loop


def batch_arguments(place: Place, *, ids: str = "input_ids", positions: str = "positions") -> str:
    """`, input_ids=…, positions=…, forward_batch=…` for those that the function surely has at the place."""
    known = {"input_ids": ids, "positions": positions, "forward_batch": "forward_batch"}
    return "".join(f", {name}={value}" for name, value in known.items() if bound_after(place, value))


def model_argument(function: Function) -> str:
    return "self" if "self" in function.parameters else "None"


def embedding(function: Function) -> tuple[Place, str] | None:
    """The statement after which the target's embeddings are there, computed or handed in, and their name."""
    for place in places(function):
        for targets, value in assigned(place.statement):
            if target_names(targets) and any(_is_embedding(call) for call in calls(value)):
                choice = _whole_choice(place)
                return next(((choice, name) for name in _bound_below(choice) if bound_after(choice, name)), None)
    return None


def loop_end(function: Function) -> Place | None:
    """The function's way out: its last `return`, or the choice of returns just before it."""
    body = tuple(function.body)
    if not body or not _returns(body[-1]):
        return None
    is_choice = len(body) > 1 and isinstance(body[-2], cst.If) and _returns(body[-2]) and not _returns_proxy(body[-2])
    return Place(function, body[-2] if is_choice else body[-1], (body,), ())


def returned_name(place: Place) -> str | None:
    """The first plain name that a `return` at or below the place gives back."""
    for part in descend(place.statement):
        if isinstance(part, cst.Return) and part.value is not None:
            value = part.value.body if isinstance(part.value, cst.IfExp) else part.value
            value = value.elements[0].value if isinstance(value, cst.Tuple) else value
            return value.value if isinstance(value, cst.Name) else None
    return None


def layer_states(call: Place) -> str | None:
    """The name that the layer call both takes and binds anew: the states on their way through the layers."""
    for part in descend(call.statement):
        if isinstance(part, cst.Assign) and isinstance(part.value, cst.Call) and _is_layer_call(part.value, set()):
            given = {name for argument in part.value.args for name in names(argument)}
            for name in target_names([target.target for target in part.targets]):
                if name in given and name != "residual":
                    return name
    return None


def held_residual(source: Source, call: Place) -> str:
    """How this release holds the other half of the stream at the layer call, as further tap arguments."""
    given = {name for each in calls(call.statement) for argument in each.args for name in names(argument)}
    if "residual" in given and readable(call, "before", "residual"):
        return ", residual=residual"
    return ", snapshot=residual_batch.snapshot" if "residual_batch" in source.imported else ""


def draft_states(source: Source) -> Iterator[tuple[Place, str, str]]:
    """Each `STATES = ….spec_info.hidden_states` before a width test in the same function: the place, STATES, EMBEDS."""
    tests = {test.function.node: embeds for test, _, embeds in width_tests(source)}
    for function in source.functions:
        for place in places(function) if function.node in tests else ():
            for targets, value in assigned(place.statement):
                if (dotted(value) or "").endswith(".spec_info.hidden_states") and target_names(targets):
                    yield place, target_names(targets)[0], tests[function.node]


def width_tests(source: Source) -> Iterator[tuple[Place, str, str]]:
    """Each `if STATES.shape[-1] != EMBEDS.shape[-1]` of a draft that may project: the place, STATES, EMBEDS."""
    for function in source.functions:
        for place in places(function):
            if isinstance(place.statement, cst.If) and (pair := _width_test(place.statement.test)):
                yield place, *pair


def concats(source: Source, which: str) -> Iterator[tuple[Place, str]]:
    """Where the auxiliary states are packed under `is_full()` or `is_last()`: the place, and the packed name."""
    for function in source.functions:
        for place in places(function):
            if not any(_asks(parent, f"is_{which}") for parent in _deciding(place)):
                continue
            for targets, value in assigned(place.statement):
                packed = [call for call in calls(value) if _packs(call)]
                if packed and target_names(targets):
                    yield place, target_names(targets)[0]


# --- the capture loop -------------------------------------------------------------------------------


def _capture_loop(source: Source, function: Function, loop: Place) -> CaptureLoop | None:
    steps = list(_steps(loop))
    index = _index(loop.statement)
    layer_call = next((step for step in steps if _calls_layer(step, loop.statement)), None)
    captures, called = [], False
    for step in steps:
        called_here = _calls_layer(step, loop.statement)
        for collected, at_input in _collections(function, step):
            number = index or _compared_index(step.statement)
            if number and bound_after(step, collected):
                after_layer = called and not at_input
                captures.append(Capture(step, collected, f"{number} + 1" if after_layer else number))
                break
        called = called or called_here
    if not captures:
        return None
    return CaptureLoop(function, loop, index or captures[0].boundary, tuple(captures), layer_call)


def _steps(loop: Place) -> Iterator[Place]:
    """The loop's own statements, those inside a `with` counted as its own."""
    inside = [place for place in places(loop.function) if loop.statement in place.parents]
    for place in inside:
        between = place.parents[place.parents.index(loop.statement) + 1 :]
        if all(isinstance(parent, cst.With) for parent in between) and not isinstance(place.statement, cst.With):
            yield place


def _collections(function: Function, step: Place) -> Iterator[tuple[str, bool]]:
    """(collection, whether the layer itself captures its input) for what may grow in this step."""
    for call in calls(step.statement):
        for argument in call.args:
            if argument.keyword is not None and "captur" in argument.keyword.value:
                if name := _collection_of(function, step, argument.value):
                    yield name, True
    if isinstance(step.statement, cst.If) and any("captur" in name for name in _all_names(step.statement.test)):
        for call in calls(step.statement):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _GROWS:
                if isinstance(call.func.value, cst.Name):
                    yield call.func.value.value, False


def _collection_of(function: Function, step: Place, value: cst.BaseExpression) -> str | None:
    """The collection behind `X`, `X.capture`, `X if … else None`, or a local that holds one of these."""
    if isinstance(value, cst.IfExp):
        value = value.body
    if isinstance(value, cst.Attribute) and value.attr.value in _GROWS:
        return dotted(value.value)
    if not isinstance(value, cst.Name):
        return None
    for place in places(function):
        if isinstance(place.statement, cst.FunctionDef) and place.statement.name.value == value.value:
            for call in calls(place.statement):
                if isinstance(call.func, cst.Attribute) and call.func.attr.value in _GROWS:
                    return dotted(call.func.value)
        for targets, source in assigned(place.statement):
            if target_names(targets) == [value.value] and isinstance(source, (cst.IfExp, cst.Attribute)):
                return _collection_of(function, step, source)
    return value.value


def _calls_layer(step: Place, loop: cst.For) -> bool:
    """Whether the step runs the layer at hand: `layer(…)`, `self.layers[i](…)` or a method of either."""
    items = set(target_names([loop.target]))
    return any(_is_layer_call(call, items) for call in calls(step.statement))


def _is_layer_call(call: cst.Call, items: set[str]) -> bool:
    function = call.func
    if isinstance(function, cst.Attribute) and function.attr.value.startswith("forward"):
        function = function.value
    if isinstance(function, cst.Name):
        return function.value in {"layer", "decoder_layer", "block"} | items
    return isinstance(function, cst.Subscript) and (dotted(function.value) or "").endswith("layers")


def _index(loop: cst.For) -> str | None:
    """The loop's counter, when it has one."""
    target = target_names([loop.target])
    counted = isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) in ("range", "enumerate")
    return target[0] if target and (counted or len(target) == 1 and len(target[0]) <= 2) else None


def _compared_index(statement: cst.CSTNode) -> str | None:
    """`layer.layer_id` in `layer.layer_id in self.…_to_capture`."""
    for part in descend(statement):
        if isinstance(part, cst.Comparison) and isinstance(part.comparisons[0].operator, cst.In):
            if any("captur" in name for name in _all_names(part.comparisons[0].comparator)):
                return dotted(part.left)
    return None


def _all_names(node: cst.CSTNode) -> set[str]:
    return {part.value for part in descend(node) if isinstance(part, cst.Name)}


# --- expressions ------------------------------------------------------------------------------------


def _is_embedding(call: cst.Call) -> bool:
    name = dotted(call.func) or ""
    return name.startswith("self.") and "embed" in name.rsplit(".", 1)[-1]


def _whole_choice(place: Place) -> Place:
    """The innermost `if input_embeds is None` around an embedding, so that embeddings handed in count too."""
    for depth in range(len(place.parents) - 1, -1, -1):
        parent = place.parents[depth]
        if isinstance(parent, cst.If) and any("embeds" in name for name in _all_names(parent.test)):
            return Place(place.function, parent, place.suites[: depth + 1], place.parents[:depth])
    return place


def _bound_below(place: Place) -> Iterator[str]:
    """Names that assignments at or below the place bind, in order."""
    inside = [each for each in places(place.function) if place.statement in (each.statement, *each.parents)]
    for each in inside:
        for targets, _ in assigned(each.statement):
            yield from target_names(targets)


def _returns(statement: cst.CSTNode) -> bool:
    return any(isinstance(part, cst.Return) for part in descend(statement))


def _returns_proxy(statement: cst.CSTNode) -> bool:
    """Whether a return hands states on to the next pipeline stage: not the end of the target."""
    return any("is_last_rank" in _all_names(part) for part in descend(statement))


def _width_test(test: cst.BaseExpression) -> tuple[str, str] | None:
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, cst.NotEqual):
        return None
    pair = _last_width(test.left), _last_width(test.comparisons[0].comparator)
    return pair if all(pair) else None


def _last_width(node: cst.BaseExpression) -> str | None:
    """NAME in `NAME.shape[-1]`."""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape":
        return node.value.value.value if isinstance(node.value.value, cst.Name) else None
    return None


def _deciding(place: Place) -> Iterator[cst.BaseExpression]:
    """The tests of the `if` and `elif` branches that the place stands in."""
    for depth, parent in enumerate(place.parents):
        inner = (*place.suites, ())[depth + 1]
        while isinstance(parent, cst.If):
            if tuple(getattr(parent.body, "body", ())) == inner:
                yield parent.test
            parent = parent.orelse


def _asks(test: cst.BaseExpression, method: str) -> bool:
    return any(isinstance(call.func, cst.Attribute) and call.func.attr.value == method for call in calls(test))


def _packs(call: cst.Call) -> bool:
    about_aux = any(name.startswith("aux") for argument in call.args for name in names(argument))
    return about_aux and (dotted(call.func) or "") in ("torch.cat", "pack_aux_hidden_states")
