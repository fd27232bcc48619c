"""`answers.json` of a capture: what is no run's is one sentence, whatever it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from specwire.answers import NAME, Answer, Answers, read_answers, write_answers
from specwire.capture import _blind
from specwire.errors import SpecwireError

ONE = {"prompt": [1, 2], "output": [3], "logprobs": [None, -0.5, 0.0], "accepted": [1, 2], "batch": 0}


def put(folder: Path, **change) -> None:
    (folder / NAME).write_text(json.dumps({"schema": "specwire.answers/1", "ranks": 1, "answers": [ONE | change]}))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    answers = Answers((Answer((1, 2), (3,), (None, -0.5, float("-inf")), (1, 2), 1),), 8)
    write_answers(tmp_path, answers)
    assert read_answers(tmp_path) == answers
    assert read_answers(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": [None, -(10**400), 0.0]}, {"logprobs": [None, 10**400, 0.0]}, {"logprobs": [None, float("nan"), 0.0]},
        {"logprobs": [None, "-1", 0.0]}, {"logprobs": [None, True, 0.0]}, {"logprobs": [None]}, {"logprobs": 5},
        {"accepted": [1] * 10**6}, {"accepted": 5}, {"accepted": [-1]}, {"prompt": [1.5, 2]}, {"prompt": [10**400, 2]},
        {"output": None}, {"batch": "0"},
    ],
)  # fmt: skip
def test_a_wrong_field_is_one_sentence(tmp_path: Path, change) -> None:
    put(tmp_path)
    assert read_answers(tmp_path).answers[0].accepted == (1, 2)
    put(tmp_path, **change)
    with pytest.raises(SpecwireError, match="holds no answers of a run") as caught:
        read_answers(tmp_path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "5", "{}", '{"schema": "other/1"}', '{"schema": 1e400}', "\xff"])
def test_another_document_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text, "latin-1")
    with pytest.raises(SpecwireError, match="holds no answers of a run"):
        read_answers(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(tmp_path: Path, make) -> None:
    make(tmp_path / NAME)
    with pytest.raises(SpecwireError, match="cannot read"):
        read_answers(tmp_path)


def test_an_endless_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / NAME, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecwireError, match="more than"):
        read_answers(tmp_path)


def test_what_taps_could_not_see_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Lines that no tap writes are passed over: the last of a killed process is cut anyway."""
    path = tmp_path / "blind.jsonl"
    line = {"site": "draft-input", "reason": "cuda-graph", "detail": "x" * 10_000, "more": [1]}
    path.write_text("\n".join([json.dumps(line), "5", "[1]", "[" * 100_000, '{"site": ']))
    assert _blind(path, 3) == [{"rank": 3, "site": "draft-input", "reason": "cuda-graph", "detail": "x" * 200}]
    with open(path, "ab") as file:
        file.truncate(1 << 40)
    assert len(_blind(path, 3)) == 1
