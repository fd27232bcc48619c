"""CUDA graphs on a CPU: operations are recorded at capture and run again at replay on the same storages; Python is not.

`Graph` stands in for `torch.cuda.CUDAGraph`, `capture` for `torch.cuda.graph`. What a capture forbids (reading a value
on the host) raises. Between replays `poison` overwrites all of the graph's memory but what is named, as the next graph
of a shared pool may. Stream order and copies that are under way cannot be shown here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FORBIDDEN = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


def tensors(*values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name in FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function._schema.name}")
        made = function(*args, **kwargs)
        writes = any(each.alias_info and each.alias_info.is_write for each in function._schema.arguments)
        self.graph.record(function, args, kwargs, made, writes)
        return made


class Graph:
    """`operations` in the order in which they were recorded; `pool`: the memory that they made."""

    capturing: Graph | None = None

    def __init__(self, *_, **__) -> None:
        self.operations: list[tuple] = []
        self.pool: list[torch.UntypedStorage] = []

    def capture_begin(self, *_, **__) -> None:
        self._recorder = _Recorder(self)
        self._recorder.__enter__()
        Graph.capturing = self

    def capture_end(self) -> None:
        Graph.capturing = None
        self._recorder.__exit__(None, None, None)

    def record(self, function: Callable, args: tuple, kwargs: dict, made: object, writes: bool) -> None:
        given = {memory(each) for each in tensors(args, kwargs)}
        fresh = [each for each in tensors(made) if memory(each) not in given]
        if fresh or writes:
            self.operations.append((function, args, kwargs, made if fresh else None))
            self.pool += [each.untyped_storage() for each in fresh]

    def replay(self) -> None:
        for function, args, kwargs, made in self.operations:
            again = function(*args, **kwargs)
            for kept, new in zip(tensors(made), tensors(again), strict=True) if made is not None else ():
                kept.copy_(new)

    def reset(self) -> None:
        self.operations.clear()
        self.pool.clear()

    def poison(self, keep: Iterable[torch.Tensor]) -> None:
        kept = {memory(each) for each in keep}
        for storage in self.pool:
            if storage.data_ptr() not in kept:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0xFF)


def opaque(function: Callable) -> Callable:
    """`function` as one operation of a graph, as a kernel is: what it does within is not recorded, nor forbidden."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        graph = Graph.capturing
        if graph is None:
            return function(*args, **kwargs)
        with _disable_current_modes():
            made = function(*args, **kwargs)
            graph.record(function, args, kwargs, made, writes=True)
        return made

    return run


@contextlib.contextmanager
def capture(cuda_graph: Graph, pool: object = None, stream: object = None, **_) -> Iterator[None]:
    cuda_graph.capture_begin()
    try:
        yield
    finally:
        cuda_graph.capture_end()
