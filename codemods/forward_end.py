"""Reports the target's final states, and how many boundaries were captured on the way."""

from specwire.probe import Absent, Probe, Tap


def find(source, sites):
    for loop in sites.capture_loops(source):
        place = sites.loop_end(loop.function)
        hidden = sites.returned_name(place) if place else None
        if hidden is None:
            yield Absent(loop.function.qualname, "this function does not end in a return of plain states")
            continue
        model, batch = sites.model_argument(loop.function), sites.batch_arguments(place)
        collected = f", {loop.collected}" if sites.readable(place, "before", loop.collected) else ""
        yield Tap(place, "before", f"forward_end({model}, {hidden}{collected}{batch})")


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
