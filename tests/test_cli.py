"""What holds for every command: an example, a place in the README, and exit codes that no crash can fake."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from specwire.cli import specwire

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
CONTEXT = click.Context(specwire)
COMMANDS = specwire.list_commands(CONTEXT)


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from specwire.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_and_is_in_the_readme(name):
    assert "Example:" in specwire.get_command(CONTEXT, name).help
    assert f"`{name}`" in README


def test_the_contract_s_commands_are_all_there():
    named = "apply bench check gate golden preflight probes remove report run status strip sweep verify".split()
    assert not set(named) - set(COMMANDS)


@pytest.mark.parametrize("words", [("apply",), ("apply", "/nowhere"), ("no-such-command",), ("status", "--nonsense")])
def test_bad_usage_is_no_finding(words):
    done = run(*words)
    assert done.returncode == 2 and done.stderr and not done.stdout


def test_a_crash_is_no_finding():
    code = "import specwire.trees.tree, specwire.cli as c; specwire.trees.tree.Tree.find = lambda *a: 1 / 0; c.main(['status', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("words", ["--help", "probes --json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirection", "code"),
    [("| true", 141), (">/dev/full", 2), (">&-", 0), (">/dev/null 2>&-", 0)],
    ids=["nobody reads", "disk full", "stdout closed", "stderr closed"],
)
def test_output_that_cannot_be_written_is_no_finding(words, unbuffered, redirection, code):
    ours = f"sleep 0.1; {sys.executable} -c 'from specwire.cli import main; main()' {words}"
    done = subprocess.run(
        ["bash", "-c", f"({ours}; echo code $? >&3) 3>&2 {redirection}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert f"code {code}\n" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("probes",), ("status", "--help")])
def test_static_commands_load_neither_torch_nor_sglang_nor_libcst(words):
    code = (
        f"import sys\ntry:\n    from specwire.cli import main; main({list(words)!r})\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'sglang', 'libcst'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith("[]"), done.stderr
