"""The taps while graphs are captured and replayed: emulated graphs, a small model and a runner, both tapped by the probes."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).with_name("emulated_graphs")))
from cuda_graph_emulator import Graph, capture, memory, tensors

from specwire import registry
from specwire.capture import open_capture
from specwire.diagnosis.replays import beside
from specwire.patching.insert import render

RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}
LAYERS, HIDDEN, WIDTH, STEPS = 4, 8, 3, 3
SHAPES = (4, 2, 1)  # requests, each with WIDTH tokens; captured from the largest on, as the engine does
MODEL = b"""
import torch
class Model:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states if residual is None else hidden_states + residual)
            hidden_states, residual = self.layers[i](hidden_states, residual, positions)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states, aux_hidden_states
"""
LOGITS = b"""
import torch
class LogitsProcessor:
    def forward(self, aux_hidden_states, logits_metadata):
        if logits_metadata.capture_hidden_mode.need_capture():
            if logits_metadata.capture_hidden_mode.is_full():
                aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)
                kept = aux_hidden_states
        return kept
"""
DRAFT = b"""
import torch
class Draft:
    def forward(self, input_ids, positions, forward_batch):
        embeds = self.embed_tokens(input_ids)
        hidden_states = forward_batch.spec_info.hidden_states
        if hidden_states.shape[-1] != embeds.shape[-1]:
            hidden_states = self.fc(hidden_states)
        return torch.tanh(hidden_states + embeds + positions[:, None])
"""
# A runner as those of the engine are: static inputs, two warm-ups and a capture for each shape, padded up to a shape.
RUNNER = b"""
import torch
class CudaGraphRunner:
    def capture_one_batch_size(self, bs, forward):
        graph, batch = torch.cuda.CUDAGraph(), self.static(bs)
        for _ in range(2):
            forward(batch)
        with torch.cuda.graph(graph):
            out = forward(batch)
        return graph, out
    def replay(self, forward_batch):
        return self.replayed(forward_batch)
"""
FILES = {"models/model.py": MODEL, "models/draft.py": DRAFT, "layers/logits_processor.py": LOGITS}
FILES |= {"model_executor/cuda_graph_runner.py": RUNNER}


@pytest.fixture
def engine(monkeypatch):
    """`engine(taps, **settings)`: a target and a draft with their runners, tapped or as they are."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: Graph.capturing is not None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Graph.capturing is not None)

    def made(taps, **settings):
        for name in ("DEBUG", "CAPTURE_DIR", "CAPTURE_BOUNDARIES", "GRAPH_MEMORY", "GRAPH_ROWS"):
            monkeypatch.delenv(f"EAGLE3_{name}", raising=False)
            if name in settings:
                monkeypatch.setenv(f"EAGLE3_{name}", str(settings[name]))
        spec = importlib.util.spec_from_file_location("sglang.srt._specwire", RUNTIME)
        runtime = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runtime)
        package = types.ModuleType("sglang.srt")
        package._specwire = runtime
        monkeypatch.setitem(sys.modules, "sglang.srt", package)
        monkeypatch.setitem(sys.modules, "sglang.srt._specwire", runtime)
        names = {}
        for name, data in FILES.items():
            name = f"sglang/srt/{name}"
            wanted = {each: probe for each, probe in PROBES.items() if probe.takes(name, data)}
            source = render(name, data, wanted if taps is True else {n: wanted[n] for n in wanted if n in taps}).data
            exec(compile(source, name, "exec", dont_inherit=True), names)
        return Engine(names, runtime)

    return made


class Mode:
    def __init__(self, name):
        self.name = name


