"""`check --capture`: alignment of rows, judgement row by row, verdicts and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from captures import concat, make_golden, make_states, write_batch
from click.testing import CliRunner

from specwire.cli.check import command
from specwire.diagnosis.check import check_capture
from specwire.diagnosis.context import make_context
from specwire.diagnosis.render import render_text
from specwire.errors import SpecwireError
from specwire.goldens.golden import Noise
from specwire.goldens.write import States, write_golden

PROMPTS = [[4, 5, 6, 7, 8, 9], [12, 5, 8, 3]]
STATES = make_states(PROMPTS)
SLOTS = (1, 3, 5)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return make_golden(tmp_path / "golden.safetensors", PROMPTS, STATES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "capture"


def prefill(folder: Path, rank: int = 0, ranks: int = 1, slots=SLOTS, change=None, prompts=(0, 1), **about) -> None:
    for prompt in prompts:
        states = concat(STATES[prompt], slots)
        if change:
            states = change(prompt, states.clone())
        write_batch(folder, rank, prompt, [(PROMPTS[prompt], 0, len(PROMPTS[prompt]))], [states], ranks=ranks, **about)


def test_a_match(golden: Path, folder: Path) -> None:
    prefill(folder)
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and document["causes"] == [] and document["target_side"] == "exact"
    assert document["concat_shape"] == document["golden_concat_shape"] == [6, 48] and document["rows_compared"] == 10
    assert [slot["nearest_boundary"] for slot in document["slots"]] == [1, 3, 5]
    assert all(slot["rel_l2"] == 0 and slot["cosine"] == 1 and slot["rows"] == 10 for slot in document["slots"])
    json.dumps(document, allow_nan=False)


def test_one_wholly_wrong_token_among_many_is_a_mismatch(tmp_path: Path, folder: Path) -> None:
    ids = [3 + i for i in range(2048)]
    states = make_states([ids], layers=3, hidden=8)
    golden = make_golden(tmp_path / "long.safetensors", [ids], states, trained=(1, 2))
    served = concat(states[0], (1, 2))
    served[1234] = torch.randn(16, generator=torch.Generator().manual_seed(9))
    write_batch(folder, 0, 0, [(ids, 0, 2048)], [served])
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["slots"][0]["failed_rows"] == 1
    worst = dict(document["slots"][0]["worst_row"])
    largest = worst.pop("largest")
    assert worst == {
        "rank": 0,
        "prompt": 0,
        "position": 1234,
        "token": ids[1234],
        "rel_l2": pytest.approx(1.4, abs=1),
        "bound": pytest.approx(4e-6),
    }
    away = (served[1234, :8] - states[0][1][1234]).abs()
    assert [one["index"] for one in largest] == away.topk(3).indices.tolist()
    assert [one["captured"] for one in largest] == pytest.approx([float(served[1234, one["index"]]) for one in largest])
    shown = render_text(document)
    assert f"prompt 0, position 1234 (token {ids[1234]}, rank 0)" in shown
    assert f"at index (1234, {largest[0]['index']}): captured" in shown
    assert document["slots"][0]["rel_l2"] < 0.05, "a mean over the tensor would have let it pass"


def test_one_wrong_value_in_one_slot_is_a_mismatch(golden: Path, folder: Path) -> None:
    def change(prompt: int, states: torch.Tensor) -> torch.Tensor:
        if prompt == 1:
            states[2, 16] += 0.01
        return states

    prefill(folder, change=change)
    document = check_capture(golden, folder)
    assert [slot["state"] for slot in document["slots"]] == ["match", "mismatch", "match"]
    assert document["verdict"] == "mismatch"


def test_prompts_batched_in_one_prefill(golden: Path, folder: Path) -> None:
    for with_lengths in (True, False):
        write_batch(
            folder,
            0,
            int(with_lengths),
            [(PROMPTS[1], 0, 4), (PROMPTS[0], 0, 6)],
            [concat(STATES[1], SLOTS), concat(STATES[0], SLOTS)],
            with_lengths=with_lengths,
        )
    assert check_capture(golden, folder)["verdict"] == "match"


def test_chunks_are_put_together(golden: Path, folder: Path) -> None:
    for number, (first, end) in enumerate([(0, 3), (3, 5), (5, 6)]):
        write_batch(folder, 0, number, [(PROMPTS[0], first, end)], [concat(STATES[0], SLOTS, first, end)])
    write_batch(folder, 0, 5, [(PROMPTS[1], 0, 4)], [concat(STATES[1], SLOTS)])
    document = check_capture(golden, folder)
    assert document["rows_compared"] == 10 and document["verdict"] == "match"


def test_a_cached_prefix_is_no_missing_row(golden: Path, folder: Path) -> None:
    write_batch(folder, 0, 0, [(PROMPTS[0], 3, 6)], [concat(STATES[0], SLOTS, 3, 6)])
    write_batch(folder, 0, 1, [(PROMPTS[1], 0, 4)], [concat(STATES[1], SLOTS)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and document["rows_compared"] == 7


def test_rows_of_another_request_are_left_out_and_said(golden: Path, folder: Path) -> None:
    prefill(folder)
    write_batch(folder, 0, 7, [([1, 1, 1], 0, 3)], [torch.zeros(3, 48)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and any("no golden prompt" in note for note in document["notes"])


@pytest.mark.parametrize("mode", ["DECODE", "TARGET_VERIFY", "DRAFT_EXTEND"])
def test_only_prefills_are_compared(golden: Path, folder: Path, mode: str) -> None:
    prefill(folder)
    write_batch(folder, 0, 9, [(PROMPTS[0], 0, 6)], [torch.zeros(6, 48)], mode=mode)
    assert check_capture(golden, folder)["verdict"] == "match"


def test_nothing_to_compare_is_inconclusive(golden: Path, folder: Path) -> None:
    write_batch(folder, 0, 0, [([1, 1, 1], 0, 3)], [torch.zeros(3, 48)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and document["why"]
    assert all(line["state"] != "fault" for line in document["checks"])


def test_an_empty_event_never_matches(golden: Path, folder: Path) -> None:
    write_batch(folder, 0, 0, [(PROMPTS[0], 0, 0)], [torch.zeros(0, 48)])
    assert check_capture(golden, folder)["verdict"] == "inconclusive"


def test_a_prompt_that_was_not_run_is_inconclusive(golden: Path, folder: Path) -> None:
    prefill(folder, prompts=(0,))
    document = check_capture(golden, folder)
    assert (
        document["verdict"] == "inconclusive"
        and "4 rows were not captured, first position 0 of prompt 1" in document["why"][0]
    )


def test_a_golden_without_a_trained_boundary_is_inconclusive(tmp_path: Path, folder: Path) -> None:
    held = [{k: v for k, v in states.items() if k != 3} for states in STATES]
    write_golden(
        tmp_path / "g",
        [States(ids, states) for ids, states in zip(PROMPTS, held)],
        trained=SLOTS,
        layers=6,
        dtype="float32",
        target="t",
        source="s",
        noise={"float32": {k: Noise(1e-6, 1e-6, 0) for k in range(7)}},
    )
    prefill(folder)
    document = check_capture(tmp_path / "g", folder)
    assert document["verdict"] == "inconclusive" and document["slots"][1]["state"] == "not-compared"


def test_eight_ranks_that_agree(golden: Path, folder: Path) -> None:
    for rank in range(8):
        prefill(folder, rank, 8)
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and document["ranks"] == 8 and document["ranks_agree"] is True


def test_one_rank_of_eight_that_differs_in_one_row(golden: Path, folder: Path) -> None:
    def change(prompt: int, states: torch.Tensor) -> torch.Tensor:
        states[1] += 0.5 * (prompt == 1)
        return states

    for rank in range(8):
        prefill(folder, rank, 8, change=change if rank == 5 else None)
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["ranks_agree"] is False and document["rank_difference"] > 0.1


def test_a_silent_rank_is_inconclusive(golden: Path, folder: Path) -> None:
    for rank in (0, 1, 3):
        prefill(folder, rank, 4)
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and "rank 2 did not" in document["why"][0]


def test_what_a_graph_hid_is_said(golden: Path, folder: Path) -> None:
    (folder / "rank0").mkdir(parents=True)
    (folder / "rank0" / "blind.jsonl").write_text('{"site": "draft-input", "reason": "cuda-graph", "detail": ""}\n{"si')
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and "no states" in document["why"][0]
    assert document["why"][1].startswith("taps could not look at draft-input (cuda-graph): let the engine run Python")
    assert "--graphs off" in document["why"][1] and "specwire engine-args" in document["why"][1]


def test_nan_is_never_a_match(golden: Path, folder: Path) -> None:
    prefill(folder, change=lambda prompt, states: states.fill_(float("nan")))
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "non-finite"
    json.dumps(document, allow_nan=False)


def test_noise_below_the_floor_is_a_match_and_above_it_is_not(golden: Path, folder: Path, tmp_path: Path) -> None:
    for factor, verdict in ((1.0, "match"), (20.0, "mismatch")):
        random = torch.Generator().manual_seed(1)
        place = tmp_path / f"noise{factor}"
        prefill(
            place,
            change=lambda prompt, states: states * (1 + factor * 1e-6 * torch.randn(states.shape, generator=random)),
        )
        assert check_capture(golden, place)["verdict"] == verdict


def test_without_measured_noise_the_bound_is_derived_and_said(tmp_path: Path, folder: Path) -> None:
    write_golden(
        tmp_path / "g",
        [States(ids, states) for ids, states in zip(PROMPTS, STATES)],
        trained=SLOTS,
        layers=6,
        dtype="float32",
        target="t",
        source="s",
    )
    prefill(folder)
    document = check_capture(tmp_path / "g", folder)
    assert document["verdict"] == "match" and "not measured" in document["noise_source"]


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    """A golden of all boundaries whose list nobody gave."""
    return make_golden(tmp_path / "guess.safetensors", PROMPTS, STATES, (1, 3, 4), trained_source="assumed")


@pytest.mark.parametrize("slots", [(1, 3, 5), (2, 4, 5), (0, 2, 3), (4, 3, 1), (1, 3, 6), (1, 3)])
def test_other_layers_than_a_golden_assumed_are_no_fault(slots, guess: Path, folder: Path) -> None:
    prefill(folder, slots=slots)
    document = check_capture(guess, folder)
    assert document["verdict"] == "inconclusive" and document["causes"] == []
    assert [slot["state"] for slot in document["slots"]] == ["match"] * len(slots)
    assert f"captures is boundary {', '.join(map(str, slots))}; " in document["why"][0]
    assert "assumed" in document["why"][0] and "--trained" in document["why"][0]


def test_the_layers_that_a_golden_assumed_are_a_match_that_says_so(guess: Path, folder: Path) -> None:
    prefill(folder, slots=(1, 3, 4))
    document = check_capture(guess, folder)
    assert document["verdict"] == "match" and "assumed" in document["notes"][0]
    assert "assumed" in render_text(document)


def test_the_true_list_takes_the_place_of_the_golden_s(guess: Path, folder: Path) -> None:
    prefill(folder)
    words = ["--golden", str(guess), "--capture", str(folder)]
    assert (
        CliRunner().invoke(command, [*words, "--trained", "1,3,5", "--json"], standalone_mode=False).return_value == 0
    )
    shifted = CliRunner().invoke(command, [*words, "--trained", "2,4,6", "--json"], standalone_mode=False)
    cause = json.loads(shifted.stdout)["causes"][0]
    assert shifted.return_value == 1 and (cause["id"], cause["confidence"]) == ("boundary-offset", "certain")
    with pytest.raises(SpecwireError, match=r"between 0 and 6, not \[1, 3, 7\]"):
        check_capture(guess, folder, make_context(trained=[1, 3, 7]))
    with pytest.raises(SpecwireError, match="--golden"):
        check_capture(None, folder, make_context(trained=[1, 3, 5]))


@pytest.mark.parametrize("said", [True, False])
def test_what_is_done_to_rows_is_a_fault_whatever_was_assumed(said: bool, guess: Path, folder: Path) -> None:
    about = {"captured": [1, 3, 5]} if said else {}
    prefill(folder, change=lambda prompt, states: torch.cat([states[:, :32], states[:, 32:].roll(1, 0)], -1), **about)
    document = check_capture(guess, folder)
    assert document["verdict"] == "mismatch"
    assert not any(cause["id"] in ("wrong-boundary", "boundary-offset", "slot-count") for cause in document["causes"])
    if said:
        assert [slot["expected_boundary"] for slot in document["slots"]] == [1, 3, 5]


def test_one_hidden_size_alone_is_no_choice_of_layers(guess: Path, folder: Path) -> None:
    prefill(folder, slots=(6,))
    document = check_capture(guess, folder)
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "algo-flag"


def test_names_that_the_engine_contradicts_are_noted(tmp_path: Path, folder: Path) -> None:
    """Data of boundaries 1, 3, 5 whose ids were taken for outputs of layers: the states match, under wrong names."""
    held = [{k + 1: states[k] for k in SLOTS} for states in STATES]
    for number, convention in enumerate(("layer-output", "layer-output (the only convention that fits)")):
        path = make_golden(
            tmp_path / str(number), PROMPTS, held, (2, 4, 6), id_convention=convention, imported_ids="[1, 3, 5]"
        )
        prefill(folder, captured=list(SLOTS))
        document = check_capture(path, folder)
        assert document["verdict"] == "match" and "[1, 3, 5]" in document["notes"][0]
        assert ("--convention boundary" in document["notes"][0]) is (number == 0)
        assert render_text(document).count("names are wrong") == 1


def test_a_neighbour_of_what_the_data_held_may_be_another_reading_of_its_ids(tmp_path: Path, folder: Path) -> None:
    """The same data under the same wrong names, and an engine that captures what these say: not what was trained."""
    held = [{k + 1: states[k] for k in SLOTS} for states in STATES]
    path = make_golden(tmp_path / "g", PROMPTS, held, (2, 4, 6), id_convention="layer-output", imported_ids="[1, 3, 5]")
    prefill(folder, slots=(2, 4, 6), captured=[2, 4, 6])
    document = check_capture(path, folder)
    assert document["verdict"] == "mismatch"
    fix = next(cause["fix"] for cause in document["causes"] if cause["id"] == "wrong-boundary")
    assert "layer-output, not boundary, by which the draft was trained on [1, 3, 5]" in fix


def test_names_that_the_engine_bears_out_need_no_note(tmp_path: Path, folder: Path) -> None:
    held = [{k: states[k] for k in SLOTS} for states in STATES]
    path = make_golden(tmp_path / "g", PROMPTS, held, SLOTS, id_convention="boundary", imported_ids="[1, 3, 5]")
    prefill(folder, captured=list(SLOTS))
    assert check_capture(path, folder)["notes"] == []


def test_target_side_alone_gives_no_match(golden: Path, folder: Path) -> None:
    prefill(folder, site="concat-full")
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and "draft-input" in document["why"][0]
    assert all(slot["state"] == "match" for slot in document["slots"])


def test_large_and_tiny_values_do_not_leave_the_range(tmp_path: Path, folder: Path) -> None:
    for scale in (1e25, 1e-30):
        states = [{k: v * scale for k, v in one.items()} for one in STATES]
        golden = make_golden(tmp_path / "g", PROMPTS, states)
        for prompt in (0, 1):
            write_batch(
                folder,
                0,
                prompt,
                [(PROMPTS[prompt], 0, len(PROMPTS[prompt]))],
                [concat(states[prompt], SLOTS) * (1 + 1e-7)],
            )
        assert check_capture(golden, folder)["verdict"] == "match"


@pytest.mark.parametrize(("slots", "code"), [(SLOTS, 0), ((0, 2, 4), 1)])
def test_exit_codes(golden: Path, folder: Path, slots, code: int) -> None:
    prefill(folder, slots=slots)
    for arguments in ([], ["--json"]):
        done = CliRunner().invoke(
            command, ["--golden", str(golden), "--capture", str(folder), *arguments], standalone_mode=False
        )
        assert done.return_value == code, done.output
        if arguments:
            assert json.loads(done.stdout)["schema"] == "specwire.check/1"


def test_a_capture_that_cannot_be_read_is_refused(golden: Path, folder: Path) -> None:
    with pytest.raises(SpecwireError, match="no capture directory"):
        check_capture(golden, folder)
    folder.mkdir()
    with pytest.raises(SpecwireError, match="nothing was captured"):
        check_capture(golden, folder)
    prefill(folder)
    file = folder / "rank0" / "000000.draft-input.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(SpecwireError, match="truncated"):
        check_capture(golden, folder)


def test_it_says_where_on_the_way_the_states_go_wrong(golden: Path, folder: Path) -> None:
    for k in SLOTS:
        write_batch(folder, 0, k, [(PROMPTS[0], 0, 6)], [STATES[0][k]], site="layer-capture", boundary=k)
    write_batch(folder, 0, 8, [(PROMPTS[0], 0, 6)], [concat(STATES[0], SLOTS)], site="concat-full")
    for prompt in (0, 1):
        write_batch(
            folder,
            0,
            10 + prompt,
            [(PROMPTS[prompt], 0, len(PROMPTS[prompt]))],
            [concat(STATES[prompt], SLOTS).flip(0)],
        )
    document = check_capture(golden, folder)
    assert [(site["site"], site["state"]) for site in document["target_sites"]] == [
        ("layer-capture", "exact"),
        ("concat-full", "exact"),
    ]
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "row-select"
    assert "concat-full exact, draft-input differs" in render_text(document)


def test_a_long_prompt_needs_no_memory_per_row(tmp_path: Path, folder: Path) -> None:
    """Rows are counted in stretches: a hundred thousand of them are compared in a moment."""
    ids = [3 + i % 1000 for i in range(100_000)]
    states = [{k: torch.randn(len(ids), 4, generator=torch.Generator().manual_seed(k)) for k in range(4)}]
    golden = make_golden(tmp_path / "long.safetensors", [ids], states, trained=(1, 2))
    write_batch(folder, 0, 0, [(ids, 0, 60_000)], [concat(states[0], (1, 2), 0, 60_000)])
    write_batch(folder, 0, 1, [(ids, 60_000, 100_000)], [concat(states[0], (1, 2), 60_000, 100_000)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and document["rows_compared"] == 100_000


def test_rows_that_were_captured_twice_tell_how_steady_the_engine_is(golden: Path, folder: Path) -> None:
    prefill(folder)
    assert check_capture(golden, folder)["repeat_difference"] is None
    write_batch(folder, 0, 5, [(PROMPTS[0], 0, 6)], [concat(STATES[0], SLOTS) * (1 + 5e-7)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and 2e-7 < document["repeat_difference"] < 1e-6


@pytest.mark.parametrize(
    "about",
    [
        {"schema": "specwire.capture/9"},
        {"boundary": "3"},
        {"world_size": -1},
        {"world_size": 10**9},
        {"captured": ["3"]},
        {"captured": 3},
        {"mode": 7},
        {"note": []},
        {"boundary": True and [1]},
    ],
)
def test_metadata_that_no_tap_writes_is_refused(about, golden: Path, folder: Path) -> None:
    from specwire.capture_write import write_event

    write_event(folder, 0, 0, "draft-input", {"hidden_states": torch.zeros(1, 48)}, **about)
    with pytest.raises(SpecwireError, match="is no event of a capture"):
        check_capture(golden, folder)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"extend_seq_lens": torch.tensor([-3, 9])},
        {"extend_seq_lens": torch.tensor([99])},
        {"extend_prefix_lens": torch.tensor([-1])},
        {"extend_seq_lens": torch.tensor([], dtype=torch.int64)},
        {"token_ids": torch.tensor([1])},
        {"positions": torch.tensor([0.5])},
        {"token_ids": torch.tensor([[1, 2]])},
        {"positions": torch.arange(99)},
        {"positions": torch.arange(4)},
        {"extend_prefix_lens": torch.tensor([0.0])},
        {"token_ids": torch.arange(7)},
    ],
)
def test_batch_context_that_makes_no_sense_never_matches_and_never_crashes(tensors, golden: Path, folder: Path) -> None:
    from specwire.capture_write import write_event

    whole = {
        "hidden_states": concat(STATES[0], SLOTS),
        "token_ids": torch.tensor([*PROMPTS[0][1:], 1]),
        "positions": torch.arange(6),
        "extend_seq_lens": torch.tensor([6]),
        "extend_prefix_lens": torch.tensor([0]),
    }
    write_event(folder, 0, 0, "draft-input", whole | tensors)
    write_batch(folder, 0, 1, [(PROMPTS[1], 0, len(PROMPTS[1]))], [concat(STATES[1], SLOTS)])
    document = check_capture(golden, folder)
    assert document["verdict"] == ("inconclusive" if tensors else "match"), document["why"]
    assert len(document["notes"]) == bool(tensors)


def test_rows_that_look_alike_show_no_order(tmp_path: Path, folder: Path) -> None:
    """One token repeated gives the same state everywhere: rows in the wrong place would pass, so it is no match."""
    ids = [[5] * 8]
    one = make_states(ids)[0]
    states = [{k: rows[:1].expand(8, -1).clone() for k, rows in one.items()}]
    golden = make_golden(tmp_path / "same.safetensors", ids, states)
    write_batch(folder, 0, 0, [(ids[0], 0, 8)], [concat(states[0], SLOTS).roll(1, dims=0)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "inconclusive" and document["causes"] == []
    assert "all alike" in document["slots"][0]["why"]


@pytest.mark.parametrize("slots", [(6,), (1, 3, 5, 6)], ids=["narrower", "wider"])
def test_a_second_run_of_another_width_is_no_match(golden: Path, folder: Path, slots) -> None:
    """Most rows are right; the others reached the draft as well."""
    prefill(folder)
    prefill(folder, slots=SLOTS)
    write_batch(folder, 0, 9, [(PROMPTS[0], 0, 6)], [concat(STATES[0], slots)])
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["causes"]
    assert document["concat_shape"][1] == 16 * len(slots)


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([[4], [7]], id="one token each"),
        pytest.param([[4, 5, 6], [7, 5, 6]], id="alike but for the first token"),
        pytest.param([[4, 5, 6], [4]], id="one the beginning of the other"),
        pytest.param([[4, 5, 6], [4, 5, 6]], id="the same twice"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_prompts_that_the_drafts_own_ids_cannot_tell_apart(
    prompts, together: bool, tmp_path: Path, folder: Path
) -> None:
    """The draft's ids lack each prompt's first token: the target's, of the same forward, have it."""
    states = make_states(prompts)
    if prompts[0] == prompts[1]:
        states[1] = states[0]
    golden = make_golden(tmp_path / "golden.safetensors", prompts, states)
    batches = [[0, 1]] if together else [[0], [1]]
    for number, batch in enumerate(batches):
        requests = [(prompts[p], 0, len(prompts[p])) for p in batch]
        embedded = [states[p][0] for p in batch]
        write_batch(folder, 0, 2 * number, requests, embedded, site="embedding-capture", boundary=0)
        write_batch(folder, 0, 2 * number + 1, requests, [concat(states[p], SLOTS) for p in batch])
    document = check_capture(golden, folder)
    assert document["rows_compared"] == sum(map(len, prompts)) and document["notes"] == []
    assert document["verdict"] == "match", document["why"]


