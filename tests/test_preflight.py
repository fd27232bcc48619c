"""Preflight's verdict: each fault alone, its cause first; what is sound stays quiet."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_models import (
    DEEPSEEK,
    TARGET,
    draft,
    draft_config,
    draft_tensors,
    golden,
    ones,
    target,
    vocabulary_map,
    write_tensors,
)

from specwire.cli.preflight import command
from specwire.diagnosis.context import make_context
from specwire.errors import SpecwireError
from specwire.model_files import config_hash, quantised_as, read_config, target_name
from specwire.preflight import preflight
from specwire.preflight.render import page
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"
ADDS_ONE, BOUNDARIES = SLICES / "adds-one", SLICES / "boundaries"
K25_DRAFT = {
    "draft_vocab_size": 32000,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 18432,
}


def run(
    place,
    config=None,
    tensors=None,
    *,
    flags="",
    algorithm="EAGLE3",
    tree=ADDS_ONE,
    trained=(2, 6, 9),
    of=TARGET,
    launch=True,
    recorded=None,
    environment="",
    **target_changes,
):
    """The document for a target and a draft, made in `place`, sound unless a test changes something."""
    served = target(place / "target", of, **target_changes)
    made = draft(place / "draft", draft_config(of) if config is None else config, tensors)
    said = (
        f"{environment} python -m sglang.launch_server --model-path {served} "
        f"--speculative-draft-model-path {made} {flags}"
    )
    if algorithm:
        said += f" --speculative-algorithm {algorithm}"
    return preflight(
        served,
        made,
        [Tree.find(tree)],
        launch=said if launch else None,
        golden=recorded,
        trained=None if recorded else trained,
    )


def first(document) -> str:
    return document["causes"][0]["id"] if document["causes"] else "none"


@pytest.mark.parametrize("tree", [ADDS_ONE, BOUNDARIES])
def test_a_sound_system_is_ok(tmp_path, tree):
    document = run(tmp_path, tree=tree)
    assert (document["verdict"], document["causes"]) == ("ok", [])
    assert document["captured_boundaries"] == [2, 6, 9]
    assert (document["concat_width"], document["fc_in"]) == (192, 192)
    assert {check["state"] for check in document["checks"]} == {"ok"}
    json.dumps(document, allow_nan=False)


def test_the_same_ids_are_right_on_one_release_and_wrong_on_another(tmp_path):
    """The Kimi-K2.5 story, at its real width: the weights are holes in a file."""
    config = draft_config(DEEPSEEK, (2, 30, 58), **K25_DRAFT)
    right = run(tmp_path, config, of=DEEPSEEK, trained=(3, 31, 59), tree=ADDS_ONE, flags="--disable-cuda-graph")
    assert (right["verdict"], right["captured_boundaries"]) == ("ok", [3, 31, 59])
    wrong = run(tmp_path, config, of=DEEPSEEK, trained=(3, 31, 59), tree=BOUNDARIES)
    assert (wrong["verdict"], first(wrong)) == ("fault", "boundary-offset")
    assert wrong["captured_boundaries"] == [2, 30, 58]
    cause = wrong["causes"][0]
    assert "1 below" in cause["evidence"] and "= [3, 31, 59]" in cause["fix"] and "0.5.9" in cause["fix"]
    other = run(tmp_path, config, of=DEEPSEEK, trained=(3, 31, 59), tree=ADDS_ONE, algorithm="EAGLE")
    assert (first(other), other["concat_width"], other["fc_in"]) == ("algo-flag", 7168, 21504)
    assert other["captured_boundaries"] == [] and len(other["causes"]) == 1
    assert "7168" in other["causes"][0]["evidence"] and "21504" in other["causes"][0]["evidence"]


BOUNDARY_FAULTS = [
    pytest.param(BOUNDARIES, DEEPSEEK, (0, 30, 58), (3, 31, 59), "embedding-slot", id="embedding first"),
    pytest.param(ADDS_ONE, DEEPSEEK, (-1, 2, 30), (3, 31, 59), "embedding-slot", id="minus one, plus one"),
    pytest.param(ADDS_ONE, TARGET, (1, 5, 8), (6, 2, 9), "slot-order", id="order"),
    pytest.param(ADDS_ONE, TARGET, (1, 1, 8), (2, 6, 9), "slot-count", id="twice"),
    pytest.param(BOUNDARIES, DEEPSEEK, (3, 31, 61), (3, 31, 61), "final-boundary", id="beyond the end"),
    pytest.param(ADDS_ONE, TARGET, (1, 5, 11), (2, 6, 12), "final-boundary", id="the last output"),
    pytest.param(ADDS_ONE, TARGET, (1, 4, 8), (2, 6, 9), "wrong-boundary", id="one slot"),
    pytest.param(ADDS_ONE, TARGET, (2, 6, 9), (2, 6, 9), "boundary-offset", id="one above"),
    pytest.param(ADDS_ONE, TARGET, None, (3, 7, 10), "default-boundaries", id="no ids"),
]


@pytest.mark.parametrize("tree, of, ids, trained, cause", BOUNDARY_FAULTS)
def test_boundary_faults_have_their_name(tmp_path, tree, of, ids, trained, cause):
    config = draft_config(of, ids, **(K25_DRAFT if of is DEEPSEEK else {}))
    document = run(tmp_path, config, tree=tree, of=of, trained=trained)
    assert (document["verdict"], first(document)) == ("fault", cause)
    assert document["causes"][0]["fix"] and document["causes"][0]["confidence"] == "certain"
    assert sum(check["id"] == cause for check in document["checks"]) == 1


def test_what_rests_on_an_assumption_is_likely(tmp_path):
    """A test that only a run decides stands around the capture: what is captured holds if it holds."""
    tree = shutil.copytree(ADDS_ONE, tmp_path / "tree")
    model = tree / "sglang" / "srt" / "models" / "llama.py"
    test = "if i in self.layers_to_capture:"
    assert test in model.read_text()
    model.write_text(model.read_text().replace(test, test[:-1] + " and positions.is_contiguous():"))
    document = run(tmp_path, tree=tree)
    assert (document["verdict"], document["captured_boundaries"]) == ("ok", [2, 6, 9])
    assert any(
        "assuming `i in self.layers_to_capture and positions.is_contiguous()`" in note["text"]
        for note in document["notes"]
    )
    document = run(tmp_path, tree=tree, trained=(3, 7, 10))
    assert (first(document), document["causes"][0]["confidence"]) == ("boundary-offset", "likely")


def test_ids_at_the_top_level_are_not_seen_by_the_engine(tmp_path):
    config = {**draft_config(ids=None), "eagle_aux_hidden_state_layer_ids": [2, 6, 9]}
    document = run(tmp_path, config, trained=(3, 7, 10))
    assert first(document) == "default-boundaries" and "top level" in document["causes"][0]["evidence"]


@pytest.mark.parametrize(
    "ids", [["1", "5", "8"], [None, 5, 8], "1,5,8", {"a": 1}, [[1], [5]], 5, [1.5, 5, 8], [True, 5, 8]], ids=str
)
def test_ids_that_are_no_numbers(tmp_path, ids):
    config = {**draft_config(), "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    document = run(tmp_path, config)
    assert [cause["id"] for cause in document["causes"]] == ["layer-ids"]
    assert json.dumps(ids) in document["causes"][0]["evidence"] and "= [1, 5, 8]" in document["causes"][0]["fix"]
    trees = [Tree.find(ADDS_ONE), Tree.find(BOUNDARIES)]
    document = preflight(tmp_path / "target", tmp_path / "draft", trees, trained=[2, 6, 9])
    assert first(document) == "layer-ids" and [row["matches"] for row in document["trees"]] == [False, False]


def test_a_permuted_order_says_how_to_permute(tmp_path):
    assert "order [1, 0, 2]" in run(tmp_path, trained=(6, 2, 9))["causes"][0]["fix"]


def test_a_setter_that_nothing_reads(tmp_path):
    of = {**TARGET, "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": TARGET}
    document = run(tmp_path, of=of, tree=BOUNDARIES)
    assert first(document) == "hook-dead" and document["captured_boundaries"] == []


def test_a_setter_that_writes_under_another_name(tmp_path):
    tree = shutil.copytree(ADDS_ONE, tmp_path / "tree")
    model = tree / "sglang" / "srt" / "models" / "llama.py"
    renamed = model.read_text().replace("self.model.layers_to_capture =", "self.model.layers_for_eagle3 =")
    model.write_text(renamed)
    document = run(tmp_path, tree=tree)
    assert first(document) == "hook-dead" and document["captured_boundaries"] == []
    assert "layers_for_eagle3" in document["causes"][0]["evidence"]
    # Whoever reads it may capture by it: not understood is no fault.
    model.write_text(renamed + "\n\ndef somewhere_else(model):\n    return model.layers_for_eagle3\n")
    assert run(tmp_path, tree=tree)["verdict"] == "inconclusive"


def test_a_target_that_this_release_cannot_tap(tmp_path):
    document = run(tmp_path, architectures=["PlainForCausalLM"])
    assert first(document) == "hook-dead" and document["captured_boundaries"] is None


def test_a_capture_without_the_residual(tmp_path):
    document = run(tmp_path, architectures=["Gemma3ForCausalLM"])
    assert first(document) == "missing-residual" and document["causes"][0]["confidence"] == "likely"


@pytest.mark.parametrize(
    "algorithm, flags, said",
    [
        ("EAGLE", "", "last state alone, 64 wide instead of 192"),
        ("NEXTN", "", "says --speculative-algorithm NEXTN (an alias of EAGLE):"),
        ("", "", "has no --speculative-algorithm"),
    ],
)
def test_algorithm_faults(tmp_path, algorithm, flags, said):
    document = run(tmp_path, algorithm=algorithm, flags=flags)
    assert first(document) == "algo-flag" and said in document["causes"][0]["evidence"]


def test_an_fc_of_one_dimension_is_a_finding_whatever_the_algorithm(tmp_path):
    flat = without(**{"fc.weight": ("BF16", (192,), None)})
    document = run(tmp_path, None, flat, algorithm="EAGLE")
    assert first(document) == "algo-flag" and "64 wide instead of 192" in document["causes"][0]["evidence"]
    assert first(run(tmp_path, None, flat)) == "fc-width"


def test_an_eagle_head_is_no_eagle3_draft(tmp_path):
    config = {**draft_config(), "architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": 512}
    document = run(tmp_path, config, {"fc.weight": ("BF16", (64, 128), None)})
    assert first(document) == "algo-flag" and document["causes"][0]["fix"] == "--speculative-algorithm EAGLE"


def test_an_eagle3_draft_under_the_name_of_the_class_before(tmp_path):
    tree = shutil.copytree(ADDS_ONE, tmp_path / "tree")
    models = tree / "sglang" / "srt" / "models"
    text = (models / "llama_eagle3.py").read_text().replace("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle")
    (models / "llama_eagle.py").write_text(text.replace("width * 3", "width * 2"))
    document = run(tmp_path, changed(architectures=["LlamaForCausalLMEagle"]), tree=tree, flags="--disable-cuda-graph")
    assert [cause["id"] for cause in document["causes"]] == ["draft-load"]
    assert document["causes"][0]["fix"] == '"architectures": ["LlamaForCausalLMEagle3"] in the draft\'s config.json'
    assert "[64, 128]" in document["causes"][0]["evidence"] and "midlayer, d2t" in document["causes"][0]["evidence"]


def test_options_that_the_release_has_not(tmp_path):
    document = run(tmp_path, flags="--speculativ-num-steps 3")
    assert [cause["id"] for cause in document["causes"]] == ["launch"]
    assert "unrecognized arguments: --speculativ-num-steps 3" in document["causes"][0]["evidence"]
    assert document["causes"][0]["fix"] == "write --speculative-num-steps"
    places = (tmp_path / "target", tmp_path / "draft", [Tree.find(BOUNDARIES), Tree.find(ADDS_ONE)])
    said = f"--model-path {places[0]} --speculative-draft-model-path {places[1]} --speculative-algorithm EAGLE3"
    document = preflight(*places, launch=f"{said} --speculative-draft-window-size 9", trained=[2, 6, 9])
    assert first(document) == "release-drift" and [row["matches"] for row in document["trees"]] == [True, False]
    shown = " ".join(page(document).split())
    assert "would not start so: unrecognized arguments: --speculative-draft-window-size 9" in shown


def test_a_file_that_the_launch_names_and_is_not_there(tmp_path):
    there = tmp_path / "map.pt"
    there.touch()
    for name, verdict in (
        ("foo.pt", "inconclusive"),
        (f"{there}x.pt", "inconclusive"),
        (there, "ok"),
        ("org/FR-Spec/freq_32768.pt", "ok"),
        ("$MAP.pt", "ok"),
    ):
        document = run(tmp_path, flags=f"--speculative-token-map {name}")
        assert (document["verdict"], document["causes"]) == (verdict, []), name
    for option, verdict in (("--speculative-token-map", "inconclusive"), ("--chat-template", "ok")):
        document = run(tmp_path, flags=f"{option} x.json")
        assert document["verdict"] == verdict and f"{option} x.json: no such file here" in str(document["checks"])


@pytest.mark.parametrize(
    "data, cause",
    [
        (bytes(128), "norm"),
        (b"\0\x80" * 64, "norm"),
        (ones(63) + b"\xc0\x7f", "non-finite"),
        (b"\x80\x7f" + ones(63), "non-finite"),
        (bytes(126) + ones(1), "none"),
    ],
    ids=["zero", "minus zero", "NaN", "infinite", "nearly zero"],
)
@pytest.mark.parametrize("name", ["norm", "midlayer.hidden_norm", "midlayer.input_layernorm"])
def test_the_values_of_norms(tmp_path, name, data, cause):
    document = run(tmp_path, None, without(**{f"{name}.weight": ("BF16", (64,), data)}))
    assert first(document) == cause
    assert cause == "none" or f"{name}.weight" in document["causes"][0]["evidence"]


def test_tensors_that_the_loader_drops(tmp_path):
    renamed = {f"model.{name}": row for name, row in draft_tensors(draft_config()).items()}
    document = run(tmp_path, None, renamed)
    assert [cause["id"] for cause in document["causes"]] == ["embed-head"]
    assert document["causes"][0]["fix"] == "rename model.lm_head.weight to lm_head.weight in the checkpoint"
    bias = without(**{"midlayer.self_attn.q_proj.bias": ("BF16", (64,), None)})
    document = run(tmp_path, None, bias)
    assert first(document) == "weights-random" and "q_proj.bias, which" in document["causes"][0]["evidence"]
    assert "it takes no extra.weight" in str(
        run(tmp_path, None, without(**{"extra.weight": ("BF16", (9,), None)}))["checks"]
    )


def test_a_norm_that_the_checkpoint_lacks_is_no_random_weight(tmp_path):
    rows = draft_tensors(draft_config())
    name = next(name for name in rows if name.endswith("hidden_norm.weight"))
    document = run(tmp_path, None, {key: row for key, row in rows.items() if key != name})
    assert [(cause["id"], cause["confidence"]) for cause in document["causes"]] == [("norm", "likely")]
    assert "hidden_norm" in document["causes"][0]["evidence"] and "stays" in document["causes"][0]["evidence"]


def test_a_failed_engine_says_what_preflight_finds(tmp_path, monkeypatch):
    from specwire import verify
    from specwire.engine import run as engine

    def fails(*_, **__):
        raise engine.EngineFailed("the engine failed: TypeError. Log: x")

    monkeypatch.setattr(engine, "run_engine", fails)
    config = changed(eagle_config={"eagle_aux_hidden_state_layer_ids": ["1", "5", "8"]})
    places = target(tmp_path / "t"), draft(tmp_path / "d", config)
    job = verify.Job(Tree.find(ADDS_ONE), *places, None, 1, "cpu", "python", tokens=((1, 2),))
    with pytest.raises(SpecwireError, match=r"TypeError\. Log: x\. preflight: layer-ids \(certain\): .*fix: write "):
        verify.run(job, tmp_path, tmp_path / "out", print)


def test_a_launch_without_a_draft(tmp_path):
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    document = preflight(
        served,
        made,
        [Tree.find(ADDS_ONE)],
        trained=[2, 6, 9],
        launch=f"--model-path {served} --speculative-algorithm EAGLE3",
    )
    assert first(document) == "algo-flag" and "own draft" in document["causes"][0]["evidence"]


def changed(**changes):
    return {**draft_config(), **changes}


def without(*names, **more):
    return {name: row for name, row in draft_tensors(draft_config()).items() if name not in names} | more


FILE_FAULTS = [
    pytest.param(None, without(**{"fc.weight": ("BF16", (64, 256), None)}), "fc-width", id="four states in fc"),
    pytest.param(None, without(**{"fc.weight": ("BF16", (32, 192), None)}), "fc-width", id="rows of fc"),
    pytest.param(None, without(**{"fc.bias": ("BF16", (64,), None)}), "fc-width", id="a bias that is left out"),
    pytest.param(
        changed(target_hidden_size=48),
        draft_tensors(changed(target_hidden_size=48)),
        "wrong-target",
        id="for a narrower target",
    ),
    pytest.param(changed(vocab_size=1024), without("t2d"), "wrong-target", id="for another vocabulary"),
    pytest.param(None, without("d2t", "t2d"), "vocab-map", id="no map"),
    pytest.param(None, without(d2t=("I64", (100,), None)), "vocab-map", id="a map of another size"),
    pytest.param(None, without(t2d=("BOOL", (100,), None)), "vocab-map", id="marks of another size"),
    pytest.param(None, without(d2t=("I64", (128,), b"\xff" * 8 * 128)), "vocab-map", id="negative ids"),
    pytest.param(None, without(d2t=("I64", (128,), None)), "vocab-map", id="zeros against the marks"),
    pytest.param(
        None,
        without("t2d", **{"d2t": vocabulary_map([0, 0, *range(2, 128)], 512)["d2t"]}),
        "vocab-map",
        id="an id twice",
    ),
    pytest.param(None, without("lm_head.weight"), "embed-head", id="no head"),
    pytest.param(
        None,
        without("lm_head.weight", **{"model.lm_head.weight": ("BF16", (128, 64), None)}),
        "embed-head",
        id="a head by another name",
    ),
    pytest.param(None, without(**{"lm_head.weight": ("BF16", (64, 64), None)}), "embed-head", id="rows of the head"),
    pytest.param(None, without(**{"embed_tokens.weight": ("BF16", (256, 64), None)}), "embed-head", id="embedding"),
    pytest.param(None, without("midlayer.mlp.down_proj.weight"), "weights-random", id="a missing weight"),
    pytest.param(None, without("midlayer.self_attn.k_proj.weight"), "weights-random", id="a third of a fused one"),
    pytest.param(None, draft_tensors(draft_config(), layer="layers.0"), "weights-random", id="later names"),
    pytest.param(changed(norm_before_fc=True), None, "norm", id="a norm that this release has not"),
    pytest.param(None, without(**{"input_norm.weight": ("BF16", (192,), None)}), "norm", id="a norm that is dropped"),
    pytest.param(None, without(**{"norm.weight": ("BF16", (32,), None)}), "norm", id="a norm of another size"),
    pytest.param(changed(architectures=["Eagle3MambaForCausalLM"]), None, "draft-load", id="no such class"),
    pytest.param(draft_config(draft_vocab_size=...), None, "draft-load", id="no draft_vocab_size"),
    pytest.param(changed(rope_theta=1.0, rope_parameters={"rope_theta": 2.0}), None, "rope", id="two thetas"),
    pytest.param(changed(max_position_embeddings=2048), None, "rope", id="too few positions"),
    pytest.param(changed(layer_types=["sliding_attention"], sliding_window=1024), None, "kv-attn", id="a window"),
    pytest.param(changed(use_sliding_window=True, sliding_window=1024), None, "kv-attn", id="a window turned on"),
    pytest.param(changed(torch_dtype="float16"), None, "dtype", id="another element type"),
    pytest.param(changed(torch_dtype=None), None, "dtype", id="no element type"),
]


@pytest.mark.parametrize("config, tensors, cause", FILE_FAULTS)
def test_faults_of_the_draft_have_their_name(tmp_path, config, tensors, cause):
    document = run(tmp_path, config, tensors)
    assert (document["verdict"], first(document)) == ("fault", cause), document["causes"]
    assert all(row["evidence"] and row["fix"] for row in document["causes"])


@pytest.mark.parametrize("start, cause", [("zeros", "none"), ("empty", "weights-random")])
def test_a_bias_that_nothing_fills_counts_unless_it_starts_at_zero(tmp_path, start, cause):
    tree = shutil.copytree(ADDS_ONE, tmp_path / "tree")
    model, layers = tree / "sglang" / "srt" / "models" / "llama.py", tree / "sglang" / "srt" / "layers"
    model.write_text(model.read_text().replace("config.hidden_size, bias=False)", "config.hidden_size, bias=True)"))
    layers.mkdir()
    (layers / "__init__.py").touch()
    (layers / "linear.py").write_text(f"""import torch
