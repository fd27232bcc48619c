"""The numbers: quantiles, intervals, acceptance, figures of a run, what a profile comes to."""

import json
import math
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwire.bench.client import Counters, Response
from specwire.bench.compare import accepted, comparisons, rate, slowest
from specwire.bench.measure import engine_acceptance, figures
from specwire.bench.profile import acceptance, decoding, read_profile, summarise
from specwire.bench.run import exit_code
from specwire.bench.statistics import _t975, quantile, ratio, spread
from specwire.bench.sweep import _kept
from specwire.cli._bench import speculation
from specwire.errors import SpecwireError

FLOATS = st.floats(0.1, 1e6)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1), st.floats(0, 1))
def test_quantile_lies_among_the_values(values, share):
    assert min(values) <= quantile(values, share) <= max(values)


def test_quantile_interpolates():
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert quantile([], 0.5) is None and spread([])["p99"] is None


@pytest.mark.parametrize(
    "freedom, value", [(1, 12.706), (2, 4.303), (7, 2.365), (12, 2.179), (20, 2.086), (60, 2.0), (1e6, 1.96)]
)
def test_students_t(freedom, value):
    assert _t975(freedom) == pytest.approx(value, rel=0.01)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=2, max_size=5), st.lists(FLOATS, min_size=2, max_size=5))
def test_interval_holds_the_ratio(ours, theirs):
    found = ratio(ours, theirs)
    assert found.low <= found.value * 1.0001 and found.value <= found.high * 1.0001


def test_interval_covers_the_truth_as_often_as_it_says():
    """Over many repetitions of an experiment with a known ratio, the interval misses it in 5 % or fewer."""
    draw = random.Random(1)
    misses = 0
    for _ in range(150):
        ours = [130 * math.exp(draw.gauss(0, 0.1)) for _ in range(4)]
        theirs = [100 * math.exp(draw.gauss(0, 0.1)) for _ in range(4)]
        found = ratio(ours, theirs)
        misses += not found.low <= 1.3 <= found.high
    assert misses <= 0.05 * 150


def test_the_interval_is_welchs():
    """Two runs each, e^0.1 above and below: variances of 0.02, two degrees of freedom, t = 4.303."""
    ours, theirs = ([middle * math.exp(each) for each in (-0.1, 0.1)] for middle in (130, 100))
    found, around = ratio(ours, theirs), math.exp(4.303 * math.sqrt(0.02 / 2 + 0.02 / 2))
    assert (found.value, found.low, found.high) == pytest.approx((1.3, 1.3 / around, 1.3 * around), rel=1e-3)


@pytest.mark.parametrize(
    "ours, theirs, verdict",
    [
        ([130, 131, 132], [100, 101, 99], "faster"),
        ([80, 81, 79], [100, 101, 99], "slower"),
        ([100, 120, 90], [100, 85, 110], "within noise"),
        ([200], [100], "unknown"),
        ([200, 201], [100], "unknown"),
    ],
)
def test_verdict(ours, theirs, verdict):
    assert ratio(ours, theirs).verdict == verdict


def test_no_ratio_without_positive_runs():
    assert ratio([], [1.0]) is None and ratio([0.0, 1.0], [1.0, 1.0]) is None


def test_acceptance_by_position():
    found = acceptance([1, 1, 2, 4])
    assert (found["length"], found["by_position"]) == (2.0, [0.5, 0.25, 0.25])
    assert acceptance([]) is None


def answer(sent, arrivals, meta=None, error=None):
    return Response(sent, arrivals, arrivals[-1][0], arrivals[-1][1], "hash", meta or Counters(), error)


def test_figures_of_a_run():
    run = figures([answer(0.0, [(0.5, 1), (0.7, 3)]), answer(1.0, [(1.25, 1), (2.0, 2)])])
    assert (run["seconds"], run["output_tokens"], run["tokens_per_second"]) == (2.0, 5, 2.5)
    assert run["decode_ms"]["p50"] == pytest.approx(475)
    assert run["ttft_ms"]["mean"] == 375 and run["itl_ms"]["p50"] == 100
    assert run["per_user"] == pytest.approx((10 + 1 / 0.75) / 2, rel=1e-5)
    json.dumps(run, allow_nan=False)


