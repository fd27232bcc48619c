"""Every file that is read goes through the one guarded reader, and no child runs code of the working directory."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_trees import make_tree

import specwire
from specwire.engine.run import resolve_device
from specwire.errors import SpecwireError
from specwire.preflight.interpreter.modules import Source
from specwire.regular import open_anew, read_bytes, read_json, read_source, read_text, written_whole
from specwire.trees.tree import Tree

SOURCE = Path(specwire.__file__).parent
# What runs in the engine's processes has nothing of specwire's at hand.
ELSEWHERE = ("runtime/", "engine/driver.py", "engine/plugin.py", "engine/segments.py", "engine/cpu/")
READS = frozenset("read_text read_bytes open safe_open mmap memmap fromfile".split())
STARTS = frozenset(
    "run Popen call check_call check_output getoutput system popen posix_spawn execv execve spawnv".split()
)


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(ELSEWHERE):
            yield name, ast.parse(path.read_text("utf-8"))


def called(node: ast.AST) -> tuple[str, str]:
    """(what a call is made on, the name called) of an expression."""
    if isinstance(node, ast.Name):
        return "", node.id
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value), node.attr
    return "", ""


def calls(names: frozenset[str]):
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (found := called(node.func))[1] in names:
                yield f"{module}:{node.lineno}", module, found[0], node


def test_nobody_else_opens_a_file():
    """A new reader belongs into `specwire.regular`: there pipes, devices and endless files are refused."""
    own = {"read_text", "read_bytes"}  # the guarded reader's own names, called as such
    found = [
        where
        for where, module, on, node in calls(READS)
        if module != "regular.py"
        and not (isinstance(node.func, ast.Name) and node.func.id in own)
        and "devnull" not in ast.unparse(node)
    ]
    assert found == []


def test_a_child_is_started_in_two_places_alone():
    """`interpreter` and `engine.process`, which are tested to look for no module in the working directory.

    What `environment` starts is nvidia-smi.
    """
    found = {
        module
        for where, module, on, node in calls(STARTS)
        if on in ("subprocess", "os", "multiprocessing") or called(node.func)[1] == "Popen"
    }
    assert found == {"interpreter.py", "engine/process.py", "environment.py"}


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """A working directory whose modules leave a mark when they are run."""
    mark = tmp_path / "RAN"
    (tmp_path / "here").mkdir()
    for name in ("torch", "json", "subprocess", "importlib", "sglang", "click", "sitecustomize", "multiprocessing"):
        trap = tmp_path / "here" / f"{name}.py"
        trap.write_text(f"open({str(mark)!r}, 'a').write({name!r})\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield tmp_path / "here"
    assert not mark.exists(), mark.read_text()


def test_the_device_is_not_asked_of_the_working_directory(trapped):
    assert resolve_device.__wrapped__("auto", sys.executable) in ("cpu", "cuda")


def test_the_installed_tree_is_not_asked_of_the_working_directory(trapped):
    assert Tree.find("installed").root != trapped


def test_the_engine_and_what_it_starts_find_nothing_in_the_working_directory(trapped):
    """As `start` has it: also an interpreter that the engine starts in turn, as multiprocessing does."""
    from specwire.engine.arguments import environment
    from specwire.engine.process import kill_all, start

    child = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import multiprocessing, json, torch']).returncode)"
    (trapped.parent / "driver.py").write_text(child)
    env = environment(trapped.parent, ranks=1, device="cuda", extra={})
    with open_anew(trapped.parent / "log") as log:
        driver, run_id = start([sys.executable, str(trapped.parent / "driver.py")], env, log, trapped)
        code = driver.wait()
        kill_all(driver, run_id)
    assert code == 0, (trapped.parent / "log").read_text()


@pytest.mark.parametrize("arguments", [["--help"], ["probes"], ["status", "installed"], ["env"]], ids=" ".join)
def test_commands_find_nothing_in_the_working_directory(trapped, arguments):
    command = Path(sys.executable).with_name("specwire")
    for start in ([command], [sys.executable, "-m", "specwire"]):
        done = subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop", "long", "sparse", "nothing"])
@pytest.mark.parametrize("read", [read_bytes, read_text, read_json, read_source])
def test_what_is_no_file_of_a_sane_size_is_an_error_at_once(tmp_path, kind, read):
    place = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "directory":
        place.mkdir()
    elif kind == "loop":
        place.symlink_to("x")
    elif kind == "long":
        place = tmp_path / ("n" * 300)
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(16 << 30)
    with pytest.raises(OSError):
        read(place)


def test_a_document_that_is_nested_too_deeply_is_no_json(tmp_path):
    (tmp_path / "x").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="deep"):
        read_json(tmp_path / "x")


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640), (0o002, 0o664)])
def test_a_written_file_keeps_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        with written_whole(tmp_path / "x") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode


def test_a_log_is_never_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with open_anew(tmp_path / "log") as file:
        file.write(b"x")
    assert (tmp_path / "victim").read_bytes() == b"precious" and (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_file_in_a_module_s_place_is_said_and_is_not_taken_for_none(tmp_path, make):
    """A rule that is read without it would name a cause, certain, of a class that nobody has looked for."""
    tree = make_tree(tmp_path)
    make(tree.path("sglang/srt/models/odd.py"))
    tree.path("sglang/srt/models/.#target.py").symlink_to("somebody@somewhere.1234")  # as editors lock a file
    assert "sglang/srt/models/odd.py" in tree.python_files()
    assert not any(".#" in name for name in tree.python_files())
    with pytest.raises(OSError, match="no regular file"):
        Source(tree).model_class(["Target"])
    with pytest.raises(SpecwireError, match="odd.py: cannot be read"):
        Source(tree).module("sglang/srt/models/odd.py")
    assert Source(tree).module("sglang/srt/models/absent.py") is None
