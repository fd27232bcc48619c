"""`bench` from the command line, against a server that is fake and fails in every way there is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specwire.engine.arguments import CPU_KERNELS

pytestmark = pytest.mark.slow
SPECWIRE = [sys.executable, "-c", "from specwire.cli import main; main()"]
QUICK = ["--device", "cpu", "--prompt-length", "8", "--new-tokens", "16", "--requests", "6", "--repeats", "1"]


STEADY = {"FAKE_MS": "8"}.items()


def specwire(*words, env=(), timeout=300):
    command = [*SPECWIRE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **dict(env)})


def bench(tree, models, *words, env=(), drafts=1, out=None):
    target, *all_drafts = models
    named = [word for draft in all_drafts[:drafts] for word in ("--draft", draft)]
    where = ["--out", out] if out else []
    return specwire("bench", tree, "--target", target, *named, *where, *QUICK, "--json", *words, env=env)


def points(done):
    return {point["name"]: point for point in json.loads(done.stdout)["points"]}


def test_baseline_and_drafts_side_by_side(fake_tree, models, tmp_path):
    done = bench(
        fake_tree, models, "--concurrency", "1,3", "--repeats", "3", drafts=2, out=tmp_path / "out", env=STEADY
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [point["name"] for point in document["points"]] == ["baseline", "draft", "other"]
    assert all(f"PYTHONPATH={CPU_KERNELS} " in point["launch"] for point in document["points"])  # or no CPU serves it
    assert [(each["point"], each["load"]["value"]) for each in document["comparisons"]] == [
        ("draft", 1), ("draft", 3), ("other", 1), ("other", 3),
    ]  # fmt: skip
    # Two tokens a step for one: how sure that is depends on what else the machine does, and is not judged here.
    assert all(each["speedup"]["value"] > 1.2 and each["verdict"] != "slower" for each in document["comparisons"])
    assert all(each["same_answers"] == 1 for each in document["comparisons"])
    base, draft = document["points"][:2]
    run = draft["loads"][0]["runs"][0]
    assert run["output_tokens"] == 6 * 16 and run["failed"] == 0
    assert run["acceptance"]["length"] == 2 and run["acceptance"]["by_position"] == [1.0]
    assert base["loads"][0]["runs"][0]["acceptance"] is None
    assert (
        "--speculative-draft-model-path" not in base["launch"] and "--speculative-draft-model-path" in draft["launch"]
    )
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == document
    assert document["provenance"]["tree"]["version"] == "9.9"


def test_drafts_among_themselves_by_a_requirement_that_none_meets(fake_tree, models):
    words = ["--no-baseline", "--topk", "2", "--draft-tokens", "5", "--require", "50", "--no-profile", "--repeats", "2"]
    done = bench(fake_tree, models, *words, drafts=2)
    document = json.loads(done.stdout)
    assert done.returncode == 1 and [point["name"] for point in document["points"]] == ["draft", "other"]
    (compared,) = document["comparisons"]
    assert (compared["point"], compared["against"]) == ("other", "draft")
    for point in document["points"]:
        assert "profile" not in point["loads"][0]
        assert {"--speculative-num-steps=3", "--speculative-eagle-topk=2", "--speculative-num-draft-tokens=5"} <= set(
            point["argv"]
        )


def test_times_are_those_of_the_server(fake_tree, models):
    done = bench(fake_tree, models, env={"FAKE_MS": "20"}.items(), drafts=0)
    run = points(done)["baseline"]["loads"][0]["runs"][0]
    assert 20 <= run["itl_ms"]["p50"] < 30 and 20 <= run["ttft_ms"]["p50"] < 40
    assert 30 < run["tokens_per_second"] <= 50


@pytest.mark.parametrize(
    "fake, stage, why",
    [
        ("no-boot", "boot", "ValueError: the fake does not like its arguments"),
        ("silent-boot", "boot", "hangs: its log has said nothing for 10 s"),
        ("never-ready", "boot", "not ready within 12 s"),
        ("error-500", "warm-up", 'HTTP 500 from /generate: {"error": "CUDA out of memory, says the fake"}'),
        ("error-event", "load", "the fake aborts"),
        ("hangs", "load", "hangs: silent for 5 s"),
        ("dies", "load", "the server died: RuntimeError: the fake ran out of memory"),
        ("short", "warm-up", "ended after 5 of 16 tokens"),
    ],
)
def test_a_failing_server_is_that_points_result(fake_tree, models, fake, stage, why):
    patience = [
        "--boot-timeout",
        "12" if fake == "never-ready" else "60",
        "--silent-log",
        "10" if fake == "silent-boot" else "60",
        "--silence",
        "5",
    ]
    done = bench(fake_tree, models, *patience, "--concurrency", "2", env={"FAKE_DRAFT_FAILS": fake}.items())
    assert done.returncode == 2
    found = points(done)
    assert found["baseline"]["state"] == "ok" and found["draft"]["state"] == "failed"
    error = found["draft"]["error"]
    assert error["stage"] == stage and why in error["why"] and os.path.basename(error["log"]) == "server.log"
    assert json.loads(done.stdout)["comparisons"] == []
    if fake == "error-500":
        assert error["last_error"] == "MemoryError: no block left"


def test_what_was_measured_before_a_death_is_kept(fake_tree, models):
    """After six requests to warm up and six of the first run, amid the second of three."""
    done = bench(fake_tree, models, "--repeats", "3", env={"FAKE_DRAFT_FAILS": "dies", "FAKE_AFTER": "14"}.items())
    draft = points(done)["draft"]
    assert draft["state"] == "failed" and draft["boot_seconds"] > 0
    assert [run["output_tokens"] for run in draft["loads"][0]["runs"]] == [96]


def test_no_process_is_left_even_in_a_session_of_its_own(fake_tree, models):
    assert bench(fake_tree, models, drafts=0, env={}.items()).returncode == 0
    done = bench(fake_tree, models, "--", "--fake=orphan", drafts=0)
    assert done.returncode == 0, done.stderr


def test_killed_bench_takes_its_server_along(fake_tree, models, tmp_path):
    target, draft, _ = models
    command = [*SPECWIRE, "bench", fake_tree, "--target", target, "--draft", draft, *QUICK, "--out", tmp_path / "out"]
    process = subprocess.Popen(
        list(map(str, command)), env={**os.environ, "FAKE_MS": "500"}, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "warming up" in line:
            break
    else:
        pytest.fail("it ended before its server was warm")
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()  # that its server notices, and ends as well, is what every test here is held to


def test_a_running_server(fake_tree, models):
    target = models[0]
    server = subprocess.Popen([sys.executable, fake_tree / "sglang" / "launch_server.py", "--port=20999"])
    try:
        time.sleep(0.5)
        done = specwire("bench", "--url", "http://127.0.0.1:20999", "--target", target, *QUICK, "--json")
        assert done.returncode == 0, done.stderr
        (point,) = json.loads(done.stdout)["points"]
        assert point["loads"][0]["runs"][0]["output_tokens"] == 96
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    "url", ["http://example.com:30000", "http://10.0.0.1", "https://127.0.0.1", "http://127.0.0.1:30000/v1"]
)
def test_only_servers_on_this_machine(url, models):
    done = specwire("bench", "--url", url, "--target", models[0], *QUICK)
    assert done.returncode == 2 and "only a server on this machine" in done.stderr


def test_prompts_from_a_file(fake_tree, models, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"token_ids": [1, 2, 3]}\n[4, 5]\n')
    assert bench(fake_tree, models, "--prompts", file, drafts=0).returncode == 0
    file.write_text('{"token_ids": [1, 2, 3]}\n{"nothing": 1}\n')
    done = bench(fake_tree, models, "--prompts", file, drafts=0)
    assert done.returncode == 2 and "prompts.jsonl:2" in done.stderr


def test_open_loop(fake_tree, models):
    done = bench(fake_tree, models, "--rate", "50", drafts=0)
    load = points(done)["baseline"]["loads"][0]
    assert (load["kind"], load["value"]) == ("open", 50) and load["runs"][0]["requests_per_second"] > 10
