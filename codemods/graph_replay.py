"""Reads what the taps kept in a CUDA graph, where each of its replays ends."""

from __future__ import annotations

from specwire import sites
from specwire.probe import Absent, Found, Probe, Tap


def find(source: sites.Source) -> Found:
    for found in sites.graph_seams(source):
        yield found if isinstance(found, Absent) else Tap(found[0], "above", f'graph("{found[1]}")')


PROBE = Probe(
    group="debug",
    reports="what the other taps saw in forwards that ran as CUDA graphs",
    site="the graph runners of target and draft, and their backends",
    files=("sglang/srt/model_executor/*graph*.py", "sglang/srt/speculative/*graph_runner.py"),
    needles=(b"def capture_one", b"def _capture_one(", b"def replay(", b"def execute("),
    find=find,
    cases=(
        """
        import torch
        class CudaGraphRunner:
        +   graph("captures")
            def capture_one_batch_size(self, bs, forward):
                return self.record(bs, forward)
        +   graph("replays")
            def replay(self, forward_batch, skip_attn_backend_init=False):
                self.graphs[self.bs].replay()
                return self.output_buffers[self.bs]
        class DeepEPCudaGraphRunnerAdapter:
            def replay(self):
                self.mode = 1
        """,
        """
        import torch
        class BaseCudaGraphBackend:
            @abstractmethod
            def capture_one(self, shape_key, forward_fn):
                ...
        class FullCudaGraphBackend(BaseCudaGraphBackend):
        +   graph("captures")
            def capture_one(self, shape_key, forward_fn):
                self._graphs[shape_key] = record(forward_fn)
            def replay(self, shape_key, static_forward_batch):
                self._graphs[shape_key].replay()
        """,
        """
        import torch
        class DecodeCudaGraphRunner(BaseCudaGraphRunner):
        +   graph("replays")
            def execute(self, forward_batch, pp_proxy_tensors=None):
                return self.backend.replay(self.key, forward_batch)
        class MultiStepCudaGraphRunner:
            def replay(self, step):
                return self.runners[step].backend.replay(self.key, self.view)
        """,
    ),
)