from torch import nn
from torch.nn import Linear as MergedColumnParallelLinear, Linear as QKVParallelLinear


class RowParallelLinear(nn.Module):
    def __init__(self, input_size, output_size, bias=True):
        super().__init__()
        self.bias = nn.Parameter(torch.{start}(output_size))
""")
    document = run(tmp_path, tree=tree)
    assert first(document) == cause, document["causes"] or document["checks"]


def test_absolute_ids_in_the_map_are_recognised(tmp_path):
    ids = list(range(400, 528 - 16))
    tensors = without(**vocabulary_map(range(128), 512))
    tensors["d2t"] = ("I64", (len(ids),), b"".join(token.to_bytes(8, "little") for token in ids))
    document = run(
        tmp_path, draft_config(draft_vocab_size=len(ids)), {**tensors, "lm_head.weight": ("BF16", (len(ids), 64), None)}
    )
    assert first(document) == "vocab-map" and "the engine adds the place" in document["causes"][0]["evidence"]


def test_a_shared_head_needs_none_in_the_checkpoint(tmp_path):
    config = draft_config(draft_vocab_size=None)
    tensors = {name: row for name, row in draft_tensors(config).items() if name != "lm_head.weight"}
    assert run(tmp_path, config, tensors)["verdict"] == "ok"


def test_norms_that_this_release_builds_and_the_checkpoint_has(tmp_path):
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "norm_before_fc": True}
    tensors = without(**{"input_norm.weight": ("BF16", (192,), ones(192))})
    assert run(tmp_path, changed(eagle_config=nested), tensors, tree=BOUNDARIES)["verdict"] == "ok"
    assert first(run(tmp_path, changed(eagle_config=nested), None, tree=BOUNDARIES)) == "norm"


def test_a_draft_that_takes_the_last_state_alone(tmp_path):
    nested = {"use_aux_hidden_state": False}
    tensors = without(**{"fc.weight": ("BF16", (64, 64), None)})
    document = run(tmp_path, changed(eagle_config=nested), tensors, trained=None)
    assert (document["captured_boundaries"], document["concat_width"], document["fc_in"]) == ([], 64, 64)
    document = run(tmp_path, changed(eagle_config=nested), trained=None)
    assert first(document) == "fc-width" and "1 state of 64 make 64, fc takes 192" in str(document["causes"])


def test_four_states_where_the_release_counts_them(tmp_path):
    config = draft_config(ids=(1, 4, 6, 8))
    tensors = draft_tensors(config, slots=4)
    document = run(tmp_path, config, tensors, tree=BOUNDARIES, trained=(2, 5, 7, 9))
    assert (document["verdict"], document["concat_width"]) == ("ok", 256)
    document = run(tmp_path, config, tensors, tree=ADDS_ONE, trained=(2, 5, 7, 9))
    assert first(document) == "fc-width" and "builds [64, 192]" in document["causes"][0]["evidence"]


@pytest.mark.parametrize(
    "flags, cause",
    [
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", "none"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16", "none"),
        (
            "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            "spec-params",
        ),
        (
            "--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
            "spec-params",
        ),
        ("--speculative-num-steps 3", "spec-params"),
        (
            "--speculative-num-steps 0 --speculative-eagle-topk 1 --speculative-num-draft-tokens 1",
            "spec-params",
        ),
        ("--dtype bfloat16", "none"),
        ("--dtype float16", "dtype"),
        ("--context-length 8192", "rope"),
        ("--context-length 2048", "none"),
    ],
)
def test_launch_numbers(tmp_path, flags, cause):
    assert first(run(tmp_path, flags=flags)) == cause


def test_a_window_that_the_launch_gives_or_no_layer_uses(tmp_path):
    config = changed(layer_types=["sliding_attention"], sliding_window=1024)
    assert "release" in run(tmp_path, config)["causes"][0]["fix"]
    assert run(tmp_path, config, tree=BOUNDARIES)["causes"][0]["fix"] == "--speculative-draft-window-size 1023"
    assert run(tmp_path, config, tree=BOUNDARIES, flags="--speculative-draft-window-size 1023")["verdict"] == "ok"
    assert run(tmp_path, config, launch=False)["verdict"] != "fault"
    for unused in ({"use_sliding_window": False}, {"layer_types": ["full_attention"]}, {}):
        assert run(tmp_path, changed(sliding_window=1024, **unused))["verdict"] == "ok"


def test_a_rotated_target(tmp_path):
    rotated = {"quant_method": "quark", "algo_config": {"name": "QuaRot", "online": True}}
    document = run(tmp_path, quantization_config=rotated)
    assert (first(document), document["causes"][0]["confidence"]) == ("quant-basis", "possible")
    assert run(tmp_path, quantization_config={"quant_method": "fp8"})["verdict"] == "ok"


def test_risky_flags_are_notes_not_faults(tmp_path):
    document = run(
        tmp_path, flags="--pp-size 2 --disaggregation-mode decode --kv-cache-dtype fp8_e5m2 --speculative-token-map $M"
    )
    assert document["verdict"] == "ok"
    assert {"pp-drop", "pd-buffer", "kv-attn", "launch"} <= {note["id"] for note in document["notes"]}


def test_graphs_that_hand_on_the_defaults(tmp_path):
    config = changed(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 5, 8]})
    document = run(tmp_path, config, trained=(3, 6, 9))
    assert [cause["id"] for cause in document["causes"]] == ["graph-order"]
    assert "[2, 6, 9]" in document["causes"][0]["evidence"] and "--disable-cuda-graph" in document["causes"][0]["fix"]
    for off in ("--disable-cuda-graph", "--device cpu"):
        assert run(tmp_path, config, trained=(3, 6, 9), flags=off)["verdict"] == "ok"
    assert run(tmp_path, config, trained=(3, 6, 9), tree=BOUNDARIES)["verdict"] == "ok"
    trees = [Tree.find(BOUNDARIES), Tree.find(ADDS_ONE)]
    places = (tmp_path / "target", tmp_path / "draft", trees)
    said = f"--model-path {places[0]} --speculative-draft-model-path {places[1]} --speculative-algorithm EAGLE3"
    for launch, matches, word in (
        (None, True, "match without graphs"),
        (said, False, "MISMATCH in graphs"),
        (f"{said} --disable-cuda-graph", True, "match"),
    ):
        document = preflight(*places, launch=launch, trained=[3, 6, 9])
        assert [row["matches"] for row in document["trees"]] == [True, matches]
        rows = [line for line in page(document).splitlines() if "adds-one" in line]
        assert (
            word in rows[0] and rows[0].endswith("as they are") and ("hands on" in page(document)) == (word != "match")
        )


def test_a_golden_names_the_target(tmp_path):
    served = target(tmp_path / "target")
    same = golden(tmp_path / "g.safetensors", (2, 6, 9), name=target_name(served))
    assert run(tmp_path, recorded=same)["verdict"] == "ok"
    renamed = golden(tmp_path / "g.safetensors", (2, 6, 9), name="elsewhere " + target_name(served).split()[1])
    assert run(tmp_path, recorded=renamed)["verdict"] == "ok"
    other = golden(tmp_path / "g.safetensors", (2, 6, 9), name="target sha256:0123456789abcdef")
    assert first(run(tmp_path, recorded=other)) == "wrong-target"
    deeper = golden(tmp_path / "g.safetensors", (2, 6, 9), {**TARGET, "num_hidden_layers": 16})
    assert first(run(tmp_path, recorded=deeper)) == "wrong-target"


FOURS, EIGHTS = {"quant_method": "compressed-tensors", "config_groups": {}}, {"quant_method": "fp8"}


@pytest.mark.parametrize("made_from, served", [(FOURS, None), (None, EIGHTS), (FOURS, EIGHTS)])
def test_a_target_that_is_only_quantised_otherwise_is_possible_and_decides_nothing(tmp_path, made_from, served):
    quantised = {"quantization_config": made_from} if made_from else {}
    recorded = golden(
        tmp_path / "g.safetensors", (2, 6, 9), name=target_name(target(tmp_path / "made", **quantised)),
        quantised=made_from["quant_method"] if made_from else "",
    )  # fmt: skip
    document = run(tmp_path, recorded=recorded, **({"quantization_config": served} if served else {}))
    (cause,) = document["causes"]
    assert (cause["id"], cause["confidence"], document["verdict"]) == ("wrong-target", "possible", "ok")
    assert (made_from or served)["quant_method"] in cause["evidence"] and "golden build" in cause["fix"]
    same = run(tmp_path, recorded=recorded, **quantised)
    assert (same["verdict"], same["causes"]) == ("ok", [])


def test_a_launch_that_serves_the_same_model_quantised_otherwise_is_possible(tmp_path):
    given, served = target(tmp_path / "given"), target(tmp_path / "served", quantization_config=EIGHTS)
    made = draft(tmp_path / "draft", draft_config())
    launch = f"--model-path {served} --speculative-draft-model-path {made} --speculative-algorithm EAGLE3"
    document = preflight(given, made, [Tree.find(ADDS_ONE)], launch=launch, trained=[2, 6, 9])
    (cause,) = document["causes"]
    assert (cause["id"], cause["confidence"], document["verdict"]) == ("wrong-target", "possible", "ok")
    assert str(served) in cause["evidence"] and "fp8" in cause["evidence"] and str(given) in cause["fix"]


def test_a_quantisation_is_no_part_of_what_names_a_model_wherever_it_is_written(tmp_path):
    inner = {"model_type": "kimi_k2", "hidden_size": 64}
    plain = config_hash(target(tmp_path / "plain", text_config=inner))
    for place, changes in {
        "outer": {"text_config": inner, "quantization_config": FOURS},
        "inner": {"text_config": inner | {"quantization_config": FOURS}},
        "older": {"text_config": inner, "compression_config": FOURS},
    }.items():
        assert config_hash(target(tmp_path / place, **changes)) == plain
        assert quantised_as(read_config(tmp_path / place)) == "compressed-tensors"
    assert config_hash(target(tmp_path / "other", text_config=inner | {"hidden_size": 128})) != plain
    assert quantised_as(read_config(tmp_path / "plain")) == ""


@pytest.mark.parametrize("captured", [(2, 6, 9), (2, 6, 10), (3, 7, 10), (9, 6, 2), (0, 6, 9)])
def test_against_a_list_that_was_only_assumed_nothing_is_wrong(tmp_path, captured):
    """The draft, the tree and the launch are sound; the golden's list is a guess."""
    guess = golden(tmp_path / "g.safetensors", captured, trained_source="assumed")
    document = run(tmp_path, recorded=guess)
    why = {check["id"]: check["why"] for check in document["checks"]}["wrong-boundary"]
    assert document["causes"] == [] and document["trained_assumed"] is True and "assumed" in why and "--trained" in why
    assert document["verdict"] == ("ok" if captured == (2, 6, 9) else "inconclusive")
    assert "boundary 2, 6, 9" in why or captured == (2, 6, 9)
    assert "(assumed)" in page(document)


