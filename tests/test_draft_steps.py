"""Every step of the draft, in a capture that SGLang 0.5.23 made with two branches: right as it is, and spoilt in known
ways that no golden could see."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specwire.capture import open_capture
from specwire.diagnosis.check import check_capture
from specwire.diagnosis.context import make_context
from specwire.diagnosis.draft_rounds import EXTEND, PREFILL, STEP, rounds_of
from specwire.tensorfile import open_tensors, write_tensors

ROOT = Path(__file__).parent.parent
RUN = ROOT / "fixtures" / "captures" / "llama-0.5.23-branches"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make import make

    fixture = make("llama", tmp_path_factory.mktemp("llama"), draft="accepted")
    return {"target": fixture.target, "draft": fixture.draft}


def judged(models, capture: Path):
    return check_capture(None, capture, make_context(**models, launch="--speculative-algorithm EAGLE3"))


def test_the_run_is_replayed_step_by_step() -> None:
    found = rounds_of(open_capture(RUN), 0)
    assert [forward.kind for forward in found.forwards] == [PREFILL, *[STEP, STEP, EXTEND] * 2, STEP, STEP]
    (request,) = found.requests
    assert [one.place for one in request.rounds] == [8, 12, 16]
    assert [one.accepted for one in request.rounds] == [4, 4, None] and not request.rounds[0].chain
    assert request.whole and request.length == 16


def test_nothing_is_wrong_with_it(models) -> None:
    document = judged(models, RUN)
    assert document["causes"] == [] and document["verdict"] == "inconclusive"  # without a golden: never a match
    scope = {part["part"]: (part["seen"], part["of"]) for part in document["scope"]}
    assert scope["draft"] == (1, 1) and scope["draft steps"] == (6, 6) and scope["verified rows"] == (2, 2)


def spoilt(folder: Path, number: int, change: Callable[[dict[str, torch.Tensor]], None], copies: int = 1) -> Path:
    """A copy of the capture on so many ranks, with one event of the last rank's changed."""
    for rank in range(copies):
        shutil.copytree(RUN / "rank0", folder / f"rank{rank}")
        for path in sorted((folder / f"rank{rank}").glob("*.safetensors")):
            file = open_tensors(path)
            tensors = {name: file.rows(name) for name in file.tensors}
            about = {**json.loads(file.metadata["specwire"]), "world_size": copies, "rank": rank}
            if rank == copies - 1 and int(path.name.split(".")[0]) == number:
                change(tensors)
            write_tensors(path, {k: v.contiguous() for k, v in tensors.items()}, {"specwire": json.dumps(about)})
    return folder


def other_states(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update(hidden_states=how(tensors["hidden_states"]))


def plus(name: str, what: int) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensors[name] + what})


def last_token(token: int, row: int = -1) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["token_ids"] = tensors["token_ids"].clone()
        tensors["token_ids"][row] = token

    return change


SPOILERS = {
    "a step counted twice": (12, plus("positions", 1), "position"),
    "verified rows a place on": (21, plus("positions", 1), "position"),
    "verified by the target a place on": (19, plus("positions", 1), "position"),
    "another token with a prompt's last row": (6, last_token(9), "row-select"),
    "another token with the last row that was accepted": (21, last_token(9, row=3), "row-select"),
    "one row of the verified block": (21, other_states(lambda rows: rows[:1].expand_as(rows)), "row-select"),
    "verified rows of zeros": (36, other_states(lambda rows: rows * 0), "row-select"),
    "a state halved on its way": (12, other_states(lambda rows: rows / 2), "hand-over"),
    "verified rows scaled": (21, other_states(lambda rows: rows * 1.01), "hand-over"),
    "the head's worst token": (12, plus("token_ids", 1), "draft-token"),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_what_is_done_to_one_step_is_named(name: str, models, tmp_path) -> None:
    number, change, cause = SPOILERS[name]
    causes = judged(models, spoilt(tmp_path, number, change))["causes"]
    assert cause in [one["id"] for one in causes if one["confidence"] != "possible"], causes


@pytest.mark.parametrize("name", ["a step counted twice", "a state halved on its way", "the head's worst token"])
def test_what_is_done_on_one_rank_alone_is_named(name: str, models, tmp_path) -> None:
    number, change, _ = SPOILERS[name]
    document = judged(models, spoilt(tmp_path, number, change, copies=2))
    assert document["causes"][0]["id"] == "rank-draft" and document["verdict"] == "mismatch"


def test_what_ranks_make_of_different_states_is_not_recomputed(models, tmp_path) -> None:
    """Their shares of the layer and of the head add up: no rank's own rows made what either recorded."""
    half = other_states(lambda rows: rows / 2)
    document = judged(models, spoilt(tmp_path, 21, half, copies=2))
    lines = {each["id"]: each for each in document["checks"]}
    for name in ("draft-token", "weights-random", "draft-step"):
        assert lines[name]["state"] == "skipped" and "ranks share the layer" in lines[name]["why"]
    scope = {part["part"]: part["seen"] for part in document["scope"]}
    assert scope["draft"] == scope["draft steps"] == 0 and document["verdict"] == "mismatch"


def test_ranks_that_are_alike_are_no_fault(models, tmp_path) -> None:
    document = judged(models, spoilt(tmp_path, 12, lambda tensors: None, copies=2))
    assert document["causes"] == []


def test_a_run_that_ended_in_a_step_is_judged_as_far_as_it_went(models, tmp_path) -> None:
    place = spoilt(tmp_path, -1, lambda tensors: None)
    for path in place.glob("rank0/*.safetensors"):
        if int(path.name.split(".")[0]) > 13:
            path.unlink()
    document = judged(models, place)
    assert document["causes"] == []
    assert {part["part"]: part["seen"] for part in document["scope"]}["verified rows"] == 0