def test_a_prompt_that_comes_a_second_time_from_the_cache(tmp_path: Path, folder: Path) -> None:
    prompts = [[4, 5, 6, 7], [4, 5, 6, 7]]
    states = make_states(prompts[:1]) * 2
    golden = make_golden(tmp_path / "golden.safetensors", prompts, states)
    for number, first in enumerate((0, 3)):
        request = [(prompts[0], first, 4)]
        write_batch(folder, 0, 2 * number, request, [states[0][0][first:]], site="embedding-capture", boundary=0)
        write_batch(folder, 0, 2 * number + 1, request, [concat(states[0], SLOTS, first)])
    assert check_capture(golden, folder)["verdict"] == "match"


def test_two_prompts_that_are_alike_in_chunks(tmp_path: Path, folder: Path) -> None:
    prompts = [[4, 5, 6, 7], [4, 5, 6, 7]]
    states = make_states(prompts[:1]) * 2
    golden = make_golden(tmp_path / "golden.safetensors", prompts, states)
    for number, (first, end) in enumerate([(0, 2), (2, 4), (0, 2), (2, 4)]):
        write_batch(folder, 0, number, [(prompts[0], first, end)], [concat(states[0], SLOTS, first, end)])
    assert check_capture(golden, folder)["verdict"] == "match"