def test_a_list_that_is_given_takes_the_place_of_an_assumed_one(tmp_path):
    guess = golden(tmp_path / "g.safetensors", (2, 6, 10), trained_source="assumed")
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    trees = [Tree.find(ADDS_ONE), Tree.find(ADDS_ONE)]
    known = preflight(served, made, trees, golden=guess, trained=[2, 6, 9])
    assert (known["verdict"], known["trained_assumed"]) == ("ok", False)
    document = preflight(served, made, trees, golden=guess)
    assert (document["verdict"], document["causes"]) == ("inconclusive", [])
    assert [(row["matches"], row["ids_to_write"]) for row in document["trees"]] == [(None, None)] * 2


def test_an_offset_that_the_other_convention_explains_may_be_the_golden_s(tmp_path):
    """Data of boundaries 2, 6, 9, whose ids were taken for outputs of layers."""
    named = {"id_convention": "layer-output", "imported_ids": "[2, 6, 9]"}
    cause = run(tmp_path, recorded=golden(tmp_path / "g", (3, 7, 10), **named))["causes"][0]
    assert (cause["id"], cause["confidence"]) == ("boundary-offset", "likely")
    assert "[2, 6, 9]" in cause["evidence"] and "--convention boundary" in cause["fix"] and "verify" in cause["fix"]
    sure = run(tmp_path, recorded=golden(tmp_path / "g", (1, 5, 8), **named))["causes"][0]
    assert (sure["id"], sure["confidence"]) == ("boundary-offset", "certain")