class Engine:
    """`verify(batch)` and `draft(batch)` run eagerly; the same of `graphs` are replayed. `calls` counts layers in Python."""

    def __init__(self, names, runtime):
        self.runtime, self.calls = runtime, Counter()
        random = torch.Generator().manual_seed(0)
        table = torch.randn(50, HIDDEN, generator=random)
        weights = [torch.randn(HIDDEN, HIDDEN, generator=random) / 3 for _ in range(LAYERS)]
        one, self.logits = names["Model"](), names["LogitsProcessor"]()
        one.layers_to_capture, one.start_layer, one.end_layer = [1, 3], 0, LAYERS
        one.embed_tokens = lambda ids: table[ids]
        one.norm = lambda hidden, residual: ((hidden + residual) / 2, residual)

        def layer(number):
            def run(hidden, residual, positions):
                self.calls["layer"] += 1
                stream = hidden if residual is None else hidden + residual
                return torch.tanh(stream @ weights[number]) * (1 + positions[:, None]), stream

            return run

        one.layers = [layer(number) for number in range(LAYERS)]
        draft = names["Draft"]()
        draft.embed_tokens = one.embed_tokens
        shape = torch.randn(2 * HIDDEN, HIDDEN, generator=random)
        draft.fc = lambda states: states @ shape
        self.model, self.drafter = one, draft
        self.verifying = Runner(names, self.verify, WIDTH, "TARGET_VERIFY", 0)
        self.extending = Runner(names, self.extend, WIDTH, "DRAFT_EXTEND_V2", 2 * HIDDEN)
        self.drafting = Runner(names, self.draft, 1, "DECODE", HIDDEN)

    def verify(self, batch):
        hidden, aux = self.model.forward(batch.input_ids, batch.positions, batch)
        mode = types.SimpleNamespace(need_capture=lambda: True, is_full=lambda: True)
        batch.capture_hidden_mode = mode
        return hidden, self.logits.forward(aux, batch)

    def extend(self, batch):
        return self.drafter.forward(batch.input_ids, batch.positions, batch)

    def draft(self, batch):
        """All steps at once: ids that the graph makes itself, positions that it changes in place."""
        ids, states = batch.input_ids, batch.spec_info.hidden_states
        before = batch.spec_info.hidden_states
        for _ in range(STEPS):
            batch.spec_info.hidden_states = states
            states = self.drafter.forward(ids, batch.positions, batch)
            ids = states.argmax(dim=-1) * 3
            batch.positions.add_(1)
        batch.positions.sub_(STEPS)
        batch.spec_info.hidden_states = before
        return states


class Runner:
    def __init__(self, names, forward, width, mode, states):
        self.inner, self.forward, self.width, self.mode = names["CudaGraphRunner"](), forward, width, mode
        most = max(SHAPES) * width
        self.ids, self.positions = torch.zeros(most, dtype=torch.int64), torch.zeros(most, dtype=torch.int64)
        self.states = torch.zeros(most, states)
        self.graphs = {}
        self.inner.static, self.inner.replayed = self.static, self.replayed

    def batch(self, ids, positions, states, requests, slots=None):
        return types.SimpleNamespace(
            forward_mode=Mode(self.mode),
            batch_size=requests,
            input_ids=ids,
            positions=positions,
            spec_info=types.SimpleNamespace(hidden_states=states),
            seq_lens=torch.full((requests,), 7),
            req_pool_indices=torch.arange(requests) if slots is None else slots,
        )

    def live(self, requests, seed):
        random = torch.Generator().manual_seed(seed)
        rows = requests * self.width
        ids = torch.randint(1, 50, (rows,), generator=random)
        states = torch.randn(rows, self.states.shape[1], generator=random)
        return self.batch(ids, torch.randint(0, 9, (rows,), generator=random), states, requests)

    def static(self, requests):
        rows = requests * self.width
        return self.batch(self.ids[:rows], self.positions[:rows], self.states[:rows], requests)

    def capture(self):
        for requests in SHAPES:
            self.graphs[requests] = self.inner.capture_one_batch_size(requests, self.forward)
        return self

    def replay(self, batch):
        return self.inner.replay(batch)

    def replayed(self, batch):
        shape = min(each for each in SHAPES if each >= batch.batch_size)
        for static, live in (
            (self.ids, batch.input_ids),
            (self.positions, batch.positions),
            (self.states, batch.spec_info.hidden_states),
        ):
            static.fill_(9)  # padding is what an earlier batch left
            static[: len(live)].copy_(live)
        graph, out = self.graphs[shape]
        graph.replay()
        for other, _ in self.graphs.values():  # one pool for all: whatever ran last has overwritten the others
            other.poison(tensors(out) if other is graph else ())
        return [each[: len(batch.input_ids)] for each in tensors(out)]


def rows_of(folder, graph):
    """(site, boundary, ids, positions, states...) of each event that ran so, in their order."""
    found = []
    for event in open_capture(folder).events:
        if event.about["graph"] == graph:
            held = {name: event.file.rows(name) for name in event.file.tensors}
            found.append((event.site, event.about["boundary"], event.mode, held))
    return found


def same(one, other):
    assert [each[:3] for each in one] == [each[:3] for each in other]
    for (*_, mine), (*_, theirs) in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name


RUNNERS = ("verifying", "extending", "drafting")


