"""The taps while a graph is captured and replayed, on the release's own graph backend with the graphs emulated."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
from cuda_graph_emulator import Graph, capture, memory

from specwire import registry
from specwire.patching.insert import render

RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}
LAYERS, HIDDEN = 4, 8
MODEL = """
import torch
class Model:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.embed_tokens(input_ids)
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states)
            hidden_states = self.layers[i](hidden_states)
        hidden_states = self.norm(hidden_states)
        return hidden_states, torch.cat(aux_hidden_states, dim=-1)
"""


@pytest.fixture(params=["emulated alone", pytest.param("SGLang's backend", marks=pytest.mark.engine)])
def record(request, monkeypatch):
    """`record(forward)` warms up twice and captures; (graph, output, replay)."""
    if request.param != "emulated alone":
        module = importlib.import_module("sglang.srt.model_executor.runner_backend.full_cuda_graph_backend")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Graph.capturing is not None)
    mode = types.SimpleNamespace(is_capture_mode=False)
    monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.cuda_graph_runner", mode)

    def alone(forward):
        mode.is_capture_mode = True
        forward()
        forward()
        graph = Graph()
        with capture(graph):
            made = forward()
        mode.is_capture_mode = False
        return graph, made, graph.replay

    def engine(forward):
        for scope in ("graph_pool_capture_scope", "graph_pool_replay_scope"):
            monkeypatch.setattr(module, scope, contextlib.nullcontext)
        backend = object.__new__(module.FullCudaGraphBackend)
        backend.__dict__ |= {
            "_graphs": {},
            "_outputs": {},
            "_pool": (0, 0),
            "_capture_stream": None,
            "_output_buffer": None,
            "_reuse_output_buffer": False,
            "_memory_saver_adapter": None,
            "_cuda_graph_runner": types.SimpleNamespace(),
            "_device_module": types.SimpleNamespace(synchronize=lambda: None, graph=capture),
            "_tp_group": types.SimpleNamespace(barrier=lambda: None),
            "_precarve": types.SimpleNamespace(measure=contextlib.nullcontext, mint=lambda: None),
        }
        mode.is_capture_mode = True
        backend.capture_one("shape", forward)
        mode.is_capture_mode = False
        return backend._graphs["shape"], backend._outputs["shape"], lambda: backend.replay("shape", None)

    return alone if request.param == "emulated alone" else engine


@pytest.fixture
def model(monkeypatch, tmp_path):
    """`model(taps, **settings)`: a target over a static input, tapped or as it is, and how often its layers ran."""

    def made(taps, **settings):
        for name in ("EAGLE3_DEBUG", "EAGLE3_CAPTURE_DIR"):
            monkeypatch.delenv(name, raising=False)
            if name in settings:
                monkeypatch.setenv(name, settings[name])
        spec = importlib.util.spec_from_file_location("sglang.srt._specwire", RUNTIME)
        runtime = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runtime)
        package = types.ModuleType("sglang.srt")
        package._specwire = runtime
        if "sglang.srt" in sys.modules:  # the engine's own, where its backend is used
            monkeypatch.setattr(sys.modules["sglang.srt"], "_specwire", runtime, raising=False)
        else:
            monkeypatch.setitem(sys.modules, "sglang.srt", package)
        monkeypatch.setitem(sys.modules, "sglang.srt._specwire", runtime)
        data, name, names = textwrap.dedent(MODEL).encode(), "sglang/srt/models/case.py", {}
        if taps:
            wanted = {each: probe for each, probe in PROBES.items() if probe.takes(name, data)}
            data = render(name, data, wanted).data
        exec(compile(data, "case.py", "exec", dont_inherit=True), names)
        one, ran = names["Model"](), []
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(50, HIDDEN, generator=generator)
        weights = [torch.randn(HIDDEN, HIDDEN, generator=generator) for _ in range(LAYERS)]
        one.layers_to_capture, one.start_layer, one.end_layer = [1, 3], 0, LAYERS
        one.embed_tokens = lambda ids: table[ids]
        one.norm = lambda hidden: hidden / 2

        def layer(number):
            def run(hidden):
                ran.append(number)
                return hidden + torch.tanh(hidden @ weights[number])

            return run

        one.layers = [layer(number) for number in range(LAYERS)]
        ids = torch.zeros(6, dtype=torch.int64)
        batch = types.SimpleNamespace(forward_mode=types.SimpleNamespace(name="DECODE"))
        return types.SimpleNamespace(forward=lambda: one.forward(ids, ids, batch), ids=ids, ran=ran)

    return made


def names_of(graph):
    return [operation[0]._schema.name for operation in graph.operations]


@pytest.mark.parametrize(
    "settings", [{}, {"EAGLE3_DEBUG": "1"}, {"EAGLE3_CAPTURE_DIR": "out"}], ids=["off", "lines", "files"]
)
def test_a_tapped_forward_is_captured_and_replayed_as_the_bare_one(record, model, tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    bare, tapped = model(False), model(True, **settings)
    (one, wanted, again), (other, found, replay) = record(bare.forward), record(tapped.forward)
    assert names_of(one) == names_of(other) and len(one.operations) > LAYERS
    for ids in ([1, 2, 3, 4, 5, 6], [9, 9, 8, 7, 0, 3]):
        calls = len(tapped.ran)
        for each, run in ((bare, again), (tapped, replay)):
            each.ids.copy_(torch.tensor(ids))
            run()
        assert len(tapped.ran) == calls, "Python ran in a replay"
        assert all(map(torch.equal, wanted, found))
        for graph, kept in ((one, wanted), (other, found)):
            graph.poison(kept)


def test_the_capture_is_on_record_and_the_made_up_rows_before_it_are_not(record, model, tmp_path):
    tapped = model(True, EAGLE3_CAPTURE_DIR=str(tmp_path))
    _, _, replay = record(tapped.forward)
    replay()
    lines = [json.loads(line) for line in (tmp_path / "rank0" / "blind.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in lines} == {"cuda-graph"}
    assert {line["site"] for line in lines} >= {"embedding-capture", "layer-capture", "forward-end"}
    assert not list((tmp_path / "rank0").glob("*.safetensors"))
    tapped.forward()
    assert list((tmp_path / "rank0").glob("*.safetensors"))


def test_the_emulation_refuses_what_a_capture_refuses_and_keeps_nothing_that_is_no_output():
    value = torch.arange(4.0)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), capture(Graph()):
        value.sum().item()
    graph = Graph()
    with capture(graph):
        kept = value * 2
        made = kept + 1
    value.fill_(3)
    graph.replay()
    assert made.tolist() == [7.0] * 4 and memory(kept) in {each.data_ptr() for each in graph.pool}
    graph.poison([made])
    assert kept.isnan().all() and made.tolist() == [7.0] * 4
