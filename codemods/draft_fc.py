"""Reports whether the draft's width test let `fc` run, with its input and its output."""

from specwire.probe import Probe, Tap


def find(source, sites):
    for place, states, embeds in sites.width_tests(source):
        model, batch = sites.model_argument(place.function), sites.batch_arguments(place)
        yield Tap(place, "before", f"fc_before({model}, {states}, {embeds})")
        yield Tap(place, "after", f"fc_after({model}, {states}{batch})")


PROBE = Probe(
    group="debug",
    reports="whether fc ran, its input and output",
    site="models/llama_eagle3.py and the other EAGLE-3 drafts, at the width test",
    files=("sglang/srt/models/*.py",),
    needles=(b"spec_info.hidden_states",),
    find=find,
    cases=(
        """
        import torch
        class Draft:
            def forward(self, embeds, positions, forward_batch):
                states = forward_batch.spec_info.hidden_states
        +       fc_before(self, states, embeds)
                if states.shape[-1] != embeds.shape[-1]:
                    states = self.fc(states)
        +       fc_after(self, states, positions=positions, forward_batch=forward_batch)
                return states
        """,
    ),
)
