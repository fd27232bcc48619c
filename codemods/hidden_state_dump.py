"""Dumps whole boundaries from the target's layer loop, as training data holds them."""

from specwire.probe import Absent, Probe, Tap


def find(source, sites):
    for loop in sites.capture_loops(source):
        call = loop.layer_call
        hidden = sites.layer_states(call) if call else None
        if hidden is None or not sites.readable(call, "before", hidden):
            yield Absent(loop.function.qualname, "the layer loop passes on no plain name for its states")
            continue
        held = sites.held_residual(source, call)
        model = sites.model_argument(loop.function)
        for place, where, index in ((call, "before", loop.index), (loop.place, "after", "None")):
            batch = sites.batch_arguments(place)
            yield Tap(place, where, f"boundary({model}, {index}, {hidden}{held}{batch})")


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
