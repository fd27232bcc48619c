"""Launches as people write them: typed, in scripts, of a running process; read against a tree's own options."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwire.errors import SpecwireError
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import in_file, of_process, typed_launch
from specwire.preflight.option_source import read_options
from specwire.preflight.options import Merger, Serve, convert
from specwire.preflight.shell import split_commands
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"


@pytest.fixture(scope="module", params=["adds-one", "boundaries"])
def options(request):
    """A slice's options; a slice has neither `sglang serve` nor a reader of config files, so these are added."""
    return replace(
        read_options(Source(Tree.find(SLICES / request.param))),
        serve=Serve(positional=True, model_type=True),
        merger=Merger(strict=True, true_as="known"),
    )


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
    assert launch.refusals == ()


def test_flags_take_nothing(options):
    launch = typed_launch("--disable-cuda-graph --trust-remote-code --model-path /m", options)
    assert launch.get("disable-cuda-graph") is True and launch.get("trust-remote-code") is True
    assert launch.get("model-path") == "/m" and launch.get("tp-size") is None


def test_environment_is_kept(options):
    launch = typed_launch("export A=1; B=2\nC='3 4' env D=5 python -m sglang.launch_server --model-path /m", options)
    assert dict(launch.environment) == {"A": "1", "C": "3 4", "D": "5"}


def test_what_is_no_option_of_this_tree_is_listed(options):
    launch = typed_launch("--model-path /m --speculative-magic 3 --tp-size 2", options)
    assert [refusal.why for refusal in launch.refusals] == ["unrecognized arguments: --speculative-magic 3"]
    assert launch.get("tp-size") == 2


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
        ("--model-path 'a b", "the quote ' on line 1 is not closed"),
        ('--tp-size 2 \\\n--model-path "a b', 'the quote " on line 2 is not closed'),
        pytest.param("--tp-size 2 \\\n" + "${" * 400_000, "line 2 has a word of more than 131,072", id="openings"),
        pytest.param("--tp-size 2 \\\n" + "x" * 131_073, "line 2 has a word of more than 131,072", id="one word"),
        pytest.param("x " * 600_000, "more than 1,048,576 characters", id="a long text"),
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
    launch = in_file(place).read(options)
    assert (launch.get("model-path"), launch.get("tp-size")) == ("/m/t", 8)
    assert launch.get("speculative-algorithm") == "EAGLE3"


def test_a_shell_script(options, tmp_path):
    place = tmp_path / "serve.sh"
    place.write_text(
        '#!/bin/bash\nset -euo pipefail\nMODEL=/m/t\nARGS="--tp-size 8 --trust-remote-code"\n'
        'python -m sglang.launch_server --model-path "$MODEL" $ARGS |& tee log\n'
    )
    launch = in_file(place).read(options)
    assert launch.get("tp-size") == 8 and launch.get("trust-remote-code") is True


def test_a_file_that_is_none(options, tmp_path):
    with pytest.raises(SpecwireError, match="cannot read the launch file"):
        in_file(tmp_path / "none.sh")


def test_a_config_file_is_overruled_by_the_command_line(options, tmp_path):
    place = tmp_path / "server.yaml"
    place.write_text("# server\nmodel-path: /m/t\ntensor-parallel-size: 4\ntp-size: 2\ntrust-remote-code: true\n")
    launch = typed_launch(f"--config {place} --tp-size 8", options)
    assert (launch.get("model-path"), launch.get("tp-size"), launch.get("trust-remote-code")) == (
        "/m/t",
        8,
        True,
    )


@pytest.mark.parametrize(
    "text, refused",
    [
        ("model-path: /m\ndisable-cuda-graph: true\n", None),
        ("model_path: /m\n", "unrecognized arguments: --model_path /m"),
        ("model-path: /m\nspeculativ-num-steps: 3\n", "unrecognized arguments: --speculativ-num-steps 3"),
        ("model-path: /m\ncuda-graph-bs: [1, 2]\nchat-template: {a: 1}\n", None),
        ("- model-path\n", "no mapping"),
        ("model-path: [\n", "cannot be read as YAML"),
        ("1: 2\n", "no text"),
    ],
)
def test_keys_of_a_config_file_go_to_the_parser_as_they_are_written(tmp_path, text, refused):
    options = replace(read_options(Source(Tree.find(SLICES / "adds-one"))), merger=Merger(True, "known", nested=True))
    place = tmp_path / "server.yaml"
    place.write_text(text)
    refusals = [refusal.why for refusal in typed_launch(f"--config {place}", options).refusals]
    assert refused in refusals[0] if refused else refusals == []
    missing = typed_launch(f"--config {place}x.yaml", options)
    assert missing.refusals == () and missing.open == (f"--config {place}x.yaml (no such file here)",)
    assert typed_launch(f"--config={place} --model-path /m", options).get("model-path") == "/m"


