"""A golden built layer by layer is the whole model's: on every architecture, from quantised checkpoints, after a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specwire.errors import SpecwireError
from specwire.goldens import stream
from specwire.goldens.build import build_golden
from specwire.goldens.checkpoint import INDEX, Checkpoint
from specwire.model_files import read_config, text_config

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

pytestmark = pytest.mark.slow

PROMPTS = [[3, 4, 5, 6], [9, 8], [20, 21, 22, 23, 24]]
ARCHITECTURES = [
    "llama", "mistral", "qwen3", "qwen3-moe", "qwen3_5_text", "deepseek_v2", "deepseek", "glm4-moe", "gpt-oss", "minimax_m2",
    "gemma3_text", "gemma4_text", "llama4_text", "llama4_text+experts", "phi3", "apertus",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Targets by name, made when first asked for."""
    from make import make

    places: dict[str, Path] = {}

    def target(name: str) -> Path:
        if name not in places:
            places[name] = make(name, tmp_path_factory.mktemp(name), dtype="float32").target
        return places[name]

    return target


def streamed(target: Path, dtypes=("float32",), **options):
    config = text_config(read_config(target))
    layers = int(config["num_hidden_layers"])
    return layers, stream.run(
        Checkpoint(target, config), PROMPTS, list(dtypes), **{"highest": layers, "watched": [1], **options}
    )


