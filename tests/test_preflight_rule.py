"""The layer-id rule, read from source: hand-written slices of each shape that releases have had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specwire.preflight.draft import read_draft
from specwire.preflight.interpreter import machine
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.rule import advice, captured_boundaries, draft_rule
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"
ADDS_ONE, BOUNDARIES = SLICES / "adds-one", SLICES / "boundaries"
LAYERS = {"num_hidden_layers": 61, "first_k_dense_replace": 1, "hidden_size": 64}


@pytest.fixture(scope="module")
def sources() -> dict[Path, Source]:
    return {place: Source(Tree.find(place)) for place in (ADDS_ONE, BOUNDARIES)}


def rule(sources, place, architecture, ids, **config):
    described = {"architectures": [architecture], **LAYERS, **config}
    return captured_boundaries(sources[place], described, ids)


CASES = [
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 30, 57], [3, 31, 58], id="always adds one"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", None, [2, 30, 58], id="defaults"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [57, 2, 30], [3, 31, 58], id="the loop decides the order"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 2, 30], [3, 31], id="twice is once"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 30, 60], [3, 31], id="beyond the last layer is lost"),
    pytest.param(ADDS_ONE, "DeepseekV3ForCausalLM", [2, 30, 58], [3, 31, 59], id="inherited, branches that agree"),
    pytest.param(ADDS_ONE, "Gemma3ForCausalLM", [2, 60], [3, 61], id="end of stack by an append"),
    pytest.param(BOUNDARIES, "LlamaForCausalLM", [2, 30, 57], [3, 31, 58], id="a keyword captures at entry"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58], [2, 30, 58], id="ids are boundaries"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [1, 29, 57], [2, 30, 58], id="but not when the first is 1"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [0, 30, 58], [0, 30, 58], id="the embedding"),
    pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 61], [3, 30, 61], id="end of stack by the final norm"),
    pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 60], [4, 31, 61], id="its other branch"),
    pytest.param(BOUNDARIES, "Qwen3_5ForCausalLM", [2, 30, 57], [3, 31, 58], id="flags on the layers"),
    pytest.param(BOUNDARIES, "BeamForCausalLM", [2, 30, 60], [3, 31, 61], id="captured after the layer"),
]


@pytest.mark.parametrize(
    "handed",
    ["capture=aux_hidden_states.capture", "aux_hidden_states.capture", "lambda end: aux_hidden_states.capture(end)"],
)
def test_the_final_norm_captures_however_it_is_told_to(tmp_path, handed):
    tree = shutil.copytree(BOUNDARIES, tmp_path / "tree")
    engine = tree / "sglang" / "srt"
    (engine / "residual_batch.py").write_text(
        "def final_norm(states, batch, capture=None):\n    return capture(states)\n"
    )
    model = engine / "models" / "gpt_oss.py"
    call = model.read_text().replace(
        "capture=aux_hidden_states.capture if self.end_layer in self.layers_to_capture else None", handed
    )
    model.write_text("from sglang.srt import residual_batch\n" + call)
    assert list(rule({tree: Source(Tree.find(tree))}, tree, "GptOssForCausalLM", [3, 30, 61]).captured) == [3, 30, 61]


@pytest.mark.parametrize("place, architecture, ids, expected", CASES)
def test_the_rule_is_read_and_evaluated(sources, place, architecture, ids, expected):
    found = rule(sources, place, architecture, ids)
    assert list(found.captured) == expected
    assert found.problem is None
    assert found.where.startswith("sglang/srt/models/") and found.where.rpartition(":")[2].isdigit()


def test_where_is_the_line_that_decides(sources):
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58])
    name, _, line = found.where.rpartition(":")
    assert "list(ids)" in (BOUNDARIES / name).read_text().splitlines()[int(line) - 1]


def test_a_wrapper_hands_on_to_its_language_model(sources):
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": LAYERS,
        "vision_config": {},
    }
    found = captured_boundaries(sources[BOUNDARIES], config, [2, 30, 58])
    assert found.captured == (2, 30, 58)
    assert found.num_layers == 61
    assert found.assumptions == ()  # that the encoder may be left out decides nothing that is captured


def test_a_list_that_nothing_reads_captures_nothing(sources):
    config = {"text_config": LAYERS, "architectures": ["Qwen3_5ForConditionalGeneration"]}
    found = captured_boundaries(sources[BOUNDARIES], config, [2, 30, 57])
    assert found.captured == ()
    assert "never captures" in found.problem


def test_ids_that_stop_the_engine_are_said_to(sources):
    found = rule(sources, BOUNDARIES, "Qwen3_5ForCausalLM", [2, 30, 60])
    assert found.captured is None and "IndexError" in found.problem
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 61])
    assert found.captured == (2, 30) and "2 of 3 hidden states" in found.problem
    found = rule(sources, ADDS_ONE, "LlamaForCausalLM", [-1, 2, 30])
    assert found.captured == (0, 3, 31) and "TypeError" in found.problem


def test_a_release_without_a_rule_is_said_plainly(sources):
    found = rule(sources, ADDS_ONE, "PlainForCausalLM", [2, 30, 57])
    assert found.absent and "has no set_eagle3_layers_to_capture for PlainForCausalLM" in found.problem
    found = rule(sources, ADDS_ONE, "MambaForCausalLM", [2])
    assert found.absent and found.ids_for([3]) is None


@pytest.mark.parametrize(
    "place, architecture, wanted, ids",
    [
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [3, 31, 58], [2, 30, 57], id="one less"),
        pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [3, 31, 59], [3, 31, 59], id="as they are"),
        pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58], [2, 30, 58], id="as they are, the defaults"),
        pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 61], [3, 30, 61], id="with the final one"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [0, 3, 31], [-1, 2, 30], id="the embedding, if it must be"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [31, 3, 58], None, id="no ids change the order"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [3, 31, 61], None, id="no ids reach the end"),
    ],
)
def test_ids_are_found_by_trying_them(sources, place, architecture, wanted, ids):
    found = rule(sources, place, architecture, [2, 30, 57])
    assert found.ids_for(wanted) == ids
    if ids:
        assert list(found.for_ids(ids).captured) == wanted


def test_a_first_boundary_of_one_is_reached_by_another_order(sources):
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58])
    ids = found.ids_for([1, 30, 58])
    assert ids[0] != 1 and found.for_ids(ids).captured == (1, 30, 58)


def test_the_sentence_tells_the_branches(sources):
    assert "adds 1 to every layer id" in rule(sources, ADDS_ONE, "LlamaForCausalLM", [2, 30, 57]).text
    text = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58]).text
    assert "takes layer ids as boundaries" in text and "adds 1 when the first id is 1" in text
    text = rule(sources, BOUNDARIES, "GptOssForCausalLM", [2, 30, 58]).text
    assert "takes them as they are when the largest id is the layer count" in text


def test_a_capture_without_the_residual_is_seen(sources):
    assert "gemma3_causal.py" in rule(sources, ADDS_ONE, "Gemma3ForCausalLM", [2, 30]).bare
    assert rule(sources, ADDS_ONE, "LlamaForCausalLM", [2, 30]).bare is None
    assert rule(sources, BOUNDARIES, "BeamForCausalLM", [2, 30]).bare is None


@pytest.mark.parametrize("place", [ADDS_ONE, BOUNDARIES])
@pytest.mark.parametrize(
    "draft, ids, use",
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 57]}}, [2, 30, 57], True),
        ({}, None, True),
        ({"eagle_config": {}}, None, True),
        ({"eagle_aux_hidden_state_layer_ids": [2, 30, 57]}, None, True),
        (
            {"eagle_config": {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": [2]}},
            [2],
            False,
        ),
        ({"eagle_config": "wrong"}, None, True),
    ],
)
def test_ids_are_read_as_the_tree_reads_them(sources, place, draft, ids, use):
    target = {"architectures": ["LlamaForCausalLM"], **LAYERS}
    found, plumbing = draft_rule(sources[place], target, draft)
    assert (plumbing.layer_ids, plumbing.use_aux, plumbing.problem) == (ids, use, None)
    assert found.captured == (() if not use else (2, 30, 58) if ids is None else (3, 31, 58))


def test_graphs_that_get_the_defaults_first_are_seen(sources):
    target = {"architectures": ["LlamaForCausalLM"], **LAYERS}
    _, plumbing = draft_rule(sources[ADDS_ONE], target, {})
    assert plumbing.early.startswith("sglang/srt/model_executor/cuda_graph_runner.py:")
    _, plumbing = draft_rule(sources[BOUNDARIES], target, {})
    assert plumbing.early is None


def test_the_advice_says_which_ids_to_write(sources):
    text = advice(rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58]), [3, 31, 59])
    assert "= [3, 31, 59] for SGLang 0.0.2" in text and "0.5.9" in text
    none = advice(rule(sources, ADDS_ONE, "DeepseekV3ForCausalLM", [2, 30, 58]), [59, 31, 3])
    assert "No layer ids make" in none


def test_code_of_the_tree_is_never_run(tmp_path, sources):
    """A tree whose import would leave a mark is read without leaving one."""
    mark = tmp_path / "ran"
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "srt" / "model_executor").mkdir()
    for folder in (tmp_path / "sglang", tmp_path / "sglang" / "srt", models):
        (folder / "__init__.py").write_text("")
    evil = f"open({str(mark)!r}, 'w').close()\n"
    source = (ADDS_ONE / "sglang/srt/models/llama.py").read_text()
    (models / "llama.py").write_text(
        source.replace("class LlamaMLP", evil + "class LlamaMLP").replace(
            "self.capture_aux_hidden_states = True", f"__import__('os').system('touch {mark}')", 1
        )
    )
    found = rule({tmp_path: Source(Tree.find(tmp_path))}, tmp_path, "LlamaForCausalLM", [2, 30, 57])
    assert found.captured == (3, 31, 58)
    assert not mark.exists()


def test_a_loop_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 5_000)
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "srt" / "model_executor").mkdir()
    for folder in (tmp_path / "sglang", tmp_path / "sglang" / "srt", models):
        (folder / "__init__.py").write_text("")
    (models / "loop.py").write_text(
        "class LoopForCausalLM:\n"
        "    def set_eagle3_layers_to_capture(self, ids=None):\n"
        "        for a in range(9999):\n            for b in range(9999):\n                pass\n"
        "EntryClass = [LoopForCausalLM]\n"
    )
    found = rule({tmp_path: Source(Tree.find(tmp_path))}, tmp_path, "LoopForCausalLM", [2])
    assert found.captured is None and "too many steps" in found.problem


LOOKED_AT_AGAIN = """
from torch import nn
from torch.nn import Linear


class Part(nn.Module):
    def __init__(self):
        self.proj = Linear(4, 4, bias=False)


class TinyEagle3(nn.Module):
    def __init__(self, config):
        self.fc = Linear(12, 4, bias=False)
        self.parts = nn.ModuleList([Part()])
        if window() is not None:
            for part in self.parts:
                part.window = window()

    def load_weights(self, weights):
        params = dict(self.named_parameters())
        for name, tensor in weights:
            if name in params:
                params[name].weight_loader(params[name], tensor)


EntryClass = [TinyEagle3]
"""


def test_a_module_that_an_unknown_branch_looks_at_is_there_all_the_same(tmp_path):
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (models / "tiny_eagle3.py").write_text(LOOKED_AT_AGAIN)
    found = read_draft(Source(Tree.find(tmp_path)), {"architectures": ["TinyEagle3"]}, ["fc.weight"])
    assert found.problem is None and set(found.filled) == {"fc.weight"}
    assert "parts.0.proj.weight" in found.parameters and not found.optional