MEANT = {"model-path": "/m", "speculative-algorithm": "EAGLE3", "speculative-num-steps": 3}
SCRIPTS = [
    pytest.param(
        "ARGS=(\n  python -m sglang.launch_server # the server\n  --model-path=/m\n)\nif [ -n \"$X\" ]; then\n"
        'ARGS+=(--tp 8)\nfi\nARGS+=(--speculative-algorithm "${ALGO:-EAGLE3}" --speculative-num-steps 3)\n"${ARGS[@]}"\n',
        (), id="bash array",
    ),
    pytest.param(
        "srun -n 1 bash -lc 'python -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 "
        "--speculative-num-steps 3 --tp-size $((TP + 1)) --dtype `cat dtype`'\n",
        (), id="srun, a script in a word",
    ),
    pytest.param(
        "# python -m sglang.launch_server --model-path other \\\n#  --tp 2 \\\n"
        "python -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 --speculative-num-steps 3\n",
        (), id="a comment that ends in a backslash",
    ),
    pytest.param(
        "python -m sglang.launch_server \\\n  --model-path /m \\\n  # --tp 2 \\\n"
        "  --speculative-algorithm EAGLE3 \\\n  --speculative-num-steps 3\n",
        ("line 4 begins with - and stands outside the command",), id="a comment among the lines",
    ),
    pytest.param(
        "python -m sglang.launch_server --model-path /m\n--speculative-algorithm EAGLE3\n--speculative-num-steps 3\n",
        ("lines 2-3 begin with - and stand outside the command",), id="no backslashes",
    ),
    pytest.param(
        "python -m sglang.launch_server --model-path /m \\ \n --speculative-algorithm EAGLE3 --speculative-num-steps 3\n",
        ("line 1 ends in a backslash and a blank",), id="a blank behind the backslash",
    ),
    pytest.param(
        "sglang serve /m \u2014speculative-algorithm EAGLE3 \u2013speculative-num-steps=3\n",
        ("\u2014speculative-algorithm begins with \u2014 (em dash)",), id="dashes of a word processor",
    ),
    pytest.param(
        "python -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 --speculative-num-steps 3 "
        "--speculative-draft-model-path <draft model>\n",
        ("<draft model> is a placeholder",), id="a placeholder",
    ),
    pytest.param(
        "FROM example/engine\nENTRYPOINT [\"python3\", \"-m\", \"sglang.launch_server\"]\n"
        'CMD ["--model-path", "/m", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]\n',
        (), id="a Dockerfile",
    ),
]  # fmt: skip


@pytest.mark.parametrize("text, refused", SCRIPTS)
def test_scripts_as_people_write_them(options, tmp_path, text, refused):
    place = tmp_path / "serve.sh"
    place.write_text(text)
    launch = in_file(place).read(options)
    assert {name: launch.get(name) for name in MEANT} == MEANT
    assert [refusal.why[: len(said)] for refusal, said in zip(launch.refusals, refused)] == list(refused)
    assert len(launch.refusals) == len(refused)


SLIPS = [
    ("--model-path /m \u2011\u2011speculative\u2011algorithm EAGLE3 --speculative-num-steps 3", "begins with \u2011"),
    ("--model-path /m --speculative\u2011algorithm EAGLE3 --speculative-num-steps 3", "has \u2011 (hyphen) in it"),
    ("--model-path /m -\u2013speculative-algorithm EAGLE3 --speculative-num-steps 3", "begins with \u2013"),
    ("--model-path /m\u00a0--speculative-algorithm EAGLE3 --speculative-num-steps 3", "has a no-break space in it"),
    ("--model-path /m \u200b--speculative-algorithm EAGLE3 --speculative-num-steps 3", "cannot be seen"),
    ("--model-path \u201c/m\u201d --speculative-algorithm EAGLE3 --speculative-num-steps 3", "curly quotes"),
    (
        "'--model-path /m' '--speculative-algorithm EAGLE3' '--speculative-num-steps 3'",
        "an option and its value in one word",
    ),
    (
        "'--model-path /m --speculative-algorithm EAGLE3 --speculative-num-steps 3'",
        "an option and its value in one word",
    ),
]


@pytest.mark.parametrize("words, said", SLIPS)
def test_slips_of_typing_are_named_and_read_as_they_were_meant(options, words, said):
    launch = typed_launch(f"python -m sglang.launch_server {words}", options)
    assert {name: launch.get(name) for name in MEANT} == MEANT
    assert [said in refusal.why for refusal in launch.refusals] == [True]


