"""Reports whether the draft's width test let `fc` run, with its input and its output."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    for draft in sites.drafts(source):
        if isinstance(draft, (Absent, Unrecognised)):
            yield draft
            continue
        model, batch = sites.model_argument(draft.function), sites.batch_arguments(draft.test)
        yield Tap(draft.test, "before", f"fc_before({model}, {draft.states}, {draft.embeds})")
        yield Tap(draft.test, "after", f"fc_after({model}, {draft.states}{batch})")


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