def test_a_decode_in_the_midst_of_prefills_is_no_row_of_a_longer_prompt(golden: Path, folder: Path) -> None:
    """The second prompt has been prefilled and goes on, one token after its end, beside a chunk of the first."""
    write_batch(folder, 0, 0, [(PROMPTS[1], 0, 4), (PROMPTS[0], 0, 3)],
                [STATES[1][0], STATES[0][0][:3]], site="embedding-capture", boundary=0)  # fmt: skip
    write_batch(
        folder,
        0,
        1,
        [(PROMPTS[1], 0, 4), (PROMPTS[0], 0, 3)],
        [concat(STATES[1], SLOTS), concat(STATES[0], SLOTS, 0, 3)],
    )
    said = [*PROMPTS[1], 11]
    write_batch(folder, 0, 2, [(said, 4, 5), (PROMPTS[0], 3, 6)],
                [torch.ones(1, 16), STATES[0][0][3:]], site="embedding-capture", boundary=0, mode="MIXED")  # fmt: skip
    write_batch(
        folder,
        0,
        3,
        [(said, 4, 5), (PROMPTS[0], 3, 6)],
        [torch.ones(1, 48), concat(STATES[0], SLOTS, 3, 6)],
        mode="MIXED",
    )
    document = check_capture(golden, folder)
    assert document["verdict"] == "match" and document["rows_compared"] == 10, document["causes"]
    assert len(document["notes"]) == 1 and "no golden prompt" in document["notes"][0]