def test_failed_requests_are_counted_and_not_averaged():
    run = figures(
        [
            answer(0.0, [(1.0, 4)]),
            answer(0.0, [(9.0, 9)], error="HTTP 500"),
            answer(0.0, [(9.0, 9)], error="HTTP 500"),
        ]
    )
    assert (run["failed"], run["errors"], run["output_tokens"]) == (2, ["2 x HTTP 500"], 4)


def test_acceptance_from_the_engines_counters():
    new, old = Counters(tokens=10, verifies=4, histogram=(1, 1, 2)), Counters(tokens=9, verifies=4)
    assert engine_acceptance([answer(0, [(1, 1)], new)]) | {} == {
        "cycles": 4, "length": 2.25, "by_position": [0.75, 0.5], "histogram": {"1": 1, "2": 1, "3": 2}, "engine_length": 2.5, "by": "spec histogram",
    }  # fmt: skip
    assert engine_acceptance([answer(0, [(1, 1)], old)])["length"] == 2.0
    assert engine_acceptance([answer(0, [(1, 1)], Counters())]) is None


def test_counters_that_would_take_for_ever_to_count_one_by_one():
    found = engine_acceptance([answer(0, [(1, 1)], Counters(tokens=4, verifies=1, histogram=(0, 1 << 39, 0, 0)))])
    assert (found["cycles"], found["length"], found["by_position"]) == (1 << 39, 2.0, [1.0])


def test_acceptance_over_all_runs():
    one = {"acceptance": {"cycles": 10, "length": 2.0, "engine_length": 2.2, "by_position": [0.6, 0.4]}}
    other = {"acceptance": {"cycles": 30, "length": 1.2, "engine_length": 1.4, "by_position": [0.2]}}
    assert accepted([one, other]) == {"cycles": 40, "length": 1.4, "engine_length": 1.6, "by_position": [0.3, 0.1]}
    assert accepted([one, {"acceptance": None}])["length"] == 2.0
    assert accepted([{"acceptance": None}]) is None
    assert accepted([one, {"acceptance": {**other["acceptance"], "by_position": None}}])["by_position"] is None


def point(name, *rates, state="ok"):
    runs = [
        {
            "tokens_per_second": rate,
            "per_user": rate,
            "ttft_ms": spread([5000 / rate]),
            "itl_ms": spread([1000 / rate]),
            "outputs": ["a", "b"],
        }
        for rate in rates
    ]
    return {"name": name, "state": state, "error": None, "loads": [{"kind": "closed", "value": 1, "runs": runs}]}


def test_less_time_is_better():
    (found,) = comparisons([point("baseline", 100, 101, 99), point("draft", 200, 201, 199)])
    assert {each["verdict"] for each in found["ratios"].values()} == {"faster"} and found["verdict"] == "faster"
    assert found["ratios"]["ttft_ms"]["value"] == pytest.approx(2, rel=0.001) and found["same_answers"] == 1


def test_the_slowest_answers_of_all_runs_are_no_faster_than_the_mean():
    runs = [{"ttft_ms": spread([20.0, 22.0])}, {"ttft_ms": spread([17.0, 19.0])}, {"ttft_ms": spread([])}]
    assert slowest({"runs": runs}, "ttft_ms") == pytest.approx(21.98)
    assert slowest({"runs": runs}, "ttft_ms") >= rate({"runs": runs}, "ttft_ms")
    assert slowest({"runs": [{"ttft_ms": spread([])}]}, "ttft_ms") is None


