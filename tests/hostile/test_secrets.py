"""A secret that a command is given gets into no file, page, name, log or line of output; the engine still has it."""

import json
import os
import sys
from pathlib import Path

import pytest
from captures import concat, make_golden, make_states, write_batch
from planted import found, make_scene, specwire

from specwire import outgoing

SECRET = "hunter2-Secr3t/x"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(outgoing, "_known", set())


@pytest.fixture
def scene(tmp_path):
    return make_scene(tmp_path)


def model(scene: Path) -> list[object]:
    return [scene / "tree", "--target", scene / "target", "--draft", scene / "draft", "--device", "cuda"]


@pytest.mark.parametrize(
    "words, secrets",
    [
        ("--api-key SECRET123", ["SECRET123"]),
        ("--api-key=SECRET123", ["SECRET123"]),
        ("--admin-api-key SECRET123", ["SECRET123"]),
        ("--ssl-keyfile-password SECRET123 --ssl-keyfile /a/key", ["SECRET123"]),
        ("--hf-token SECRET123 --token SECRET456", ["SECRET123", "SECRET456"]),
        ("--env HF_TOKEN=SECRET123", ["SECRET123"]),
        ("-e AWS_SECRET_ACCESS_KEY=SECRET123 -eWANDB_API_KEY=SECRET456", ["SECRET123", "SECRET456"]),
        ("http://user:SECRET123@host:1/v1", ["SECRET123", "user:SECRET123"]),
        ("https://SECRET123@host/v1", ["SECRET123"]),
        ("http://user:p%40SS123@host", ["p%40SS123", "p@SS123", "user:p%40SS123", "user:p@SS123"]),
        ("--header 'Authorization: Bearer SECRET123'", ["SECRET123"]),
        ("sk-abcdefghijklmnop1234", ["sk-abcdefghijklmnop1234"]),
        ("hf_abcdefghijklmnopqrstuvwxyz", ["hf_abcdefghijklmnopqrstuvwxyz"]),
        ("--max-total-tokens 2048 --speculative-num-draft-tokens=4 --tokens 3,4,5", []),
        ("--speculative-token-map /a/map.pt --skip-tokenizer-init --tokenizer-path /a", []),
        ("--tool-call-parser qwen --eos-token end --env TOKENIZERS_PARALLELISM=false --new-tokens 1024", []),
        (
            "--env SGLANG_INIT_NEW_TOKEN_RATIO=0.7512 SGLANG_LOG_DECODE_GRAPH_KEY=some SGLANG_SYNC_TOKEN_IDS_ACROSS_TP=1024",
            [],
        ),
        ("--env AWS_ACCESS_KEY_ID=AKIDEXAMPLE SGLANG_MY_API_KEY=SECRET123", ["AKIDEXAMPLE", "SECRET123"]),
        ("--model-path /models/secret-project --key-cache fp8", []),
    ],
)
def test_what_is_taken_for_a_secret(words, secrets):
    import shlex

    found_in = {"words": shlex.split(words), "one word": ["--launch", words]}
    for way, given in found_in.items():
        outgoing._known.clear()
        outgoing.know_words(given)
        assert outgoing._known == set(secrets), way
    outgoing._known.clear()
    outgoing.know_text(f"#!/bin/sh\nexport A=1\npython -m sglang.launch_server \\\n  {words}\n")
    assert outgoing._known == set(secrets)


def test_an_open_quote_hides_the_rest_of_the_line():
    outgoing.know_text("python -m sglang.launch_server --api-key 'my own secret\n--tp 2")
    assert "own secret" not in outgoing.hide("near 'my own secret")


@pytest.mark.parametrize("secret", ['pa"ss\\wörd', "a'b c&d<e>", "\x1b[31mred", "ünïcode-näme"])
def test_a_secret_is_hidden_in_every_writing(secret):
    import html
    import shlex
    from urllib.parse import quote

    outgoing.know([secret])
    for form in (
        secret,
        json.dumps({"key": [secret]}),
        repr(secret),
        html.escape(json.dumps(secret)),
        shlex.quote(secret),
        quote(secret),
        outgoing.printable(secret),
    ):
        hidden = outgoing.clean(f"x {form} y")
        assert outgoing.HIDDEN in hidden and secret not in hidden
    json.loads(outgoing.clean(json.dumps({secret: [secret]})))


@pytest.mark.parametrize("number", ["2048", "0.7512", "1e-05", "0.12345678", "1234567890"])
def test_a_number_is_hidden_where_it_is_no_figure(number):
    outgoing.know_words(["--api-key", number])
    document = json.dumps(
        {"argv": ["--api-key", number], "tokens": float(number), "list": [float(number), 2048]}, indent=1
    )
    hidden = json.loads(outgoing.clean(document))
    assert hidden == {"argv": ["--api-key", "***"], "tokens": float(number), "list": [float(number), 2048]}
    assert outgoing.clean(f"x --api-key {number} --n {number}") == f"x --api-key *** --n {number}"


