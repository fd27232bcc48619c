"""The reference draft against torch's own functions, for each way that a config turns its parts on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear, rms_norm

from specwire.diagnosis.draft_reference import Reference
from specwire.tensorfile import open_tensors, write_tensors

WIDTH = 4
WEIGHTS = {
    "fc.weight": (WIDTH, 3 * WIDTH),
    "fc.bias": (WIDTH,),
    "input_norm.weight": (3 * WIDTH,),
    **{f"fc_norm.{slot}.weight": (WIDTH,) for slot in range(3)},
}


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: 1 + torch.randn(shape, generator=generator) / 2 for name, shape in WEIGHTS.items()}


def made(folder: Path, weights: dict[str, torch.Tensor], **config: object) -> Reference:
    file = open_tensors(write(folder / "model.safetensors", weights))
    return Reference(dict.fromkeys(weights, file), config)


def write(path: Path, weights: dict[str, torch.Tensor]) -> Path:
    write_tensors(path, weights, {})
    return path


def expected(states: torch.Tensor, weights: dict[str, torch.Tensor], whole: bool, each: bool, biased: bool, eps: float):
    double = {name: value.double() for name, value in weights.items()}
    if whole:
        states = rms_norm(states, (3 * WIDTH,), double["input_norm.weight"], eps)
    if each:
        parts = [
            rms_norm(part, (WIDTH,), double[f"fc_norm.{slot}.weight"], eps)
            for slot, part in enumerate(states.split(WIDTH, dim=-1))
        ]
        states = torch.cat(parts, dim=-1)
    return linear(states, double["fc.weight"], double["fc.bias"] if biased else None)


@pytest.mark.parametrize(
    ("config", "given", "whole", "each"),
    [
        ({}, None, False, False),
        ({"fc_norm": True}, None, False, True),
        ({"use_aux_norm": True}, None, False, True),
        ({"eagle_config": {"use_aux_norm": True}}, None, False, True),
        ({"norm_before_fc": True}, None, True, False),
        ({"fc_norm": False, "use_aux_norm": False, "eagle_config": None}, None, False, False),
        ({"fc_norm": True, "norm_before_fc": True}, False, False, False),
        ({}, True, True, True),
    ],
)
@pytest.mark.parametrize("biased", [True, False])
def test_the_projection_norms_what_the_config_says(config, given, whole, each, biased, weights, tmp_path) -> None:
    states = torch.randn((5, 3 * WIDTH), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = made(tmp_path, weights, rms_norm_eps=0.25, **config).fc(states, normed=given, biased=biased)
    torch.testing.assert_close(found, expected(states, weights, whole, each, biased, 0.25))


@pytest.mark.parametrize("names", [(), ("input_norm.weight",), ("fc_norm.0.weight",)])
def test_a_norm_that_the_checkpoint_has_not_is_left_out(names, weights, tmp_path) -> None:
    held = {name: weights[name] for name in ("fc.weight", *names)}
    if "fc_norm.0.weight" in names:
        held = {name: value for name, value in weights.items() if name.startswith("fc")}
    reference = made(tmp_path, held, norm_before_fc=True, fc_norm=True)
    states = torch.randn((2, 3 * WIDTH), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    whole, each = "input_norm.weight" in held, "fc_norm.0.weight" in held
    torch.testing.assert_close(reference.fc(states), expected(states, weights, whole, each, "fc.bias" in held, 1e-6))
    assert reference.has_norms() is bool(names)
