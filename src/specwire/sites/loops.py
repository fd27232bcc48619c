"""Finds where a target collects states for a draft: in the loop over its layers, before it and after it.

Matchers go by what the code binds and calls, never by line, text or version. The capture loop is the
innermost `for` that runs the layers and in which a collection grows; which boundary it grows by is told by
what the ids to capture are compared with, and by whether the layer has run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from specwire.sites.bindings import readable, reading
from specwire.sites.growth import Growth, growths, in_loop, speaks
from specwire.sites.source import (
    Function,
    Place,
    Source,
    assigned,
    block,
    calls,
    code,
    descend,
    dotted,
    names,
    target_names,
    words,
)


@dataclass(frozen=True)
class CapturePoint:
    """A place after which `collected` may have grown by `boundary`, an expression: `None` if unknown.

    `how` says who does it: `layer` (at its input), `loop` (before the layer), `loop-after`, or `outside` of
    it; `means` by what: a method of the collection, or the keyword that it is handed on under.
    """

    place: Place
    collected: str
    boundary: str
    how: str
    means: str


@dataclass(frozen=True)
class CaptureLoop:
    """The loop over the target's layers in `function` that collects states for a draft.

    `whole` is the outermost loop around it, `step` the loop's own statement that runs the layer, `index` what
    numbers the layers there (None: nothing does), `captures` all places where its collection may grow;
    `after`: an id to capture names the layer before the boundary, not the one behind it.
    """

    function: Function
    place: Place
    whole: Place
    step: Place
    index: str | None
    captures: tuple[CapturePoint, ...]
    after: bool

    @property
    def collected(self) -> str:
        return self.captures[-1].collected.split(" if ")[0]


@dataclass(frozen=True)
class Unknown:
    """A loop that runs layers and speaks of capturing, and is not understood."""

    function: Function
    why: str


@functools.lru_cache(maxsize=64)
def capture_loops(source: Source) -> tuple[CaptureLoop | Unknown, ...]:
    """Every capture loop of the file, in file order, and what looks like one but is not understood."""
    may = (
        each
        for each in source.functions
        if b"captur" in each.bytes and b"for " in each.bytes and each.name != "__init__"
    )
    return tuple(loop for function in may for loop in _loops(function))


def layer_calls(place: Place) -> Iterator[cst.Call]:
    """Calls below a statement of a loop that run its layer: `layer(…)`, `self.layers[i].forward(…)`."""
    loop = next((parent for parent in reversed(place.parents) if isinstance(parent, cst.For)), None)
    items = layer_names(place.function, loop) if loop is not None else frozenset()
    return (call for call in calls(place.statement) if _runs_layer(call, items))


def _loops(function: Function) -> Iterator[CaptureLoop | Unknown]:
    grown = list(growths(function))
    for place in function.places:
        if isinstance(loop := place.statement, cst.For):
            inside = [each for each in function.places if place.statement in each.parents]
            step = next((each for each in inside if _own(place, each) and any(layer_calls(each))), None)
            innermost = not any(isinstance(each.statement, cst.For) and any(layer_calls(each)) for each in inside)
            if step is not None and innermost and speaks(loop):
                yield _loop(function, place, step, _counter(loop), grown)


def _loop(
    function: Function, place: Place, step: Place, index: str | None, grown: list[Growth]
) -> CaptureLoop | Unknown:
    inside = [growth for growth in grown if place.statement in growth.place.parents]
    if not inside:
        return Unknown(function, _wanted(place, "a list or container that grows where a layer's states are captured"))
    for growth in inside:
        if not growth.several and _number(growth, index) is None:
            return Unknown(function, _wanted(growth.place, "what numbers the captured layer"))
    outermost = next((parent for parent in place.parents if isinstance(parent, cst.For)), place.statement)
    whole = next(each for each in function.places if each.statement is outermost)
    collections = {growth.collected for growth in inside}
    outside = [growth for growth in grown if not in_loop(growth.place) and growth.collected in collections]
    captures = []
    for growth in sorted((*inside, *outside), key=lambda each: each.place.lines[1]):
        captured_at, collected = growth.place, reading(growth.place, "after", growth.collected)
        if collected is None:
            return Unknown(function, _wanted(captured_at, f"a place where {growth.collected} is surely bound"))
        captures.append(
            _inside(growth, collected, place, index) if growth in inside else _outside(growth, collected, place, whole)
        )
    after = any(_id_before(growth, place) for growth in inside)
    return CaptureLoop(function, place, whole, step, _numbering(step, index, inside), tuple(captures), after)


# --- which boundary ---------------------------------------------------------------------------------


def _inside(growth: Growth, collected: str, loop: Place, index: str | None) -> CapturePoint:
    number = _number(growth, index) or "None"
    ran = not growth.by_callee and _layer_has_run(loop, growth.place)
    boundary = "None" if growth.several else f"{number} + 1" if ran else number
    return CapturePoint(
        growth.place,
        collected,
        boundary,
        "layer" if growth.by_callee else "loop-after" if ran else "loop",
        growth.means,
    )


def _outside(growth: Growth, collected: str, loop: Place, whole: Place) -> CapturePoint:
    """Before the loop or after it the engine names the boundary itself, if it can be told at all."""
    place, compared, how = growth.place, _compared(growth), ("outside", growth.means)
    if growth.test is None or compared is None or growth.several or _apart(compared)[1] > 0:
        return CapturePoint(place, collected, "None", *how)
    number = code(_apart(compared)[0])
    asked = growth.by_callee and number == code(_first_compared(growth.test))  # evaluated among the call's arguments
    if asked or _evaluates(place, number, loop, whole):
        return CapturePoint(place, collected, number, *how)
    within = _end_of_choice(place)  # in there, the test has been evaluated
    return CapturePoint(within or place, collected, number if within else "None", *how)


def _number(growth: Growth, index: str | None) -> str | None:
    """The layer in question: X in `X in ids`, `X - 1 in ids` or `X + 1 in ids`, else the loop's own index."""
    compared = _compared(growth)
    return code(_apart(compared)[0]) if compared is not None else index