def test_the_engine_has_the_key_that_its_log_does_not_show(scene):
    """By the environment of the driver: neither a file nor a command line has it."""
    done = specwire(
        scene, "verify", *model(scene), "--out", "out", "--", "--api-key", SECRET, "--watch", "x",
        env={"HF_TOKEN": "hf-Secr3t-of-mine"},
    )  # fmt: skip
    assert done.returncode == 2 and b"not accepted" in done.stderr
    log = (scene / "out" / "engine.log").read_text()
    assert "'--api-key', '***'" in log and "SPECWIRE_HANDED" not in log
    assert found(scene, SECRET) == found(scene, "hf-Secr3t-of-mine") == []
    for name in ("engine.log", "engine-job.json"):
        assert (scene / "out" / name).stat().st_mode & 0o77 == 0


def test_the_driver_gets_the_very_words(tmp_path, monkeypatch):
    from specwire.engine import driver
    from specwire.engine.job import write_job

    argv = ["--api-key", SECRET, f"--url=http://u:{SECRET}@h", "--x", "<hidden 0>"[:7], "plain"]
    handed = write_job(tmp_path / "job.json", {"argv": argv})
    assert SECRET not in (tmp_path / "job.json").read_text()
    for name, value in handed.items():
        monkeypatch.setenv(name, value)
    assert driver._whole(json.loads((tmp_path / "job.json").read_text()))["argv"] == argv
    assert not set(handed) & set(os.environ)


def test_a_server_that_fails(scene):
    done = specwire(
        scene, "bench", *model(scene), "--no-profile", "--prompt-length", "4", "--env", f"MY_API_KEY={SECRET}",
        "--out", "out", "--", "--api-key", SECRET,
    )  # fmt: skip
    assert done.returncode == 2
    document = json.loads((scene / "out" / "bench.json").read_text())
    assert document["points"][0]["env"] == {"MY_API_KEY": "***"}
    assert specwire(scene, "report", "out", "--out", "r.html", "--markdown", "r.md").returncode == 0
    assert found(scene, SECRET) == [] and (scene / "r.md").exists()


def test_results_of_an_earlier_version_are_not_shown_either(scene):
    specwire(scene, "bench", *model(scene), "--no-profile", "--prompt-length", "4", "--out", "out", "--", "--x", "KEY")
    path = scene / "out" / "bench.json"
    path.write_text(
        path.read_text()
        .replace('"--x"', '"--api-key"')
        .replace("--x KEY", f"--api-key {SECRET}")
        .replace('"KEY"', f'"{SECRET}"')
    )
    assert SECRET in path.read_text()
    assert specwire(scene, "report", "out", "--out", "r.html").returncode == 0
    assert found(scene, SECRET, but=("out/bench.json",)) == []


def test_a_launch_line_on_a_page(tmp_path):
    prompts = [[4, 5, 6, 7]]
    states = make_states(prompts)
    make_golden(tmp_path / "golden.safetensors", prompts, states)
    write_batch(tmp_path / "capture", 0, 0, [(prompts[0], 0, 4)], [concat(states[0], (1, 3, 5))])
    (tmp_path / "tmp").mkdir()
    launch = f"python -m sglang.launch_server --speculative-algorithm EAGLE3 --api-key {SECRET}"
    done = specwire(
        tmp_path, "check", "--golden", "golden.safetensors", "--capture", "capture", "--launch", launch, "--html", "p.html"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert found(tmp_path, SECRET) == [] and "--api-key" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    "launch", [f"--api-key '{SECRET}", f'--api-key {SECRET} "', f"--no-such-thing --api-key={SECRET}"]
)
def test_a_launch_line_that_cannot_be_read(scene, launch):
    specwire(
        scene,
        "preflight",
        "--target",
        scene / "target",
        "--draft",
        scene / "draft",
        "--tree",
        scene / "tree",
        "--launch",
        launch,
    )
    (scene / "launch.sh").write_text(f"python -m sglang.launch_server {launch}\n")
    specwire(
        scene,
        "preflight",
        "--target",
        scene / "target",
        "--draft",
        scene / "draft",
        "--launch-file",
        "launch.sh",
        "--json",
    )
    assert found(scene, SECRET, but=("launch.sh",)) == []


def test_what_a_traceback_shows_is_clean(capsys, monkeypatch):
    from specwire import cli
    from specwire.cli import env

    def fails(*given, **more):
        raise RuntimeError(f"\x1b]0;pwned\x07 {SECRET}")

    monkeypatch.setattr(env.command, "callback", fails)
    monkeypatch.setattr(sys, "argv", ["specwire", "env"])
    with pytest.raises(SystemExit) as end:
        cli.main(["env", "--api-key", SECRET])
    with pytest.raises(SystemExit) as end:
        cli.main(["env"])
    said = capsys.readouterr()
    assert end.value.code == 2 and "this is a bug" in said.err
    assert SECRET not in said.err and "\x1b" not in said.err and "\\x1b]0;pwned" in said.err
