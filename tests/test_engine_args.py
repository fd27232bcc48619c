"""`specwire engine-args`: what is typed for a server by hand is what `verify` starts."""

import json
import shlex
import subprocess
import sys

import pytest
from small_trees import make_tree

from specwire.engine.arguments import CPU_KERNELS, ON_CPU


@pytest.fixture
def ask(tmp_path):
    tree = make_tree(tmp_path / "tree")

    def call(*words):
        command = [sys.executable, "-m", "specwire", "engine-args", "--tree", str(tree.root), *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    call.root = tree.root
    return call


def test_environment_and_arguments_of_a_cpu_server(ask, tmp_path):
    said = json.loads(ask("--cpu", "--target", "T", "--draft", "D", "--tp", "2", "--port", "3456", "--json").stdout)
    assert said["device"] == "cpu" and said["argv"][:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert {f"--model-path={tmp_path / 'T'}", f"--speculative-draft-model-path={tmp_path / 'D'}"} < set(said["argv"])
    assert set(ON_CPU) < set(said["argv"]) and "--tp-size=2" in said["argv"]
    assert [flag for flag in said["argv"] if flag.startswith("--port")] == ["--port=3456"]
    assert said["env"]["PYTHONPATH"].split(":")[:2] == [str(CPU_KERNELS), str(ask.root)]
    assert len(said["env"]["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 2


def test_the_text_is_a_script_that_a_shell_takes_for_the_same(ask):
    words = ("--cpu", "--target", "a b", "--port", "3456")
    said = json.loads(ask(*words, "--json").stdout)
    lines = ask(*words).stdout.splitlines()
    exports = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
    assert exports == said["env"]
    command = "\n".join(line for line in lines if not line.startswith("export "))
    assert shlex.split(command.replace("\\\n", " ")) == said["argv"]


def test_without_a_draft_nothing_speculates(ask):
    assert "speculative" not in ask("--device", "cuda", "--target", "T").stdout


def test_what_is_no_tree_or_no_device_is_refused(ask):
    assert ask("--device", "tpu", "--target", "T").returncode == 2
    done = ask("--cpu", "--tree", "/nowhere", "--target", "T")
    assert done.returncode == 2 and "no SGLang source here" in done.stderr and not done.stdout