def test_the_launch_serves_something_else(tmp_path):
    other = target(tmp_path / "other", num_hidden_layers=24)
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    finetuned = draft(tmp_path / "d2", draft_config(rms_norm_eps=1e-3))
    said = "--speculative-algorithm EAGLE3 --model-path {} --speculative-draft-model-path {}"
    trees = [Tree.find(ADDS_ONE)]
    document = preflight(served, made, trees, launch=said.format(other, made), trained=[2, 6, 9])
    assert first(document) == "wrong-target"
    document = preflight(served, made, trees, launch=said.format(served, finetuned), trained=[2, 6, 9])
    assert first(document) == "wrong-draft"
    for names, skips in (
        (("hub/T", "/srv/d"), []),
        (("hub/8B", "hub/d"), ["wrong-target"]),
        (("/models/t", "hub/EAGLE3"), ["wrong-draft"]),
        (("/srv/8B", "hub/d"), ["wrong-target"]),
    ):
        document = preflight(served, made, trees, launch=said.format(*names), trained=[2, 6, 9])
        assert document["verdict"] == ("inconclusive" if names[0] == "/srv/8B" else "ok")
        assert [check["id"] for check in document["checks"] if check["state"] == "skipped"] == skips
    snapshot = target(tmp_path / "models--hub--Llama-8B" / "snapshots" / "0123abcd")
    launch = said.format("hub/Llama-8B", made)
    assert preflight(snapshot, made, trees, launch=launch, trained=[2, 6, 9])["verdict"] == "ok"
    kept = golden(tmp_path / "g.safetensors", (2, 6, 9), name=target_name(served, "hub/8B"))
    assert preflight(served, made, trees, launch=said.format("hub/8B", made), golden=kept)["verdict"] == "ok"