def test_more_token_ids_than_a_batch_may_have_are_not_read(golden: Path, folder: Path) -> None:
    prefill(folder)
    path = folder / "rank0" / "000000.draft-input.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + length])["__metadata__"]
    entries = {
        "hidden_states": {"dtype": "F32", "shape": [1, 48], "data_offsets": [0, 192]},
        "token_ids": {"dtype": "I64", "shape": [1 << 28], "data_offsets": [192, 192 + (8 << 28)]},
    }
    header = json.dumps({"__metadata__": about, **entries}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 192 + (8 << 28))
    with pytest.raises(SpecwireError, match="tokens that a batch may have"):
        check_capture(golden, folder)


def test_what_was_compared_is_said_part_by_part(golden: Path, folder: Path) -> None:
    """A match says how much it is a match of, and what nobody could look at."""
    for rank in (0, 1):
        prefill(folder, rank=rank, ranks=2)
    document = check_capture(golden, folder)
    parts = {part["part"]: part for part in document["scope"]}
    every = sum(len(ids) for ids in PROMPTS)
    assert (parts["prefill"]["seen"], parts["prefill"]["of"], parts["prefill"]["whole"]) == (every, every, True)
    assert (parts["ranks"]["seen"], parts["ranks"]["of"]) == (2, 2)
    assert parts["last boundary"]["seen"] == 0 and "forward-end" in parts["last boundary"]["why"]
    assert parts["draft"]["seen"] == 0 and "--draft" in parts["draft"]["why"]
    shown = render_text(document)
    assert f"compared  prefill {every}/{every} rows, ranks 2/2" in shown and "not last boundary: no row" in shown
    skipped = [line["id"] for line in document["checks"] if line["state"] == "skipped"]
    assert skipped and f"could not look: {', '.join(skipped[:3])}" in shown


