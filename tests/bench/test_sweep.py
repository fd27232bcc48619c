"""`sweep` from the command line against the fake server: complete, killed and resumed, with points that fail."""

import json
import os
import signal
import subprocess
import sys

import pytest

from specwire.bench.grid import read_grid
from specwire.bench.sweep import best
from specwire.errors import SpecwireError

SPECWIRE = [sys.executable, "-c", "from specwire.cli import main; main()"]
GRID = 'steps = [1, 2]\n[env]\nFAKE_DRAFT_FAILS = ["", "no-boot"]\n'


def command(tree, models, folder, grid=GRID, *words):
    (folder / "grid.toml").write_text(grid)
    target, draft, _ = models
    sweep = [
        "sweep",
        tree,
        "--target",
        target,
        "--draft",
        draft,
        "--grid",
        folder / "grid.toml",
        "--out",
        folder / "out",
    ]
    load = [
        "--device",
        "cpu",
        "--prompt-length",
        "8",
        "--new-tokens",
        "16",
        "--requests",
        "6",
        "--repeats",
        "2",
        *words,
    ]
    return list(map(str, [*SPECWIRE, *sweep, *load]))


def run(*args, **kwargs):
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120, **kwargs)


def test_a_dry_run_names_the_points_and_writes_nothing(fake_tree, models, tmp_path):
    document = json.loads(run(fake_tree, models, tmp_path, GRID, "--dry-run", "--json").stdout)
    assert len(document["points"]) == 2 * (1 + 2) and document["left_out"] == []
    lines = run(fake_tree, models, tmp_path, GRID, "--dry-run").stdout.splitlines()
    assert lines == [f"{point['id']}  {point['name']}" for point in document["points"]]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_grid_with_failing_points(fake_tree, models, tmp_path):
    done = run(fake_tree, models, tmp_path, GRID, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["complete"]
    states = {point["name"]: point["state"] for point in document["points"]}
    assert states == {
        "baseline": "ok",
        "baseline FAKE_DRAFT_FAILS=no-boot": "ok",
        "steps=1 topk=1 draft_tokens=2": "ok",
        "steps=2 topk=1 draft_tokens=3": "ok",
        "steps=1 topk=1 draft_tokens=2 FAKE_DRAFT_FAILS=no-boot": "failed",
        "steps=2 topk=1 draft_tokens=3 FAKE_DRAFT_FAILS=no-boot": "failed",
    }
    failed = document["points"][-1]
    assert "does not like" in failed["error"]["why"] and os.path.isfile(failed["log"])
    assert failed["changed_env"]["FAKE_DRAFT_FAILS"] == "no-boot" and "--speculative-num-steps=2" in failed["argv"]
    assert document["best"]["confirmed"] and document["best"]["launch"].count("--speculative-num-steps") <= 1
    assert "point 6/6" in done.stderr and "left" in done.stderr


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_where_it_was(fake_tree, models, tmp_path):
    words = command(fake_tree, models, tmp_path, "steps = [1, 2, 3]\n", "--no-confirm")
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in first.stderr:
        if line.startswith("point 3/4") and "run 1" in line:
            break
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "points").glob("*/point.json")}
    assert len(kept) == 2
    second = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=120)
    document = json.loads(second.stdout)
    assert second.returncode == 0 and document["complete"] and len(document["points"]) == 4
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items()), (
        "what was measured is not measured again"
    )
    assert "point 1/4 baseline: booting" not in second.stderr


@pytest.mark.slow
def test_another_sweep_in_the_same_place_is_refused(fake_tree, models, tmp_path):
    assert run(fake_tree, models, tmp_path, "steps = [1]\n", "--no-confirm").returncode == 0
    (models[1] / "model.safetensors").write_bytes(b"trained on")
    done = run(fake_tree, models, tmp_path, "steps = [1]\n", "--no-confirm")
    assert done.returncode == 2 and "another draft" in done.stderr


@pytest.mark.slow
def test_a_point_that_cannot_win_is_stopped_early(fake_tree, models, tmp_path):
    grid = 'steps = [1, 2]\n[env]\nFAKE_MS = ["2", "40"]\n'
    done = run(fake_tree, models, tmp_path, grid, "--stop-early", "--no-confirm", "--json")
    points = {point["name"]: len(point["loads"][0]["runs"]) for point in json.loads(done.stdout)["points"]}
    slow = [name for name in points if "FAKE_MS=40" in name and "steps" in name]
    assert [points[name] for name in slow] == [1, 1] and points["steps=1 topk=1 draft_tokens=2 FAKE_MS=2"] == 2


@pytest.mark.slow
def test_without_a_baseline_there_is_no_verdict(fake_tree, models, tmp_path):
    done = run(fake_tree, models, tmp_path, "steps = [1]\n", "--", "--fake=no-boot")
    assert done.returncode == 2 and "no verdict" in done.stdout


def grid(tmp_path, text):
    (tmp_path / "grid.toml").write_text(text)
    return read_grid(tmp_path / "grid.toml", tmp_path / "draft", ("--tp-size=2",), {"A": "1"})