@pytest.mark.parametrize(
    "points, required, code",
    [
        ([point("baseline", 100, 101, 99), point("draft", 200, 201, 199)], None, 0),
        ([point("baseline", 100, 101, 99), point("draft", 200, 201, 199)], 1.5, 0),
        ([point("baseline", 100, 101, 99), point("draft", 200, 201, 199)], 2.5, 1),
        ([point("baseline", 100, 101, 99), point("draft", 200, 201, 199)], 2.0, 3),
        ([point("baseline", 100), point("draft", 200)], 1.5, 3),
        ([point("baseline", 100, 101), point("draft", state="failed")], None, 2),
        ([point("baseline", state="failed"), point("draft", 100, 101)], 1.0, 2),
    ],
)
def test_exit_codes(points, required, code):
    assert exit_code({"points": points, "comparisons": comparisons(points)}, required) == code


# --- profiles -----------------------------------------------------------------------------------------

HEAD = {"schema": "specwire.profile/1", "rank": 0, "pid": 1, "clock": "monotonic", "device": "cpu", "world_size": 1}


def cycle(**changes):
    return {
        "kind": "cycle", "t": 1.0, "ms": 10.0, "host_ms": 10.0, "gap_ms": 1.0, "mode": "DECODE", "batch": 2, "tokens": None, "graph": None,
        "parts": {"draft": [2.0, 1], "target": [6.0, 1], "verify": [1.0, 1], "other": [1.0, 1]}, "accepted": [3, 1], **changes,
    }  # fmt: skip


def write(folder, *lines, head=HEAD, tail=""):
    (folder / f"rank{head['rank']}.{head['pid']}.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in (head, *lines)) + tail
    )


def test_profile_by_stage(tmp_path):
    write(
        tmp_path,
        cycle(),
        cycle(ms=30.0, parts={"draft": [20.0, 1], "target": [10.0, 1]}),
        cycle(mode="EXTEND"),
        cycle(mode="IDLE"),
    )
    found = summarise(read_profile(tmp_path))
    decode = found["decode"]
    assert (decode["cycles"], decode["total_ms"], decode["accounted"]) == (2, 40.0, 1.0)
    assert [(each["stage"], each["share"]) for each in decode["stages"]] == [
        ("draft", 0.55),
        ("target", 0.4),
        ("verify", 0.025),
        ("other", 0.025),
    ]
    assert decode["acceptance"]["length"] == 2.0 and found["prefill"]["cycles"] == 1


def test_profile_of_a_window(tmp_path):
    write(tmp_path, cycle(t=1.0), cycle(t=2.0, ms=20.0), cycle(t=3.0))
    found = summarise(read_profile(tmp_path), 1.5, 2.5)["decode"]
    assert (found["cycles"], found["total_ms"]) == (1, 20.0)


def test_decode_within_a_span(tmp_path):
    """A cycle of 10 ms and the 2 ms before it; the one under way at the end counts so far; prefill does not."""
    write(
        tmp_path,
        cycle(t=1.0, mode="EXTEND", ms=10.0),
        cycle(t=1.012, ms=10.0, gap_ms=2.0),
        cycle(t=1.022, ms=10.0, gap_ms=None),
        cycle(t=5.0, ms=10.0),
    )
    (profile,) = read_profile(tmp_path)
    assert decoding(profile.cycles, 1.010, 1.025) == pytest.approx(15.0)
    assert decoding(profile.cycles, 1.011, 1.020) == pytest.approx(9.0)
    assert decoding(profile.cycles, 2.0, 3.0) == 0.0


def test_line_cut_short_by_a_kill(tmp_path):
    write(tmp_path, cycle(), tail='{"kind":"cyc')
    (found,) = read_profile(tmp_path)
    assert (len(found.cycles), found.unreadable) == (1, 1)