def _compared(growth: Growth) -> cst.BaseExpression | None:
    """What the growth's test looks for among the ids to capture."""
    for part in descend(growth.test) if growth.test is not None else ():
        if isinstance(part, cst.Comparison) and isinstance(part.comparisons[0].operator, cst.In):
            if speaks(part.comparisons[0].comparator):
                return part.left
    return None


def _apart(number: cst.BaseExpression) -> tuple[cst.BaseExpression, int]:
    """X and how far an id is off it: `X - 1`, `X` and `X + 1`."""
    if isinstance(number, cst.BinaryOperation) and code(number.right) == "1":
        if isinstance(number.operator, (cst.Add, cst.Subtract)):
            return number.left, 1 if isinstance(number.operator, cst.Add) else -1
    return number, 0


def _id_before(growth: Growth, loop: Place) -> bool:
    """Whether an id to capture names the layer whose output is captured, not the boundary behind it."""
    ran = not growth.by_callee and _layer_has_run(loop, growth.place)
    return (compared := _compared(growth)) is not None and int(ran) > _apart(compared)[1]


def _layer_has_run(loop: Place, place: Place) -> bool:
    """Whether some layer call of the loop comes before the place."""
    for each in loop.function.places:
        if each.statement is place.statement:
            return False
        if (
            loop.statement in each.parents
            and isinstance(each.statement, cst.SimpleStatementLine)
            and any(layer_calls(each))
        ):
            return True
    return False


def _evaluates(place: Place, number: str, loop: Place, whole: Place) -> bool:
    """Whether `number` can surely be evaluated there: the loop's header or this statement has done so."""
    expression = cst.parse_expression(number)
    if isinstance(expression, (cst.Name, cst.Integer)):
        return readable(place, "after", number)
    if isinstance(place.statement, cst.If) and number == code(_first_compared(place.statement.test)):
        return True
    passed = whole.lines[1] < place.lines[0] and any(
        whole.statement is each for suite in place.suites for each in suite
    )
    counted = loop.statement.iter if isinstance(loop.statement, cst.For) else cst.Pass()
    return passed and any(code(part) == number for part in descend(counted))


def _first_compared(test: cst.BaseExpression) -> cst.BaseExpression:
    """What a test compares before anything can cut it short."""
    while isinstance(test, (cst.BooleanOperation, cst.Comparison)):
        test = test.left
    return _apart(test)[0]


def _end_of_choice(place: Place) -> Place | None:
    """The last statement of an `if`'s own suite."""
    suite = tuple(block(getattr(place.statement, "body", None)))
    if not isinstance(place.statement, cst.If) or not suite:
        return None
    return Place(place.function, suite[-1], (*place.suites, suite), (*place.parents, place.statement))


# --- the loop itself --------------------------------------------------------------------------------


def _own(loop: Place, place: Place) -> bool:
    """Whether a statement is the loop's own, those inside a `with` counted as such."""
    between = place.parents[place.parents.index(loop.statement) + 1 :]
    return all(isinstance(parent, cst.With) for parent in between) and not isinstance(place.statement, cst.With)


def _counter(loop: cst.For) -> str | None:
    target = target_names([loop.target])
    counted = isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) in ("range", "enumerate")
    numbered = any(word.endswith(("ids", "indices")) for word in words(loop.iter))  # `for i in self._layer_ids`
    return target[0] if target and (counted or len(target) == 1 and numbered) else None


def _numbering(step: Place, index: str | None, inside: list[Growth]) -> str | None:
    """What numbers the layers where one runs: what the ids are compared with, if that is known by then."""
    for number in (*(_number(growth, index) for growth in inside), index):
        if number and all(readable(step, "before", name) for name in names(cst.parse_expression(number))):
            return number
    return None


@functools.lru_cache(maxsize=256)
def layer_names(function: Function, loop: cst.For) -> frozenset[str]:
    """Names that hold a layer inside the loop: what it goes over, or a local taken from `….layers[…]`."""
    found = set()
    if (
        any(word.endswith("layers") for word in words(loop.iter))
        and dotted(getattr(loop.iter, "func", None)) != "range"
    ):
        found |= set(target_names([loop.target])[-1:])
    for place in function.places:
        if loop in place.parents:
            for targets, value in assigned(place.statement):
                if isinstance(value, cst.Subscript) and (dotted(value.value) or "").endswith("layers"):
                    found |= set(target_names(targets))
    return frozenset(found)


def _runs_layer(call: cst.Call, items: frozenset[str]) -> bool:
    called = call.func
    if isinstance(called, cst.Attribute) and called.attr.value.startswith("forward"):
        called = called.value
    if isinstance(called, cst.Name):
        return called.value in items
    return isinstance(called, cst.Subscript) and (dotted(called.value) or "").endswith("layers")


def _wanted(place: Place, what: str) -> str:
    """What was looked for, and the nearest thing: the innermost statement there that speaks of capturing."""
    source, function = place.function.source, place.function
    near = [
        each
        for each in function.places
        if place.statement in (each.statement, *each.parents) and speaks(each.statement)
    ]
    inner = [each for each in near if not any(each.statement in other.parents for other in near)]
    line = (inner or near or [place])[0].lines[0]
    return f"looked for {what}; nearest is {source.name}:{line}: {source.text(line)}"