def test_a_hubs_name_is_looked_up_in_the_local_cache(tmp_path):
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    folder = tmp_path / "hub" / "models--org--other"
    target(folder / "snapshots" / "0123", num_hidden_layers=24)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123\n")
    launch = (
        f"HF_HUB_CACHE={tmp_path}/hub sglang.x; HF_HUB_CACHE={tmp_path}/hub python -m sglang.launch_server "
        f"--model-path org/other --speculative-algorithm EAGLE3 --speculative-draft-model-path {made}"
    )
    document = preflight(served, made, [Tree.find(ADDS_ONE)], launch=launch, trained=[2, 6, 9])
    assert first(document) == "wrong-target"


def test_whose_states_fc_takes_is_told_by_the_slots_first(tmp_path):
    """Three states of 64 are six of 32: a draft of its own width that leaves out target_hidden_size."""
    config = draft_config(hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    tensors = draft_tensors({**config, "target_hidden_size": 64})
    cause = run(tmp_path, config, tensors)["causes"][0]
    assert cause["id"] == "fc-width" and cause["fix"] == '"target_hidden_size": 64 in the draft\'s config.json'


def test_an_eagle_head_is_not_judged_as_an_eagle3_draft(tmp_path):
    config = {**draft_config(), "architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": None}
    document = run(tmp_path, config, {"fc.weight": ("BF16", (64, 128), None)}, algorithm="EAGLE")
    assert (document["verdict"], document["causes"]) == ("inconclusive", [])


def test_the_shared_embedding_must_be_the_target_s(tmp_path):
    served = target(tmp_path / "target")
    write_tensors(served / "model.safetensors", {"model.embed_tokens.weight": ("BF16", (512, 64), None)})
    assert run(tmp_path)["verdict"] == "ok"
    shared = draft_config(draft_vocab_size=None)
    tensors = {name: row for name, row in draft_tensors(shared).items() if name != "lm_head.weight"}
    document = run(tmp_path, shared, tensors)
    assert first(document) == "embed-head" and "has none" in document["causes"][0]["evidence"]
    assert run(tmp_path, shared, tensors, tie_word_embeddings=True)["verdict"] == "ok"
    write_tensors(served / "model.safetensors", {"model.embed_tokens.weight": ("BF16", (512, 32), None)})
    assert first(run(tmp_path)) == "embed-head"


def test_a_padded_vocabulary_is_a_note(tmp_path):
    document = run(tmp_path, vocab_size=516)
    assert document["verdict"] == "ok" and "wrong-target" in [note["id"] for note in document["notes"]]
    assert first(run(tmp_path, vocab_size=1024)) == "wrong-target"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**70, 10**400, 1e308, 1.5, "x", "", [], [None], {}, {"a": []}]),
    st.lists(st.integers(-3, 20), max_size=4),
)
NESTED = st.dictionaries(
    st.sampled_from(
        [
            "eagle_aux_hidden_state_layer_ids",
            "use_aux_hidden_state",
            "norm_before_fc",
            "factor",
            "rope_theta",
            "original_max_position_embeddings",
            "verifier",
            "architectures",
            "hidden_size",
            "num_hidden_layers",
        ]
    ),
    st.recursive(st.one_of(VALUES, st.floats(), st.text(max_size=3)), lambda inner: st.lists(inner, max_size=3)),
    max_size=2,
)
KEYS = st.sampled_from(
    [
        *draft_config(),
        "target_hidden_size",
        "rope_scaling",
        "rope_parameters",
        "fc_norm",
        "bias",
        "norm_before_fc",
        "speculators_config",
        "quantization_config",
        "text_config",
        "dtype",
        "compression_config",
        "tie_word_embeddings",
        "head_dim",
        "layer_types",
        "sliding_window",
        "seq_length",
        "use_sliding_window",
        "norm_output",
        "attention_bias",
        "eagle_aux_hidden_state_layer_ids",
    ]
)
ANY = st.dictionaries(KEYS, VALUES | NESTED, max_size=3)
CONFIGS = (ANY, ANY, st.booleans())


