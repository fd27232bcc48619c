"""SGLang's own graph runners on a CPU, their graphs emulated: with this directory on PYTHONPATH and EMULATED_GRAPHS set.

The runners, their backends, buffers, padding and the models are the release's own. Stood in for are: the device's graphs
(`cuda_graph_emulator`), its streams and pools, and two kernels, each one operation of the graph: the attention, which
reads the metadata as the backend has it at the replay, as a kernel reads its static buffers, and the experts. After
each replay the memory of the graph that is no output is overwritten.

EMULATED_GRAPHS names what is replayed, of: decode (and verification), draft, draft-extend, prefill (of target and draft, by
segments, between which the attention runs as Python: what 0.5.23 does on CUDA unless told otherwise). A launch with graphs
off has none, as on a device: on a CPU they are on with `--no-disable-cuda-graph`.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types

WANTED = set(os.environ.get("EMULATED_GRAPHS", "").split(",")) - {""}
SHAPES = (1, 2, 4)  # requests
LENGTHS = (8, 16, 32)  # tokens of a prefill
SRT = "sglang.srt."
HOOKS = {}


def after(name):
    """Decorator: what is done to the engine's module of that name once it has been imported."""

    def keep(function):
        HOOKS[SRT + name] = function
        return function

    return keep


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        change = HOOKS.get(name)
        spec = change and importlib.machinery.PathFinder.find_spec(name, path, target)
        if not spec:
            return None
        run = spec.loader.exec_module

        def execute(module):
            run(module)
            change(module)

        spec.loader.exec_module = execute
        return spec


def device():
    """A device module with graphs, in the place of `torch.cpu`."""
    import torch
    from cuda_graph_emulator import Graph, capture

    class Stream(torch.cpu.Stream):
        """Of a device that has always done everything already."""

        stream_id = cuda_stream = 0

        def synchronize(self):
            pass

    def event(*_, **__):
        nothing = dict.fromkeys(("synchronize", "record", "wait"), lambda *_: None)
        return types.SimpleNamespace(query=lambda: True, **nothing)

    torch.cuda.CUDAGraph = Graph
    torch.cuda.is_initialized = lambda: Graph.capturing is not None
    torch.cuda.is_current_stream_capturing = lambda: Graph.capturing is not None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.graph = capture
    torch.cuda.graph_pool_handle = lambda: (0, 0)
    for name, value in {
        "graph": capture,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: Graph.capturing is not None,
        "Stream": Stream,
        "Event": event,
    }.items():
        setattr(torch.cpu, name, value)


@contextlib.contextmanager
def one_stream(stream=None):
    yield types.SimpleNamespace(stream=stream)


def kernel(owner, *names):
    """Methods of the attention become one operation each."""
    from cuda_graph_emulator import opaque

    for name in names:
        setattr(owner, name, opaque(getattr(owner, name)))


def wanted(kind, server_args):
    return kind in WANTED and not server_args.disable_cuda_graph


def metadata(self, batch, in_capture=False):
    """As before an eager forward, of the graph's static batch or of a view of the live one."""
    mode = batch.forward_mode
    if mode.is_extend(include_draft_extend_v2=True) and not mode.is_target_verify():
        lengths = getattr(batch, "extend_seq_lens", None)
        lengths = batch.spec_info.extend_seq_lens_tensor if lengths is None else lengths
        batch.extend_seq_lens, batch.extend_start_loc = lengths, lengths.cumsum(0) - lengths
    self.init_forward_metadata(batch)


@after("layers.attention.intel_amx_backend")
def attention(module):
    device()
    one, steps = module.IntelAMXAttnBackend, module.IntelAMXMultiStepDraftBackend
    kernel(one, "forward_extend", "forward_decode")
    for each in (one, steps):
        each.init_cuda_graph_state = lambda self, *_, **__: None
        each.get_cuda_graph_seq_len_fill_value = lambda self: 1
        each.init_forward_metadata_out_graph = metadata
        each.init_forward_metadata_in_graph = lambda self, batch: None


@after("layers.moe.fused_moe_native")
def experts(module):
    """It counts each expert's tokens on the host, which a device's kernel does not."""
    kernel(module, "moe_forward_native")


@after("model_executor.runner_backend.full_cuda_graph_backend")
def full(module):
    from cuda_graph_emulator import tensors

    replay = module.FullCudaGraphBackend.replay

    def then_another(self, shape_key, *args, **kwargs):
        made = replay(self, shape_key, *args, **kwargs)
        self._graphs[shape_key].poison(tensors([getattr(made, "__dict__", made)]))
        return made

    module.FullCudaGraphBackend.replay = then_another


@after("model_executor.runner_backend.breakable_cuda_graph_backend")
def breakable(module):
    from cuda_graph_emulator import tensors

    replay = module.BreakableCudaGraphBackend.replay

    def then_another(self, shape_key, *args, **kwargs):
        made = replay(self, shape_key, *args, **kwargs)
        for segment in self._graphs[shape_key]._segments:
            segment.poison(tensors(made))
        return made

    module.BreakableCudaGraphBackend.replay = then_another


@after("model_executor.cuda_graph_config")
def default(module):
    if "prefill" in WANTED:
        module.default_prefill_backend = lambda: module.Backend.BREAKABLE


@after("model_executor.runner.prefill_cuda_graph_runner")
def prefill(module):
    module.graph_capture = one_stream
    module.get_prefill_num_tokens_to_capture = lambda _: list(LENGTHS)


@after("model_executor.model_runner_components.cuda_graph_setup")
def setup(module):
    def decode(*, model_runner):
        from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

        runner = None
        if wanted("decode", model_runner.server_args) and not model_runner.is_draft_worker:
            runner = DecodeCudaGraphRunner(model_runner)
        return module.GraphCapture(runner=runner, memory_phase="decode", memory_usage_gb=0, capture_time=0)

    module.capture_decode_graph = decode


@after("model_executor.graph_shared_output")
def logits(module):
    shared = []

    def one(cls, model_runner):
        shared[:] = shared or [cls(device=module.torch.device("cpu"), max_rows=64)]
        return shared[0]

    module.GraphSharedOutput.create_for_model_runner = classmethod(one)


@after("model_executor.runner.base_cuda_graph_runner")
def shapes(module):
    module.get_batch_sizes_to_capture = lambda *_, **__: (list(SHAPES), [])


@after("model_executor.runner.decode_cuda_graph_runner")
def decode(module):
    module.graph_capture = one_stream


@after("speculative.eagle_worker_v2")
def draft(module):
    def capture(self):
        runner, extend = module.EAGLEDraftCudaGraphRunner, module.EAGLEDraftExtendCudaGraphRunner
        many = self.speculative_num_steps > 1
        drafts, extends = (wanted(kind, self.server_args) for kind in ("draft", "draft-extend"))
        self.cuda_graph_runner = runner(self) if drafts and many else None
        self.cuda_graph_runner_for_draft_extend = extend(self) if extends else None

    module.EagleDraftWorker._capture_cuda_graphs = capture


@after("model_executor.forward_batch_info")
def modes(module):
    module.ForwardMode.is_cpu_graph = module.ForwardMode.is_cuda_graph


if WANTED:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.meta_path.insert(0, Finder())
