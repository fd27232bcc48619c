"""Reports each boundary that the target captures for the draft, as the engine keeps it."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Found, Probe, Tap


def find(source: sites.Source) -> Found:
    loops, rest = sites.targets(source)
    for capture, loop in sites.captures(loops):
        batch = sites.batch_arguments(capture.place, loop)
        model = sites.model_argument(loop.function)
        yield Tap(capture.place, "after", f"captured({model}, {capture.collected}, {capture.boundary}{batch})")
    yield from rest


PROBE = Probe(
    group="debug",
    reports="each captured boundary",
    site="every EAGLE-3-capable target, in the layer loop",
    files=("sglang/srt/models/*.py",),
    needles=(b"to_capture",),
    find=find,
    cases=(
        """
        import torch
        class Model:
            def forward(self, positions, hidden, forward_batch):
                aux = AuxHiddenStateList()
                for i in range(8):
                    with recorder(i):
                        layer = self.layers[i]
                        hidden = layer(hidden, capture_output=aux.capture if i in self.layers_to_capture else None)
        +               captured(self, aux, i, positions=positions, forward_batch=forward_batch)
                return hidden, aux
        """,
        """
        import torch
        class Model:
            def forward(self, hidden):
                aux = []
                for i, layer in enumerate(self.layers):
                    hidden = layer(hidden)
                    if i in self.layers_to_capture:
                        aux.append(hidden)
        +           captured(self, aux, i + 1, after=True)
                return hidden, aux
        """,
    ),
)
