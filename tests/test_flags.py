"""One letter for one flag in every command, what is meant by a typo, colour, and a page of every id, as they are typed."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator

import click
import pytest
from captures import concat, make_golden, make_states, write_batch

from specwire import __version__, cli, explain

SHORT = {"-q": "--quiet", "-o": "--out", "-v": "--verbose", "-V": "--version", "-h": "--help"}
CONTEXT = click.Context(cli.specwire)


def commands() -> Iterator[tuple[str, click.Command]]:
    stack = [(name, cli.specwire.get_command(CONTEXT, name)) for name in cli.specwire.list_commands(CONTEXT)]
    while stack:
        name, command = stack.pop()
        if isinstance(command, click.Group):
            inner = command.list_commands(CONTEXT)
            stack += [(f"{name} {each}", command.get_command(CONTEXT, each)) for each in inner]
        else:
            yield name, command


def typed(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command line."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(word) for word in words])
        except SystemExit as end:
            code = end.code or 0
    return code, *(each.buffer.getvalue().decode() for each in (out, err))


def test_a_letter_stands_for_one_flag_and_the_flag_has_its_letter():
    seen = set()
    for name, command in commands():
        for option in (each for each in command.params if isinstance(each, click.Option)):
            letters = [each for each in option.opts if not each.startswith("--")]
            longs = [each for each in option.opts if each.startswith("--")]
            assert [SHORT[letter] for letter in letters] == [each for each in longs if each in SHORT.values()], name
            seen.update(letters)
    assert seen == {"-q", "-o", "-v"}


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_the_version(word):
    assert typed(word) == (0, f"specwire, version {__version__}\n", "")


@pytest.mark.parametrize("name, command", list(commands()), ids=lambda each: each if isinstance(each, str) else "")
def test_help_is_help_by_either_name(name, command, monkeypatch):
    # click keeps a command's own help option from its first call, which a test may have made without `specwire` above it.
    monkeypatch.setattr(command, "_help_option", None)
    code, short, _ = typed(*name.split(), "-h")
    assert code == 0 and short == typed(*name.split(), "--help")[1] and short.startswith(f"Usage: specwire {name}")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu"], "Did you mean status?"),
        (["golde"], "Did you mean golden?"),
        (["remov"], "Did you mean remove?"),
        (["golden", "shwo"], "show"),
        (["status", ".", "--jsn"], "--json"),
        (["apply", ".", "--probes", "x"], "--probe"),
        (["check", "--goldn", "x"], "--golden"),
    ],
)
def test_a_typo_gets_what_was_meant(words, meant):
    code, out, err = typed(*words)
    assert (code, out) == (2, "") and meant in err.replace("'", "")


def test_what_is_near_nothing_gets_no_suggestion():
    code, _, err = typed("qqqqqq")
    assert code == 2 and "Did you mean" not in err


@pytest.fixture
def files(tmp_path):
    ids = [4, 5, 6, 7]
    states = make_states([ids])[0]
    write_batch(tmp_path / "capture", 0, 0, [(ids, 0, 4)], [concat(states, (1, 3, 5))])
    return ["--golden", make_golden(tmp_path / "golden", [ids], [states]), "--capture", tmp_path / "capture"]


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": ""}, False), ({"NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
)  # fmt: skip
def test_colour_is_forced_and_forbidden(files, monkeypatch, variables, coloured):
    """Set and not empty, as no-color.org and force-color.org have it; the words are the same."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    plain = typed("check", *files)[1]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, shown, _ = typed("check", *files)
    assert code == 0 and COLOUR.sub("", shown) == plain and ("\x1b" in shown) is coloured


def test_quiet_leaves_the_result_alone(files):
    assert typed("check", *files, "-q") == (0, typed("check", *files)[1], "")


@pytest.mark.parametrize("name", sorted(explain.pages()))
def test_every_id_is_explained(name):
    """A cause or a probe: its summary and what to do, as text and as JSON."""
    code, shown, said = typed("explain", name)
    document = json.loads(typed("explain", name, "--json")[1])
    assert code == 0 and said == "" and shown.startswith(f"{name} ({document['kind']})\n\n")
    assert document["id"] == name and " ".join(document["summary"].split()) in " ".join(shown.split())
    if document["kind"] == "cause":
        assert all(f"{part}:" in shown for part in ("Symptom", "Cause", "Fix"))


def test_every_id_that_a_command_gives_is_explained():
    """Those of the checks and probes, and those that the contract lists for preflight."""
    listed = {page["id"] for page in json.loads(typed("explain", "--json")[1])["pages"]}
    assert listed == set(explain.pages()) and {"launch", "layer-ids", "spec-params", "draft-load"} <= listed