@pytest.mark.parametrize(
    "text", ["", "{}\n", "[1]\n", '{"schema": "other/1"}\n', json.dumps(HEAD) + "\n{}\n" + json.dumps(cycle()) + "\n"]
)
def test_what_is_no_profile(tmp_path, text):
    (tmp_path / "rank0.1.jsonl").write_text(text)
    with pytest.raises(SpecwireError, match=r"rank0.1.jsonl:\d"):
        read_profile(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"t": math.inf}, {"ms": math.nan}, {"ms": "10"}, {"ms": 10**400}, {"gap_ms": []}, {"mode": 5}, {"kind": None, "t": None},
        {"batch": 1.5}, {"batch": -1}, {"parts": 5}, {"parts": {"draft": 5}}, {"parts": {"draft": [1.0, "1"]}},
        {"accepted": 5}, {"accepted": [10**9]}, {"accepted": ["1"]}, {"lost": "3"}, {"mode": "x" * 1000},
    ],
)  # fmt: skip
def test_a_field_that_no_tap_writes_is_one_sentence(tmp_path, change):
    write(tmp_path, cycle(), cycle(**change), cycle())
    with pytest.raises(SpecwireError, match=r"rank0.1.jsonl:3: not a cycle") as caught:
        read_profile(tmp_path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("change", [{"rank": "0"}, {"pid": -1}, {"rank": 1e400}, {"clock": ["x"]}, {"device": 5}])
def test_a_head_that_no_tap_writes_is_one_sentence(tmp_path, change):
    (tmp_path / "rank0.1.jsonl").write_text(json.dumps({**HEAD, **change}))
    with pytest.raises(SpecwireError, match="rank0.1.jsonl:1: not the head"):
        read_profile(tmp_path)


def test_a_deep_or_endless_line_and_what_is_no_file(tmp_path):
    file = tmp_path / "rank0.1.jsonl"
    file.write_text(json.dumps(HEAD) + "\n" + "[" * 100_000 + "\n\n")
    with pytest.raises(SpecwireError, match=r"rank0.1.jsonl:2: not a cycle"):
        read_profile(tmp_path)
    file.write_text("x" * (3 << 20))
    with pytest.raises(SpecwireError, match="a line of more than"):
        read_profile(tmp_path)
    for make in (os.mkfifo, os.mkdir):
        file.unlink()
        make(file)
        with pytest.raises(SpecwireError, match="cannot read"):
            read_profile(tmp_path)


def test_no_profile_at_all(tmp_path):
    with pytest.raises(SpecwireError, match="worker-profile"):
        read_profile(tmp_path)


def test_stopped_lost_and_ranks(tmp_path):
    write(tmp_path, cycle(), cycle(lost=3), {"kind": "stopped", "cycles": 2})
    write(tmp_path, cycle(ms=11.0), head={**HEAD, "rank": 1, "pid": 2})
    found = summarise(read_profile(tmp_path))
    assert (found["ranks"], found["lost"], found["stopped_early"]) == (2, 3, True)
    assert [each["decode_p50_ms"] for each in found["by_rank"]] == [10.0, 11.0]


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ((None, None, None), ()),
        ((5, None, None), (5, 1, 6)),  # a chain: one token of the target and one for each step
        ((3, 4, None), (3, 4, 37)),  # a whole tree: the root, 4 branches, and 16 more in each further step
        ((5, 8, None), (5, 8, 64)),
        ((None, 2, 8), (3, 2, 8)),
        ((None, None, 3), (3, 1, 3)),
    ],
)
def test_all_three_numbers_of_speculation_or_none(given, arguments):
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    assert speculation(*given) == tuple(f"--speculative-{name}={value}" for name, value in zip(names, arguments))


def test_what_failed_is_measured_again_when_asked(tmp_path):
    for name, state in (("good", "ok"), ("bad", "failed")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "point.json").write_text(json.dumps({"state": state}))
        assert _kept(tmp_path / name, retry_failed=False) == {"state": state}
    assert _kept(tmp_path / "good", retry_failed=True) == {"state": "ok"}
    assert _kept(tmp_path / "bad", retry_failed=True) is None
    (tmp_path / "good" / "point.json").write_text('{"state": "o')
    assert _kept(tmp_path / "good", retry_failed=False) is None and _kept(tmp_path / "none", False) is None
