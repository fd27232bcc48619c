"""A secret in every option, variable, URL and prompt of every command: nothing that was written or printed has it."""

import contextlib
import io
import json
import os
import secrets

import click
import pytest
from captures import concat, make_golden, make_states, write_batch
from planted import found, make_scene
from results import bench, point

from specwire import cli, outgoing

pytestmark = pytest.mark.slow

NAMES = ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_AUTH")


def options():
    """(command's words, option, whether it takes a value) of every command."""
    context = click.Context(cli.specwire)
    stack = [((name,), cli.specwire.get_command(context, name)) for name in cli.specwire.list_commands(context)]
    while stack:
        words, command = stack.pop()
        if isinstance(command, click.Group):
            stack += [((*words, name), command.get_command(context, name)) for name in command.list_commands(context)]
            continue
        yield words, None
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield words, max(parameter.opts, key=len)


def base(place, words):
    """What the command needs to come as far as it can with what is in `place`."""
    models = ["--target", place / "target", "--draft", place / "draft"]
    engine = [place / "tree", *models, "--device", "cuda", "--timeout", "20"]
    measured = [place / "tree", *models, "--device", "cuda", "--no-profile", "--prompt-length", "4"]
    return {
        ("status",): [place / "tree"],
        ("apply",): [place / "tree", "--dry-run"],
        ("remove",): [place / "tree", "--dry-run"],
        ("gate",): [place / "tree"],
        ("strip",): [place / "tree", "--check"],
        ("preflight",): [*models, "--tree", place / "tree", "--launch", "--speculative-algorithm EAGLE3"],
        ("check",): ["--golden", place / "golden.safetensors", "--capture", place / "capture", "--html", place / "c.html"],
        ("golden", "show"): [place / "golden.safetensors"],
        ("report",): [place / "bench.json", "--out", place / "r.html", "--markdown", place / "r.md"],
        ("verify",): [*engine, "--out", place / "verified"],
        ("run",): [*engine, "--out", place / "ran"],
        ("bench",): [*measured, "--out", place / "benched"],
        ("sweep",): [*measured, "--grid", place / "grid.toml", "--out", place / "swept"],
        ("ship",): [place / "tree"],
        ("explain",): ["boundary-offset"],
        ("profile",): [place],
    }.get(words, [])  # fmt: skip


