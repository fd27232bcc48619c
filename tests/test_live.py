"""The guard: real processes that run from a tree, or only look like it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from small_trees import DEBUG, applied, make_tree, snapshot

from specwire import cli
from specwire.patching import surgery
from specwire.patching.overlay import make_overlay
from specwire.trees.live import LiveServer, look, refuse_if_live

SERVER = b"import sys\nprint('up', flush=True)\nsys.stdin.read()\n"
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
PYTHON = os.path.realpath(sys.executable)  # not that of the environment that the tests run in


@pytest.fixture
def tree(tmp_path):
    return served(make_tree(tmp_path / "tree"))


def served(tree):
    tree.path("sglang/launch_server.py").write_bytes(SERVER)
    return tree


@contextlib.contextmanager
def running(*command, cwd="/", executable=None, ends=False, **environ):
    """A child process, once it has said that it is up; it must be there still when we are done with it."""
    child = subprocess.Popen(
        [str(word) for word in command],
        executable=executable,
        cwd=cwd,
        env={**CLEAN, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "up\n"
        yield child
        assert ends or child.poll() is None, "the guard has ended a process"
    finally:
        child.kill()
        child.communicate()


def pids(tree):
    return [each.pid for each in look(tree.root)[0]]


def module(**how):
    return running(PYTHON, "-m", "sglang.launch_server", "--model-path", "x", **how)


def test_nobody(tree):
    assert pids(tree) == []


def test_module_from_its_directory(tree):
    with module(cwd=tree.root) as server:
        (live,) = look(tree.root)[0]
        assert live.pid == server.pid and "sglang.launch_server --model-path x" in live.command


def test_module_by_search_path(tree, tmp_path):
    other = served(make_tree(tmp_path / "other"))
    for path in (str(tree.root), f"/nowhere:{tree.root}:{other.root}", "tree"):
        with module(cwd=tmp_path, PYTHONPATH=path) as server:
            assert pids(tree) == [server.pid]
            assert pids(other) == []


def test_options_before_the_module(tree):
    with running(
        PYTHON, "-u", "-X", "dev", "-Wignore", "-Bm", "sglang.launch_server", PYTHONPATH=str(tree.root)
    ) as server:
        assert pids(tree) == [server.pid]


def test_script_that_imports_it(tree, tmp_path):
    for name, text in (
        ("sglang", b"#!x\nimport sys\nfrom sglang import version\n"),
        ("mine.py", b"import os\ndef f():\n    import sglang\nf()\n"),
    ):
        (tmp_path / name).write_bytes(text + SERVER)
        with running(PYTHON, name, cwd=tmp_path, PYTHONPATH=str(tree.root)) as server:
            assert pids(tree) == [server.pid]


def test_code_on_the_command_line(tree):
    with running(PYTHON, "-c", "import sys; import sglang\n" + SERVER.decode(), cwd=tree.root) as server:
        assert pids(tree) == [server.pid]


def test_environment_of_its_own(tree, tmp_path):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    python = tmp_path / "env" / "bin" / "python"
    (site / "__editable__.sglang-1.pth").write_text(f"{tree.root}\n")
    with running(python, "-m", "sglang.launch_server") as server:
        assert pids(tree) == [server.pid]
    # An editable install by a finder; that the import works is not what is tested, so the path makes it.
    (site / "__editable__.sglang-1.pth").write_text(
        "import __editable___sglang_1_finder; __editable___sglang_1_finder.install()\n"
    )
    mapping = {"sglang": str(tree.package)}
    finder = f"import sys\nMAPPING = {mapping}\ndef install(): sys.path.append({str(tree.root)!r})\n"
    (site / "__editable___sglang_1_finder.py").write_text(finder)
    with running(python, "-m", "sglang.launch_server") as server:
        assert pids(tree) == [server.pid]
    for path in site.glob("__editable__*"):
        path.unlink()
    installed = served(make_tree(site))
    with running(
        "python", "-m", "sglang.launch_server", executable=str(python), PATH=f"{python.parent}:/usr/bin"
    ) as server:
        assert pids(installed) == [server.pid] and pids(tree) == []


RENAMED = """
import sys, setproctitle
import sglang.version
setproctitle.setproctitle("sglang::scheduler_TP0")
print("up", flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE)
sys.stdin.read()
"""


def test_renamed_worker_and_its_parent(tree, tmp_path):
    """A renamed worker has lost its arguments and environment; its parent may show nothing."""
    (tmp_path / "worker.py").write_text(RENAMED)
    (tmp_path / "parent.py").write_text(PARENT)
    with running(sys.executable, tmp_path / "parent.py", tmp_path / "worker.py", PYTHONPATH=str(tree.root)) as parent:
        found, _ = look(tree.root)
        assert [each.pid for each in found][0] == parent.pid and len(found) == 2
        assert found[1].command == "sglang::scheduler_TP0"
        assert PYTHON not in found[1].command


def test_view_and_the_tree_behind_it(tree, tmp_path):
    view = make_overlay(surgery.plan_apply(tree, DEBUG), tmp_path / "view")
    with module(PYTHONPATH=str(view)) as server:
        assert pids(tree) == [server.pid] == [each.pid for each in look(view)[0]]


def test_open_file(tree):
    tree.path("sglang/data.json").write_bytes(b"{}")
    code = "import sys; file = open(sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    with running(PYTHON, "-c", code, tree.path("sglang/data.json")) as server:
        (live,) = look(tree.root)[0]
        assert live.pid == server.pid and "data.json" in live.evidence


def test_who_does_not_count(tree, tmp_path):
    other = served(make_tree(tmp_path / "other"))
    with contextlib.ExitStack() as stack:
        wait = "print('up', flush=True); import sys; sys.stdin.read()"
        stack.enter_context(module(cwd=other.root, PYTHONPATH=str(tree.root)))  # the other one comes first
        stack.enter_context(module(PYTHONPATH=f"{other.root}:{tree.root}"))
        stack.enter_context(running(PYTHON, "-c", wait, cwd=tree.root, PYTHONPATH=str(tree.root)))
        stack.enter_context(running(PYTHON, "-c", wait, "-m", "not.sglang", cwd=tree.package))
        stack.enter_context(running("sh", "-c", "echo up; read x; : python -m sglang.launch_server", cwd=tree.package))
        assert pids(tree) == []
        assert len(pids(other)) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_processes_of_others_are_noted():
    with tempfile.TemporaryDirectory(prefix="specwire-") as name:
        Path(name).chmod(0o755)
        tree = served(make_tree(Path(name) / "tree"))
        with module(PYTHONPATH=str(tree.root)) as server:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.setgid(65534)
                os.setuid(65534)
                notes = []
                try:
                    refuse_if_live(tree.root, False, 0, notes.append)
                finally:
                    os.write(writing, json.dumps([notes, look(tree.root)]).encode())
                    os._exit(0)
            os.close(writing)
            os.waitpid(child, 0)
            with os.fdopen(reading) as pipe:
                notes, (found, unreadable) = json.loads(pipe.read())
    assert found == [] and server.pid in unreadable
    assert "cannot be looked into" in notes[0] and "unknown" in notes[0]


# --- what the commands make of it ---------------------------------------------------------------------


def command(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code


def test_apply_and_remove_refuse(tree, capfd):
    clean = snapshot(tree.root)
    with module(PYTHONPATH=str(tree.root)) as server:
        assert command("apply", tree.root, "--json") == 2
        document = json.loads(capfd.readouterr().out)
        assert (document["result"], document["files"]) == (
            "refused",
            {},
        ) and f"process {server.pid}" in document["why"]
        assert command("apply", tree.root) == 2
        out = capfd.readouterr().out
        assert (
            f"process {server.pid} (" in out
            and "sglang.launch_server" in out
            and "Nothing was written." in out
            and "[applied]" not in out
        )
        assert command("apply", tree.root, "--dry-run") == 0 and command("apply", tree.root, "--diff") == 0
        shutil.rmtree(tree.path("sglang/__pycache__"), ignore_errors=True)
        assert snapshot(tree.root) == clean
        assert command("apply", tree.root, "--force") == 0
        assert f"going on although process {server.pid}" in capfd.readouterr().err
        tapped = snapshot(tree.root)
        assert command("remove", tree.root) == 2 and command("apply", tree.root) == 0  # it is there already
        assert "[DONE]" not in capfd.readouterr().out
        assert snapshot(tree.root) == tapped != clean
        assert command("remove", tree.root, "--force") == 0
        assert snapshot(tree.root) == clean


def test_overlay_needs_no_guard(tree, tmp_path):
    with module(PYTHONPATH=str(tree.root)):
        assert command("apply", tree.root, "--overlay", tmp_path / "view") == 0


def test_wait(tree, capfd):
    with module(PYTHONPATH=str(tree.root), ends=True) as server:
        began = time.monotonic()
        assert command("apply", tree.root, "--wait", "0.6") == 2
        assert time.monotonic() - began >= 0.6
        assert f"for the end of process {server.pid}" in capfd.readouterr().err and server.poll() is None
        threading.Timer(0.3, server.communicate).start()
        assert command("apply", tree.root, "--wait", "60") == 0
        assert server.poll() is not None
    assert surgery.status(tree).result == "applied"


def test_error_names_all(tree):
    applied(tree)
    with module(PYTHONPATH=str(tree.root)) as one, module(cwd=tree.root) as two:
        with pytest.raises(LiveServer) as refused:
            refuse_if_live(tree.root, False, 0.0, print)
    assert sorted(each.pid for each in refused.value.processes) == sorted([one.pid, two.pid])
    assert str(one.pid) in str(refused.value) and str(two.pid) in str(refused.value) and "--wait" in str(refused.value)
