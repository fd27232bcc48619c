"""A capture and a log that SGLang 0.5.23 made of the Llama fixture: matched, and spoilt in known ways."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specwire.capture import open_capture
from specwire.diagnosis.check import check_capture
from specwire.diagnosis.context import make_context
from specwire.diagnosis.gather import gather
from specwire.diagnosis.log_check import check_log
from specwire.goldens.golden import open_golden
from specwire.goldens.write import States, write_golden
from specwire.tensorfile import open_tensors, write_tensors
from specwire.trees.tree import Tree

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "golden" / "llama" / "float32.safetensors"
RUN = ROOT / "fixtures" / "captures" / "llama-0.5.23"
HIDDEN = 128

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make import make

    fixture = make("llama", tmp_path_factory.mktemp("llama"))
    return {"target": fixture.target, "draft": fixture.draft}


def test_it_matches_on_every_site(models) -> None:
    document = check_capture(GOLDEN, RUN / "capture", make_context(**models, launch="--speculative-algorithm EAGLE3"))
    assert document["verdict"] == "match" and document["causes"] == [] and document["rows_compared"] == 26
    assert {site["site"]: site["state"] for site in document["target_sites"]} == {
        "embedding-capture": "exact",
        "layer-capture": "exact",
        "concat-full": "exact",
    }
    assert all(slot["rel_l2"] < 1e-6 for slot in document["slots"])
    assert [check["id"] for check in document["checks"] if check["state"] == "skipped"] == [
        "accept-short",  # the run ended with the draft's first step
        "graph-order",
        "not-wiring",
        "verify-forward",
    ]


def test_rotary_settings_that_are_not_the_targets_are_said(models, tmp_path) -> None:
    """They may be how the draft was trained, so they are no cause."""
    draft, tree = shutil.copytree(models["draft"], tmp_path / "draft"), Tree.find(ROOT / "fixtures/slices/boundaries")
    config = json.loads((draft / "config.json").read_text("utf-8"))
    (draft / "config.json").write_text(json.dumps({**config, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}))
    for place, said in (
        (draft, ["rope (possible): the draft is served with rope_theta 10000, yarn"]),
        (models["draft"], []),
    ):
        document = check_capture(GOLDEN, RUN / "capture", make_context(target=models["target"], draft=place, tree=tree))
        assert [note.partition(" scaling")[0] for note in document["notes"] if note.startswith("rope")] == said


def test_a_draft_saved_by_torch_is_compared_like_any(models, tmp_path) -> None:
    draft = shutil.copytree(models["draft"], tmp_path / "draft")
    weights = draft / "model.safetensors"
    torch.save(load_file(weights), draft / "pytorch_model.bin")
    weights.unlink()
    evidence = gather(
        open_golden(GOLDEN), open_capture(RUN / "capture"), make_context(target=models["target"], draft=draft)
    )
    assert evidence.draft.fc_run == evidence.draft.layer_run == evidence.draft.head.name == "as configured"


def test_the_reference_draft_computes_what_the_engines_did(models) -> None:
    evidence = gather(open_golden(GOLDEN), open_capture(RUN / "capture"), make_context(**models))
    draft = evidence.draft
    assert draft.fc_run == draft.layer_run == "as configured"
    errors = {name: max(found) for name, found in draft.layer.errors.items()}
    assert draft.fc_errors["as configured"] < 1e-5 and errors["as configured"] < 1e-5
    assert min(error for name, error in errors.items() if name != "as configured") > 1e-3
    assert draft.tokens.compared == 3 and not draft.tokens.wrong and draft.head.name == "as configured"


def test_its_log_matches_too() -> None:
    document = check_log(GOLDEN, RUN / "server.log")
    assert document["verdict"] == "match" and document["rows_compared"] == 3
    assert [slot["nearest_boundary"] for slot in document["slots"]] == [2, 4, 6]


def trained_on(boundaries: list[int], folder: Path) -> Path:
    """The same golden for a draft that was trained on other boundaries."""
    golden = open_golden(GOLDEN)
    states = []
    for number, prompt in enumerate(golden.prompts):
        where = [(number, position) for position in range(len(prompt.token_ids))]
        held = {k: golden.rows(f"boundary.{k}", where) for k in golden.boundaries}
        states.append(States(prompt.token_ids, held, golden.rows("final_norm", where)))
    write_golden(
        folder / "golden.safetensors",
        states,
        trained=boundaries,
        layers=golden.layers,
        dtype=golden.dtype,
        target=golden.target,
        source="test",
        noise=golden.noise,
    )
    return folder / "golden.safetensors"


@pytest.mark.parametrize(
    ("boundaries", "cause"),
    [
        ([3, 5, 7], "boundary-offset"),
        ([1, 3, 5], "boundary-offset"),
        ([4, 2, 6], "slot-order"),
        ([2, 4, 7], "wrong-boundary"),
        ([2, 4, 6, 8], "final-boundary"),
        ([2, 6], "slot-count"),
    ],
)
def test_a_draft_trained_on_other_boundaries(boundaries, cause: str, tmp_path: Path) -> None:
    golden = trained_on(boundaries, tmp_path)
    assert check_capture(golden, RUN / "capture")["causes"][0]["id"] == cause
    document = check_log(golden, RUN / "server.log")
    assert document["verdict"] == "mismatch"
    if len(boundaries) == 3:
        assert document["causes"][0]["id"] == cause and document["causes"][0]["confidence"] == "likely"


def spoilt(folder: Path, change: Callable[[torch.Tensor, Callable], torch.Tensor]) -> Path:
    """A copy of the capture with other states at the draft's input: `change(states, golden's rows)`."""
    golden, place = open_golden(GOLDEN), folder / "capture"
    shutil.copytree(RUN / "capture", place)
    for path in sorted(place.glob("rank0/*.draft-input.safetensors")):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors}
        if json.loads(file.metadata["specwire"])["mode"] != "EXTEND":
            continue
        ids = tuple(tensors["token_ids"].tolist())
        number = next(i for i, prompt in enumerate(golden.prompts) if prompt.token_ids[1:] == ids[:-1])
        where = [(number, position) for position in range(len(ids))]
        tensors["hidden_states"] = change(tensors["hidden_states"], lambda name: golden.rows(name, where)).contiguous()
        write_tensors(path, tensors, dict(file.metadata))
    return place


@pytest.mark.parametrize("site", ["forward-end", "draft-input"])
@pytest.mark.parametrize("by", [1, -5])
def test_lengths_of_other_rows_than_there_are_end_no_judgement(site: str, by: int, models, tmp_path) -> None:
    """What the engine says of its batch is not trusted to fit its rows."""
    shutil.copytree(RUN / "capture", tmp_path / "capture")
    for path in sorted(tmp_path.glob(f"capture/rank0/*.{site}.safetensors")):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors}
        if "extend_seq_lens" in tensors:
            tensors["extend_seq_lens"] = tensors["extend_seq_lens"] + by
            write_tensors(path, tensors, dict(file.metadata))
    document = check_capture(GOLDEN, tmp_path / "capture", make_context(**models))
    assert document["verdict"] in ("inconclusive", "match" if site == "forward-end" else "mismatch")


def normed(states: torch.Tensor, rows: Callable) -> torch.Tensor:
    parts = states.view(len(states), 3, HIDDEN)
    return (parts / parts.square().mean(-1, keepdim=True).sqrt()).flatten(1)


def without_residual(states: torch.Tensor, rows: Callable) -> torch.Tensor:
    return torch.cat([rows(f"boundary.{k}") - rows(f"residual.{k}") for k in (2, 4, 6)], dim=-1)


SPOILERS = {
    "algo-flag": lambda states, rows: rows("final_norm"),
    "embedding-slot": lambda states, rows: torch.cat([rows("boundary.0"), states[:, HIDDEN:]], dim=-1),
    "row-select": lambda states, rows: states.flip(0),
    "token-shift": lambda states, rows: states.roll(1, 0),
    "missing-residual": without_residual,
    "norm": normed,
    "non-finite": lambda states, rows: states * float("nan"),
    "dtype": lambda states, rows: states.bfloat16().float(),
    "wrong-target": lambda states, rows: states * torch.randn(states.shape, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("cause", SPOILERS)
def test_spoilt_states_are_named(cause: str, tmp_path: Path) -> None:
    document = check_capture(GOLDEN, spoilt(tmp_path, SPOILERS[cause]))
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == cause, document["causes"]


def test_one_token_that_is_wholly_wrong_fails_the_slot(tmp_path: Path) -> None:
    def change(states: torch.Tensor, rows: Callable) -> torch.Tensor:
        states = states.clone()
        states[3, :HIDDEN] = states[3, :HIDDEN].flip(0)
        return states

    document = check_capture(GOLDEN, spoilt(tmp_path, change))
    assert [slot["state"] for slot in document["slots"]] == ["mismatch", "match", "match"]
    assert document["slots"][0]["failed_rows"] == 3
