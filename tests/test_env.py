"""`specwire env`, and what a command says when a package that it needs is not there."""

import json
import subprocess
import sys
import venv
from importlib import metadata

import pytest
from small_trees import make_tree

from specwire import __version__, environment, needs
from specwire.errors import SpecwireError


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python with nothing but its standard library."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False)
    return str(place / "bin" / "python")


def test_versions_are_the_installed_ones():
    found = environment.look()
    assert found.specwire == __version__ and found.packages["click"] == metadata.version("click")
    assert found.cores >= 1 and found.memory > 0
    assert found.devices or found.devices_unknown


def test_another_environment_is_looked_at_without_specwire_in_it(bare_python):
    found = environment.look(bare_python)
    assert found.packages["torch"] is None and found.packages["click"] is None
    assert found.executable == bare_python
    assert "pip install 'specwire[check]'" in found.missing["torch"]


def test_a_python_that_cannot_be_run_is_a_sentence():
    with pytest.raises(SpecwireError, match="Name a Python"):
        environment.look("/nowhere/python")


def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch):
    monkeypatch.setitem(needs.EXTRAS, "no_such_package", ("check", ("check",)))
    with pytest.raises(SpecwireError, match=r"needs no_such_package.*pip install 'specwire\[check\]'"):
        needs.require("click", "no_such_package")
    needs.require("click")


def test_verify_asks_for_torch_before_anything_else(tmp_path):
    (tmp_path / "site").mkdir()
    hide = "import sys; sys.modules['torch'] = None\nfrom specwire.cli import main\nmain()"
    words = ["verify", "/nowhere", "--target", "T", "--draft", "D"]
    done = subprocess.run([sys.executable, "-c", hide, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "needs torch" in done.stderr and "Traceback" not in done.stderr


def test_a_package_missed_in_the_middle_is_no_bug_of_specwire():
    hide = (
        "import sys; sys.modules['torch'] = None\nfrom specwire import cli\n"
        "cli.specwire.main = lambda *a, **k: __import__('torch')\ncli.main([])"
    )
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'specwire[check]'" in done.stderr and "bug" not in done.stderr


def test_json_is_one_object():
    done = subprocess.run([sys.executable, "-m", "specwire", "env", "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout)["schema"] == "specwire.env/1"


@pytest.fixture
def without_posix_locks(tmp_path):
    """specwire as on a system that has no fcntl, beside a small tree."""
    make_tree(tmp_path)
    (tmp_path / "left.py").write_text("def f(x):\n    print('[EAGLE3-DEBUG]', x)\n    return x\n")

    def call(words):
        hide = "import sys; sys.modules['fcntl'] = None\nfrom specwire.cli import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", hide, *words.split()], capture_output=True, text=True, cwd=tmp_path
        )

    return call


@pytest.mark.parametrize(
    "words, code",
    [("gate sglang", 0), ("gate left.py", 1), ("explain norm", 0), ("--help", 0), ("probes", 0), ("preflight -h", 0)],
)
def test_what_only_reads_works_without_the_locks_of_posix(words, code, without_posix_locks):
    done = without_posix_locks(words)
    assert done.returncode == code and "lock" not in done.stderr, done.stderr


@pytest.mark.parametrize("words", ["apply .", "remove .", "strip left.py"])
def test_what_changes_files_says_in_a_sentence_what_this_system_lacks(words, without_posix_locks):
    done = without_posix_locks(words)
    assert done.returncode == 2 and "use Linux, macOS or WSL" in done.stderr and "Traceback" not in done.stderr
