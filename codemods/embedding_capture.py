"""Reports boundary 0: the target's embeddings, computed or handed in."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    loops, rest = sites.targets(source)
    for loop in sites.functions(loops):
        found = sites.embedding(loop)
        if isinstance(found, (Absent, Unrecognised)):
            yield found
            continue
        place, hidden = found
        model, batch = sites.model_argument(loop.function), sites.batch_arguments(place, loop)
        yield Tap(place, "after", f"embedding({model}, {hidden}{batch})")
    yield from rest


PROBE = Probe(
    group="debug",
    reports="boundary 0",
    site="every EAGLE-3-capable target, after the embedding",
    files=("sglang/srt/models/*.py",),
    needles=(b"to_capture",),
    find=find,
    cases=(
        """
        import torch
        class Model:
            def forward(self, input_ids, positions, forward_batch, input_embeds=None):
                if input_embeds is None:
                    hidden = self.embed_tokens(input_ids)
                else:
                    hidden = input_embeds
        +       embedding(self, hidden, input_ids=input_ids, positions=positions, forward_batch=forward_batch)
                aux = []
                for i in range(8):
                    if i in self.layers_to_capture:
                        aux.append(hidden)
                    hidden = self.layers[i](hidden)
                return hidden, aux
        """,
    ),
)
