"""Drafts as they are published: under other names, in other layouts, without inner states, with other positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_models import TARGET, draft, draft_config, draft_tensors, target
from releases import release_tree

from specwire.preflight import preflight
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"


def judged(place, config, tensors=None, *, tree=SLICES / "adds-one", trained=(2, 6, 9), **changes):
    served = target(place / "target", TARGET, **changes)
    made = draft(place / "draft", config, tensors)
    launch = f"--model-path {served} --speculative-draft-model-path {made} --speculative-algorithm EAGLE3"
    return preflight(served, made, [Tree.find(tree)], launch=launch, trained=trained)


def causes(document) -> list[tuple[str, str]]:
    return [(cause["id"], cause["confidence"]) for cause in document["causes"]]


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("whole_vocabulary", [False, True])
def test_eagle3_tensors_under_another_name_are_one_cause(tmp_path, name, whole_vocabulary):
    config = draft_config(
        architectures=[name], **({"draft_vocab_size": TARGET["vocab_size"]} if whole_vocabulary else {})
    )
    document = judged(tmp_path, config)
    assert causes(document) == [("draft-load", "certain")]
    assert '"architectures": ["LlamaForCausalLMEagle3"]' in document["causes"][0]["fix"]
    assert name in document["causes"][0]["evidence"]


def test_the_layout_of_speculators_is_one_cause(tmp_path):
    plain = draft_config()
    sizes = {
        key: value for key, value in plain.items() if key not in ("architectures", "draft_vocab_size", "eagle_config")
    }
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": plain["draft_vocab_size"],
        "transformer_layer_config": sizes,
    }
    document = judged(tmp_path, config, draft_tensors(plain), trained=(2, 6, 9))
    assert causes(document)[0] == ("draft-load", "certain")
    assert not {"fc-width", "vocab-map", "weights-random"} & {name for name, _ in causes(document)}
    assert "transformer_layer_config" in document["causes"][0]["evidence"]
    assert "LlamaForCausalLMEagle3" in document["causes"][0]["fix"]
    # In a layout that is not read no other check says anything; the ids to write are in the one fix.
    without_ids = judged(tmp_path / "other", config, draft_tensors(plain), trained=(3, 6, 9))
    assert causes(without_ids) == [("draft-load", "certain")]
    assert without_ids["causes"][0]["fix"].endswith("eagle_config.eagle_aux_hidden_state_layer_ids = [2, 5, 8]")


@pytest.mark.release
def test_a_draft_of_the_last_state_alone_needs_no_fc(tmp_path):
    config = draft_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": False})
    tensors = {name: tensor for name, tensor in draft_tensors(config).items() if name != "fc.weight"}
    document = judged(tmp_path, config, tensors, trained=None, tree=release_tree("0.5.23"))
    assert (document["verdict"], document["causes"]) == ("ok", [])
    lacking = judged(tmp_path / "other", draft_config(), tensors, tree=release_tree("0.5.23"))
    assert lacking["verdict"] != "ok"


@pytest.mark.release
def test_an_fc_that_the_width_test_leaves_out(tmp_path):
    """One state is as wide as the embedding, so that the engine hands it on past fc without a word."""
    config = draft_config(ids=(5,))
    document = judged(tmp_path, config, draft_tensors(config, slots=1), trained=(6,), tree=release_tree("0.5.23"))
    assert causes(document)[0] == ("fc-width", "certain")
    assert "leaves out fc" in document["causes"][0]["evidence"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"rope_theta": ...}, "no rotary settings"),
        ({"rope_theta": 10000.0}, "10000"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn scaling by 4"),
        ({"partial_rotary_factor": 0.5}, "turns 0.5 of each head"),
    ],
)
def test_other_rotary_settings_than_the_targets_are_possible_and_decide_nothing(tmp_path, changes, said):
    served = {"rope_theta": 500000.0}
    document = judged(tmp_path, draft_config(**{"rope_theta": 500000.0, **changes}), **served)
    assert causes(document) == [("rope", "possible")] and said in document["causes"][0]["evidence"]
    assert document["verdict"] == "ok"
    same = judged(tmp_path / "same", draft_config(rope_theta=500000.0), **served)
    assert same["causes"] == [] and same["verdict"] == "ok"
    nested = {"rope_parameters": {"full_attention": {"rope_theta": 500000.0}, "sliding_attention": {"rope_theta": 1e4}}}
    other = judged(tmp_path / "nested", draft_config(rope_theta=10000.0), **nested)
    assert causes(other) == [("rope", "possible")] and "its target has 500000" in other["causes"][0]["evidence"]


def test_a_map_of_other_than_whole_numbers_is_a_fault_and_not_the_end(tmp_path):
    tensors = draft_tensors(draft_config())
    dtype, shape, _ = tensors["d2t"]
    document = judged(tmp_path, draft_config(), {**tensors, "d2t": ("F32", shape, None)})
    assert ("vocab-map", "certain") in causes(document) and "F32" in document["causes"][0]["evidence"]


@pytest.mark.parametrize(
    "ids, trained, cause, fix",
    [
        ((1, 5), (2, 6, 9), "fc-width", "give 3 layer ids in eagle_config"),
        ((1, 5, 8, 9), (2, 6, 9), "fc-width", "give 3 layer ids in eagle_config"),
        ((1, 5, 8), (2, 6, 13), "wrong-boundary", "The target has 12 layers, so there is no boundary 13"),
    ],
)
@pytest.mark.release
def test_fixes_that_lead_somewhere(tmp_path, ids, trained, cause, fix):
    config = draft_config(ids=ids)
    document = judged(tmp_path, config, draft_tensors(draft_config()), trained=trained, tree=release_tree("0.5.23"))
    assert fix in next(one["fix"] for one in document["causes"] if one["id"] == cause)


def test_ids_are_of_no_use_to_a_draft_whose_inner_states_are_off(tmp_path):
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": False}
    document = judged(tmp_path, draft_config(eagle_config=nested), trained=(2, 6, 9))
    fixes = {one["id"]: one["fix"] for one in document["causes"]}
    assert any('"use_aux_hidden_state": true' in fix for fix in fixes.values()), fixes
    assert not any("Write eagle_config" in fix and "use_aux" not in fix for fix in fixes.values())