@pytest.mark.parametrize("name", RUNNERS)
def test_every_row_of_a_replay_is_the_eager_row_and_none_is_padding(engine, tmp_path, name):
    system = engine(True, CAPTURE_DIR=tmp_path / "eager")
    runner = getattr(system, name)
    batches = [runner.live(requests, seed) for seed, requests in enumerate((4, 3, 1, 2, 4, 1))]
    wanted = [runner.forward(batch) for batch in batches]
    replaying = engine(True, CAPTURE_DIR=tmp_path / "replay")
    runners = {each: getattr(replaying, each).capture() for each in RUNNERS}
    assert not (tmp_path / "replay").exists(), "a warm-up or a capture was recorded"
    for batch, out in zip(batches, wanted, strict=True):
        calls = dict(replaying.calls)
        found = runners[name].replay(batch)
        assert replaying.calls == calls, "Python ran in a replay"
        assert all(map(torch.equal, found, tensors(out)))
        for other in RUNNERS:  # another graph between two replays disturbs nothing
            if other != name:
                getattr(replaying, other).replay(getattr(replaying, other).live(2, 99))
    mine = {event.about["mode"] for event in open_capture(tmp_path / "eager").events}
    eager, replayed = rows_of(tmp_path / "eager", "eager"), rows_of(tmp_path / "replay", "replay")
    assert eager and not rows_of(tmp_path / "replay", "eager")
    same(eager, [each for each in replayed if each[2] in mine])
    assert not (tmp_path / "replay" / "rank0" / "blind.jsonl").exists()
    of = {part: open_capture(tmp_path / part).events for part in ("eager", "replay")}
    found = beside(of["eager"], [event for event in of["replay"] if event.about["mode"] in mine])
    assert not found.off and not found.alone
    rows = (len(h["hidden_states"]) if "hidden_states" in h else len(h["input"]) for *_, h in eager)
    assert sum(site.rows for site in found.sites.values()) == sum(rows)