def judged_or_refused(place, changes, target_changes, older):
    """Whatever stands in the configs: a document that is JSON, or one sentence. Never a crash."""
    tree = ADDS_ONE if older else BOUNDARIES
    try:
        document = run(place, {**draft_config(), **changes}, draft_tensors(draft_config()), tree=tree, **target_changes)
    except SpecwireError as error:
        assert "\n" not in str(error)
    else:
        assert document["verdict"] in ("ok", "fault", "inconclusive")
        json.dumps(document, allow_nan=False)
        assert page(document)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(*CONFIGS)
def test_any_config_is_judged_or_refused(tmp_path, changes, target_changes, older):
    judged_or_refused(tmp_path, changes, target_changes, older)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(*CONFIGS)
def test_very_many_configs_are_judged_or_refused(tmp_path, changes, target_changes, older):
    judged_or_refused(tmp_path, changes, target_changes, older)


def test_nothing_known_is_never_a_pass(tmp_path):
    document = run(tmp_path, trained=None)
    assert document["verdict"] == "inconclusive" and document["causes"] == []
    assert {check["state"] for check in document["checks"] if check["id"] == "boundary-offset"} == {"skipped"}
    assert run(tmp_path, launch=False)["verdict"] == "inconclusive"


def test_the_table_of_releases(tmp_path):
    served = target(tmp_path / "t", DEEPSEEK)
    made = draft(tmp_path / "d", draft_config(DEEPSEEK, (2, 30, 58), **K25_DRAFT))
    trees = [Tree.find(ADDS_ONE), Tree.find(BOUNDARIES)]
    document = preflight(served, made, trees, trained=[3, 31, 59])
    assert [row["captured_boundaries"] for row in document["trees"]] == [[3, 31, 59], [2, 30, 58]]
    assert [row["matches"] for row in document["trees"]] == [True, False]
    assert [row["ids_to_write"] for row in document["trees"]] == [[2, 30, 58], [3, 31, 59]]
    assert (document["verdict"], first(document)) == ("fault", "release-drift")
    assert preflight(served, made, trees)["verdict"] == "inconclusive"


