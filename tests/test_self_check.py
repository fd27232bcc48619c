"""A capture without a golden: lm_head(norm(last state)) against what the engine returned, and what that is worth."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specwire.answers import read_answers, write_answers
from specwire.capture import open_capture
from specwire.cli import main
from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.check import EXIT, check_capture
from specwire.diagnosis.context import make_context
from specwire.diagnosis.gather import gather
from specwire.diagnosis.html import page
from specwire.diagnosis.render import render_text
from specwire.errors import SpecwireError
from specwire.tensorfile import open_tensors, write_tensors

torch.set_num_threads(1)
ROOT = Path(__file__).parent.parent
RUN = ROOT / "fixtures" / "captures" / "llama-0.5.23"
ROWS = 8 + 5 + 13  # every token of the make-believe prompts is followed by one that the engine scored


def alone(folder: Path, dtype: str = "float32", **said) -> dict:
    evidence_of(Case("any", said=said, dtype=dtype), folder)
    return checked(folder)


def checked(folder: Path) -> dict:
    return check_capture(None, folder / "capture", make_context(target=folder / "target"))


def edited(folder: Path, change: Callable[[int, torch.Tensor], torch.Tensor]) -> dict:
    """A healthy run whose recorded last states are changed: `change(prompt, states)`."""
    evidence_of(Case("any", said={}), folder)
    for prompt, path in enumerate(sorted(folder.glob("capture/rank0/*.forward-end.safetensors"))):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors}
        tensors["hidden_states"] = change(prompt, tensors["hidden_states"]).contiguous()
        write_tensors(path, tensors, dict(file.metadata))
    return checked(folder)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 1.0)])
def test_it_holds_and_is_no_match(dtype: str, bound: float, tmp_path: Path) -> None:
    document = alone(tmp_path, dtype)
    found = document["self_check"]
    assert (document["verdict"], EXIT[document["verdict"]], document["causes"]) == ("inconclusive", 3, [])
    assert (found["state"], found["by"]) == ("holds", "logprobs")
    end = found["subjects"][0]
    assert (end["name"], end["way"], end["rows"], end["failed_rows"]) == ("forward-end", "as recorded", ROWS, 0)
    assert end["worst"] <= end["bound"] < bound < end["other_rows"]
    assert {slot["state"] for slot in document["slots"]} == {"not-compared"}
    assert "only a golden tells" in found["does_not_prove"] and any("no golden" in why for why in document["why"])
    assert "MATCH" not in render_text(document) and "self-check holds" in render_text(document)
    assert "self-check" in page(document, "specwire")


def test_states_from_before_the_norm_are_normed_first(tmp_path: Path) -> None:
    assert alone(tmp_path, normed=False)["self_check"]["subjects"][0]["way"] == "after the final norm"


def _one_row(prompt: int, states: torch.Tensor) -> torch.Tensor:
    if prompt == 1:
        states[2] = states[2].flip(0)
    return states


SPOILT = {
    "moved by a row": (lambda prompt, states: states.roll(1, 0), "another row does"),
    "in reverse": (lambda prompt, states: states.flip(0), "another row does"),
    "half of each": (lambda prompt, states: states / 2, "no recorded row gives it"),
    "one row of 26": (_one_row, "in 1 of 26 rows"),
    "not a number": (lambda prompt, states: states * float("nan"), "NaN"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_other_states_than_those_that_made_the_tokens_fail(what: str, tmp_path: Path) -> None:
    change, words = SPOILT[what]
    document = edited(tmp_path, change)
    assert (document["verdict"], document["self_check"]["state"]) == ("mismatch", "fails")
    assert [cause["id"] for cause in document["causes"]] == ["stream-end"]
    assert words in document["causes"][0]["evidence"]
    sure = "certain" if "another row" in words else "likely"  # another row's states fit: then it is no rounding
    assert document["causes"][0]["confidence"] == sure


def test_two_requests_in_each_others_place_fail(tmp_path: Path) -> None:
    kept = {}

    def swap(prompt: int, states: torch.Tensor) -> torch.Tensor:
        kept[prompt] = states.clone()
        if prompt == 2:
            states[:8] = kept[0]
        return states

    document = edited(tmp_path, swap)
    assert document["causes"][0]["id"] == "stream-end"
    assert document["self_check"]["subjects"][0]["failed_rows"] == 8


def test_another_targets_head_fails(tmp_path: Path) -> None:
    document = alone(tmp_path, head="random")
    assert document["causes"][0]["id"] == "stream-end" and "--target" in document["causes"][0]["fix"]


def test_a_head_that_cannot_tell_rows_apart_proves_nothing(tmp_path: Path) -> None:
    evidence_of(Case("any", said={"logprobs": False}), tmp_path)
    file = open_tensors(tmp_path / "target" / "model.safetensors")
    tensors = {name: file.rows(name) for name in file.tensors}
    write_tensors(
        tmp_path / "target" / "model.safetensors", tensors | {"lm_head.weight": 0 * tensors["lm_head.weight"]}, {}
    )
    document = checked(tmp_path)
    assert (document["verdict"], document["self_check"]["state"]) == ("inconclusive", "cannot tell")
    assert next(line for line in document["checks"] if line["id"] == "stream-end")["state"] == "skipped"


def test_a_head_that_has_not_so_many_tokens_is_another_targets(tmp_path: Path) -> None:
    evidence_of(Case("any", said={}), tmp_path)
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 40}))
    found = checked(tmp_path)["self_check"]
    assert found["state"] == "skipped" and "has 40 rows" in found["why"]


def test_places_that_no_request_reaches_cost_no_memory(tmp_path: Path) -> None:
    evidence_of(Case("any", said={}), tmp_path)
    for path in tmp_path.glob("capture/rank0/*.forward-end.safetensors"):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors} | {"extend_prefix_lens": torch.tensor([2**60])}
        write_tensors(path, tensors, dict(file.metadata))
    assert checked(tmp_path)["verdict"] == "inconclusive"


def test_a_head_that_does_not_fit_is_read_by_the_block(tmp_path: Path) -> None:
    """A quarter of a gigabyte of head, as a hole in a file; what it takes is seen by a process of its own."""
    rows, hidden = 40_000, 3584
    sizes = {"vocab_size": rows, "hidden_size": hidden, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    tensors = {"lm_head.weight": (rows, hidden), "model.norm.weight": (hidden,)}
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    program = """
import pathlib, resource, sys, torch
from specwire.diagnosis.context import make_context
from specwire.diagnosis.head import head_of
torch.set_num_threads(1)
head = head_of(make_context(target=pathlib.Path(sys.argv[1])))
states = torch.randn(8, head.config["hidden_size"])
states @ torch.randn(64, states.shape[1]).T
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
head.normed(states), head.rows([0, 39_999]), head.totals(states)
print((peak() - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # MiB; whole, in the precision of the states, it is 547


@pytest.mark.parametrize(
    ("slot", "cause"),
    [
        (lambda states, world: states, None),
        (lambda states, world: states * 1.02 + 0.01, "final-boundary"),
        (lambda states, world: states * float("nan"), "final-boundary"),
    ],
)
def test_the_last_boundary_among_the_slots_is_checked_as_well(slot, cause: str | None, tmp_path: Path) -> None:
    evidence_of(Case("any", slots=(3, 7, 12), trained=(3, 7, 12), said={"captured": [3, 7, 12]}, alter=slot), tmp_path)
    document = checked(tmp_path)
    assert [each["id"] for each in document["causes"]] == ([cause] if cause else [])
    states = {one["name"]: one["state"] for one in document["self_check"]["subjects"]}
    assert states == {"forward-end": "holds", "slot 2 of draft-input": "fails" if cause else "holds"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make import make

    fixture = make("llama", tmp_path_factory.mktemp("llama"))
    return {"target": fixture.target, "draft": fixture.draft}


def test_a_real_capture_without_answers_goes_by_the_tokens_in_it(models) -> None:
    document = check_capture(None, RUN / "capture", make_context(**models))
    found = document["self_check"]
    assert (document["verdict"], found["state"], found["by"]) == ("inconclusive", "holds", "tokens")
    assert found["subjects"][0]["rows"] == 3 and found["subjects"][0]["other_rows"] > 1
    looked = {line["id"] for line in document["checks"] if line["state"] == "ok"}
    assert {
        "vocab-map",
        "rope",
        "embed-head",
        "weights-random",
        "stream-end",
    } <= looked  # the draft's side needs no golden


def test_the_drafts_side_and_the_widths_are_judged_without_a_golden(models, tmp_path: Path) -> None:
    draft = shutil.copytree(models["draft"], tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"rope_theta": 500000.0, "rope_parameters": None}))
    document = check_capture(None, RUN / "capture", make_context(target=models["target"], draft=draft))
    assert (document["verdict"], document["causes"][0]["id"]) == ("mismatch", "rope")

    capture = shutil.copytree(RUN / "capture", tmp_path / "capture")
    for path in capture.glob("rank0/*.draft-input.safetensors"):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors}
        tensors["hidden_states"] = tensors["hidden_states"][:, :128].contiguous()
        write_tensors(path, tensors, dict(file.metadata))
    context = make_context(**models, launch="--speculative-algorithm EAGLE")
    document = check_capture(None, capture, context)
    assert (document["verdict"], document["causes"][0]["id"]) == ("mismatch", "algo-flag")
    assert document["self_check"]["state"] == "holds"  # the target's own side is sound


