"""The committed goldens: readable, complete, and what the fixtures still give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from specwire.goldens.golden import open_golden

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = sorted(GOLDEN.rglob("*.safetensors"))


def test_there_are_goldens() -> None:
    assert {path.parent.name for path in FILES} >= {"deepseek", "llama"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_boundary_is_there_with_its_noise(path: Path) -> None:
    golden = open_golden(path)
    assert golden.boundaries == tuple(range(golden.layers + 1)) and golden.has("final_norm")
    assert set(golden.noise[golden.dtype]) == set(golden.boundaries) and len(golden.prompts) > 1
    assert all(golden.has(f"residual.{k}") for k in golden.trained)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_neighbouring_boundaries_can_be_told_apart(path: Path) -> None:
    golden = open_golden(path)
    where = [
        (number, position) for number, prompt in enumerate(golden.prompts) for position in range(len(prompt.token_ids))
    ]
    for k in golden.trained:
        own, before = (golden.rows(f"boundary.{j}", where).double() for j in (k, k - 1))
        distance = ((own - before).norm(dim=-1) / own.norm(dim=-1)).min().item()
        assert distance > 4 * golden.noise[golden.dtype][k].worst


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_fixtures_still_give_it(path: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("remake", GOLDEN / "remake.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    again, kept = open_golden(module.remake(tmp_path, path.parent.name, path.stem)), open_golden(path)
    assert again.trained == kept.trained and [p.token_ids for p in again.prompts] == [p.token_ids for p in kept.prompts]
    where = [(0, position) for position in range(len(kept.prompts[0].token_ids))]
    for k in kept.boundaries:
        a, b = (one.rows(f"boundary.{k}", where).double() for one in (again, kept))
        assert ((a - b).norm(dim=-1) <= (1e-6 if path.stem == "float32" else 8e-3) * b.norm(dim=-1)).all()
