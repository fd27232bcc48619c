"""Launches read as the release itself reads them: its own argparse and config merger, in a process of its own, are asked.

`SPECWIRE_EXAMPLES=5000 pytest tests/test_launch_oracle.py` runs that many examples over the releases together.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from release_parser import Oracle
from releases import release_tree

from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import UNKNOWN
from specwire.preflight.launch import in_file, in_words
from specwire.preflight.option_source import read_options
from specwire.preflight.options import Unread
from specwire.trees.tree import Tree

RELEASES = ["0.5.2", "0.5.9", "0.5.16", "0.5.20", "0.5.23"]
EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", "400"))
pytestmark = [pytest.mark.slow, pytest.mark.release]


@pytest.fixture(scope="module", params=RELEASES)
def release(request):
    """A release's parser as oracle, its actions, and its options as specwire reads them."""
    root = release_tree(request.param)
    oracle = Oracle(root)
    actions = [action for action in oracle.ask(dump=True) if "--help" not in action["names"]]
    yield oracle, actions, read_options(Source(Tree.find(root)))
    oracle.close()


def test_every_option_is_read_as_the_release_declares_it(release):
    _, actions, options = release
    own = {tuple(sorted(option.names)): option for option in options.listed}
    assert set(own) == {tuple(sorted(action["names"])) for action in actions}
    for action in actions:
        option = own[tuple(sorted(action["names"]))]
        read = (option.name, option.nargs, option.required, option.made_by)
        assert read == (action["dest"], action["nargs"], action["required"], action["action"]), option.names
        assert _choices(option.choices) == action["choices"], option.names
        assert option.default is UNKNOWN or option.default == action["default"] or action["default"] == "==SUPPRESS=="


def _choices(choices: Any) -> list[str] | None:
    return None if choices is None else sorted(map(str, choices))


TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Cs"]), max_size=8)
STRAY = st.one_of(
    st.sampled_from(
        ["true", "2", "-tp", "-x", "-1", "--", "-", "--no-such-option", "--tp_size", "a b", "=", "--=3", ""]
    ),
    TEXT,
)


WORDS = st.sampled_from(["x", "a/b", "", "a b", "EAGLE3", "{}", "$HOME", "it's", "a=b"])


def good(action: dict[str, Any]) -> st.SearchStrategy[str]:
    """A word that the option takes."""
    if action["choices"]:
        return st.sampled_from(action["choices"])
    return {
        "int": st.integers(-5, 10**6).map(str),
        "float": st.floats(0, 1, width=32).map(str),
        "human_readable_int": st.sampled_from(["4k", "1.5M", "2Ki", "77"]),
        "loads": st.sampled_from(["{}", '{"a": 1}', "[1, 2]", "3"]),
        "json_list_type": st.sampled_from(["[]", '["a", 2]']),
        "nullable_str": st.sampled_from(["None", "", "x"]),
    }.get(action["type"] or "str", WORDS)


BAD = st.one_of(
    st.sampled_from(["true", "-tp", "-1", "eight", "1.5Ki", "K", "{", "NaN", "None", "tc_piecewise", "a b"]), TEXT
)


@st.composite
def option_words(draw, actions: list[dict[str, Any]], sound: bool) -> list[str]:
    """One option as a person may write it: whole or shortened, its value apart or behind an equals sign."""
    action = draw(st.sampled_from(actions))
    name = draw(st.sampled_from(action["names"]))
    if draw(st.integers(0, 7)) == 0:
        name = name[: draw(st.integers(max(3, len(name) - 4 if sound else 3), len(name)))]
    one = good(action) if sound else st.one_of(good(action), good(action), BAD)
    if action["nargs"] == 0:
        more = [] if sound else draw(st.sampled_from([[]] * 3 + [["true"], ["False"]]))
        return [f"{name}=True"] if not sound and draw(st.integers(0, 5)) == 0 else [name, *more]
    if action["nargs"] in ("+", "*"):
        return [name, *draw(st.lists(one, min_size=action["nargs"] == "+" and sound, max_size=3))]
    taken = draw(st.lists(one, min_size=action["nargs"] is None and (sound or draw(st.booleans())), max_size=1))
    return [f"{name}={taken[0]}"] if taken and draw(st.booleans()) else [name, *taken]


@st.composite
def launches(draw, actions: list[dict[str, Any]]) -> list[str]:
    """The engine's own words: sound ones in two of three launches, else with slips of all kinds."""
    sound = draw(st.integers(0, 2)) > 0
    usable = [action for action in actions if "--config" not in action["names"]]
    often = [action for action in usable if "speculative" in action["dest"] or action["dest"] in OFTEN]
    parts = draw(st.lists(st.one_of(option_words(often, sound), option_words(usable, sound)), max_size=6))
    if sound or draw(st.integers(0, 9)):
        parts.insert(draw(st.integers(0, len(parts))), [draw(st.sampled_from(["--model-path", "--model"])), "m"])
    if not sound and draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), [draw(STRAY)])
    return [word for part in parts for word in part]


OFTEN = ("tp_size", "tensor_parallel_size", "dtype", "trust_remote_code", "context_length", "port", "model_path")
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-3, 9),
    st.floats(-2, 2),
    st.sampled_from(["EAGLE3", "auto", "x y", "", "bfloat16"]),
    st.none(),
)


