"""The structural matcher for CUDA graph runners: where a graph is captured, and where a batch's replay begins and ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specwire.probe import Absent
from specwire.sites.source import Function, Place, Source

# One captured shape: two forwards as warm-up, then the capture. Runners have it up to 0.5.13, their backends since.
_CAPTURES = frozenset({"capture_one", "capture_one_batch_size", "_capture_one"})
_REPLAYS = frozenset({"replay", "execute"})


def graph_seams(source: Source) -> Iterator[tuple[Place, str] | Absent]:
    """Each method that `captures` one graph, or `replays` what a batch needs; or why a replay cannot be read there."""
    for function in source.functions:
        if function.owner is None or "Graph" not in function.owner or _is_abstract(function):
            continue
        if function.name in _CAPTURES:
            yield _whole(function), "captures"
        elif function.name in _REPLAYS and "Runner" in function.owner:
            if "forward_batch" in function.parameters:
                yield _whole(function), "replays"
            elif _replays_a_graph(function):
                yield Absent(
                    function.qualname,
                    "replays a step of a batch that it is not given (drafts of several layers, which no EAGLE-3 draft is): "
                    "how many rows are padding cannot be told there",
                )


def _whole(function: Function) -> Place:
    return Place(function, function.node, (), ())


def _is_abstract(function: Function) -> bool:
    return any("abstractmethod" in ast.unparse(each) for each in function.syntax.decorator_list)


def _replays_a_graph(function: Function) -> bool:
    """Not an adapter's own bookkeeping of the same name."""
    called = [node.func for node in ast.walk(function.syntax) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Attribute) and "replay" in each.attr for each in called)
