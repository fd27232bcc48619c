"""The command line of `check` and `golden`: one sentence and exit 2 for whatever cannot be used."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from captures import concat, make_golden, make_states, write_batch

from specwire.cli import main

PROMPTS = [[4, 5, 6]]
STATES = make_states(PROMPTS)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return make_golden(tmp_path / "golden.safetensors", PROMPTS, STATES)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    write_batch(tmp_path / "capture", 0, 0, [(PROMPTS[0], 0, 3)], [concat(STATES[0], (1, 3, 5))])
    return tmp_path / "capture"


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_a_match_exits_0_and_json_is_all_that_stdout_holds(golden: Path, capture: Path, tmp_path: Path, capsys) -> None:
    code, out, err = run(
        capsys, "check", "--golden", golden, "--capture", capture, "--json", "--html", tmp_path / "page.html"
    )
    assert code == 0 and json.loads(out)["verdict"] == "match"
    text = (tmp_path / "page.html").read_text()
    assert "page.html" in err and text.startswith("<!doctype html>") and str(os.getcwd()) in text
    assert (
        run(
            capsys,
            "check",
            "--golden",
            golden,
            "--capture",
            capture,
            "--json",
            "--html",
            tmp_path / "p",
            "--quiet",
        )[2]
        == ""
    )


def test_a_mismatch_exits_1_and_names_the_cause(golden: Path, tmp_path: Path, capsys) -> None:
    write_batch(tmp_path / "off", 0, 0, [(PROMPTS[0], 0, 3)], [concat(STATES[0], (0, 2, 4))])
    code, out, _ = run(capsys, "check", "--golden", golden, "--capture", tmp_path / "off")
    assert code == 1 and out.startswith("MISMATCH") and "1. boundary-offset (certain)" in out


def test_nothing_to_compare_exits_3_and_says_why(golden: Path, tmp_path: Path, capsys) -> None:
    write_batch(tmp_path / "other", 0, 0, [([9, 9], 0, 2)], [concat(STATES[0], (1, 3, 5), 0, 2)])
    code, out, _ = run(capsys, "check", "--golden", golden, "--capture", tmp_path / "other")
    assert code == 3 and out.startswith("INCONCLUSIVE") and "no states of the golden's prompts" in out


def write_pickle(path: Path) -> Path:
    path.write_bytes(pickle.dumps({"boundary.1": [1.0]}))
    return path


def write_text(path: Path) -> Path:
    path.write_text("not a golden")
    return path


@pytest.mark.parametrize("make", [write_pickle, write_text, lambda path: path, lambda path: path.mkdir() or path])
def test_a_bad_golden_exits_2_with_one_sentence(make, capture: Path, tmp_path: Path, capsys) -> None:
    bad = make(tmp_path / "bad")
    for command in (
        ["check", "--golden", bad, "--capture", capture],
        ["golden", "show", bad],
        ["check", "--golden", bad, "--log", bad],
    ):
        code, out, err = run(capsys, *command)
        assert code == 2 and out == "" and err.startswith("specwire: ") and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--capture", "{capture}", "--log", "{capture}"],
        ["--capture", "{missing}"],
        ["--log", "{missing}"],
        ["--capture", "{capture}", "--draft", "{missing}"],
        ["--capture", "{capture}", "--target", "{capture}"],
        ["--capture", "{capture}", "--tree", "{capture}"],
        ["--capture", "{capture}", "--launch", "'"],
    ],
)
def test_usage_that_makes_no_sense_exits_2(arguments, golden: Path, capture: Path, tmp_path: Path, capsys) -> None:
    filled = [argument.format(capture=capture, missing=tmp_path / "missing") for argument in arguments]
    code, out, err = run(capsys, "check", "--golden", golden, *filled)
    assert code == 2 and out == "" and "Traceback" not in err


def test_a_golden_full_of_nan_exits_2(tmp_path: Path, capture: Path, capsys) -> None:
    nan = [{k: v * float("nan") for k, v in STATES[0].items()}]
    golden = make_golden(tmp_path / "nan.safetensors", PROMPTS, nan)
    code, _, err = run(capsys, "check", "--golden", golden, "--capture", capture)
    assert code == 2 and "NaN" in err and len(err.strip().splitlines()) == 1


def test_the_log_needs_no_tensor_library(tmp_path: Path) -> None:
    """The static part of the command line starts in a moment; comparing five numbers should, too."""
    import subprocess
    import sys

    log = tmp_path / "log"
    log.write_text(
        "[EAGLE3-DEBUG] site=draft-input rank=0 step=0 mode=EXTEND shape=[8, 21504] dtype=bfloat16 norm=1 "
        "hs_first5=[0.0295, -0.0113, -0.0168, -0.0181, -0.0184]\n"
    )
    code = (
        "import sys; from specwire.diagnosis.log_check import check_log; "
        f"document = check_log('golden/kimi-k2.5/hs_first5.json', {str(log)!r}); "
        "assert document['verdict'] == 'match'; assert 'torch' not in sys.modules and 'sglang' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
