"""Dumps whole boundaries from the target's layer loop, as training data holds them."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap


def find(source: sites.Source) -> Found:
    loops, rest = sites.targets(source)
    for loop in loops:
        stream = sites.stream(loop)
        if isinstance(stream, sites.Unreadable):
            yield Absent(loop.function.qualname, stream.why)
            continue
        model = sites.model_argument(loop.function)
        for place, where, index in ((loop.step, "before", loop.index), (loop.whole, "after", "None")):
            batch = sites.batch_arguments(place, loop, where)
            yield Tap(place, where, f"boundary({model}, {index}, {stream.hidden}{stream.rest}{batch})")
    yield from rest


PROBE = Probe(
    group="capture",
    reports="chosen boundaries, whole, as training data holds them",
    site="the target's layer loop",
    files=("sglang/srt/models/*.py",),
    needles=(b"to_capture",),
    find=find,
    cases=(
        """
        import torch
        class Model:
            def forward(self, positions, hidden, residual):
                aux = []
                for i in range(8):
                    if i in self.layers_to_capture:
                        aux.append(hidden + residual)
        +           boundary(self, i, hidden, residual=residual, positions=positions)
                    hidden, residual = self.layers[i](positions, hidden, residual)
        +       boundary(self, None, hidden, residual=residual, positions=positions)
                return hidden, aux
        """,
    ),
)