def test_tokens_that_a_server_may_have_sampled_are_no_proof(models, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make import make

    other = make("llama", tmp_path, seed=1).target
    document = check_capture(None, RUN / "capture", make_context(target=other))
    cause = next(cause for cause in document["causes"] if cause["id"] == "stream-end")
    assert cause["confidence"] == "possible" and "sampled" in cause["evidence"]
    assert document["verdict"] == "inconclusive"


def test_the_command_line_needs_the_target_and_says_so(tmp_path: Path, capsys) -> None:
    evidence_of(Case("any", said={}), tmp_path)
    capture, target = str(tmp_path / "capture"), str(tmp_path / "target")
    assert run(capsys, "check", "--capture", capture)[0] == 2
    assert run(capsys, "check", "--log", capture, "--target", target)[0] == 2
    code, out = run(capsys, "check", "--capture", capture, "--target", target)
    assert code == 3 and out.startswith("INCONCLUSIVE  no golden; self-check holds")


def run(capsys, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"answers": [{"prompt": [-1], "output": [], "logprobs": None, "accepted": [], "batch": 0}]},
        {"answers": [{"prompt": [1], "output": [2], "logprobs": [None], "accepted": [], "batch": 0}]},
        {"answers": [{"prompt": [1], "output": [2], "logprobs": [None, "x"], "accepted": [], "batch": 0}]},
        {"answers": [{"prompt": "1", "output": [2]}]},
        {"ranks": None},
    ],
)
def test_answers_that_no_run_writes_are_refused(change: dict, tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text(
        json.dumps({"schema": "specwire.answers/1", "ranks": 1, "answers": []} | change)
    )
    with pytest.raises(SpecwireError, match="holds no answers of a run"):
        read_answers(tmp_path)


def test_an_answer_that_is_sent_as_a_prompt_leaves_the_others_known(tmp_path: Path) -> None:
    """It has no answer of its own, and every token of the others is known to be the likeliest one."""
    evidence = evidence_of(Case("sent again", said={"verified": "alike"}), tmp_path)
    answers = read_answers(tmp_path / "capture")
    assert answers.answers[3].tokens[:-1] == answers.answers[2].prompt
    write_answers(tmp_path / "capture", replace(answers, answers=(*answers.answers[:2], answers.answers[3])))
    evidence = gather(evidence.golden, open_capture(tmp_path / "capture"), evidence.context)
    assert [one.again for one in evidence.transcript.spoken] == [False, False, True, False]
    assert evidence.self_check.sure
