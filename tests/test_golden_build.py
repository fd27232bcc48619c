"""`golden build`: every boundary of a real (tiny) model, in two precisions; refused before anything is loaded
or written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specwire.cli import main
from specwire.errors import SpecwireError
from specwire.goldens.build import build_golden, default_prompts
from specwire.goldens.golden import open_golden

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


@pytest.fixture
def empty_target(tmp_path: Path) -> Path:
    """A config and no weights: enough for everything that is refused before loading."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_default_prompts_are_short_unique_and_always_the_same() -> None:
    prompts = default_prompts(256)
    tokens = [token for ids in prompts for token in ids]
    assert prompts == default_prompts(256) and len(prompts[0]) == 8
    assert len(set(tokens)) == len(tokens) and all(16 <= token < 256 for token in tokens)
    assert all(0 <= token < 20 for ids in default_prompts(20) for token in ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": [[3, 64]]}, "token id 64 .* outside the vocabulary of 64"),
        ({"prompts": [[3, -1]]}, "token id -1"),
        ({"trained": [1, 9]}, "boundary 9 is not one"),
        ({"trained": [1, 3, 5], "boundaries": [0, 7]}, "boundary 7 is not one"),
        ({"trained": [1, 3, 5], "dtype": "float8"}, "cannot be built"),
        ({}, "6 layers has no usual boundaries: say which with --trained"),
        ({"trained": [1, 3, 5]}, "holds no .*safetensors"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message: str, empty_target: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecwireError, match=message):
        build_golden(empty_target, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_that_transformers_does_not_know_is_told_where_a_golden_may_come_from(empty_target, tmp_path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"model.norm.weight": torch.ones(32)}, empty_target / "model.safetensors")
    (empty_target / "config.json").write_text(json.dumps(CONFIG | {"model_type": "nobody_knows"}))
    with pytest.raises(SpecwireError, match="transformers cannot load.*golden import"):
        build_golden(empty_target, tmp_path / "out", trained=[1, 3, 5])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        "[]",
        '{"num_hidden_layers": "six"}',
        '{"num_hidden_layers": 6, "hidden_size": 0, "vocab_size": 4}',
    ],
)
def test_a_target_without_a_usable_config_exits_2_with_a_sentence(config: str, tmp_path: Path, capsys) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(SystemExit) as ended:
        main(["golden", "build", "--target", str(tmp_path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and said.startswith("specwire: ") and "\n" not in said and "Traceback" not in said


@pytest.mark.parametrize("arguments", [["--tokens", "3,x"], ["--prompts", "no-such-file"], ["--trained", "a"]])
def test_options_that_cannot_be_read_exit_2(arguments, empty_target: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["golden", "build", "--target", str(empty_target), "--out", str(tmp_path / "out"), *arguments])
    assert ended.value.code == 2 and not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """A tiny Llama with random weights, as transformers saves it."""
    import torch
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "target"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_boundaries_are_those_of_transformers(dtype: str, target: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    build_golden(target, tmp_path / "out", [[3, 4, 5], [9, 8]], dtype=dtype, trained=[1, 3, 5])
    golden = open_golden(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        states = model(torch.tensor([[3, 4, 5]]), output_hidden_states=True).hidden_states
        last = model.model.norm(golden.rows("boundary.6", [(0, i) for i in range(3)]).float())
    assert golden.boundaries == tuple(range(7)) and golden.dtype == dtype
    for k in range(6):
        rows = golden.rows(f"boundary.{k}", [(0, i) for i in range(3)]).float()
        assert torch.allclose(
            rows,
            states[k][0],
            rtol=1e-2 if dtype == "bfloat16" else 1e-5,
            atol=1e-2 if dtype == "bfloat16" else 1e-6,
        )
    assert torch.allclose(last, states[6][0], rtol=2e-2, atol=2e-2), (
        "boundary L is before the final norm, transformers' last is after it"
    )
    noise = golden.noise[dtype]
    assert noise[0].worst <= 2**-8 and 0 < noise[6].median <= noise[6].worst < (0.05 if dtype == "bfloat16" else 1e-5)


@pytest.mark.slow
def test_a_list_that_nobody_gave_is_recorded_as_assumed(tmp_path: Path) -> None:
    import transformers

    said: list[str] = []
    target = tmp_path / "target"
    config = transformers.LlamaConfig(**CONFIG | {"num_hidden_layers": 7})
    transformers.LlamaForCausalLM(config).save_pretrained(target)
    build_golden(target, tmp_path / "guess", [[3, 4, 5]], say=said.append)
    build_golden(target, tmp_path / "known", [[3, 4, 5]], trained=[2, 3, 4])
    assert open_golden(tmp_path / "guess").assumed == (2, 3, 4) and "--trained" in said[0]
    assert open_golden(tmp_path / "known").assumed is None


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes(target: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_golden(target, tmp_path / name, dtype="float32", trained=[1, 3, 5])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.slow
def test_missing_weights_are_refused_rather_than_random(target: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(target, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecwireError, match="lacks 1 weights.*layers.3.mlp.up_proj"):
        build_golden(broken, tmp_path / "out", trained=[1, 3, 5])