def run(arguments):
    """All that a command prints."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        with contextlib.suppress(SystemExit):
            cli.main([os.fspath(each) for each in arguments])
    return file.buffer.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = make_scene(tmp_path)
    prompts = [[4, 5, 6, 7]]
    states = make_states(prompts)
    make_golden(made / "golden.safetensors", prompts, states)
    write_batch(made / "capture", 0, 0, [(prompts[0], 0, 4)], [concat(states[0], (1, 3, 5))])
    (made / "bench.json").write_text(json.dumps(bench(point("baseline", 1, 2), point("draft", 1, 2, draft="d"))))
    (made / "grid.toml").write_text("steps = [1]\n")
    monkeypatch.setattr("tempfile.tempdir", str(made / "tmp"))
    monkeypatch.setattr(outgoing, "_known", set())
    monkeypatch.chdir(made)
    return made


def planted(monkeypatch):
    """Fresh secrets: those of the environment, and those of a value, with the value."""
    made = ["".join(secrets.choice("abcdefghkmnpqrstuvwxyz23456789") for _ in range(18)) for _ in range(5)]
    surroundings = {name: f"env{number}-{secrets.token_hex(8)}" for number, name in enumerate(NAMES)}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    user, key, token, shaped, bearer = made
    value = (
        f"https://me:{user}@127.0.0.1:9/v1 --api-key {key} HF_TOKEN={token} sk-{shaped} "
        f"--header 'Authorization: Bearer {bearer}'"
    )
    return [*made, *surroundings.values()], value


@pytest.mark.parametrize(
    "words, option", [pytest.param(*each, id=" ".join(filter(None, (*each[0], each[1])))) for each in options()]
)
def test_an_option_and_what_comes_after_it(place, monkeypatch, words, option):
    """The same in the arguments that go on to the engine, where a command takes such."""
    known, value = planted(monkeypatch)
    heirs = ["--", "--api-key", known[1], f"--admin-api-key={known[0]}", "--env-like", f"X_TOKEN={known[2]}"]
    takes = words in (("verify",), ("run",), ("bench",), ("sweep",))
    given = [*words, *base(place, words), *([option, value] if option else [])]
    printed = run([*given, *(heirs if takes else [])])
    more = run([*given, "--json"]) if not takes else b""
    (place / "printed").write_bytes(printed + more)
    assert b"Traceback" not in printed + more, (printed + more).decode()
    named = option != "--out"  # a directory has the name that it was given
    leaks = {secret: places for secret in known if (places := found(place, secret, names=named))}
    assert leaks == {}, (printed + more).decode()


@pytest.mark.parametrize(
    "short",
    ["http://me:{}@127.0.0.1:9", "--api-key {}", "HF_TOKEN={}", "sk-{}", "x --token={} y", '{{"api_key": "{}"}}'],
)
@pytest.mark.parametrize(
    "words, option",
    [
        (("bench",), "--url"),
        (("bench",), "--env"),
        (("check",), "--launch"),
        (("preflight",), "--launch"),
        (("report",), "--title"),
        (("verify",), "--tokens"),
    ],
)
def test_a_value_that_is_one_secret_alone(place, monkeypatch, words, option, short):
    secret = secrets.token_hex(10)
    given = [*words, *base(place, words), option, short.format(secret)]
    if option == "--url":
        given = [*words, option, short.format(secret), "--prompt-length", "4", "--out", place / "benched"]
    (place / "printed").write_bytes(run(given))
    assert found(place, secret) == [], (place / "printed").read_text()


@pytest.mark.parametrize("kind", ["prompt", "grid", "launch file", "config file", "log"])
def test_a_file_that_holds_one(place, kind, monkeypatch):
    known, value = planted(monkeypatch)
    key = known[1]
    models = ["--target", place / "target", "--draft", place / "draft", "--tree", place / "tree"]
    (place / "inputs").mkdir()
    if kind == "prompt":
        (place / "inputs" / "p.jsonl").write_text(json.dumps({"text": f"my --api-key {key} is sk-{known[3]}"}) + "\n")
        given = ["bench", *base(place, ("bench",)), "--prompts", place / "inputs" / "p.jsonl"]
    elif kind == "grid":
        (place / "inputs" / "g.toml").write_text(
            f'steps = [1]\n[env]\nHF_TOKEN = ["{key}"]\n[arguments]\n"--api-key" = ["{known[0]}"]\n'
        )
        given = ["sweep", *base(place, ("sweep",)), "--grid", place / "inputs" / "g.toml"]
    elif kind == "launch file":
        (place / "inputs" / "l.sh").write_text(f"export HF_TOKEN={known[2]}\npython -m sglang.launch_server {value}\n")
        given = ["preflight", *models, "--launch-file", place / "inputs" / "l.sh"]
    elif kind == "config file":
        (place / "inputs" / "c.yaml").write_text(f"api-key: {key}\nadmin-api-key: '{known[0]}'\n")
        given = ["preflight", *models, "--launch", f"--config {place / 'inputs' / 'c.yaml'}"]
    else:
        (place / "inputs" / "l.log").write_text(f"server_args=ServerArgs(api_key='{key}') {value}\n")
        given = ["check", "--golden", place / "golden.safetensors", "--log", place / "inputs" / "l.log"]
    (place / "printed").write_bytes(run(given) + run([*given, "--json"]))
    inputs = tuple(f"inputs/{name}" for name in os.listdir(place / "inputs"))
    leaks = {secret: places for secret in known if (places := found(place, secret, but=inputs))}
    assert leaks == {}, (place / "printed").read_text()
