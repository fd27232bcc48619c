"""`[tool.specwire.COMMAND]` in pyproject.toml: defaults for what would be typed each time, and nothing that runs."""

import subprocess
import sys

import pytest

LEFT = "def forward(self, x):\n    breakpoint()\n    return x\n"


@pytest.fixture
def run(tmp_path):
    place = tmp_path / "project"
    (place / "below").mkdir(parents=True)
    (place / "below" / "model.py").write_text(LEFT)

    def call(toml, *words, folder="below"):
        (place / "pyproject.toml").write_text(toml)
        command = [sys.executable, "-m", "specwire", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, cwd=place / folder)

    call.place = place
    return call


def test_a_default_is_taken_from_the_nearest_file_upwards(run):
    plain, json = run("", "gate", "."), run('[tool.specwire.gate]\nformat = "json"\n', "gate", ".")
    assert plain.returncode == json.returncode == 1
    assert json.stdout.startswith("{") and not plain.stdout.startswith("{")


def test_what_is_typed_overrules_it(run):
    typed = run('[tool.specwire.gate]\nformat = "json"\n', "gate", ".", "--format", "text")
    assert typed.returncode == 1 and not typed.stdout.startswith("{")


def test_another_command_s_table_changes_nothing(run):
    done = run('[tool.specwire.verify]\ntp = 8\n[tool.specwire.golden.build]\ndtype = "float32"\n', "gate", ".")
    assert done.returncode == 1 and not done.stdout.startswith("{")


@pytest.mark.parametrize(
    "toml, why",
    [
        ("[tool.specwire.gaet]\nformat = 'json'\n", "is for no command"),
        ("[tool.specwire.gate]\nfromat = 'json'\n", "'fromat' is no option of `specwire gate`"),
        ("[tool.specwire.gate]\nformat = ['json']\n", "takes one value"),
        ("[tool.specwire.gate]\npristine = 'yes'\n", "takes true or false"),
        ("[tool.specwire.gate]\npython = './evil'\n", "--python is never taken from a file"),
        ("[tool.specwire.sweep]\nenv = ['LD_PRELOAD=x']\n", None),
        ("[tool.specwire]\ngate = 3\n", "is no table"),
        ("[tool.specwire.gate\n", "cannot be read for [tool.specwire]"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(run, toml, why):
    if why is None:  # of another command: refused there
        assert run(toml, "gate", ".").returncode == 1
        done, why = run(toml, "sweep", "tree"), "--env is never taken from a file"
    else:
        done = run(toml, "gate", ".")
    assert done.returncode == 2 and why in done.stderr and "pyproject.toml" in done.stderr and not done.stdout


def test_a_file_never_forces(run):
    done = run("[tool.specwire.apply]\nforce = true\n", "apply", "tree")
    assert done.returncode == 2 and "--force is never taken from a file" in done.stderr


def test_the_search_ends_with_the_repository(run):
    (run.place / "below" / ".git").mkdir()
    assert not run('[tool.specwire.gate]\nformat = "json"\n', "gate", ".").stdout.startswith("{")


def test_help_and_version_need_no_file_that_can_be_read(run):
    assert run("[tool.specwire.gate\n", "--version").returncode == 0