def test_grid_is_every_combination_with_a_baseline_for_each_surrounding(tmp_path):
    found = grid(
        tmp_path, 'steps = [1, 2]\ntopk = [1, 2]\n[env]\nNCCL_PROTO = ["", "LL"]\n[arguments]\n"--page-size" = [1]\n'
    )
    names = [point.setting.name for point in found.points]
    assert names[:2] == ["baseline page-size=1", "baseline NCCL_PROTO=LL page-size=1"]
    assert len(names) == len(set(names)) == 2 + 2 * 4
    last = found.points[-1].setting
    assert last.arguments == (
        "--tp-size=2",
        "--speculative-num-steps=2",
        "--speculative-eagle-topk=2",
        "--speculative-num-draft-tokens=7",
        "--page-size=1",
    )
    assert last.env == {"A": "1", "NCCL_PROTO": "LL"}


def test_senseless_combinations_are_left_out_and_said(tmp_path):
    found = grid(tmp_path, "steps = [2]\ntopk = [1, 2]\ndraft_tokens = [3, 5, 50]\n")
    kept = [(point.where["topk"], point.where["draft_tokens"]) for point in found.points[1:]]
    assert kept == [(1, 3), (2, 3), (2, 5)]
    assert len(found.left_out) == 3 and all(each["why"] for each in found.left_out)


def test_a_point_keeps_its_id_when_the_grid_grows(tmp_path):
    one = {point.id for point in grid(tmp_path, "steps = [1]\n").points}
    assert one < {point.id for point in grid(tmp_path, "steps = [1, 2]\n").points}


@pytest.mark.parametrize(
    "text", ["steps = [0]", 'steps = ["a"]', "step = [1]", "steps = [true]", "env = 3", "[env]\nA = {}", "steps ="]
)
def test_what_is_no_grid(tmp_path, text):
    with pytest.raises(SpecwireError, match="grid.toml"):
        grid(tmp_path, text)


@pytest.mark.parametrize(
    "text, why",
    [
        ("[env]\n" + "".join(f'A{i} = ["a", "b", "c", "d"]\n' for i in range(20)), "1099511627776 combinations"),
        ("[env]\nA = [" + "1," * 20_000 + "]", "20000 combinations"),
        (f"steps = [{10**30}]", "whole numbers from 1 to"),
        ("steps = [" + "0," * 10**5 + "]", "whole numbers from 1 to"),
        (f"[env]\nA = [0x{'f' * 8000}]", "short texts and numbers"),
        ('[arguments]\n"--a" = [[1]]', "short texts and numbers"),
        (f'[env]\nA = ["{"x" * 10**6}"]', "short texts and numbers"),
        ('[env]\nA = ["\\u0000"]', "short texts and numbers"),
        ("a = " + "[" * 5000, "no TOML that can be read"),
        (f"steps = [{'9' * 5000}]", "no TOML that can be read"),
    ],
)
def test_a_grid_that_would_never_end_is_one_sentence(tmp_path, text, why):
    with pytest.raises(SpecwireError, match=rf"grid.toml: .*{why}") as caught:
        grid(tmp_path, text)
    assert len(str(caught.value)) < 1000


def test_a_pipe_is_no_grid(tmp_path):
    os.mkfifo(tmp_path / "grid.toml")
    with pytest.raises(SpecwireError, match="no regular file"):
        read_grid(tmp_path / "grid.toml", tmp_path / "draft", (), {})


def record(name, *rates, draft="d", state="ok"):
    runs = [
        {
            "tokens_per_second": rate,
            "per_user": rate,
            "ttft_ms": {"mean": 1.0},
            "itl_ms": {"mean": 1.0},
            "outputs": [],
        }
        for rate in rates
    ]
    loads = [{"kind": "closed", "value": 1, "runs": runs}]
    return {
        "id": name,
        "name": name,
        "draft": draft,
        "state": state,
        "where": {},
        "loads": loads,
        "launch": f"launch {name}",
    }


def test_best_is_judged_by_what_was_measured_again():
    points = [record("base", 100, 101, 99, draft=None), record("a", 130, 131, 129), record("b", 120, 119, 121)]
    found = best(points)
    assert (found["id"], found["worth_it"], found["launch"], found["as_good"]) == ("a", True, "launch a", [])
    again = best(points, [record("base", 100, 101, 99, draft=None), record("a", 98, 101, 99)])
    assert again["confirmed"] and not again["worth_it"] and again["launch"] == "launch base"


def test_as_good_as_the_best_is_what_came_up_to_it():
    """Two runs make a wide interval, in which a point at half the rate would pass for as good."""
    points = [
        record("base", 90, 92, draft=None),
        record("a", 276, 305),
        record("near", 270, 280),
        record("far", 84, 135),
    ]
    assert best(points)["as_good"] == ["near"]


def test_no_best_without_both_sides():
    assert best([record("a", 1, 2)]) is None
    assert best([record("base", 1, 2, draft=None), record("a", 1, state="failed")]) is None
