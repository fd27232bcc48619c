"""The second branch of each safety net of a verdict: rows that stray, neighbours within the noise, ranks and rows that lack."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from captures import concat, make_golden, make_states, write_batch
from specwire.checks import dtype

from specwire.diagnosis import compare
from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.check import check_capture
from specwire.diagnosis.context import Context, make_context
from specwire.diagnosis.noise import Floor
from specwire.goldens.golden import Noise
from specwire.goldens.write import States, write_golden
from specwire.preflight.verdict import fault

PROMPTS = [[4, 5, 6, 7, 8, 9], [10, 11, 12, 13]]
STATES = make_states(PROMPTS)
SLOTS = (1, 3, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "capture"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return make_golden(tmp_path / "golden.safetensors", PROMPTS, STATES)


def written(path: Path, prompts, states, noise: Noise, trained=SLOTS) -> Path:
    """A golden whose noise was measured as given, at every boundary."""
    write_golden(
        path,
        [States(ids, held) for ids, held in zip(prompts, states, strict=True)],
        trained=trained,
        layers=max(states[0]),
        dtype="float32",
        target="made for a test",
        source="tests",
        noise={"float32": dict.fromkeys(range(max(states[0]) + 1), noise)},
    )
    return path


def off_by(rows: torch.Tensor, shares: dict[int, float]) -> torch.Tensor:
    """The rows, each of those named off by so much of its size."""
    rows = rows.clone()
    for row, share in shares.items():
        away = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(row))
        rows[row] += share * rows[row].norm() * away / away.norm()
    return rows


@pytest.mark.parametrize(
    ("strays", "verdict", "failed"),
    [({}, "match", 0), (dict.fromkeys(range(4), 1e-3), "match", 0), (dict.fromkeys(range(5), 1e-3), "mismatch", 5),
     ({3: 2e-3}, "mismatch", 1)],
    ids=["none", "as many as were measured", "one more", "one too far"],
)  # fmt: skip
def test_rows_stray_as_far_and_as_often_as_was_measured(strays, verdict, failed, tmp_path: Path, folder: Path) -> None:
    """Of a model with experts: a sixteenth of 16 rows, times three, and one; none beyond 1.5 times the worst."""
    ids = [3 + number for number in range(16)]
    states = make_states([ids])
    golden = written(tmp_path / "golden.safetensors", [ids], states, Noise(1e-6, 1e-3, 1 / 16))
    served = torch.cat([off_by(states[0][k], strays if k == 3 else {}) for k in SLOTS], dim=-1)
    write_batch(folder, 0, 0, [(ids, 0, 16)], [served])
    document = check_capture(golden, folder)
    assert document["verdict"] == verdict and document["slots"][1]["failed_rows"] == failed
    assert [document["slots"][slot]["state"] for slot in (0, 2)] == ["match", "match"]


def test_a_floor_allows_no_row_and_no_nan() -> None:
    floor = Floor(1e-6, 1e-3, 1 / 16, 1e-6, "")
    assert not floor.allows([]) and not floor.allows([float("nan")]) and not floor.allows([1.1e-3])
    assert floor.allows([1e-3, 1e-7]) and floor.strays(16) == 4


@pytest.mark.parametrize(("share", "state"), [(1.0, "mismatch"), (0.5, "not-compared"), (0.0, "match")])
def test_boundaries_within_the_noise_of_each_other_are_told_apart_or_not(share, state, tmp_path, folder) -> None:
    """Noise as high as a layer's step: another boundary's rows lie within the floor, and are nearer to their own."""
    ids = PROMPTS[0]
    golden = written(tmp_path / "golden.safetensors", [ids], STATES[:1], Noise(0.3, 0.5, 0.0))
    states = {k: torch.lerp(STATES[0][k], STATES[0][k + 1], share) for k in SLOTS}
    write_batch(folder, 0, 0, [(ids, 0, 6)], [concat(states, SLOTS)])
    document = check_capture(golden, folder)
    assert {slot["state"] for slot in document["slots"]} == {state}
    assert document["verdict"] == {"not-compared": "inconclusive"}.get(state, state)


def test_a_rank_that_recorded_other_rows_leaves_no_verdict(golden: Path, folder: Path) -> None:
    for rank in (0, 1):
        for prompt, ids in enumerate(PROMPTS):
            end = len(ids) - (rank and prompt)
            write_batch(folder, rank, prompt, [(ids, 0, end)], [concat(STATES[prompt], SLOTS, 0, end)], ranks=2)
    document = check_capture(golden, folder)
    assert document["ranks_agree"] is False and document["verdict"] == "inconclusive"
    assert any("rank 1" in reason for reason in document["why"])


def test_a_rank_that_differs_in_its_last_chunk_alone_is_seen(monkeypatch, golden: Path, folder: Path) -> None:
    monkeypatch.setattr(compare, "CHUNK", 32)  # two rows of one slot
    for rank in (0, 1):
        for prompt, ids in enumerate(PROMPTS):
            rows = concat(STATES[prompt], SLOTS)
            if rank and prompt:
                rows[-1] += 1
            write_batch(folder, rank, prompt, [(ids, 0, len(ids))], [rows], ranks=2)
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["rank_difference"] > 0.1
    worst = document["slots"][0]["worst_row"]
    assert (worst["rank"], worst["prompt"], worst["position"]) == (1, 1, 3)
    assert document["slots"][0]["failed_rows"] == 1


def test_a_first_chunk_that_was_lost_is_no_match(golden: Path, folder: Path) -> None:
    write_batch(folder, 0, 0, [(PROMPTS[0], 3, 6)], [concat(STATES[0], SLOTS, 3, 6)], with_lengths=False)
    write_batch(folder, 0, 1, [(PROMPTS[1], 0, 4)], [concat(STATES[1], SLOTS)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and "3 rows were not captured" in document["why"][0]


@pytest.mark.parametrize("slots", [(1, 3), (1, 3, 5, 6)])
def test_every_slot_of_golden_and_capture_is_judged(slots, golden: Path, folder: Path) -> None:
    for prompt, ids in enumerate(PROMPTS):
        write_batch(folder, 0, prompt, [(ids, 0, len(ids))], [concat(STATES[prompt], slots)])
    judged = check_capture(golden, folder)["slots"]
    assert len(judged) == max(len(slots), 3) and judged[-1]["state"] == "mismatch"
    assert judged[-1]["why"] == (
        "this slot was not captured" if len(slots) < 3 else "the draft was not trained with this slot"
    )


def test_ranks_that_differ_are_no_partial_sums_unless_they_add_up(tmp_path: Path) -> None:
    from specwire.registry import modules

    case = Case("one rank with other rows", ranks=2, per_rank=lambda rank, rows, world: rows.flip(0) if rank else rows)
    assert modules("specwire.checks")["rank-partial"].check(evidence_of(case, tmp_path)) is None


@pytest.mark.parametrize(("launch", "verdict"), [("--tp 2 --pp-size 2", "match"), ("--tp 4", "inconclusive")])
def test_the_draft_is_on_the_last_stage_of_a_pipeline_alone(launch, verdict, golden: Path, folder: Path) -> None:
    for rank in (0, 1):
        for prompt, ids in enumerate(PROMPTS):
            write_batch(folder, rank, prompt, [(ids, 0, len(ids))], [concat(STATES[prompt], SLOTS)], ranks=4)
    document = check_capture(golden, folder, make_context(launch=launch))
    assert document["verdict"] == verdict
    assert document["why"] == ([] if verdict == "match" else ["2 of 4 ranks recorded it; rank 2, 3 did not"])


@pytest.mark.parametrize(
    "case, confidence",
    [
        (Case("healthy", draft_run={}), "possible"),
        (Case("the draft's layer went astray", draft_run={"layer": "random"}), "likely"),
        (Case("the draft was not captured"), "likely"),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else each,
)
def test_a_risk_of_overflow_is_no_fault_of_a_run_that_shows_none(case, confidence, tmp_path, monkeypatch) -> None:
    risk = fault("dtype", "stored in bfloat16 and served in float16", "--dtype bfloat16", "likely")
    monkeypatch.setattr(Context, "static", {"dtype": risk})
    cause = dtype.check(evidence_of(case, tmp_path))
    assert (cause.confidence, cause.fix) == (confidence, "--dtype bfloat16")
    assert ("nothing did" in cause.evidence) == (confidence == "possible")
