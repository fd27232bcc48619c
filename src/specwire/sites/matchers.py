"""The structural matchers that probes are written with: where EAGLE-3 passes through SGLang's source.

Matchers go by what the code binds and calls, never by line, text or version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from specwire.probe import Absent, Unrecognised
from specwire.sites import streams
from specwire.sites.bindings import readable, reading
from specwire.sites.graphs import graph_seams
from specwire.sites.growth import branch_test
from specwire.sites.lineage import elsewhere
from specwire.sites.loops import CaptureLoop, CapturePoint, Unknown, capture_loops
from specwire.sites.source import (
    Function,
    Place,
    Source,
    assigned,
    calls,
    dotted,
    names,
    target_names,
)
from specwire.sites.streams import Unreadable, stream
from specwire.sites.width_tests import drafts
from specwire.sites.workers import Missing, stages, target_forwards

__all__ = [
    "Missing",
    "Source",
    "Unreadable",
    "batch_arguments",
    "captures",
    "concats",
    "drafts",
    "embedding",
    "endings",
    "functions",
    "graph_seams",
    "model_argument",
    "readable",
    "reading",
    "stages",
    "stream",
    "target_forwards",
    "targets",
]


def targets(source: Source) -> tuple[list[CaptureLoop], list[Absent | Unrecognised]]:
    """The capture loops of a file, and what there is to say of the rest: not understood, or elsewhere."""
    found = capture_loops(source)
    loops = [each for each in found if isinstance(each, CaptureLoop)]
    unknown = (Unrecognised(each.function.qualname, each.why) for each in found if isinstance(each, Unknown))
    return loops, [*unknown] if found else elsewhere(source)


def captures(loops: list[CaptureLoop]) -> Iterator[tuple[CapturePoint, CaptureLoop]]:
    """Every place where something may be collected, once, with its loop."""
    seen = set()
    for loop in loops:
        for capture in loop.captures:
            if (key := (id(capture.place.statement), capture.collected)) not in seen:
                seen.add(key)
                yield capture, loop


def functions(loops: list[CaptureLoop]) -> Iterator[CaptureLoop]:
    """One loop for each function: what is reported once a function belongs to the first of its loops."""
    seen: set[Function] = set()
    for loop in loops:
        if loop.function not in seen:
            seen.add(loop.function)
            yield loop


def embedding(loop: CaptureLoop) -> tuple[Place, str] | Absent | Unrecognised:
    """The statement after which the loop's embeddings are there, and their name; or why it has none."""
    function, hidden = loop.function, streams.states(loop)
    if hidden and (found := streams.embedding(function, hidden)):
        return found
    if hidden and (given := streams.handed_in(function, hidden)):
        return Absent(
            function.qualname,
            f"is handed its states as {given} by {_by(function) or 'other files'}: it embeds nothing itself",
        )
    line = loop.whole.lines[0]
    return Unrecognised(
        function.qualname,
        f"looked for a call of self.…embed… that the states come from ({hidden or 'no plain name'}), before the "
        f"loop over the layers; nearest is {function.source.name}:{line}: {function.source.text(line)}",
    )


def endings(loop: CaptureLoop) -> Iterator[tuple[Place, str] | Absent | Unrecognised]:
    """Each way out of the loop's function, and the states it gives back; or why that is not tapped."""
    function = loop.function
    places = streams.endings(function)
    named = [(place, name) for place in places if (name := streams.returned(place)) and readable(place, "before", name)]
    if named:
        given = {name for _, name in named}
        early = streams.other_endings(function, places)
        found = {place: name for place in early if (name := streams.returned(place)) in given}
        found = {place: name for place, name in found.items() if readable(place, "before", name)}
        yield from sorted((*named, *found.items()), key=lambda each: each[0].lines)
        for place in early:
            if place not in found:
                line = place.lines[0]
                yield Absent(
                    function.qualname,
                    f"an earlier way out gives back other than {' or '.join(sorted(given))} and is not tapped "
                    f"(line {line}: `{function.source.text(line)}`)",
                )
    elif by := _by(function):
        yield Absent(function.qualname, f"gives its states back to {by}: it is not the end of the forward")
    else:
        line = (places[-1] if places else loop.whole).lines[0]
        yield Unrecognised(
            function.qualname,
            "looked for a last return that gives back the states by name; "
            f"nearest is {function.source.name}:{line}: {function.source.text(line)}",
        )


def nearest(source: Source, *words: str) -> str:
    """The first line that holds the first of these words to be found at all, as `file:line: text`."""
    for word in words:
        for number, line in enumerate(source.lines, 1):
            if word.encode() in line:
                return f"{source.name}:{number}: {source.text(number)}"
    return "nothing like it"


def _by(function: Function) -> str:
    """The functions of the same file that call this one."""
    called = re.compile(rb"\.%s\b" % re.escape(function.name.encode()))
    others = [each.qualname for each in function.source.functions if each is not function and called.search(each.bytes)]
    return " and ".join(others)


def batch_arguments(place: Place, loop: CaptureLoop | None = None, where: str = "after") -> str:
    """`, input_ids=…, positions=…, forward_batch=…` for those that the function surely has at the place.

    With `loop`, also whether its ids name the layers before the boundaries.
    """
    known = [name for name in ("input_ids", "positions", "forward_batch") if readable(place, where, name)]
    return "".join(f", {name}={name}" for name in known) + (", after=True" if loop is not None and loop.after else "")


def model_argument(function: Function) -> str:
    return "self" if "self" in function.parameters else "None"


def concats(source: Source, mode: str) -> list[tuple[Place, str] | Unrecognised]:
    """Where auxiliary states are packed for a mode, "full" or "last": the place, and the packed name."""
    asked = f"is_{mode}"
    found: list[tuple[Place, str] | Unrecognised] = [
        (place, target_names(targets)[0])
        for function in source.functions
        if asked.encode() in function.bytes
        for place in function.places
        if any(_asks(test, asked) for test in _deciding(place))
        for targets, value in assigned(place.statement)
        if any(_packs(call) for call in calls(value)) and target_names(targets)
    ]
    return found or [
        Unrecognised(
            "LogitsProcessor",
            "looked for a packing of aux_… states (torch.cat or pack_aux_hidden_states) under "
            f"{asked}(); nearest is {nearest(source, asked, 'need_capture')}",
        )
    ]


def _deciding(place: Place) -> Iterator[cst.BaseExpression]:
    """The tests of the `if` and `elif` branches that the place stands in."""
    for depth, parent in enumerate(place.parents):
        if isinstance(parent, cst.If) and (test := branch_test(parent, place.suites[depth + 1])) is not None:
            yield test


def _asks(test: cst.BaseExpression, method: str) -> bool:
    return any(isinstance(call.func, cst.Attribute) and call.func.attr.value == method for call in calls(test))


def _packs(call: cst.Call) -> bool:
    about_aux = any(name.startswith("aux") for argument in call.args for name in names(argument))
    return about_aux and (dotted(call.func) or "") in ("torch.cat", "pack_aux_hidden_states")