def whole(target: Path, dtype: str):
    """Each prompt's boundaries [n, hidden] by transformers, with the whole model in memory."""
    import torch
    import transformers

    kind = "ForImageTextToText" if "vision_config" in read_config(target) else "ForCausalLM"
    model = (
        getattr(transformers, f"AutoModel{kind}")
        .from_pretrained(target, dtype=getattr(torch, dtype), experts_implementation="eager")
        .eval()
    )
    norm = next(module for name, module in model.named_modules() if name.endswith("model.norm"))
    last = []
    norm.register_forward_pre_hook(lambda _, args: last.append(args[0][0].clone()))
    with torch.inference_mode():
        states = [
            model(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states for ids in PROMPTS
        ]
    return [[*(each[0] for each in found[:-1]), end] for found, end in zip(states, last, strict=True)]


def furthest(wanted, heard, dtype="float32") -> float:
    """The largest relative L2 distance of a row, at any boundary."""
    errors = [
        ((heard[dtype, p].boundaries[k] - state).norm(dim=-1) / state.norm(dim=-1)).max().item()
        for p, states in enumerate(wanted)
        for k, state in enumerate(states)
    ]
    return max(errors)


@pytest.mark.parametrize("experts", ["together", "one by one"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_equals_its_whole_model(name, experts, made, monkeypatch):
    if experts == "one by one":
        if not any(word in name for word in ("moe", "deepseek", "gpt-oss", "minimax")):
            pytest.skip("has no routed experts")
        monkeypatch.setattr(stream, "WHOLE_EXPERTS", 0)
    layers, heard = streamed(made(name))
    wanted = whole(made(name), "float32")
    assert len(wanted[0]) == layers + 1 and furthest(wanted, heard) <= 1e-6


_TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "depth": 2, "num_attention_heads": 2, "num_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "image_size": 28, "patch_size": 14,
}  # fmt: skip
_SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
# Wrappers with towers, as config classes of transformers' own make them. Gemma 4's layers take keys and values of layers
# before them, and a further embedding each.
WRAPPERS = {
    "gemma3": {"text_config": _TEXT | _SLIDING, "vision_config": _TOWER, "mm_tokens_per_image": 4},
    "gemma4": {
        "text_config": _TEXT | _SLIDING | {
            "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "global_head_dim": 16,
        },
        "vision_config": _TOWER, "audio_config": None,
    },
    "llama4": {
        "text_config": _TEXT | {
            "intermediate_size_mlp": 48, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
        },
        "vision_config": _TOWER | {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    },
    "mistral3": {"text_config": _TEXT | {"model_type": "mistral"}, "vision_config": _TOWER | {"model_type": "pixtral"}},
    "qwen3_5": {
        "text_config": _TEXT | {
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        "vision_config": _TOWER | {"out_hidden_size": 32, "num_position_embeddings": 16},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_equals_its_whole_model_and_its_tower_is_not_read(name, tmp_path, monkeypatch):
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(name, **WRAPPERS[name])
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2)
    model.save_pretrained(tmp_path / "target")
    read: list[str] = []
    parts = Checkpoint.parts
    monkeypatch.setattr(
        Checkpoint, "parts", lambda self, names, *more: read.extend(names := list(names)) or parts(self, names, *more)
    )
    layers, heard = streamed(tmp_path / "target")
    assert layers == 4 and furthest(whole(tmp_path / "target", "float32"), heard) <= 1e-6
    assert read and not any(word in name for name in read for word in ("vision", "visual", "projector", "lm_head"))


def test_what_stays_in_float32_does(made, tmp_path):
    import torch
    from safetensors.torch import load_file

    tensors = load_file(made("glm4-moe") / "model.safetensors")
    for name in [name for name in tensors if name.endswith("e_score_correction_bias")]:
        tensors[name] = 1e-3 * torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(0)) + 1
    target = shared(made("glm4-moe"), tmp_path / "biased", tensors)
    _, heard = streamed(target, ("bfloat16",))
    assert furthest(whole(target, "bfloat16"), heard, "bfloat16") == 0


def test_an_expert_that_no_token_is_sent_to_is_not_read(made, monkeypatch):
    monkeypatch.setattr(stream, "WHOLE_EXPERTS", 0)
    read: list[str] = []
    parts = Checkpoint.parts
    monkeypatch.setattr(
        Checkpoint, "parts", lambda self, names, *more: read.extend(list(names)) or parts(self, names, *more)
    )
    config = read_config(made("qwen3-moe"))
    one = stream.run(
        Checkpoint(made("qwen3-moe"), config), [[3]], ["float32", "float64"],
        highest=config["num_hidden_layers"], watched=[],
    )  # fmt: skip
    experts = [name for name in read if ".experts." in name]
    layers, chosen = config["num_hidden_layers"], config["num_experts_per_tok"]
    assert len(one) == 2 and len(experts) == len(set(experts)) == layers * chosen * 3
    assert len([name for name in read if ".experts." not in name]) == len({n for n in read if ".experts." not in n})


def test_nothing_above_the_highest_boundary_is_read(made, tmp_path):
    from safetensors.torch import load_file, save_file

    target = tmp_path / "cut"
    shutil.copytree(made("llama"), target)
    tensors = load_file(target / "model.safetensors")
    kept = {
        k: v
        for k, v in tensors.items()
        if not any(f".layers.{n}." in k for n in range(3, 8)) and "norm.weight" != k[-11:]
    }
    kept |= {k: v for k, v in tensors.items() if ".layers.0." in k or ".layers.1." in k or ".layers.2." in k}
    save_file(
        {k: v for k, v in kept.items() if k != "model.norm.weight" and "lm_head" not in k}, target / "model.safetensors"
    )
    build_golden(target, tmp_path / "out", PROMPTS, dtype="float32", trained=[1, 2, 3], boundaries=[0, 1, 2, 3])
    assert (tmp_path / "out").exists()
    with pytest.raises(SpecwireError, match="lacks 9 weights.*model.layers.3"):
        build_golden(target, tmp_path / "more", PROMPTS, dtype="float32", trained=[1, 2, 3], boundaries=[4])


def test_embeddings_are_read_by_the_row(made):
    config = read_config(made("llama"))
    checkpoint = Checkpoint(made("llama"), config)
    stream.run(checkpoint, [[3], [3, 7]], ["float32"], highest=0, watched=[])
    assert checkpoint.bytes_read == (1 + 2) * config["hidden_size"] * 4


# --- quantised ------------------------------------------------------------------------------------------


def shared(target: Path, place: Path, tensors, **config) -> Path:
    """A copy of a target with other tensors, and more in its config."""
    from safetensors.torch import save_file

    place.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(read_config(target) | config))
    return place


def quantised(target: Path, place: Path, kind: str) -> tuple[Path, Path]:
    """A quantised checkpoint, and the same made dense by plain arithmetic."""
    import torch
    from safetensors.torch import load_file

    narrow, dense = {}, {}
    for name, tensor in load_file(target / "model.safetensors").items():
        narrow[name] = dense[name] = tensor
        linear = name.endswith("proj.weight") and ".layers." in name and tensor.shape[1] % 32 == 0
        if not linear or (kind == "int4" and "experts" not in name and "mlp" not in name):
            continue
        base = name.removesuffix(".weight")
        if kind.startswith("fp8"):
            rows, columns = {"fp8-blocks": (16, 16), "fp8-tensor": tensor.shape, "fp8-channel": (1, tensor.shape[1])}[
                kind
            ]
            tiles = tensor.reshape(tensor.shape[0] // rows, rows, tensor.shape[1] // columns, columns)
            scale = tiles.abs().amax(dim=(1, 3), keepdim=True) / 448
            held = (tiles / scale).to(torch.float8_e4m3fn)
            narrow[name] = held.reshape(tensor.shape)
            flat = scale[:, 0, :, 0].float()
            blocks = kind == "fp8-blocks"
            narrow[f"{base}.weight_scale_inv" if blocks else f"{base}.weight_scale"] = (
                flat.reshape(1) if kind == "fp8-tensor" else flat
            )
            dense[name] = (held.float() * scale.float()).reshape(tensor.shape)
        else:
            groups = tensor.reshape(tensor.shape[0], -1, 32)
            scale = (groups.abs().amax(dim=-1) / 7).to(torch.bfloat16).float()
            held = (groups / scale[..., None]).round().clamp(-8, 7).to(torch.int32)
            nibbles = (held + 8).reshape(tensor.shape[0], -1, 8)
            packed = sum(nibbles[..., n].to(torch.int64) << (4 * n) for n in range(8))
            packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
            del narrow[name]
            narrow |= {f"{base}.weight_packed": packed, f"{base}.weight_scale": scale.to(torch.bfloat16)}
            narrow[f"{base}.weight_shape"] = torch.tensor(tensor.shape, dtype=torch.int32)
            dense[name] = (held * scale[..., None]).reshape(tensor.shape)
    float8 = {"num_bits": 8, "type": "float", "symmetric": True}
    settings = {
        "fp8-blocks": {
            "quant_method": "fp8",
            "weight_block_size": [16, 16],
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
        },
        "fp8-tensor": _compressed("float-quantized", float8 | {"strategy": "tensor"}),
        "fp8-channel": _compressed("float-quantized", float8 | {"strategy": "channel"}),
        "int4": _compressed(
            "pack-quantized",
            {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        ),
    }
    return (
        shared(target, place / kind, narrow, quantization_config=settings[kind]),
        shared(target, place / f"{kind}-dense", dense),
    )


def _compressed(kind: str, weights: dict) -> dict:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize("experts", ["together", "one by one"])
@pytest.mark.parametrize("kind", ["fp8-blocks", "fp8-tensor", "fp8-channel", "int4"])
@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_a_quantised_checkpoint_is_what_its_numbers_say(name, kind, experts, made, tmp_path, monkeypatch):
    if experts == "one by one":
        if name == "llama":
            pytest.skip("has no routed experts")
        monkeypatch.setattr(stream, "WHOLE_EXPERTS", 0)
    narrow, dense = quantised(made(name), tmp_path, kind)
    _, heard = streamed(narrow)
    assert furthest(whole(dense, "float32"), heard) <= 2e-6
    label = Checkpoint(narrow, read_config(narrow)).scheme.label
    assert ("fp8" in label) if kind == "fp8-blocks" else ("compressed-tensors" in label)


def test_kimi_from_its_fours_is_the_dense_one_and_its_tower_is_not_read(tmp_path, monkeypatch):
    from dataclasses import replace

    import kimi
    from make import make

    few = replace(kimi.KIMI["kimi-k2.5"], layers=5)
    monkeypatch.setitem(kimi.KIMI, "kimi-k2.5", few)
    fixture = make("kimi-k2.5", tmp_path, dtype="float32")
    read: list[str] = []
    parts = Checkpoint.parts
    monkeypatch.setattr(
        Checkpoint, "parts", lambda self, names, *more: read.extend(names := list(names)) or parts(self, names, *more)
    )
    layers, heard = streamed(fixture.target)
    assert layers == 5 and furthest(whole(fixture.dense, "float32"), heard) <= 1e-6
    assert any(name.endswith("weight_packed") for name in read)
    assert not any("vision_tower" in name or "mm_projector" in name or "lm_head" in name for name in read)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_fours_are_what_compressed_tensors_makes_of_them(dtype, monkeypatch):
    import torch
    from kimi import _QUANTISED

    from specwire.goldens import quantised as module

    scheme = module.CompressedTensors(_QUANTISED, Path())
    random = torch.Generator().manual_seed(0)
    parts = {
        "m.weight_packed": torch.randint(-(2**31), 2**31 - 1, (48, 16), dtype=torch.int32, generator=random),
        "m.weight_scale": torch.rand(48, 4, generator=random).bfloat16(),
        "m.weight_shape": torch.tensor([48, 128], dtype=torch.int32),
    }
    source = module.Dense("m.weight", tuple(parts), True)
    quick = scheme.make(source, parts, getattr(torch, dtype))
    monkeypatch.setattr(module, "_plain_fours", lambda *_: False)
    assert torch.equal(quick, scheme.make(source, parts, getattr(torch, dtype)))


def test_mxfp4_experts_are_what_their_numbers_say(made, tmp_path):
    import torch
    from safetensors.torch import load_file

    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    narrow, dense = {}, {}
    for name, tensor in load_file(made("gpt-oss") / "model.safetensors").items():
        narrow[name] = dense[name] = tensor
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            generator = torch.Generator().manual_seed(len(name))
            experts, inputs, outputs = tensor.shape
            codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=generator)
            exponents = torch.randint(118, 122, (experts, outputs, inputs // 32), generator=generator)
            del narrow[name]
            narrow[f"{name}_blocks"] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8)
            narrow[f"{name}_scales"] = exponents.to(torch.uint8)
            numbers = values[codes % 8] * torch.where(codes >= 8, -1.0, 1.0) * 2.0 ** (exponents[..., None] - 127)
            dense[name] = numbers.reshape(experts, outputs, inputs).transpose(1, 2)
    made_narrow = shared(made("gpt-oss"), tmp_path / "narrow", narrow, quantization_config={"quant_method": "mxfp4"})
    _, heard = streamed(made_narrow)
    assert furthest(whole(shared(made("gpt-oss"), tmp_path / "dense", dense), "float32"), heard) <= 1e-6


@pytest.mark.parametrize("method", ["gptq", "awq", None, 7])
def test_a_quantisation_that_is_not_known_is_refused_by_name_before_anything_is_read(method, made, tmp_path):
    target = shared(made("llama"), tmp_path / "t", {}, quantization_config={"quant_method": method})
    (target / "model.safetensors").unlink()
    with pytest.raises(SpecwireError, match=f"quantised as '{method}'.*cannot be made dense"):
        build_golden(target, tmp_path / "out", PROMPTS, trained=[1, 2, 3])
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


# --- resume ---------------------------------------------------------------------------------------------


def build(target: Path, out: Path, **options) -> list[str]:
    said: list[str] = []
    build_golden(
        target,
        out,
        PROMPTS,
        dtype="float32",
        trained=[1, 3, 5],
        progress=lambda text, share=None: said.append(text),
        **options,
    )
    return said


@pytest.fixture(scope="module")
def unbroken(made, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("unbroken") / "out"
    build(made("llama"), out)
    assert not list(out.parent.glob(".out.part"))
    return out.read_bytes()


class Stop(Exception):
    pass


def stopped(target: Path, out: Path, after: int, monkeypatch) -> None:
    """A build that ends once `after` layers have been kept."""
    from specwire.goldens.resume import Unfinished

    keep = Unfinished.keep

    def keep_and_stop(self, layer, *rest):
        keep(self, layer, *rest)
        if layer == after:
            raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(Unfinished, "keep", keep_and_stop)
        build(target, out)


@pytest.mark.parametrize("after", [1, 4, 8])
def test_a_stopped_build_goes_on_at_its_layer_with_the_same_bytes(after, made, unbroken, tmp_path, monkeypatch):
    stopped(made("llama"), tmp_path / "out", after, monkeypatch)
    assert not (tmp_path / "out").exists()
    said = build(made("llama"), tmp_path / "out")
    assert f"going on after layer {after}" in said[0] and not any(f"layer {after}/" in text for text in said[1:])
    assert (tmp_path / "out").read_bytes() == unbroken and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("change", ["checkpoint", "prompts", "precision"])
def test_what_was_kept_of_another_build_is_not_taken(change, made, tmp_path, monkeypatch):
    target = tmp_path / "target"
    shutil.copytree(made("llama"), target)
    stopped(target, tmp_path / "out", 3, monkeypatch)
    if change == "checkpoint":
        os.utime(target / "model.safetensors", (1, 1))
    options = {"prompts": [[5, 6]]} if change == "prompts" else {"prompts": PROMPTS}
    said: list[str] = []
    build_golden(
        target, tmp_path / "out", dtype="bfloat16" if change == "precision" else "float32", trained=[1, 3, 5],
        progress=lambda text, share=None: said.append(text), **options,
    )  # fmt: skip
    assert "starting again" in said[0] and any("layer 1/" in text for text in said)


def test_a_model_that_keeps_state_between_layers_starts_again_and_says_so(made, tmp_path, monkeypatch):
    target = made("gemma4_text")
    layers = text_config(read_config(target))["num_hidden_layers"]
    build_golden(target, tmp_path / "whole", PROMPTS, dtype="float32", trained=[1, 2, 3])
    _, before = streamed(target)
    from specwire.goldens.resume import Unfinished

    keep = Unfinished.keep

    def keep_and_stop(self, layer, heard, traits):
        keep(self, layer, heard, dict(traits, resumable=False))
        if layer == layers - 1:
            raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(Unfinished, "keep", keep_and_stop)
        build_golden(target, tmp_path / "out", PROMPTS, dtype="float32", trained=[1, 2, 3])
    said: list[str] = []
    build_golden(
        target, tmp_path / "out", PROMPTS, dtype="float32", trained=[1, 2, 3],
        progress=lambda text, share=None: said.append(text),
    )  # fmt: skip
    assert "keeps state" in said[0] and (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def typed(target: Path, out: Path) -> list[str]:
    """The command that builds the same golden."""
    words = ["golden", "build", "--target", target, "--dtype", "float32", "--trained", "1,3,5", "-o", out]
    words += [word for ids in PROMPTS for word in ("--tokens", ",".join(map(str, ids)))]
    return [sys.executable, "-m", "specwire", *map(str, words)]


@pytest.fixture(scope="module")
def unbroken_command(made, tmp_path_factory) -> tuple[bytes, float]:
    """The golden of 61 layers, by a process of its own (with other threads than here, sums may round otherwise), and the
    seconds that it took."""
    out, begun = tmp_path_factory.mktemp("unbroken") / "out", time.monotonic()
    subprocess.run(typed(made("deepseek"), out), check=True, capture_output=True)
    return out.read_bytes(), time.monotonic() - begun


@pytest.mark.parametrize("number", range(int(os.environ.get("SPECWIRE_KILLS", "2"))))
def test_a_killed_build_goes_on(number, made, unbroken_command, tmp_path):
    wanted, seconds = unbroken_command
    command = typed(made("deepseek"), tmp_path / "out")
    moment = random.Random(number).uniform(0.0, seconds)
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
        if not (tmp_path / "out").exists():
            break
        assert (tmp_path / "out").read_bytes() == wanted  # it was quicker this time, or was killed on its way out
        (tmp_path / "out").unlink()
        moment *= 0.8
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- bad input ------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(made, tmp_path) -> Path:
    """The Llama in three shards with an index."""
    from safetensors.torch import load_file, save_file

    place = tmp_path / "target"
    place.mkdir()
    tensors = load_file(made("llama") / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"model-{number % 3 + 1:05d}-of-00003.safetensors" for number, name in enumerate(names)}
    for shard in sorted(set(where.values())):
        save_file({name: tensors[name] for name in names if where[name] == shard}, place / shard)
    (place / INDEX).write_text(json.dumps({"weight_map": where}))
    shutil.copy(made("llama") / "config.json", place)
    return place


def test_shards_are_one_checkpoint(sharded, unbroken, tmp_path):
    build(sharded, tmp_path / "out")
    assert _tensors(tmp_path / "out") == _tensors_of(unbroken, tmp_path)


def test_a_shard_that_comes_late_costs_what_was_done_nothing(sharded, unbroken, tmp_path):
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.rename(tmp_path / "away")
    with pytest.raises(
        SpecwireError, match="model-00002-of-00003.safetensors: this shard is not here.*type the same again"
    ):
        build(sharded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "away").rename(shard)
    build(sharded, tmp_path / "out")
    assert _tensors(tmp_path / "out") == _tensors_of(unbroken, tmp_path)


@pytest.mark.parametrize("spoil", ["cut", "shape", "index", "outside"])
def test_a_broken_checkpoint_is_one_sentence_and_no_file(spoil, sharded, tmp_path):
    from safetensors.torch import load_file, save_file

    shard = sharded / "model-00002-of-00003.safetensors"
    if spoil == "cut":
        shard.write_bytes(shard.read_bytes()[:-64])
    elif spoil == "shape":
        tensors = load_file(shard)
        name = next(name for name in tensors if name.endswith("proj.weight"))
        save_file(tensors | {name: tensors[name][:-1].contiguous()}, shard)
    else:
        (sharded / INDEX).write_text("{" if spoil == "index" else '{"weight_map": {"a": "../x.safetensors"}}')
    with pytest.raises(SpecwireError) as error:
        build(sharded, tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_a_full_disk_keeps_what_was_done(made, unbroken, tmp_path, monkeypatch):
    from specwire.goldens import resume

    write = resume.write_tensors

    def full(path, tensors, metadata):
        if path.name == "boundary.5.safetensors":
            raise OSError(28, "No space left on device")
        write(path, tensors, metadata)

    with monkeypatch.context() as patched:
        patched.setattr(resume, "write_tensors", full)
        with pytest.raises(SpecwireError, match="layer 5 cannot be kept.*No space left.*make room"):
            build(made("llama"), tmp_path / "out")
    assert "going on after layer 4" in build(made("llama"), tmp_path / "out")[0]
    assert (tmp_path / "out").read_bytes() == unbroken


def test_a_disk_that_is_full_in_the_end_keeps_all_layers(made, unbroken, tmp_path, monkeypatch):
    from specwire.goldens import write

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(write, "write_tensors", full)
        with pytest.raises(SpecwireError, match="cannot write .*out: No space left on device"):
            build(made("llama"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "going on after layer 8" in build(made("llama"), tmp_path / "out")[0]
    assert (tmp_path / "out").read_bytes() == unbroken


def _tensors(path: Path):
    from safetensors.torch import load_file

    return {name: tensor.tolist() for name, tensor in load_file(path).items()}


def _tensors_of(data: bytes, place: Path):
    (place / "wanted").write_bytes(data)
    return _tensors(place / "wanted")