def test_a_state_that_is_not_finite_after_the_prefills_is_no_match(golden: Path, folder: Path) -> None:
    from specwire.capture_write import write_event

    prefill(folder)
    sound = torch.ones(2, 48)
    write_event(folder, 0, 90, "draft-input", {"hidden_states": sound}, mode="TARGET_VERIFY")
    assert check_capture(golden, folder)["verdict"] == "match"
    write_event(folder, 0, 91, "draft-input", {"hidden_states": sound.log().sub(1).sqrt()}, mode="TARGET_VERIFY")
    document = check_capture(golden, folder)
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "non-finite"
    assert "TARGET_VERIFY" in document["causes"][0]["evidence"]


def test_a_rank_that_alone_is_wrong_is_looked_at(golden: Path, folder: Path) -> None:
    """The first rank's rows are right: what is wrong with the second one's is named all the same."""
    for rank in (0, 1):
        for prompt, ids in enumerate(PROMPTS):
            rows = concat(STATES[prompt], SLOTS)
            if rank:
                rows[:, 16:32] = rows[:, 16:32].flip(0)
            write_batch(folder, rank, prompt, [(ids, 0, len(ids))], [rows], ranks=2)
    document = check_capture(golden, folder)
    assert [cause["id"] for cause in document["causes"]] == ["row-select"] and document["ranks_agree"] is False
    assert "slots [1]" in document["causes"][0]["evidence"] and "on rank 1" in document["causes"][0]["evidence"]
    assert document["slots"][1]["worst_row"]["rank"] == 1 and document["slots"][1]["rel_l2"] > 0.1


def test_token_ids_of_the_draft_that_are_nobody_s_are_named(golden: Path, folder: Path) -> None:
    """What the target was given in the same forward tells which prompt it is."""
    from specwire.capture_write import write_event

    for prompt, ids in enumerate(PROMPTS):
        write_batch(folder, 0, 2 * prompt, [(ids, 0, len(ids))], [STATES[prompt][0]], site="embedding-capture")
        rows = {"hidden_states": concat(STATES[prompt], SLOTS), "positions": torch.arange(len(ids))}
        own = torch.tensor([*ids[1:], 1]).roll(1 if prompt else 0, 0)
        write_event(folder, 0, 2 * prompt + 1, "draft-input", {**rows, "token_ids": own})
    document = check_capture(golden, folder)
    assert [cause["id"] for cause in document["causes"]] == ["row-select"], document["why"]
    assert "token ids that are not those" in document["causes"][0]["evidence"] and document["why"] == []
