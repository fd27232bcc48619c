"""The layer-id rule of real releases: what preflight reads against what each model's convention says.

The expectations are written down from the models' own conventions, not from preflight: DeepSeek and its
wrappers take ids as boundaries unless the first is 1 (since 0.5.13), everything else adds one.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from specwire.preflight import preflight
from specwire.preflight.draft import read_draft
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import typed_launch
from specwire.preflight.option_source import read_options
from specwire.preflight.rule import draft_rule, graph_order
from specwire.trees.tree import Tree

sys.path.insert(0, str(Path(__file__).parent))
from preflight_models import DEEPSEEK, TARGET, draft, draft_config, draft_tensors, golden, target
from releases import release_tree, versions

pytestmark = pytest.mark.release

NEW = ["0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
# Before eagle_config was read: every draft got the defaults.
OLDEST = ["0.4.7", "0.4.7.post1", "0.4.8", "0.4.8.post1"]
MOE = {
    "num_experts": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
}


@functools.cache
def source(version: str) -> Source:
    return Source(Tree.find(release_tree(version)))


def captured(version: str, architecture: str, layers: int, ids: list[int] | None, nested: bool = False):
    config = {**TARGET, **MOE, "num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    outer = {"text_config": config, "vision_config": {}} if nested else config
    plumbed = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}} if ids is not None else {}
    rule, plumbing = draft_rule(source(version), {**outer, "architectures": [architecture]}, plumbed)
    assert plumbing.problem is None and plumbing.layer_ids == ids
    return rule


def plus_one(ids):
    return tuple(sorted(value + 1 for value in ids))


DRAFTS = [
    pytest.param("DeepseekV3ForCausalLM", 61, [2, 30, 58], (2, 30, 58), id="deepseek as written"),
    pytest.param("DeepseekV3ForCausalLM", 61, [3, 31, 59], (3, 31, 59), id="deepseek corrected"),
    pytest.param("DeepseekV3ForCausalLM", 61, [1, 29, 57], (2, 30, 58), id="deepseek first id 1"),
    pytest.param("DeepseekV3ForCausalLM", 61, [0, 30, 58], (0, 30, 58), id="deepseek embedding"),
    pytest.param("DeepseekV3ForCausalLM", 61, None, (2, 30, 58), id="deepseek defaults"),
    pytest.param("KimiK25ForConditionalGeneration", 61, [2, 30, 58], (2, 30, 58), id="kimi wrapper"),
    pytest.param("LlamaForCausalLM", 32, [1, 15, 28], plus_one([1, 15, 28]), id="llama"),
    pytest.param("LlamaForCausalLM", 32, [28, 1, 15], plus_one([1, 15, 28]), id="llama, another order"),
    pytest.param("LlamaForCausalLM", 32, None, (2, 16, 29), id="llama defaults"),
    pytest.param("LlamaForCausalLM", 32, [1, 15, 31], (2, 16), id="llama beyond the end"),
    pytest.param("Qwen2ForCausalLM", 28, [2, 14, 25], plus_one([2, 14, 25]), id="qwen2"),
    pytest.param("Qwen3ForCausalLM", 36, [2, 18, 33], plus_one([2, 18, 33]), id="qwen3"),
    pytest.param("Qwen3MoeForCausalLM", 48, [2, 24, 45], plus_one([2, 24, 45]), id="qwen3 moe"),
    pytest.param("Glm4MoeForCausalLM", 46, [2, 23, 43], plus_one([2, 23, 43]), id="glm4 moe"),
    pytest.param("GptOssForCausalLM", 24, [1, 11, 20], plus_one([1, 11, 20]), id="gpt-oss"),
    pytest.param("Llama4ForCausalLM", 48, [2, 24, 45], plus_one([2, 24, 45]), id="llama4"),
]


@pytest.mark.parametrize("version", NEW)
@pytest.mark.parametrize("architecture, layers, ids, expected", DRAFTS)
def test_what_a_release_captures(version, architecture, layers, ids, expected):
    rule = captured(version, architecture, layers, ids, nested=architecture.startswith("Kimi"))
    assert rule.captured == expected
    name, _, line = rule.where.rpartition(":")
    assert "layers_to_capture" in source(version).tree.read(name).decode().splitlines()[int(line) - 1]


@pytest.mark.parametrize("version", versions()[1:])
def test_llama_adds_one_in_every_release_that_reads_ids(version):
    """Some of the oldest releases know only the defaults; all that read the ids add one for Llama."""
    config = {**TARGET, "num_hidden_layers": 32}
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 15, 28]}}
    rule, plumbing = draft_rule(source(version), config, ids)
    assert plumbing.problem is None and rule.problem is None
    assert plumbing.reads_config == (version not in OLDEST)
    assert rule.captured == ((5, 16, 29) if plumbing.reads_config else (2, 16, 29))
    late = versions().index("0.4.9") <= versions().index(version) < versions().index("0.5.11")
    assert (graph_order(rule, plumbing) or [None])[0] == ((2, 16, 29) if late else None)
    assert draft_rule(source(version), config, {})[0].captured == (2, 16, 29)


def test_the_first_release_has_only_the_defaults():
    rule, plumbing = draft_rule(
        source("0.4.6.post5"),
        {**TARGET, "num_hidden_layers": 32},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 5, 6]}},
    )
    assert (rule.captured, plumbing.reads_config, plumbing.layer_ids) == ((2, 16, 29), False, None)
    assert captured_or_none("0.4.6.post5", "DeepseekV3ForCausalLM").absent


def captured_or_none(version, architecture):
    return draft_rule(source(version), {**TARGET, **MOE, "architectures": [architecture]}, {})[0]


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6", "0.5.8", "0.5.9", "0.5.10"])
def test_deepseek_added_one_once(version):
    assert captured(version, "DeepseekV3ForCausalLM", 61, [2, 30, 58]).captured == (3, 31, 59)
    _, plumbing = draft_rule(source(version), {**DEEPSEEK}, {})
    assert plumbing.early and "cuda_graph_runner.py" in plumbing.early


def test_known_faults_of_releases_are_found():
    """Public reports: a wrapper's list that the layers' flags never see; a capture without the residual."""
    for version in ("0.5.13", "0.5.16", "0.5.19"):
        rule = captured(version, "Qwen3_5ForConditionalGeneration", 40, [2, 20, 37], nested=True)
        assert rule.captured == () and "never captures" in rule.problem
    assert captured("0.5.16", "Gemma3ForCausalLM", 26, [2, 13, 22]).bare is None
    assert all(captured(version, "Gemma3ForCausalLM", 26, [2, 13, 22]).bare for version in ("0.5.17", "0.5.23"))
    assert captured("0.5.9", "LlamaForCausalLM", 32, [1, 2, 3]).bare is None
    rule = captured("0.5.23", "Qwen3MoeForCausalLM", 48, [2, 24, 47])
    assert rule.captured is None and "IndexError" in rule.problem


def test_the_k25_story_on_the_releases_that_it_happened_on(tmp_path):
    served = target(tmp_path / "t", DEEPSEEK)
    made = draft(
        tmp_path / "d",
        draft_config(
            DEEPSEEK,
            (2, 30, 58),
            draft_vocab_size=32000,
            num_attention_heads=64,
            num_key_value_heads=8,
            intermediate_size=18432,
        ),
    )
    kept = golden(tmp_path / "g.safetensors", (3, 31, 59), DEEPSEEK)
    launch = f"--model-path {served} --speculative-draft-model-path {made} --speculative-algorithm"
    trees = {version: Tree.find(release_tree(version)) for version in ("0.5.9", "0.5.23")}
    before = preflight(served, made, [trees["0.5.9"]], golden=kept, launch=f"{launch} EAGLE3 --disable-cuda-graph")
    assert (before["verdict"], before["captured_boundaries"], before["causes"]) == ("ok", [3, 31, 59], [])
    graphs = preflight(served, made, [trees["0.5.9"]], golden=kept, launch=f"{launch} EAGLE3")
    assert [cause["id"] for cause in graphs["causes"]] == ["graph-order"]
    assert "[2, 30, 58]" in graphs["causes"][0]["evidence"]
    after = preflight(served, made, [trees["0.5.23"]], golden=kept, launch=f"{launch} EAGLE3")
    assert [cause["id"] for cause in after["causes"]] == ["boundary-offset"]
    assert "[3, 31, 59] for SGLang 0.5.23" in after["causes"][0]["fix"]
    wrong = preflight(served, made, [trees["0.5.9"]], golden=kept, launch=f"{launch} EAGLE")
    assert (wrong["causes"][0]["id"], wrong["concat_width"], wrong["fc_in"]) == ("algo-flag", 7168, 21504)
    table = preflight(served, made, list(trees.values()), golden=kept)["trees"]
    assert [(row["version"], row["matches"]) for row in table] == [("0.5.9", True), ("0.5.23", False)]
    assert [bool(row["graph_order"]) for row in table] == [True, False]


@pytest.mark.parametrize("version", ["0.4.10.post2", "0.5.5", "0.5.9", "0.5.13", "0.5.16", "0.5.20", "0.5.23"])
def test_a_draft_is_loaded_whole(version):
    """Names, shapes and fillings of the draft's own class, read from each release."""
    config = draft_config()
    tensors = draft_tensors(config)
    found = read_draft(source(version), config, tensors)
    assert found.problem is None and found.dropped == ()
    assert found.shape("fc.weight") == (64, 192) and found.shape("lm_head.weight") == (128, 64)
    empty = [name for name in found.parameters if name not in found.filled and name not in found.optional]
    assert empty == ["model.embed_tokens.weight"]
    renamed = read_draft(source(version), config, draft_tensors(config, layer="layers.0"))
    lost = renamed.problem or renamed.dropped
    assert bool(lost) == (tuple(map(int, version.split(".")[1:2])) < (5,) or version in ("0.5.5", "0.5.9"))


@pytest.mark.parametrize("version", versions())
def test_options_of_every_release(version):
    options = read_options(source(version))
    launch = typed_launch(
        "--model-path m --speculative-algo EAGLE3 --tp 8 --pp-size 2 --disable-cuda-graph --dtype bfloat16 "
        "--speculative-num-steps 3 --speculative-draft-model-path=d --trust-remote-code",
        options,
    )
    assert (launch.get("tp-size"), launch.get("speculative-num-steps"), launch.get("dtype")) == (
        8,
        3,
        "bfloat16",
    )
    assert launch.get("disable-cuda-graph") is True and launch.refusals == ()
