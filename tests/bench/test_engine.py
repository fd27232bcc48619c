"""`bench` on the real engine: one baseline, a draft that is accepted, a random one. Three boots."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specwire.bench.profile import read_profile

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).resolve().parent.parent.parent
SPECWIRE = [sys.executable, "-c", "from specwire.cli import main; main()"]


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """In float32, where greedy answers with and without speculation are the same."""
    place = tmp_path_factory.mktemp("benched")
    for kind in ("accepted", "random"):
        make = [
            sys.executable,
            ROOT / "fixtures" / "make.py",
            "llama",
            place / kind,
            "--draft",
            kind,
            "--dtype",
            "float32",
        ]
        subprocess.run(make, check=True, capture_output=True)
    drafts = [word for kind in ("accepted", "random") for word in ("--draft", place / kind / "draft")]
    command = [
        "bench",
        "installed",
        "--target",
        place / "accepted" / "target",
        *drafts,
        "--device",
        "cpu",
        "--out",
        place / "out",
    ]
    load = [
        "--steps",
        "3",
        "--prompt-length",
        "32",
        "--new-tokens",
        "48",
        "--repeats",
        "3",
        "--silent-log",
        "3600",
        "--boot-timeout",
        "3600",
    ]
    done = subprocess.run([*SPECWIRE, *map(str, [*command, *load])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return place / "out", json.loads((place / "out" / "bench.json").read_text())


def points(document):
    return {point["name"]: point for point in document["points"]}


def test_accepted_draft_is_accepted_and_random_is_not(benched):
    found = points(benched[1])
    lengths = {name: found[name]["loads"][0]["runs"][-1]["acceptance"]["length"] for name in found if "draft" in name}
    assert lengths["accepted/draft"] > 1.5 > 1.2 > lengths["random/draft"] >= 1.0
    assert found["baseline"]["loads"][0]["runs"][-1]["acceptance"] is None


def test_profile_and_engine_count_the_same_acceptance(benched):
    for name in ("accepted/draft", "random/draft"):
        load = points(benched[1])[name]["loads"][0]
        engine = [run["acceptance"] for run in load["runs"]]
        counted = sum(each["length"] * each["cycles"] for each in engine) / sum(each["cycles"] for each in engine)
        assert load["profile"]["decode"]["acceptance"]["length"] == pytest.approx(counted, rel=0.02)


def test_parts_add_up_to_the_cycle(benched):
    for point in benched[1]["points"]:
        assert point["loads"][0]["profile"]["decode"]["accounted"] == pytest.approx(1, abs=0.01)


def test_every_token_after_the_first_has_its_cycle(benched):
    """Counted, not timed: how long the cycles take beside the client's clock is the benchmark's to say."""
    out, document = benched
    for number, point in enumerate(document["points"]):
        runs = point["loads"][0]["runs"]
        (profile,) = read_profile(next(out.glob(f"points/{number}-*/profile")))
        cycles = [each for each in profile.cycles if runs[0]["begin"] <= each.begin <= runs[-1]["end"]]
        tokens = sum(sum(each.accepted) or 1 for each in cycles if each.mode == "DECODE")
        requests = len(runs) * document["workload"]["prompts"]
        beyond_the_end = 4 * requests  # drafted past a request's last token, or one turn more before its end was seen
        assert 47 * requests <= tokens <= 47 * requests + beyond_the_end, point["name"]


def test_stages_are_all_there(benched):
    stages = {
        name: {each["stage"] for each in point["loads"][0]["profile"]["decode"]["stages"]}
        for name, point in points(benched[1]).items()
    }
    assert stages["baseline"] == {"target"}
    assert stages["accepted/draft"] == {"draft", "target", "verify", "draft-extend", "other"}


def test_answers_are_the_baselines(benched):
    assert [each["same_answers"] for each in benched[1]["comparisons"]] == [1, 1]


def test_report_says_that_the_random_draft_is_slower(benched):
    out, document = benched
    comparison = next(each for each in document["comparisons"] if each["point"] == "random/draft")
    assert comparison["speedup"]["value"] < 1 and comparison["verdict"] != "faster"
    done = subprocess.run([*SPECWIRE, "report", out, "--markdown", out / "report.md"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (out / "report.md").read_text()
    if comparison["verdict"] == "slower":
        assert "SLOWER" in text and "costs throughput here" in text
    else:  # slower, and the machine too noisy to be sure of it
        assert "no difference beyond noise" in text