def test_an_empty_word_is_no_slip(options):
    draft = "speculative-draft-model-path"
    for words in (f"--{draft} ''", f"--{draft}="):
        launch = typed_launch(f"python -m sglang.launch_server --model-path /m {words}", options)
        assert (launch.get(draft), launch.refusals) == ("", ())


@pytest.mark.parametrize(
    "value", ["/path/to/model", "path/to/model", "YOUR_MODEL", "/models/YOUR_MODEL", "[model path]"]
)
def test_what_is_to_be_filled_in_is_likely_a_placeholder(options, value):
    (refusal,) = typed_launch(f"--model-path '{value}'", options).refusals
    assert refusal.why == f"{value} looks like a placeholder" and refusal.confidence == "likely"


def test_a_page_and_a_comment_around_a_launch(options, tmp_path):
    place = tmp_path / "notes.md"
    place.write_text(": <<'OLD'\nsglang serve /other\nOLD\n```bash\nsglang serve /m --tp 2\n```\n")
    assert in_file(place).read(options).get("model-path") == "/m"


POD = """
containers:
  - name: engine
    command: [bash, -c]
    env: [{name: A, value: 1}]
    args:
      - |
        set -e
        python3 -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 \\
          --speculative-num-steps 3 --port $(PORT)
"""
COMPOSE = """
services:
  engine:
    entrypoint: python3 -m sglang.launch_server
    environment: [A=1]
    command: >
      --model-path /m
      --speculative-algorithm EAGLE3
      --speculative-num-steps 3 --host ${HOST}
"""
COMPOSED = """
services: {engine: {environment: {A: 1}, command: [sglang, serve, --model-path, /m, --speculative-algorithm=EAGLE3,
  --speculative-num-steps, 3]}}
"""


@pytest.mark.parametrize("text", [POD, COMPOSE, COMPOSED], ids=["a pod's script", "folded lines", "a list"])
def test_launches_in_yaml(options, tmp_path, text):
    place = tmp_path / "launch.yaml"
    place.write_text(text)
    launch = in_file(place).read(options)
    assert {name: launch.get(name) for name in MEANT} == MEANT
    assert launch.environment["A"] == "1"


def test_what_only_a_shell_knows_is_one_value_and_not_the_end(options):
    launch = typed_launch("--model-path /m --tp-size $TP --speculative-num-steps ${N:=3} $MORE", options)
    assert launch.get("tp-size") is None and launch.unknown("tp-size") and launch.gives("tp-size")
    assert launch.get("speculative-num-steps") == 3
    assert launch.open == ("$MORE",) and launch.unknown("speculative-algorithm") and launch.refusals == ()


@pytest.mark.parametrize(
    "words, refused",
    [
        ("--model-path /m --trust-remote-code true", "unrecognized arguments: true"),
        ("--model-path /m --trust-remote-code=True", "ignored explicit argument 'True'"),
        ("--model-path /m -tp 2", "unrecognized arguments: -tp 2"),
        ("--tp-size 2", "required: --model-path"),
        ("--model-path /m --speculative-num 2", "ambiguous option: --speculative-num"),
        ("--model-path /m --tp-size eight", "invalid int value: 'eight'"),
        ("--tp-size 2 --model-path", "expected one argument"),
        ("--model-path /m --speculative_num_steps 3", "unrecognized arguments: --speculative_num_steps 3"),
    ],
)
def test_what_the_parser_refuses_is_said_and_the_rest_is_read(options, words, refused):
    launch = typed_launch(f"{words} --speculative-algorithm EAGLE3", options)
    assert any(refused in refusal.why for refusal in launch.refusals)
    assert launch.get("speculative-algorithm") == "EAGLE3"


@pytest.mark.parametrize(
    "word, near",
    [
        ("--speculativ-num-steps", "--speculative-num-steps"),
        ("--tensor-paralel-size=2", "--tensor-parallel-size"),
        ("--bogus", None),
    ],
)
def test_an_option_is_suggested_where_one_was_meant(options, word, near):
    assert options.near(word) == near


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
        launch = of_process(process.pid).read(options)
        assert launch.get("tp-size") == 2 and launch.environment["MARK"] == "7"
        assert launch.path("model-path") == tmp_path / "t"
    finally:
        process.kill()
        process.wait()
    with pytest.raises(SpecwireError, match="cannot be read|no SGLang launch"):
        of_process(process.pid).read(options)


def test_options_know_what_they_take(options):
    assert options.by_name["--disable-cuda-graph"].nargs == 0
    assert options.by_name["--tensor-parallel-size"] is options.by_name["--tp-size"]
    assert options.by_name["--tp-size"].type == "int"
    assert "--hidden-field" not in options.by_name


