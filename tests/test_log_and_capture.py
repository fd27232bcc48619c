"""A log and a capture of the same run give the same verdict, whatever the golden knows and whatever dtype is served."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from captures import concat, make_states, write_batch

from specwire.diagnosis.check import check_capture
from specwire.diagnosis.log_check import check_log
from specwire.goldens.golden import Noise
from specwire.goldens.write import States, write_golden

PROMPTS = [[4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16]]
LAYERS, HIDDEN, TRAINED = 12, 64, (3, 7, 10)
STATES = make_states(PROMPTS, layers=LAYERS, hidden=HIDDEN)
# What an engine's own roundings add up to by the middle of the stack, as a share of a row's size.
ROUNDINGS = {"float32": 3e-7, "float16": 4e-4, "bfloat16": 3e-3}
DTYPES = tuple(ROUNDINGS)
KINDS = ("built", "imported", "without noise", "log-printed")


def computed(dtype: str, seed: int) -> list[dict[int, torch.Tensor]]:
    """The prompts' states as one computation in `dtype` has them."""
    random = torch.Generator().manual_seed(seed)
    return [
        {
            k: (rows + ROUNDINGS[dtype] * rows.square().mean() ** 0.5 * torch.randn(rows.shape, generator=random)).to(
                getattr(torch, dtype)
            )
            for k, rows in states.items()
        }
        for states in STATES
    ]


def golden_of(kind: str, dtype: str, folder: Path) -> Path:
    """A golden that was computed in `dtype`; its noise, if any, was measured in that dtype alone."""
    states = computed(dtype, seed=1)
    kept = (*TRAINED, LAYERS) if kind == "imported" else range(LAYERS + 1)
    noise = {dtype: {k: Noise(ROUNDINGS[dtype], 1.5 * ROUNDINGS[dtype], 0.0) for k in range(LAYERS + 1)}}
    return write_golden(
        folder / "golden.safetensors",
        [States(ids, {k: own[k] for k in kept}) for ids, own in zip(PROMPTS, states, strict=True)],
        trained=TRAINED,
        layers=LAYERS,
        dtype=dtype,
        target="made for a test",
        source="tests",
        noise=noise if kind == "built" else {},
    ) or (folder / "golden.safetensors")


def printed_golden(dtype: str, folder: Path) -> Path:
    """The first row's values as they were read off another run's log, to four digits."""
    row = computed(dtype, seed=1)[0]
    document = {
        "schema": "specwire.golden/1",
        "kind": "log",
        "target": "made for a test",
        "source": "a log",
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "dtype": dtype,
        "concat_shape": [len(PROMPTS[0]), 3 * HIDDEN],
        "trained_boundaries": list(TRAINED),
        "slots": [[float(f"{value:.4g}") for value in row[k][0, :5].tolist()] for k in TRAINED],
    }
    (folder / "printed.json").write_text(json.dumps(document))
    return folder / "printed.json"


def served(dtype: str, slots: tuple[int, ...], folder: Path) -> tuple[Path, Path]:
    """The capture and the log of one run."""
    lines = []
    for prompt, (ids, states) in enumerate(zip(PROMPTS, computed(dtype, seed=2), strict=True)):
        rows = concat(states, slots)
        write_batch(folder / "capture", 0, prompt, [(ids, 0, len(ids))], [rows])
        shown = [[float(f"{value:.6g}") for value in part[:5]] for part in rows[0].view(-1, HIDDEN).tolist()]
        lines.append(
            f"[EAGLE3-DEBUG] site=draft-input rank=0 step={prompt} mode=EXTEND shape={list(rows.shape)} dtype={dtype} "
            f"norm=1 hs_first5={shown[0]} boundary=- token={ids[1]} position=0 slots={json.dumps(shown)}"
        )
    (folder / "log").write_text("\n".join(lines))
    return folder / "capture", folder / "log"


@pytest.mark.parametrize("slots", [TRAINED, (2, 6, 9), (7, 3, 10)], ids=["healthy", "one below", "another order"])
@pytest.mark.parametrize(("kind", "stored", "run"), list(itertools.product(KINDS, DTYPES, DTYPES)))
def test_log_and_capture_agree(kind: str, stored: str, run: str, slots: tuple[int, ...], tmp_path: Path) -> None:
    golden = golden_of(kind, stored, tmp_path)
    capture, log = served(run, slots, tmp_path)
    whole = check_capture(golden, capture)
    few = check_log(printed_golden(stored, tmp_path) if kind == "log-printed" else golden, log)
    wanted = "match" if slots == TRAINED else "mismatch"
    assert (whole["verdict"], few["verdict"]) == (wanted, wanted), (few["slots"], few["why"])
    if kind != "log-printed":
        assert whole["noise_floor"] == few["noise_floor"]
        assert [slot["tolerance"] for slot in whole["slots"]] == [slot["tolerance"] for slot in few["slots"]]
        states = [slot["state"] for slot in whole["slots"]]
        assert states == [slot["state"] for slot in few["slots"]]


@pytest.mark.parametrize("slots", [TRAINED, (2, 6, 9)], ids=["healthy", "one below"])
def test_prompts_that_a_line_cannot_tell_apart_are_judged(slots: tuple[int, ...], tmp_path: Path) -> None:
    """One prompt twice, and one that differs in its first token alone, which a draft's line does not show."""
    prompts = [[5, 6, 7, 8], [5, 6, 7, 8], [4, 6, 7, 8]]
    states = make_states(prompts, layers=LAYERS, hidden=HIDDEN)
    states[1] = states[0]
    golden = tmp_path / "golden.safetensors"
    write_golden(
        golden,
        [States(ids, own) for ids, own in zip(prompts, states, strict=True)],
        trained=TRAINED, layers=LAYERS, dtype="float32", target="made for a test", source="tests", noise={},
    )  # fmt: skip
    lines = []
    for prompt, (ids, own) in enumerate(zip(prompts, states, strict=True)):
        rows = concat(own, slots)
        write_batch(tmp_path / "capture", 0, 2 * prompt, [(ids, 0, 4)], [own[0]], site="embedding-capture")
        write_batch(tmp_path / "capture", 0, 2 * prompt + 1, [(ids, 0, 4)], [rows])
        shown = [[float(f"{value:.6g}") for value in part[:5]] for part in rows[0].view(-1, HIDDEN).tolist()]
        lines.append(
            f"[EAGLE3-DEBUG] site=draft-input rank=0 step={prompt} mode=EXTEND shape={list(rows.shape)} dtype=float32 "
            f"norm=1 hs_first5={shown[0]} boundary=- token={ids[1]} position=0 slots={json.dumps(shown)}"
        )
    (tmp_path / "log").write_text("\n".join(lines))
    wanted = "match" if slots == TRAINED else "mismatch"
    assert check_capture(golden, tmp_path / "capture")["verdict"] == wanted
    assert check_log(golden, tmp_path / "log")["verdict"] == wanted
