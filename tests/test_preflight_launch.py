"""Launches as people write them: typed, in scripts, of a running process; read against a tree's own options."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwire.errors import SpecwireError
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import launch_file, process_launch, typed_launch
from specwire.preflight.options import read_options
from specwire.preflight.shell import split_commands
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"


@pytest.fixture(scope="module", params=["adds-one", "boundaries"])
def options(request):
    return read_options(Source(Tree.find(SLICES / request.param)))


EXPECTED = {"model-path": "/m/t", "speculative-algorithm": "EAGLE3", "speculative-num-steps": 3, "tp-size": 8}
WRITTEN = [
    pytest.param("--model-path /m/t --speculative-algorithm EAGLE3 --speculative-num-steps 3 --tp-size 8", id="bare"),
    pytest.param(
        "python3 -m sglang.launch_server --model /m/t --speculative-algo=EAGLE3 --speculative-num-steps=3 --tp 8",
        id="module, aliases, abbreviations, equals",
    ),
    pytest.param(
        "sglang serve --model-path '/m/t' --speculative-algorithm \"EAGLE3\" --speculative-num-steps 3 --tp-size 8",
        id="serve, quotes",
    ),
    pytest.param(
        "sglang serve /m/t --model-type llm --speculative-algorithm EAGLE3 --speculative-num-steps 3 --tp-size 8",
        id="serve, the model first",
    ),
    pytest.param(
        "CUDA_VISIBLE_DEVICES=0,1 FOO='a b' nohup python -m sglang.launch_server \\\n  --model-path /m/t \\\n"
        "  --speculative-algorithm EAGLE3 --speculative-num-steps 3 \\\n  --tensor-parallel-size 8 > log 2>&1 &",
        id="prefixes, continuations, redirections",
    ),
    pytest.param(
        "docker run --gpus all -e HF=1 image python3 -m sglang.launch_server --model-path /m/t --tp-size 8 "
        "--speculative-algorithm EAGLE3 --speculative-num-steps 3",
        id="docker",
    ),
    pytest.param(
        "/venv/bin/python /src/sglang/launch_server.py --model-path /m/t --tp-size 8 --speculative-algorithm EAGLE3 "
        "--speculative-num-steps 3",
        id="script",
    ),
    pytest.param(
        "M=/m # where\nexport N=3\nif true; then python -m sglang.launch_server --model-path $M/t --tp-size ${TP:-8} "
        '--speculative-num-steps "$N" --speculative-algorithm EAGLE3; fi',
        id="variables",
    ),
]


@pytest.mark.parametrize("text", WRITTEN)
def test_the_same_launch_however_it_is_written(options, text):
    launch = typed_launch(text, options)
    assert {name: launch.get(name) for name in EXPECTED} == EXPECTED
    assert launch.unknown == ()


def test_flags_take_nothing(options):
    launch = typed_launch("--disable-cuda-graph --trust-remote-code --model-path /m", options)
    assert launch.get("disable-cuda-graph") is True and launch.get("trust-remote-code") is True
    assert launch.get("model-path") == "/m" and launch.get("tp-size") is None


def test_environment_is_kept(options):
    launch = typed_launch("export A=1; B=2\nC='3 4' env D=5 python -m sglang.launch_server --model-path /m", options)
    assert dict(launch.environment) == {"A": "1", "C": "3 4", "D": "5"}


def test_what_is_no_option_of_this_tree_is_listed(options):
    launch = typed_launch("--model-path /m --speculative-magic 3 --tp-size 2", options)
    assert launch.unknown == ("--speculative-magic",) and launch.get("tp-size") == 2


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "holds no launch"),
        ("ls -l", "holds no launch"),
        ("python -m vllm.entrypoints --model x", "holds no launch"),
        (
            "python -m sglang.launch_server --model-path a\npython -m sglang.launch_server --model-path b",
            "2 launches",
        ),
        ("--model-path 'a b", "the quote ' before 'a b' is not closed"),
        ('--tp-size 2 \\\n--model-path "a b', "the quote \" before 'a b' is not closed"),
        ("--tp-size eight", "takes a number"),
        ("--model-path", "not followed by a value"),
        ("--model-path --tp-size 2", "not followed by a value"),
        ("--speculative 2", "could mean"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(options, text, said):
    with pytest.raises(SpecwireError, match=said):
        typed_launch(text, options)


def test_a_file_of_plain_arguments_with_comments(options, tmp_path):
    place = tmp_path / "launch.txt"
    place.write_text(
        "# the server\n--model-path /m/t\n--tp-size 8   \\\n\n# drafting\n--speculative-algorithm EAGLE3\n"
    )
    launch = launch_file(place, options)
    assert (launch.get("model-path"), launch.get("tp-size")) == ("/m/t", 8)
    assert launch.get("speculative-algorithm") == "EAGLE3"


def test_a_shell_script(options, tmp_path):
    place = tmp_path / "serve.sh"
    place.write_text(
        '#!/bin/bash\nset -euo pipefail\nMODEL=/m/t\nARGS="--tp-size 8 --trust-remote-code"\n'
        'python -m sglang.launch_server --model-path "$MODEL" $ARGS |& tee log\n'
    )
    launch = launch_file(place, options)
    assert launch.get("tp-size") == 8 and launch.get("trust-remote-code") is True


def test_a_file_that_is_none(options, tmp_path):
    with pytest.raises(SpecwireError, match="cannot read the launch file"):
        launch_file(tmp_path / "none.sh", options)


def test_a_config_file_is_overruled_by_the_command_line(tmp_path):
    options = read_options(Source(Tree.find(SLICES / "adds-one")))
    place = tmp_path / "server.yaml"
    place.write_text("# server\nmodel-path: /m/t\ntensor_parallel_size: 4\ntp-size: 2\ntrust-remote-code: true\n")
    launch = typed_launch(f"--config {place} --tp-size 8", options)
    assert (launch.get("model-path"), launch.get("tp-size"), launch.get("trust-remote-code")) == (
        "/m/t",
        8,
        True,
    )


def test_a_running_process(options, tmp_path):
    """A process whose command line is a launch; it is python that sleeps, not the engine."""
    (tmp_path / "sglang").mkdir()
    for name, text in (("__init__", ""), ("launch_server", "import time; time.sleep(60)")):
        (tmp_path / "sglang" / f"{name}.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", "t", "--tp-size", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "MARK": "7"},
    )
    try:
        deadline = time.monotonic() + 10
        while b"launch_server" not in Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        (tmp_path / "t").mkdir()
        launch = process_launch(process.pid, options)
        assert launch.get("tp-size") == 2 and launch.environment["MARK"] == "7"
        assert launch.path("model-path") == tmp_path / "t"
    finally:
        process.kill()
        process.wait()
    with pytest.raises(SpecwireError, match="cannot be read|no SGLang launch"):
        process_launch(process.pid, options)


def test_options_know_their_kind(options):
    assert options.find("--disable-cuda-graph", "").kind == "flag"
    assert options.find("--tensor-parallel-size", "") is options.find("--tp-size", "")
    assert options.find("--tp-size", "").type == "int"
    assert options.find("--hidden-field", "") is None


def test_negated_flags():
    options = read_options(Source(Tree.find(SLICES / "boundaries")))
    assert typed_launch("--no-enable-overlap --model-path m", options).get("enable-overlap") is False
    assert typed_launch("--enable-overlap --model-path m", options).get("enable-overlap") is True


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r", exclude_categories=["Cs", "Cc"]), min_size=1)


@given(st.lists(WORDS, min_size=1))
def test_quoted_words_come_back_whole(words):
    assert split_commands(shlex.join(words), "here") == [words]


@settings(max_examples=300)
@given(st.text(alphabet="ab '\"\\$#;&|<>\n={}-", max_size=60))
def test_any_text_is_split_or_refused(text):
    try:
        commands = split_commands(text, "here")
    except SpecwireError as error:
        assert "not closed" in str(error)
    else:
        assert all(words and all(isinstance(word, str) for word in words) for words in commands)