ACTIONS = """
import argparse

class Gone(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        raise ValueError("gone")

class Renamed(argparse.Action):
    def __init__(self, option_strings, dest, new_flag="--tp-size", nargs=0, const=3, **kwargs):
        self.kept = const
        super().__init__(option_strings, dest, nargs=nargs, const=const, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, self.const)

class Fixed(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, "fixed")

class Kept(argparse.Action):
    def __init__(self, option_strings, dest, nargs="?", const=None, default="kept", **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, const=const, default=default, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, values)

class Ignored(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        print("ignored", values)

def add_cli_args(parser):
    parser.add_argument("--speculative-algorithm", type=str)
    parser.add_argument("--gone", action=Gone)
    parser.add_argument("--renamed", action=Renamed)
    parser.add_argument("--other", action=Renamed, nargs=1, const=4, new_flag="--pp")
    parser.add_argument("--fixed", action=Fixed)
    parser.add_argument("--kept", action=Kept)
    parser.add_argument("--ignored", action=Ignored, default=7)
    parser.add_argument("--last", type=int)
"""
USED = {
    "--renamed --last 1": {"renamed": 3, "last": 1},
    "--other x --last 1": {"other": 4, "last": 1},
    "--fixed x --last 1": {"fixed": "fixed", "last": 1},
    "--kept --last 1": {"kept": None, "last": 1},
    "--kept x --last 1": {"kept": "x", "last": 1},
    "--ignored x --last 1": {"last": 1},
}


def test_actions_of_the_tree_take_and_store_what_argparse_makes_them(tmp_path, capsys):
    """The right answers are those of the classes themselves, in the standard library's parser."""
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text('__version__ = "0.5.9"\n')
    (package / "srt" / "server_args.py").write_text(ACTIONS)
    options, module = read_options(Source(Tree.find(tmp_path))), {}
    exec(ACTIONS, module)
    module["add_cli_args"](real := module["argparse"].ArgumentParser())
    for words, stored in USED.items():
        theirs, ours = vars(real.parse_args(words.split())), options.parse(words.split())
        assert {name: theirs[name] for name in stored} == stored == dict(ours.values), words
        assert ours.refusals == ours.unread == ()
    with pytest.raises(ValueError, match="gone"):
        real.parse_args(["--gone"])
    (refusal,) = options.parse(["--gone", "--last", "1"]).refusals
    assert refusal.fix == "take --gone out" and options.parse(["--gone", "--last", "1"]).values == {"last": 1}
    assert options.default("kept") == real.get_default("kept") == "kept"
    assert options.default("ignored") == real.get_default("ignored") == 7
    said = {name: options.by_name[f"--{name}"].deprecated for name in ("renamed", "other", "gone")}
    assert said == {"renamed": "--tp-size", "other": "--pp", "gone": None}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("77", 77), (" 8 ", 8), ("4k", 4000), ("1.5M", 1_500_000), ("2G", 2 * 10**9), ("1T", 10**12),
        ("2Ki", 2048), ("3Mi", 3 << 20), ("1Gi", 1 << 30), ("1Ti", 1 << 40), ("0.001k", 1),
    ],
)  # fmt: skip
def test_numbers_with_suffixes(text, number):
    assert convert("human_readable_int", text) == number


@pytest.mark.parametrize(
    ("text", "why"), [("1.5Ki", "Decimals are not allowed"), ("k4", "invalid literal"), ("4K", "invalid literal"), ("4ki", "invalid literal"), ("1.5", "invalid literal")]
)  # fmt: skip
def test_numbers_with_suffixes_that_are_none(text, why):
    with pytest.raises(ValueError, match=why):
        convert("human_readable_int", text)


def test_negated_flags():
    options = read_options(Source(Tree.find(SLICES / "boundaries")))
    assert typed_launch("--no-enable-overlap --model-path m", options).get("enable-overlap") is False
    assert typed_launch("--enable-overlap --model-path m", options).get("enable-overlap") is True


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r", exclude_categories=["Cs", "Cc"]), min_size=1)


KEYWORDS = set("if then elif else fi for while until do done case esac select in { } ! time function".split())


@given(st.lists(WORDS.filter(lambda word: word not in KEYWORDS), min_size=1))
def test_quoted_words_come_back_whole(words):
    assert [command.words for command in split_commands(shlex.join(words), "here")] == [words]


@pytest.mark.parametrize("word", sorted(KEYWORDS))
def test_a_quoted_keyword_is_a_word(word):
    assert [command.words for command in split_commands(f"'{word}' a", "here")] == [[word, "a"]]


@settings(max_examples=300)
@given(st.text(alphabet="ab '\"\\$#;&|<>\n={}()`@[]-", max_size=60))
def test_any_text_is_split_or_refused(text):
    try:
        commands = split_commands(text, "here")
    except SpecwireError as error:
        assert "not closed" in str(error)
    else:
        assert all(command.words and all(isinstance(word, str) for word in command.words) for command in commands)
