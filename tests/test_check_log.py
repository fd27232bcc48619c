"""`check --log`: five printed values against a golden."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import pytest
from captures import make_golden, make_states
from safetensors import safe_open
from safetensors.torch import save_file

from specwire.diagnosis.case import Case, concat, evidence_of
from specwire.diagnosis.case_world import PROMPTS, World, heard
from specwire.diagnosis.log_check import check_log
from specwire.diagnosis.logs import read_log
from specwire.errors import SpecwireError

GOLDEN = Path(__file__).parent.parent / "golden" / "kimi-k2.5" / "hs_first5.json"
SERVED = [0.0295, -0.0113, -0.0168, -0.0181, -0.0184]
TRUE = [0.0295, -0.0114, -0.0170, -0.0179, -0.0183]
LINE = (
    "[EAGLE3-DEBUG] site=draft-input rank={rank} step=0 mode=EXTEND shape=[8, {width}] dtype=bfloat16 "
    "norm=12.3 hs_first5={values}"
)


def verdict(tmp_path: Path, values, width: int = 21504, ranks: int = 1, prefix: str = "") -> dict:
    log = tmp_path / "server.log"
    shown = "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
    log.write_text(
        "starting\n"
        + "".join(prefix + LINE.format(rank=rank, width=width, values=shown) + "\n" for rank in range(ranks))
    )
    return check_log(GOLDEN, log)


def swapped(values, i, j):
    values = list(values)
    values[i], values[j] = values[j], values[i]
    return values


@pytest.mark.parametrize("prefix", ["", "[2026-01-02 03:04:05 TP0] INFO "])
def test_the_kimi_numbers_match(tmp_path: Path, prefix: str) -> None:
    document = verdict(tmp_path, SERVED, ranks=8, prefix=prefix)
    assert document["verdict"] == "match" and document["causes"] == []
    assert document["ranks"] == 8 and document["ranks_agree"] is True
    assert document["concat_shape"] == document["golden_concat_shape"] == [8, 21504]
    assert document["slots"][0]["hs_first5"] == SERVED and document["slots"][0]["golden_first5"] == TRUE


@pytest.mark.parametrize(("i", "j"), list(itertools.combinations(range(5), 2)))
def test_no_swap_matches(tmp_path: Path, i: int, j: int) -> None:
    assert verdict(tmp_path, swapped(SERVED, i, j))["verdict"] == "mismatch"


@pytest.mark.parametrize("i", range(5))
@pytest.mark.parametrize("factor", [-1, 0.9, 1.1, 0, float("nan")])
def test_no_wrong_value_matches(tmp_path: Path, i: int, factor: float) -> None:
    assert (
        verdict(tmp_path, [value * factor if n == i else value for n, value in enumerate(SERVED)])["verdict"]
        == "mismatch"
    )


def test_one_rank_that_differs_is_a_mismatch(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "\n".join(
            LINE.format(rank=rank, width=21504, values=swapped(SERVED, 0, 4) if rank == 5 else SERVED)
            for rank in range(8)
        )
    )
    document = check_log(GOLDEN, log)
    assert document["verdict"] == "mismatch" and document["ranks_agree"] is False


def test_a_narrow_line_is_the_algorithm_flag(tmp_path: Path) -> None:
    document = verdict(tmp_path, SERVED, width=7168)
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "algo-flag"
    assert "7168" in document["causes"][0]["evidence"] and "21504" in document["causes"][0]["evidence"]


@pytest.mark.parametrize(
    "text", ["", "nothing here\n", "[EAGLE3-DEBUG] site=draft-input hs_first5=[1, 2] shape=oops\n"]
)
def test_a_log_without_readable_lines_is_refused(tmp_path: Path, text: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    with pytest.raises(SpecwireError):
        check_log(GOLDEN, log)


WHOLE = (
    "[EAGLE3-DEBUG] site=draft-input rank=0 step=0 mode=EXTEND shape=[8, 21504] dtype=bfloat16 norm=12.3 "
    "hs_first5=[1, 2, 3, 4, 5] slots=[[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]"
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("shape", each)
            for each in ("5", "null", "[[8],[8]]", "[8]", "[Infinity,8]", "[8,1e400]", "[-1,8]", "[8,true]")
        ),
        *(("shape", each) for each in ("[8,128000000000000]", "[" * 50_000, f"[8,{'9' * 400}]", f"[{'9' * 5000},8]")),
        *(("hs_first5", each) for each in ("[]", "[1, 2, 3, 4, 5, 6]", f"[1, 2, 3, 4, 1e{'9' * 400}]")),
        *(("slots", each) for each in ("[]", "[[]]", "[[1, 2, 3, 4, 5], []]")),
        ("slots", "[" + "[1, 2, 3, 4, 5]," * 2000 + "]"),
    ],
)
def test_a_field_that_no_tap_writes_is_one_sentence(tmp_path: Path, field: str, value: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(WHOLE)
    assert read_log(log)[0].slots == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))
    log.write_text(re.sub(rf"{field}=(\[\[.*\]\]|\[[^\]]*\])", f"{field}={value}", WHOLE))
    with pytest.raises(SpecwireError, match=r"server.log:1: a \[EAGLE3-DEBUG\] line that cannot be read") as caught:
        read_log(log)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text", ["a" * 2_000_000, "a=[" * 300_000, "a=[" + "x " * 1_000_000, "a=[" + "[1]," * 400_000, "[" * 10**6]
)
def test_a_line_is_read_in_the_time_that_its_length_takes(tmp_path: Path, text: str) -> None:
    """A prompt's text may stand in a line: the pattern once tried each letter of it as the begin of a field."""
    log = tmp_path / "server.log"
    log.write_text(f"{WHOLE} note={text}")
    began = time.process_time()
    assert read_log(log)[0].shape == (8, 21504)
    assert time.process_time() - began < 5


