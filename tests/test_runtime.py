"""The tap file under real tensors: what it writes is what went by, and what went by is untouched."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from specwire import registry
from specwire.patching.insert import render

RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
# Those that these sources are about: whoever adds a probe adds no events here.
OURS = (
    "embedding-capture layer-capture concat-full concat-last forward-end draft-input draft-fc hidden-state-dump".split()
)
PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items() if name in OURS}
LAYERS, HIDDEN, TOKENS = 4, 6, 5

INLINE = """
import torch
class Model:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states if residual is None else hidden_states + residual)
            hidden_states, residual = self.layers[i](hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        if len(aux_hidden_states) == 0:
            return hidden_states
        return hidden_states, aux_hidden_states
"""
BY_LAYER = """
import torch
from engine import residual_batch, Packer
class Model:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.embed_tokens(input_ids)
        residual_batch.start(forward_batch, hidden_states)
        aux = Packer(len(self.layers_to_capture))
        for i in range(self.start_layer, self.end_layer):
            hidden_states = self.layers[i](hidden_states, forward_batch, capture_output=aux if i in self.layers_to_capture else None)
        hidden_states = residual_batch.final_norm(hidden_states, forward_batch, capture=aux if self.end_layer in self.layers_to_capture else None)
        return hidden_states, aux
"""
SOMETIMES = """
import torch
class Model:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.embed_tokens(input_ids)
        aux = [] if self.layers_to_capture else None
        for i, layer in enumerate(self.layers):
            hidden_states, _ = layer(hidden_states, None)
            if aux is not None and i in self.layers_to_capture:
                aux.append(hidden_states)
        return hidden_states, aux
"""
DRAFT = """
import torch
class Draft:
    def forward(self, input_ids, positions, forward_batch):
        embeds = self.embed_tokens(input_ids)
        hidden_states = forward_batch.spec_info.hidden_states
        if hidden_states.shape[-1] != embeds.shape[-1]:
            hidden_states = self.fc(hidden_states)
        return hidden_states + embeds
"""


class Packer:
    """One packed buffer that fills chunk by chunk, as the engine has one."""

    def __init__(self, count):
        self._count, self._feature_size, self._buffer, self._filled = count, None, None, 0

    def append(self, value):
        if self._buffer is None:
            self._feature_size = value.shape[-1]
            self._buffer = value.new_empty(value.shape[0], value.shape[-1] * self._count)
        self._buffer[:, self._filled * self._feature_size : (self._filled + 1) * self._feature_size] = value
        self._filled += 1

    def __len__(self):
        return self._filled


class Handle:
    """What a layer gives out while its sum is still owed: no tensor."""


class Engine(types.ModuleType):
    """Keeps the stream of each batch to itself, and shows it only through `snapshot`."""

    Packer = Packer
    refuses = False

    def __init__(self):
        super().__init__("engine")
        self.residual_batch = self
        self.states, self.snapshots = {}, 0

    def start(self, batch, hidden):
        self.states[id(batch)] = hidden

    def snapshot(self, hidden, batch):
        self.snapshots += 1
        if self.refuses:
            raise NotImplementedError("snapshot requires a plain residual update")
        return self.states[id(batch)].clone()

    def final_norm(self, hidden, batch, capture=None):
        if capture is not None:
            capture.append(self.states[id(batch)])
        return self.states[id(batch)] * 3


def target(names, captured=(), opaque=None):
    """A model of four layers, each of which is its own affine map of the stream."""
    model = names["Model"]()
    model.layers_to_capture, model.start_layer, model.end_layer = list(captured), 0, LAYERS
    table = torch.arange(100 * HIDDEN, dtype=torch.float32).reshape(100, HIDDEN) / 7
    model.embed_tokens = lambda ids: table[ids]
    model.norm = lambda hidden, residual: ((hidden + residual) * 3, None)

    def plain(number):
        def layer(hidden, residual):
            whole = hidden if residual is None else hidden + residual
            return whole * 0.5 + number, whole

        return layer

    def handed(number):
        def layer(hidden, batch, capture_output=None):
            whole = opaque.states[id(batch)]
            if capture_output is not None:
                capture_output.append(whole)
            opaque.states[id(batch)] = whole * 1.5 + number
            return Handle()

        return layer

    model.layers = [(plain if opaque is None else handed)(number) for number in range(LAYERS)]
    return model


def boundaries(ids):
    """The stream before each layer, and after the last."""
    table = torch.arange(100 * HIDDEN, dtype=torch.float32).reshape(100, HIDDEN) / 7
    found = [table[ids]]
    for number in range(LAYERS):
        found.append(found[-1] * 1.5 + number)
    return found


@pytest.fixture
def load(monkeypatch, tmp_path):
    """`load(source, ...)` gives the names of a module with all taps, or with none, and its tap file."""

    def loaded(source, *, taps=True, capture=True, debug=False, engine=None, **environment):
        for name in (
            "EAGLE3_DEBUG",
            "EAGLE3_CAPTURE_DIR",
            "EAGLE3_CAPTURE_BOUNDARIES",
            "EAGLE3_DEBUG_RANKS",
            "EAGLE3_DEBUG_STEPS",
        ):
            monkeypatch.delenv(name, raising=False)
        environment |= {"EAGLE3_CAPTURE_DIR": str(tmp_path)} if capture else {}
        environment |= {"EAGLE3_DEBUG": "1"} if debug else {}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("sglang.srt._specwire", RUNTIME)
        runtime = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runtime)
        srt = types.ModuleType("sglang.srt")
        srt._specwire = runtime
        monkeypatch.setitem(sys.modules, "sglang.srt", srt)
        monkeypatch.setitem(sys.modules, "engine", engine)
        data = textwrap.dedent(source).encode()
        if taps:
            name = "sglang/srt/models/case.py"
            wanted = {each: probe for each, probe in PROBES.items() if probe.takes(name, data)}
            done = render(name, data, wanted)
            assert not [site for site in done.sites if site.state == "failed"]
            data = done.data
        names = {}
        exec(compile(data, "case.py", "exec", dont_inherit=True), names)
        return names, runtime

    return loaded


def batch(mode="EXTEND", **more):
    return types.SimpleNamespace(forward_mode=types.SimpleNamespace(name=mode), **more)


def events(folder):
    """(metadata, tensors) of every capture, in the order they were written."""
    found = []
    for path in sorted(folder.glob("rank0/*.safetensors")):
        with safe_open(path, "pt") as file:
            assert list(file.metadata()) == ["specwire"]
            found.append(
                (
                    json.loads(file.metadata()["specwire"]),
                    {name: file.get_tensor(name) for name in file.keys()},
                )
            )
    return found


def blind(folder):
    path = folder / "rank0" / "blind.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


IDS, POSITIONS = torch.tensor([3, 1, 4, 1, 5]), torch.arange(TOKENS)


@pytest.mark.parametrize("source", [INLINE, BY_LAYER, SOMETIMES], ids=["inline", "by the layer", "sometimes"])
def test_taps_change_nothing(load, source):
    results = []
    for how in ({"taps": False, "capture": False}, {"capture": False}, {"debug": True}):
        engine = Engine()
        names, _ = load(source, engine=engine, **how)
        model, ids, positions = (
            target(names, [0, 2, 4], engine if source is BY_LAYER else None),
            IDS.clone(),
            POSITIONS.clone(),
        )
        hidden, aux = model.forward(ids, positions, batch())
        aux = list(aux._buffer.split(HIDDEN, -1)) if isinstance(aux, Packer) else aux
        assert torch.equal(ids, IDS) and torch.equal(positions, POSITIONS)
        results.append([hidden, *aux])
    for other in results[1:]:
        assert len(other) == len(results[0]) and all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("source, captured", [(INLINE, [1, 3]), (BY_LAYER, [0, 2, 4])], ids=["inline", "by the layer"])
def test_what_is_captured_is_what_the_stream_was(load, tmp_path, source, captured):
    engine = Engine()
    names, _ = load(source, engine=engine)
    target(names, captured, engine if source is BY_LAYER else None).forward(
        IDS, POSITIONS, batch(seq_lens=torch.tensor([TOKENS]))
    )
    truth, seen = boundaries(IDS), events(tmp_path)
    assert not blind(tmp_path)
    by_site = {
        site: [(about["boundary"], tensors["hidden_states"]) for about, tensors in seen if about["site"] == site]
        for site in {about["site"] for about, _ in seen}
    }
    assert [number for number, _ in by_site["layer-capture"]] == captured
    assert [number for number, _ in by_site["hidden-state-dump"]] == list(range(LAYERS + 1))
    assert [number for number, _ in by_site["embedding-capture"]] == [0]
    for site in ("layer-capture", "hidden-state-dump", "embedding-capture"):
        for number, value in by_site[site]:
            torch.testing.assert_close(value, truth[number], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_site["forward-end"][0][1], truth[LAYERS] * 3, rtol=1e-6, atol=1e-6)
    for about, tensors in seen:
        assert torch.equal(tensors["token_ids"], IDS) and torch.equal(tensors["positions"], POSITIONS)
        assert torch.equal(tensors["seq_lens"], torch.tensor([TOKENS]))
        assert (about["mode"], about["graph"], about["model"], about["captured"], about["step"]) == (
            "EXTEND",
            "eager",
            "Model",
            captured,
            0,
        )


def test_ids_that_name_layers_are_told_as_boundaries(load, tmp_path):
    names, _ = load(SOMETIMES)
    target(names, [1]).forward(IDS, POSITIONS, batch())
    ((about, tensors),) = [event for event in events(tmp_path) if event[0]["site"] == "layer-capture"]
    assert about["boundary"] == 2 and about["captured"] == [2]


def test_steps_are_told_apart(load, tmp_path):
    names, _ = load(INLINE)
    model = target(names, [1, 3])
    for _ in range(6):
        model.forward(IDS, POSITIONS, batch("DECODE"))
    seen = [(about["step"], about["boundary"]) for about, _ in events(tmp_path) if about["site"] == "layer-capture"]
    assert seen == [(step, number) for step in range(6) for number in (1, 3)]
    dumped = [
        (about["step"], about["boundary"]) for about, _ in events(tmp_path) if about["site"] == "hidden-state-dump"
    ]
    assert dumped == [(step, number) for step in range(6) for number in range(LAYERS + 1)]


@pytest.mark.parametrize("wanted", [[0], [3], [1, 3], [0, 1, 2, 3]], ids=str)
def test_steps_are_told_apart_though_a_list_comes_back_with_an_old_id(load, tmp_path, wanted):
    _, runtime = load(INLINE)
    kept = []
    for step in range(3):
        kept.clear()  # the same object, as a freed list's successor may have its id
        for number in range(LAYERS):
            if number in wanted:
                kept.append(torch.full((1, 2), 10.0 * step + number))
            runtime.captured(None, kept, number)
    seen = [
        (about["step"], about["boundary"], tensors["hidden_states"][0, 0].item()) for about, tensors in events(tmp_path)
    ]
    assert seen == [(step, number, 10.0 * step + number) for step in range(3) for number in wanted]


def test_one_captured_boundary_in_every_forward(load, tmp_path):
    names, _ = load(INLINE)
    model = target(names, [2])
    for _ in range(3):
        model.forward(IDS, POSITIONS, batch())
    assert [about["step"] for about, _ in events(tmp_path) if about["site"] == "layer-capture"] == [0, 1, 2]


def test_nothing_is_collected(load, tmp_path):
    names, _ = load(SOMETIMES)
    _, aux = target(names, []).forward(IDS, POSITIONS, batch())
    assert aux is None and not blind(tmp_path)
    sites = {about["site"]: about for about, _ in events(tmp_path)}
    assert "layer-capture" not in sites and sites["forward-end"]["note"] == "captured: 0"


def test_chosen_boundaries_only(load, tmp_path):
    engine = Engine()
    names, _ = load(BY_LAYER, engine=engine, EAGLE3_CAPTURE_BOUNDARIES="1,4")
    target(names, [2], engine).forward(IDS, POSITIONS, batch())
    assert [about["boundary"] for about, _ in events(tmp_path) if about["site"] == "hidden-state-dump"] == [
        1,
        4,
    ]
    assert engine.snapshots == 2


def test_ranks_that_report_nothing_still_read_the_stream(load, tmp_path):
    """Reading an opaque stream can be a collective: every rank must take part."""
    engine = Engine()
    names, _ = load(BY_LAYER, engine=engine, EAGLE3_DEBUG_RANKS="7")
    target(names, [2], engine).forward(IDS, POSITIONS, batch())
    assert engine.snapshots == LAYERS + 1 and not events(tmp_path)


def test_a_stream_that_the_engine_will_not_show_is_recorded_once(load, tmp_path, capfd):
    engine = Engine()
    engine.refuses = True
    names, _ = load(BY_LAYER, engine=engine, debug=True)
    model = target(names, [2], engine)
    for _ in range(2):
        model.forward(IDS, POSITIONS, batch())
    assert [{**line, "pid": None} for line in blind(tmp_path)] == [
        {
            "pid": None,
            "site": "hidden-state-dump",
            "reason": "error",
            "detail": "NotImplementedError: snapshot requires a plain residual update",
        }
    ]
    assert capfd.readouterr().err.count("blind=error NotImplementedError") == 1
    assert [about["boundary"] for about, _ in events(tmp_path) if about["site"] == "layer-capture"] == [2, 2]


def test_a_loop_that_runs_no_layer_reports_no_end(load, tmp_path):
    names, _ = load(INLINE)
    model = target(names, [])
    model.forward(IDS, POSITIONS, batch())
    model.start_layer = LAYERS
    model.norm = lambda hidden, residual: (hidden, None)
    model.forward(IDS, POSITIONS, batch())
    assert [about["boundary"] for about, _ in events(tmp_path) if about["site"] == "hidden-state-dump"] == list(
        range(LAYERS + 1)
    )


def test_several_at_once_are_reported_without_a_boundary(load, tmp_path):
    _, runtime = load(INLINE)
    model, kept = types.SimpleNamespace(layers_to_capture=[1]), [torch.ones(2, 3), torch.zeros(2, 3)]
    runtime.captured(model, kept, None)
    kept.append(torch.full((2, 3), 2.0))
    runtime.captured(model, kept, 1)
    seen = [(about["boundary"], tensors["hidden_states"][0, 0].item()) for about, tensors in events(tmp_path)]
    assert seen == [(None, 1.0), (None, 0.0), (1, 2.0)]
    assert "cannot be told" in events(tmp_path)[0][0]["note"] and events(tmp_path)[2][0]["note"] is None


def test_positions_in_one_row_are_one_row(load, tmp_path):
    _, runtime = load(INLINE)
    runtime.embedding(None, torch.ones(3, 2), positions=torch.arange(3)[None], input_ids=torch.arange(3))
    assert events(tmp_path)[0][1]["positions"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [None, 7, "text", object(), torch.tensor(1.0), torch.ones(0, 3)],
    ids=lambda value: type(value).__name__,
)
def test_nothing_that_a_tap_is_shown_can_make_it_raise(load, wrong):
    _, runtime = load(INLINE, debug=True)
    for look in (
        lambda: runtime.embedding(wrong, wrong, positions=wrong),
        lambda: runtime.captured(wrong, wrong, wrong),
        lambda: runtime.captured(wrong, [wrong], 1),
        lambda: runtime.boundary(wrong, 1, wrong, residual=wrong),
        lambda: runtime.boundary(wrong, wrong, wrong, stream=wrong),
        lambda: runtime.forward_end(wrong, wrong, wrong),
        lambda: runtime.concat("full", wrong, wrong),
        lambda: runtime.draft_input(wrong, wrong, wrong),
        lambda: runtime.fc_before(wrong, wrong, wrong),
        lambda: runtime.fc_after(wrong, wrong),
    ):
        look()


def test_a_folder_that_cannot_be_written_stops_nothing(load, tmp_path, capfd):
    (tmp_path / "rank0").write_text("in the way")
    names, _ = load(INLINE)
    hidden, _ = target(names, [1]).forward(IDS, POSITIONS, batch())
    assert hidden.shape == (TOKENS, HIDDEN)


@pytest.mark.parametrize("width, ran", [(3 * HIDDEN, True), (HIDDEN, False)], ids=["wider", "as wide"])
def test_draft(load, tmp_path, width, ran, capfd):
    names, _ = load(DRAFT, debug=True)
    draft = names["Draft"]()
    draft.embed_tokens, draft.fc = (
        (lambda ids: torch.ones(len(ids), HIDDEN)),
        (lambda states: states[:, :HIDDEN] * 2),
    )
    states = torch.arange(TOKENS * width, dtype=torch.float32).reshape(TOKENS, width)
    draft.forward(IDS, POSITIONS, batch(spec_info=types.SimpleNamespace(hidden_states=states)))
    (about, given), (about_fc, fc) = events(tmp_path)
    assert (
        about["site"] == "draft-input"
        and torch.equal(given["hidden_states"], states)
        and torch.equal(given["embeds"], torch.ones(TOKENS, HIDDEN))
    )
    assert about_fc["site"] == "draft-fc" and about_fc["fc_ran"] is ran and torch.equal(fc["input"], states)
    assert torch.equal(fc["output"], states[:, :HIDDEN] * 2 if ran else states)
    line = capfd.readouterr().err.splitlines()[0]
    assert line.startswith(
        f"[EAGLE3-DEBUG] site=draft-input rank=0 step=0 mode=EXTEND shape=[5, {width}] dtype=float32 norm="
    )
    assert "hs_first5=[0, 1, 2, 3, 4]" in line and ("slots=[[0, 1, 2, 3, 4], [6," in line) is ran


def test_silent_and_without_a_trace_when_off(load, tmp_path, capfd):
    names, runtime = load(INLINE, capture=False)
    target(names, [1]).forward(IDS, POSITIONS, batch())
    assert runtime.on is False and capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_compiled_with_taps_off_is_one_graph(load):
    names, _ = load(INLINE, capture=False)
    plain, _ = load(INLINE, taps=False, capture=False)
    compiled = torch.compile(target(names, [1, 3]).forward, backend="eager", fullgraph=True)
    hidden, aux = compiled(IDS, POSITIONS, batch())
    expected, expected_aux = target(plain, [1, 3]).forward(IDS, POSITIONS, batch())
    assert torch.equal(hidden, expected) and all(map(torch.equal, aux, expected_aux))


def test_compiled_with_taps_on_is_recorded_as_unseen(load, tmp_path):
    names, _ = load(INLINE)
    compiled = torch.compile(target(names, [1]).forward, backend="eager")
    hidden, _ = compiled(IDS, POSITIONS, batch())
    assert torch.equal(
        hidden, target(load(INLINE, taps=False, capture=False)[0], [1]).forward(IDS, POSITIONS, batch())[0]
    )
    assert {line["reason"] for line in blind(tmp_path)} == {"torch-compile"} and not events(tmp_path)
