"""Reports the concatenation that the logits processor keeps for the draft in FULL mode."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    for found in sites.concats(source, "full"):
        if isinstance(found, Unrecognised):
            yield found
            continue
        place, packed = found
        metadata = ", logits_metadata" if sites.readable(place, "after", "logits_metadata") else ""
        yield Tap(place, "after", f'concat("full", {packed}{metadata})')


PROBE = Probe(
    group="debug",
    reports="the concatenation in FULL mode",
    site="layers/logits_processor.py",
    files=("sglang/srt/layers/logits_processor.py",),
    needles=(b"need_capture",),
    find=find,
    cases=(
        """
        import torch
        class LogitsProcessor:
            def forward(self, aux_hidden_states, logits_metadata):
                if logits_metadata.capture_hidden_mode.need_capture():
                    if logits_metadata.capture_hidden_mode.is_full():
                        aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)
        +               concat("full", aux_hidden_states, logits_metadata)
                        kept = aux_hidden_states
                return kept
        """,
    ),
)