@st.composite
def config_files(draw, actions: list[dict[str, Any]]) -> Any:
    """What a --config file may hold: sound keys and values in half of the files, else anything."""
    if draw(st.booleans()):
        plain = [action for action in actions if action["action"] in ("_StoreAction", "_StoreTrueAction")]
        plain = [action for action in plain if "--config" not in action["names"]]
        document: dict[str, Any] = {}
        for action in draw(st.lists(st.sampled_from(plain), max_size=5)):
            key = draw(st.sampled_from(action["names"]))[2:]
            value = draw(st.booleans()) if action["nargs"] == 0 else draw(good(action))
            document[key] = [value] if action["nargs"] in ("+", "*") else value
        return document
    names = [*(name[2:] for action in actions for name in action["names"]), *(action["dest"] for action in actions)]
    often = [name for name in names if "speculative" in name or name.replace("-", "_") in OFTEN]
    keys = st.one_of(st.sampled_from(often), st.sampled_from(names), st.just("config"))
    keys = st.one_of(keys, keys, keys.map(lambda name: name.replace("-", "_")))
    anything = st.one_of(
        SCALARS, SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from("ab"), SCALARS)
    )
    return draw(st.one_of(st.dictionaries(keys, anything, max_size=5), st.just([1, 2]), st.none()))


def test_a_launch_is_taken_and_refused_as_the_release_does(release, tmp_path_factory):
    oracle, actions, options = release
    place = tmp_path_factory.mktemp("launch")
    tally: Counter[str] = Counter()

    @settings(
        max_examples=max(1, EXAMPLES // len(RELEASES)),
        deadline=None,
        phases=[Phase.generate],  # to shrink is to ask the release anew for minutes
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(launches(actions), st.one_of(st.none(), st.none(), config_files(actions)), st.integers(0, 12), st.data())
    def compare(words, config, way, data):
        if config is not None and options.merger is not None:
            (place / "server.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
            at = data.draw(st.integers(0, len(words)))
            written = data.draw(st.sampled_from([["--config", str(place / "server.yaml")]] * 5 + [["--config"]]))
            words = [*words[:at], *written, *words[at:]]
        serves = options.serve is not None and way in (8, 9, 10)
        theirs = oracle.ask(argv=words, serve=serves)
        if "module 'logging' has no attribute" in (theirs["message"] or ""):
            return  # taken by the parser; where the release's logging is set up at once, it ends there
        launch = as_written(words, serves, way, place, options) if words else in_words(words).read(options)
        if launch.unread or launch.open:
            tally["unknown"] += 1
            return
        tally["accepted" if theirs["accepted"] else "refused"] += 1
        said = [refusal.why for refusal in launch.refusals]
        assert (not said) == theirs["accepted"], (words, config, theirs["message"], said)
        if theirs["accepted"]:
            for name, value in theirs["values"].items():
                own = launch.values.get(name, default_of(options, name))
                assert own is UNKNOWN or same(own, value), (words, config, name, own, value)

    compare()
    total = sum(tally.values())
    print(dict(tally), f"{tally['unknown'] / total:.2%} unknown")
    assert tally["accepted"] > total * 0.2 and tally["refused"] > total * 0.2
    assert tally["unknown"] < total * 0.05


def as_written(words: list[str], serves: bool, way: int, place: Path, options: Any) -> Any:
    """The launch through one of the texts that people keep it in."""
    command = ["sglang", "serve"] if serves else ["python3", "-m", "sglang.launch_server"]
    quoted = [shlex.quote(word) for word in words]
    if way in (0, 8):
        text = f"#!/bin/bash\nset -e\n{shlex.join(command)} \\\n  " + " \\\n  ".join(quoted) + " > log 2>&1 &\n"
    elif way == 1:
        text = "ARGS=(\n  " + "\n  ".join(quoted) + f'\n)\nexec {shlex.join(command)} "${{ARGS[@]}}"\n'
    elif way == 2:
        text = f"srun -n 1 bash -c {shlex.quote(shlex.join([*command, *words]))}\n"
    elif way in (10, 11):
        listed: Any = [word.replace("$", "$$") for word in [*command, *words]]
        service = {"image": "engine", "command": listed if way == 10 else shlex.join(listed)}
        (place / "compose.yaml").write_text(yaml.safe_dump({"services": {"engine": service}}))
        return in_file(place / "compose.yaml").read(options)
    elif way == 12:
        text = f"docker run --gpus all -v /m:/m --rm engine:latest {shlex.join([*command, *words])}\n"
    elif way == 3:
        text = yaml.safe_dump(
            {"containers": [{"command": command, "args": [word.replace("$", "$$") for word in words]}]}
        )
        (place / "pod.yaml").write_text(text)
        return in_file(place / "pod.yaml").read(options)
    else:
        text = shlex.join([*command, *words])
    (place / "launch.sh").write_text(text)
    return in_file(place / "launch.sh").read(options)


def default_of(options: Any, name: str) -> Any:
    found = [option.default for option in options.listed if option.name == name]
    # The first action of a destination sets its default, as argparse does.
    return found[0] if found else UNKNOWN


def same(own: Any, theirs: Any) -> bool:
    if isinstance(own, Unread):
        return False
    return json.loads(json.dumps(own, default=repr)) == theirs