def test_lines_of_other_taps_and_modes_are_not_compared(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE.format(rank=0, width=21504, values=SERVED).replace("EXTEND", "DECODE"))
    assert check_log(GOLDEN, log)["verdict"] == "inconclusive"


def test_fields_are_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[EAGLE3-DEBUG] site=layer-capture rank=3 step=2 mode=EXTEND shape=[8, 4] dtype=torch.float32 "
        "norm=1.5e+01 "
        "hs_first5=[1, -2e-05, nan, 4.5, 5] boundary=31 token=4 position=0 slots=[[1, 2, 3, 4, 5], [6, 7, 8, "
        "9, 1e3]]\n"
    )
    (line,) = read_log(log)
    assert (line.rank, line.step, line.boundary, line.token, line.position, line.norm) == (
        3,
        2,
        31,
        4,
        0,
        15.0,
    )
    assert line.dtype == "float32" and line.first5[1] == -2e-05 and line.slots[1][4] == 1000


def log_of(case: Case, folder: Path) -> Path:
    """What the draft-input tap prints for a case, one line a prompt."""
    lines = []
    for prompt, ids in enumerate(PROMPTS):
        states = concat(case, World(prompt, heard(prompt, 2.5e-3)))
        five = [[float(f"{v:.6g}") for v in part[:5]] for part in states[0].view(-1, 32).tolist()]
        lines.append(
            f"[EAGLE3-DEBUG] site=draft-input rank=0 step={prompt} mode=EXTEND shape={list(states.shape)} "
            "dtype=bfloat16 "
            f"norm=1 hs_first5={five[0]} boundary=- token={ids[1]} position=0 slots={json.dumps(five)}"
        )
    (folder / "log").write_text("\n".join(lines))
    return folder / "log"


@pytest.mark.parametrize(
    ("slots", "cause"),
    [
        ((3, 7, 10), None),
        ((2, 6, 9), "boundary-offset"),
        ((7, 3, 10), "slot-order"),
        ((0, 7, 10), "embedding-slot"),
        (("final_norm",), "algo-flag"),
        ((3, 7), "slot-count"),
    ],
)
def test_a_log_against_a_full_golden_names_the_cause(tmp_path: Path, slots, cause) -> None:
    case = Case("served", slots=slots, dtype="bfloat16")
    evidence_of(case, tmp_path)
    document = check_log(tmp_path / "golden.safetensors", log_of(case, tmp_path))
    assert document["verdict"] == ("mismatch" if cause else "match")
    assert [one["id"] for one in document["causes"]][:1] == ([cause] if cause else [])