def test_the_rows_of_the_draft_s_steps_are_those_that_it_made_itself(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    system.drafting.capture().replay(system.drafting.live(3, 5))
    steps = [each for each in rows_of(tmp_path, "replay") if each[0] == "draft-input"]
    ids = [held["token_ids"].tolist() for *_, held in steps]
    positions = [held["positions"] for *_, held in steps]
    assert len(steps) == STEPS and len({tuple(each) for each in ids}) == STEPS
    assert [(each - positions[0]).unique().tolist() for each in positions] == [[0], [1], [2]]


def test_steps_are_counted_by_replay_and_not_by_capture(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner = system.verifying.capture()
    for seed in range(3):
        runner.replay(runner.live(1, seed))
    steps = [event.about["step"] for event in open_capture(tmp_path).events if event.site == "embedding-capture"]
    assert steps == [0, 1, 2]
    about = open_capture(tmp_path).events[0].about
    assert about["graph_rows"] == WIDTH and about["mode"] == "TARGET_VERIFY" and "captured_now" not in about


def test_layers_that_were_set_after_the_capture_are_told(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner = system.verifying.capture()
    system.model.layers_to_capture = [2, 3]
    runner.replay(runner.live(1, 0))
    ends = [event.about for event in open_capture(tmp_path).events if event.site == "forward-end"]
    assert [(end["captured"], end["captured_now"]) for end in ends] == [([1, 3], [2, 3])]


def recorded(graph):
    return Counter(getattr(each[0], "_schema", each[0]).name for each in graph.operations)


@pytest.mark.parametrize("settings", [{}, {"DEBUG": "1"}, {"CAPTURE_DIR": "out"}], ids=["off", "lines", "files"])
def test_off_records_nothing_and_on_copies_alone(engine, tmp_path, monkeypatch, settings, capfd):
    monkeypatch.chdir(tmp_path)
    bare, tapped = engine(()), engine(True, **settings)
    for name in RUNNERS:
        one, other = getattr(bare, name).capture(), getattr(tapped, name).capture()
        for requests in SHAPES:
            more = recorded(other.graphs[requests][0]) - recorded(one.graphs[requests][0])
            less = recorded(one.graphs[requests][0]) - recorded(other.graphs[requests][0])
            assert not less
            if not settings:
                assert not more
            else:
                # The dump of one boundary adds residual and states; all else are copies and one count.
                assert set(more) <= {"aten::copy_", "aten::add_", "aten::add.Tensor", "aten::add"}
                assert more["aten::copy_"] > 3 and more["aten::add_"] == 1
    if not settings:
        assert not capfd.readouterr().err and not list(tmp_path.iterdir())


def test_without_the_probe_of_the_runners_a_capture_is_on_record_and_its_replays_are_not(engine, tmp_path):
    system = engine(set(PROBES) - {"graph-replay"}, CAPTURE_DIR=tmp_path)
    system.runtime._engine_captures = lambda: system.warming
    system.warming = True
    runner = system.verifying.capture()
    system.warming = False
    runner.replay(runner.live(2, 0))
    lines = [json.loads(line) for line in (tmp_path / "rank0" / "blind.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in lines} == {"cuda-graph"} and not list((tmp_path / "rank0").glob("*.safetensors"))


@pytest.mark.parametrize(
    "settings, says",
    [({"GRAPH_MEMORY": "1K"}, "more than EAGLE3_GRAPH_MEMORY=1024"), ({"GRAPH_ROWS": 4}, "EAGLE3_GRAPH_ROWS=4")],
    ids=["memory", "rows"],
)
def test_too_large_is_said_and_the_replay_is_as_it_would_be(engine, tmp_path, settings, says):
    bare, system = engine(()), engine(True, CAPTURE_DIR=tmp_path, **settings)
    runner, other = system.verifying.capture(), bare.verifying.capture()
    batch = runner.live(3, 0)
    assert all(map(torch.equal, runner.replay(batch), other.replay(batch)))
    lines = [json.loads(line) for line in (tmp_path / "rank0" / "blind.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in lines} == {"graph-memory"} and all(says in line["detail"] for line in lines)
    if "GRAPH_ROWS" in settings:
        runner.replay(runner.live(1, 0))
        assert {event.rows for event in open_capture(tmp_path).events} == {WIDTH}
    assert sum(map(len, system.runtime._buffers.values())) <= (1024 if "GRAPH_MEMORY" in settings else 1 << 20)


def test_buffers_are_shared_by_the_shapes_of_a_graph(engine, tmp_path, capfd):
    system = engine(True, CAPTURE_DIR=tmp_path, DEBUG="1")
    system.verifying.capture()
    largest = max(SHAPES) * WIDTH
    # Ids and positions; embedding, two boundaries, all boundaries of the dump, the end; the concatenation of two.
    wanted = 2 * largest * 8 + (1 + 2 + (LAYERS + 1) + 1 + 2) * largest * HIDDEN * 4
    assert sum(map(len, system.runtime._buffers.values())) == wanted
    assert f"take {wanted / (1 << 20):.1f} MB" in capfd.readouterr().err


def test_a_replay_that_nothing_reads_is_said_and_is_nobody_elses(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner, drafting = system.verifying.capture(), system.drafting.capture()
    runner.replayed(runner.live(2, 0))  # the engine took another way than the one that is tapped
    drafting.replay(drafting.live(2, 1))
    events = open_capture(tmp_path)
    assert {event.mode for event in events.events} == {"DECODE"}
    assert {line["reason"] for line in events.blind} == {"graph-gap"}


def test_two_replays_at_once_are_said_and_neither_is_told_as_the_other(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner = system.verifying.capture()
    once = runner.inner.replayed
    runner.inner.replayed = lambda batch: (once(batch), once(batch))[1]
    runner.replay(runner.live(2, 0))
    capture_of = open_capture(tmp_path)
    assert not capture_of.events and {line["reason"] for line in capture_of.blind} == {"graph-gap"}


def test_a_step_of_the_draft_has_the_rows_of_its_requests_whatever_ids_the_batch_came_with(engine, tmp_path):
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner = system.drafting.capture()
    batch = runner.live(3, 0)
    once = runner.inner.replayed
    verified = types.SimpleNamespace(**{**vars(batch), "input_ids": torch.arange(3 * WIDTH)})
    runner.inner.replayed = lambda _: once(batch)
    runner.replay(verified)
    assert {event.rows for event in open_capture(tmp_path).events} == {3}


def test_an_eager_tap_in_a_replay_has_its_padding_cut_and_comes_after_what_was_replayed(engine, tmp_path):
    """The engine runs the head eagerly behind some graphs, on rows of the graph's shape."""
    system = engine(True, CAPTURE_DIR=tmp_path)
    runner = system.verifying.capture()
    batch = runner.live(3, 0)
    replayed = runner.inner.replayed

    def then_eager(forward_batch):
        out = replayed(forward_batch)
        graph_rows = torch.zeros(4 * WIDTH, 2 * HIDDEN)
        graph_rows[: 3 * WIDTH] = 1
        graph_rows[3 * WIDTH :] = float("nan")
        system.runtime.concat("full", graph_rows)
        return out

    runner.inner.replayed = then_eager
    runner.replay(batch)
    events = open_capture(tmp_path).events
    (eager,) = [event for event in events if not event.replayed]
    assert eager is events[-1] and eager.rows == 3 * WIDTH and list(eager.token_ids) == batch.input_ids.tolist()
    assert eager.file.rows("hidden_states").eq(1).all() and eager.shard is None


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
