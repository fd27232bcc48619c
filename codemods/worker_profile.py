"""Times the stages of each speculative cycle, and counts what was accepted."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Found, Probe, Tap, Unrecognised


def find(source: sites.Source) -> Found:
    for found in (*sites.stages(source), *sites.target_forwards(source)):
        if isinstance(found, sites.Missing):
            yield Unrecognised(found.qualname, found.why)
        else:
            yield Tap(found.place, "above", f'timed("{found.name}")')


PROBE = Probe(
    group="profile",
    reports="time in draft, verify, draft extend; share of the cycle; acceptance",
    site="the EAGLE worker (v1, v2)",
    files=("sglang/srt/speculative/*eagle_worker*.py", "sglang/srt/managers/tp_worker.py"),
    needles=(b"draft_extend", b"class TpModelWorker"),
    find=find,
    cases=(
        """
        import torch
        class EAGLEWorker(TpModelWorker):
        +   timed("cycle")
            def forward_batch_speculative_generation(self, batch):
                if batch.forward_mode.is_extend():
                    logits, ids = self.forward_target_extend(batch)
                    self.forward_draft_extend(batch, logits.hidden_states, ids)
                    return logits, ids
                spec_info = self.draft(batch)
                logits, result = self.verify(batch, spec_info)
                self.forward_draft_extend_after_decode(batch)
                return logits, result
        +   timed("draft")
            def draft(self, batch):
                return self.draft_forward(batch)
            def draft_forward(self, batch):
                return self.draft_model_runner.forward(batch)
        +   timed("verify")
            @torch.no_grad()
            def verify(self, batch, spec_info):
                return spec_info.verify(batch, self.target_worker.forward_batch_generation(batch))
        +   timed("draft-extend")
            def forward_draft_extend(self, batch, hidden_states, ids):
                self.draft_model_runner.forward(batch)
        +   timed("draft-extend")
            def forward_draft_extend_after_decode(self, batch):
                self.draft_model_runner.forward(batch)
        """,
        """
        import torch
        class EagleDraftWorker:
        +   timed("draft")
            def draft(self, batch):
                return self.cuda_graph_runner.replay(batch)
        +   timed("draft-extend")
            def _draft_extend_for_prefill(self, batch):
                return self.draft_runner.forward(batch)
        +   timed("draft-extend")
            def _draft_extend_for_decode(self, batch, result):
                return self.cuda_graph_runner_for_draft_extend.execute(batch)
        class EAGLEWorkerV2:
        +   timed("cycle")
            def forward_batch_generation(self, batch):
                if batch.coordinated:
                    return self._coordinated(batch)
                if batch.is_extend_in_batch:
                    return self._forward_prefill_batch(batch)
                result = self.verify(self.draft_worker.draft(batch))
                if self.skips:
                    self._stub_skipped_draft_extend(batch)
                else:
                    self.draft_worker._draft_extend_for_decode(batch, result)
                return result
            def _forward_prefill_batch(self, batch):
                return self.draft_worker._draft_extend_for_prefill(batch)
            def _coordinated(self, batch):
                result = self.verify(self.draft_worker.draft(batch))
                self.draft_worker._draft_extend_for_decode(batch, result)
                return result
            def _stub_skipped_draft_extend(self, batch):
                batch.next = None
        +   timed("verify")
            def verify(self, batch):
                return run_eagle_verify(batch, target_worker=self.target_worker)
        """,
        """
        import torch
        class BaseTpWorker:
            def forward_batch_generation(self, batch):
                pass
            def forward_batch_embedding(self, batch):
                return self.model_runner.forward(batch)
        class TpModelWorker(BaseTpWorker):
        +   timed("target")
            def forward_batch_generation(self, batch, forward_batch=None, is_verify=False):
                out = self.model_runner.forward(forward_batch)
                return out if is_verify else self.model_runner.sample(out, forward_batch)
            def forward_batch_split_prefill(self, batch):
                return self.model_runner.sample(self.model_runner.forward(batch), batch)
        """,
        """
        import torch
        class NgramWorker:
            def forward_batch_generation(self, batch):
                return self.verify(batch, self.lookup(batch))
            def verify(self, batch, draft_extend):
                return self.target_worker.forward_batch_generation(batch)
        """,
    ),
)