def test_a_line_that_was_cut_is_a_mismatch_and_no_crash(tmp_path: Path) -> None:
    case = Case("served", dtype="bfloat16")
    evidence_of(case, tmp_path)
    log = log_of(case, tmp_path)
    log.write_text(re.sub(r"(hs_first5=\[[^,]*, [^,]*)[^\]]*", r"\1", re.sub(r" slots=.*", "", log.read_text())))
    document = check_log(tmp_path / "golden.safetensors", log)
    assert document["verdict"] == "mismatch" and "2 values where the golden has 5" in document["slots"][0]["why"]


@pytest.mark.parametrize(("trained", "verdict"), [((3, 7, 10), "match"), ((2, 7, 9), "inconclusive")])
def test_a_log_of_other_layers_than_a_golden_assumed_is_no_fault(tmp_path: Path, trained, verdict) -> None:
    case = Case("served", trained=trained, dtype="bfloat16")
    evidence_of(case, tmp_path)
    with safe_open(tmp_path / "golden.safetensors", "pt") as golden:
        marked = {**golden.metadata(), "trained_source": "assumed"}
        save_file({name: golden.get_tensor(name) for name in golden.keys()}, tmp_path / "guess", marked)
    document = check_log(tmp_path / "guess", log_of(case, tmp_path))
    assert (document["verdict"], document["causes"]) == (verdict, [])
    assert "assumed" in (document["why"] or document["notes"])[-1]


def test_a_line_of_another_width_is_no_match(tmp_path: Path) -> None:
    """Rank 0 printed what was wanted; what reached rank 1 was as narrow as one state."""
    shown = "[" + ", ".join(f"{value:.6g}" for value in SERVED) + "]"
    log = tmp_path / "server.log"
    log.write_text("".join(LINE.format(rank=r, width=w, values=shown) + "\n" for r, w in [(0, 21504), (1, 7168)]))
    document = check_log(GOLDEN, log)
    assert document["verdict"] == "mismatch" and document["concat_shape"] == [8, 7168]


def test_a_line_of_another_width_is_no_match_with_tensors(tmp_path: Path) -> None:
    prompts = [[4, 5, 6, 7, 8, 9, 10, 11]]
    states = make_states(prompts)
    golden = make_golden(tmp_path / "golden.safetensors", prompts, states)
    line = (
        "[EAGLE3-DEBUG] site=draft-input rank=0 step={step} mode=EXTEND shape=[8, {width}] dtype=float32 token=5 "
        "position=0 hs_first5={first} slots={slots}\n"
    )
    shown = [[round(value, 4) for value in states[0][k][0, :5].tolist()] for k in (1, 3, 5)]
    log = tmp_path / "server.log"
    log.write_text(line.format(step=0, width=48, first=shown[0], slots=shown))
    assert check_log(golden, log)["verdict"] == "match"
    with log.open("a") as more:
        more.write(line.format(step=1, width=16, first=shown[0], slots=shown[:1]))
    assert check_log(golden, log)["verdict"] == "mismatch"


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_lines_without_slots_against_whole_states(tmp_path: Path, off: float) -> None:
    """The first slot's values are all that such a line has: they can be wrong, and cannot make a match."""
    states = make_states([[4, 5, 6, 7]])
    golden = make_golden(tmp_path / "golden.safetensors", [[4, 5, 6, 7]], states)
    values = ", ".join(f"{value + off:.6g}" for value in states[0][1][0, :5].tolist())
    line = f"[EAGLE3-DEBUG] site=draft-input rank=0 step=0 mode=EXTEND shape=[4, 48] dtype=float32 norm=1 hs_first5=[{values}]\n"
    (tmp_path / "log").write_text(line * 3000)
    document = check_log(golden, tmp_path / "log")
    assert document["verdict"] == ("mismatch" if off else "inconclusive")
    assert [slot["state"] for slot in document["slots"]] == [
        "mismatch" if off else "match",
        "not-compared",
        "not-compared",
    ]
    assert document["rows_compared"] == 3000