def test_the_table_s_own_check_fails_is_open_or_holds(tmp_path):
    """Each tree that differs, or that says nothing, is named by its release."""
    served, made = target(tmp_path / "t"), draft(tmp_path / "d", draft_config())

    def tree(version, ids):
        """The slice, as a release in which other boundaries come of the ids."""
        place = shutil.copytree(ADDS_ONE, tmp_path / version)
        model = place / "sglang" / "srt" / "models" / "llama.py"
        text = model.read_text().replace("[k + 1 for k in ids]", ids)
        model.write_text(f"from another_package import from_elsewhere\n{text}")
        (place / "sglang" / "version.py").write_text(f'__version__ = "{version}"\n')
        return Tree.find(place)

    def drift(*trees):
        document = preflight(served, made, list(trees), trained=[2, 6, 9])
        (found,) = (check for check in document["checks"] if check["id"] == "release-drift")
        return document["verdict"], found["state"], found["why"]

    adds, unknown, other = Tree.find(ADDS_ONE), tree("0.5.7", "[from_elsewhere(k) for k in ids]"), tree("0.5.8", "ids")
    assert drift(adds, adds) == ("ok", "ok", "all 2 trees capture what the draft was trained on")
    assert drift(adds, unknown) == ("inconclusive", "skipped", "whether 0.5.7 would match is not known")
    assert drift(adds, tree("0.5.6", "from_elsewhere(ids)"))[:2] == ("inconclusive", "skipped")
    verdict, state, why = drift(adds, unknown, other)
    assert (verdict, state) == ("fault", "fault")
    assert why.startswith("0.5.8 would not start, or not hand on what the draft was trained on")


def test_check_judges_a_launch_as_preflight_does(tmp_path):
    """One reader of launches: the environment counts, and so does every value of a list."""
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    launch = (
        f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python -m sglang.launch_server --model-path {served} "
        f"--speculative-draft-model-path {made} --speculative-algorithm EAGLE3 --context-length 8192 --cuda-graph-bs 1 2 4"
    )
    tree = Tree.find(ADDS_ONE)
    said = preflight(served, made, [tree], launch=launch, trained=[2, 6, 9])["causes"][0]
    context = make_context(target=served, draft=made, launch=launch, tree=tree)
    assert (said["id"], said["confidence"]) == ("rope", "possible")
    assert {name: check.finding.document() for name, check in context.static.items()} == {"rope": said}
    assert context.launch.get("cuda-graph-bs") == [1, 2, 4]
    assert make_context(launch="--cuda-graph-bs 1 2 --tp 2").launch.get("cuda-graph-bs") == ["1", "2"]
    assert make_context(launch="--pp 2 -x $Y").stages == 2


