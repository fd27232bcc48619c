"""Reports the states and the embeddings that reach the draft."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    for draft in sites.drafts(source):
        if isinstance(draft, (Absent, Unrecognised)):
            yield draft
            continue
        place, where = draft.known, draft.known_where
        model, batch = sites.model_argument(draft.function), sites.batch_arguments(place, where=where)
        yield Tap(place, where, f"draft_input({model}, {draft.states}, {draft.embeds}{batch})")


PROBE = Probe(
    group="debug",
    reports="the states and embeddings that reach the draft",
    site="models/llama_eagle3.py and the other EAGLE-3 drafts",
    files=("sglang/srt/models/*.py",),
    needles=(b"spec_info.hidden_states",),
    find=find,
    cases=(
        """
        import torch
        class Draft:
            def forward(self, input_ids, positions, forward_batch):
                embeds = self.embed_tokens(input_ids)
                states = forward_batch.spec_info.hidden_states
        +       draft_input(self, states, embeds, input_ids=input_ids, positions=positions, forward_batch=forward_batch)
                if states.shape[-1] != embeds.shape[-1]:
                    states = self.fc(states)
                return states
        """,
        """
        import torch
        class NotAnEagle3Draft:
            def forward(self, forward_batch):
                states = forward_batch.spec_info.hidden_states
                return self.norm(states)
        """,
    ),
)
