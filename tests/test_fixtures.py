"""The makers of targets and drafts: the same bytes for the same seed, and worth comparing with."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
from make import make
from sketches import SKETCHES
from targets import FAMILIES


def digests(fixture) -> dict[str, str]:
    files = [path for place in (fixture.target, fixture.draft) for path in sorted(place.iterdir())]
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    first, again = make("llama", tmp_path / "a", seed=3), make("llama", tmp_path / "b", seed=3)
    other = make("llama", tmp_path / "c", seed=4)
    assert digests(first) == digests(again)
    changed = {name for name, digest in digests(other).items() if digest != digests(first)[name]}
    assert changed == {"target/model.safetensors", "draft/model.safetensors"}


@pytest.mark.parametrize(
    "name, ids, boundaries", [("llama", [1, 3, 5], [2, 4, 6]), ("deepseek", [3, 31, 59], [3, 31, 59])]
)
def test_the_draft_is_told_ids_that_become_its_boundaries(tmp_path, name, ids, boundaries):
    fixture = make(name, tmp_path)
    config = json.loads((fixture.draft / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    assert fixture.boundaries == boundaries
    hidden = config["hidden_size"]
    assert load_file(fixture.draft / "model.safetensors")["fc.weight"].shape == (hidden, 3 * hidden)


def test_dtype_and_ids_can_be_chosen(tmp_path):
    fixture = make("llama", tmp_path, dtype="bfloat16", ids=[0, 3])
    weights = load_file(fixture.draft / "model.safetensors")
    assert weights["fc.weight"].dtype == torch.bfloat16 and weights["fc.weight"].shape == (128, 256)
    assert fixture.boundaries == [1, 4]


def test_the_wide_one_has_the_real_width():
    assert FAMILIES["deepseek-wide"].hidden * 3 == 21504


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"deepseek-wide"}))
def test_neighbouring_boundaries_stand_far_above_rounding(tmp_path, name):
    from transformers import AutoModelForCausalLM

    fixture = make(name, tmp_path)
    ids = torch.randint(0, 256, (1, 24), generator=torch.Generator().manual_seed(0))
    states = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, loaded = AutoModelForCausalLM.from_pretrained(fixture.target, dtype=dtype, output_loading_info=True)
        assert not any(loaded.values()), "tensors missing or left over"
        with torch.no_grad():
            seen = model(ids, output_hidden_states=True, use_cache=False)
        states[dtype] = torch.stack(seen.hidden_states[:-1]).float()[:, 0]  # [boundaries, rows, hidden]
    exact, rounded = states[torch.float32], states[torch.bfloat16]
    noise = (rounded - exact).norm(dim=-1) / exact.norm(dim=-1)
    step = (exact[1:] - exact[:-1]).norm(dim=-1) / exact[:-1].norm(dim=-1)
    assert float(step.min()) > 0.1
    assert float(noise.max()) < 0.05
    assert float(noise.max()) < float(step.min()) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SKETCHES))
def test_a_sketch_is_a_whole_checkpoint_whose_layers_all_count(tmp_path, name):
    from transformers import AutoModelForCausalLM

    fixture = make(name, tmp_path / "a")
    assert digests(make(name, tmp_path / "b")) == digests(fixture)
    model, loaded = AutoModelForCausalLM.from_pretrained(fixture.target, dtype=torch.float32, output_loading_info=True)
    assert not any(loaded.values()), "tensors missing or left over"
    with torch.no_grad():
        seen = model(torch.arange(20, 44)[None], output_hidden_states=True, use_cache=False)
    states = torch.stack(seen.hidden_states[:-1])[:, 0]
    assert float(((states[1:] - states[:-1]).norm(dim=-1) / states[:-1].norm(dim=-1)).min()) > 0.02
    assert len(seen.logits.argmax(-1).unique()) > 4