# The command line.


@pytest.fixture
def system(tmp_path):
    return target(tmp_path / "t"), draft(tmp_path / "d")


def call(*words: object):
    return CliRunner().invoke(command, [str(word) for word in words], standalone_mode=False)


def arguments(system, *more):
    served, made = system
    launch = f"--model-path {served} --speculative-draft-model-path {made} --speculative-algorithm EAGLE3"
    return ["--target", served, "--draft", made, "--tree", ADDS_ONE, "--launch", launch, *more]


@pytest.mark.parametrize(
    "more, code, verdict",
    [
        (["--trained", "2,6,9"], 0, "ok"),
        (["--trained", " [ 2, 6 ,9 ] "], 0, "ok"),
        (["--trained", "2 6 9"], 0, "ok"),
        (["--trained", "[3, 7, 10]"], 1, "fault"),
        ([], 3, "inconclusive"),
    ],
)
def test_exit_codes_and_json(system, more, code, verdict):
    shown = call(*arguments(system, "--json", *more))
    document = json.loads(shown.stdout)
    assert (shown.return_value, document["verdict"], document["schema"]) == (
        code,
        verdict,
        "specwire.preflight/1",
    )
    assert {"captured_boundaries", "concat_width", "fc_in", "causes", "checks"} <= set(document)
    page = call(*arguments(system, "--quiet", *more))
    assert page.return_value == code and f"verdict: {verdict}" in page.stdout
    assert all(len(line) <= 110 for line in page.stdout.splitlines() if "/" not in line)


def test_the_launch_is_given_once(system):
    import click

    served, made = system
    for words in (["--target", served, "--draft", made], arguments(system, "--pid", "1")):
        shown = call(*words)
        assert isinstance(shown.exception, click.UsageError)
    both = ["--tree", ADDS_ONE, "--tree", BOUNDARIES]
    assert call("--target", served, "--draft", made, *both, "--trained", "2,6,9").return_value == 0


def test_a_launch_file(system, tmp_path):
    served, made = system
    script = tmp_path / "serve.sh"
    script.write_text(
        f"T={served}\npython -m sglang.launch_server --model-path $T --speculative-algorithm EAGLE \\\n"
        f"  --speculative-draft-model-path {made}\n"
    )
    shown = call(
        "--target", served, "--draft", made, "--tree", BOUNDARIES, "--launch-file", script, "--trained", "2,6,9"
    )
    assert shown.return_value == 1 and "FAULT algo-flag (certain)" in shown.stdout


NO_SIZE = '{"architectures": ["LlamaForCausalLM"], "hidden_size": "x"}'
BROKEN = [
    pytest.param(lambda t, d: (t, d.parent / "none"), "no draft in .*no such directory", id="missing draft"),
    pytest.param(lambda t, d: (t.parent / "none", d), "no target in .*no such directory", id="missing target"),
    pytest.param(lambda t, d: ((t / "config.json").unlink(), (t, d))[1], "no config.json", id="no config"),
    pytest.param(lambda t, d: ((t / "config.json").write_text("{"), (t, d))[1], "cannot read", id="broken JSON"),
    pytest.param(lambda t, d: ((t / "config.json").write_text("[]"), (t, d))[1], "no JSON object", id="no object"),
    pytest.param(
        lambda t, d: ((t / "config.json").write_text(NO_SIZE), (t, d))[1], "positive number", id="no layer count"
    ),
    pytest.param(lambda t, d: ((d / "config.json").write_text("{}"), (t, d))[1], "no architecture", id="no draft"),
    pytest.param(
        lambda t, d: ((d / "model.safetensors").write_bytes(b"\xff" * 99), (t, d))[1], "header", id="hostile weights"
    ),
    pytest.param(lambda t, d: ((d / "model.safetensors").unlink(), (t, d))[1], r"no \*.safetensors", id="no weights"),
]


@pytest.mark.parametrize("damage, said", BROKEN)
def test_bad_input_is_one_sentence(system, damage, said):
    served, made = damage(*system)
    shown = call("--target", served, "--draft", made, "--tree", ADDS_ONE, "--launch", "--model-path x")
    assert isinstance(shown.exception, SpecwireError) and "\n" not in str(shown.exception)
    with pytest.raises(SpecwireError, match=said):
        raise shown.exception


def test_a_golden_that_is_none(system, tmp_path):
    write_tensors(tmp_path / "g.safetensors", {"x": ("F32", (1,), None)})
    shown = call(*arguments(system, "--golden", tmp_path / "g.safetensors"))
    assert isinstance(shown.exception, SpecwireError)


def test_nothing_heavy_is_imported():
    import subprocess
    import sys

    code = (
        "import sys, specwire.preflight, specwire.preflight.render; from specwire.cli.preflight import command;"
        "assert not {'torch', 'sglang', 'libcst', 'numpy', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "getter, base, cause",
    [
        ("", "nn.Module", "embed-head"),
        ("", "Elsewhere", "none"),
        ("    def get_embed_and_head(self):\n        return 1, 2\n\n", "nn.Module", "none"),
        ("    def __getattr__(self, name):\n        return 1\n\n", "nn.Module", "none"),
    ],
    ids=["none", "perhaps inherited", "its own", "forwarded"],
)
def test_a_target_that_does_not_hand_its_embedding_over(tmp_path, getter, base, cause):
    tree = shutil.copytree(ADDS_ONE, tmp_path / "tree")
    workers = tree / "sglang" / "srt" / "speculative"
    workers.mkdir()
    (workers / "__init__.py").touch()
    (workers / "eagle_worker.py").write_text("def share(target):\n    return target.get_embed_and_head()\n")
    model = tree / "sglang" / "srt" / "models" / "llama.py"
    text = re.sub(r"    def get_embed_and_head\(self\):\n(        .*\n)+\n?", "", model.read_text())
    head = "class LlamaForCausalLM(nn.Module):\n"
    assert head in text
    text = "from elsewhere import Elsewhere\n" * (base == "Elsewhere") + text.replace(
        head, head.replace("nn.Module", base) + getter
    )
    model.write_text(text)
    document = run(tmp_path, tree=tree)
    assert first(document) == cause, document["causes"]
