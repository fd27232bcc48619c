"""Reports the target's final states, and how many boundaries were captured on the way."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    loops, rest = sites.targets(source)
    for loop in sites.functions(loops):
        for found in sites.endings(loop):
            if isinstance(found, (Absent, Unrecognised)):
                yield found
                continue
            place, hidden = found
            model, batch = sites.model_argument(loop.function), sites.batch_arguments(place, loop, "before")
            collected = sites.reading(place, "before", loop.collected)
            yield Tap(place, "before", f"forward_end({model}, {hidden}, {collected}{batch})")
    yield from rest


PROBE = Probe(
    group="debug",
    reports="final states, how many were captured",
    site="every EAGLE-3-capable target, at the end of forward",
    files=("sglang/srt/models/*.py",),
    needles=(b"to_capture",),
    find=find,
    cases=(
        """
        import torch
        class Model:
            def forward(self, positions, hidden):
                aux = []
                for i in range(8):
                    if i in self.layers_to_capture:
                        aux.append(hidden)
                    hidden = self.layers[i](hidden)
                hidden = self.norm(hidden)
        +       forward_end(self, hidden, aux, positions=positions)
                if len(aux) == 0:
                    return hidden
                return hidden, aux
        """,
    ),
)
