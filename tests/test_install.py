"""The way that the README shows, in an environment that knows nothing of this checkout, on each Python that is here.

specwire comes as a wheel into an environment that has SGLang: where the interpreter's own environment has the engine's
pins, on top of these, and a server is started by hand; where it has none, SGLang is there as source alone, for the
commands that start nothing. `SPECWIRE_PYTHONS` names further interpreters.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from pythons import folder_of, python, said
from releases import ROOT, release_tree

VERSIONS = ("3.11", "3.12", "3.13")
GOLDEN = ROOT / "golden" / "llama" / "float32.safetensors"
LOG = ROOT / "fixtures" / "captures" / "llama-0.5.23" / "server.log"
LAUNCH = "python -m sglang.launch_server --model-path {0}/target --speculative-algorithm EAGLE3 --speculative-draft-model-path {0}/draft"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """As it would be published, built in a copy: setuptools leaves things behind."""
    copy, out = tmp_path_factory.mktemp("copy") / "specwire", tmp_path_factory.mktemp("wheel")
    unneeded = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "fixtures", "golden")
    shutil.copytree(ROOT, copy, ignore=unneeded)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, f"--wheel-dir={out}", str(copy)], check=True, capture_output=True)
    return next(out.glob("specwire-*.whl"))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make = [sys.executable, str(ROOT / "fixtures" / "make.py"), "llama", str(folder), "--dtype", "float32"]
    subprocess.run(make, check=True, capture_output=True)
    return folder


@pytest.fixture
def environment(version, wheel, tmp_path):
    """A function that makes an environment with SGLang and installs specwire there as a user would."""
    exe = python(version)
    if exe is None:
        pytest.skip(f"no Python {version}: none on PATH, and SPECWIRE_PYTHONS names none")

    def made(engine: bool) -> Environment:
        if engine and (folder_of(exe, "sglang") is None or folder_of(exe, "torch") is None):
            pytest.skip(
                f"{exe} has no SGLang: an environment with requirements/engine-cpu.txt goes into SPECWIRE_PYTHONS"
            )
        subprocess.run([exe, "-m", "venv", str(tmp_path / "env")], check=True)
        place = Environment(tmp_path / "env", tmp_path)
        place.bring(folder_of(exe, "sglang") if engine else release_tree("0.5.23"))
        if engine:  # its pins as they are, behind what is installed here
            (place.packages / "pins.pth").write_text(f"{folder_of(exe, 'torch')}\n")
        place.ran("pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        return place

    return made


class Environment:
    """`home`: a virtual environment; commands run in the folder `cwd`, with nothing of this process' own in sight."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.home, self.cwd = home, cwd
        self.exe = str(home / "bin" / "python")
        self.packages = Path(said(self.exe, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        self.tree = self.packages / "sglang"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL", "EAGLE3"))
        }
        self.env = {**kept, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONNOUSERSITE": "1"}

    def bring(self, source: Path) -> None:
        """SGLang from other site-packages: its files under second names, which is safe, since files are replaced whole."""
        for found in (source / "sglang", *source.glob("sglang-*.dist-info")):
            shutil.copytree(found, self.packages / found.name, copy_function=_linked)

    def ran(self, *words: object, code: int = 0) -> str:
        """What a program of the environment prints, once it has ended so."""
        command = [str(self.home / "bin" / str(words[0])), *map(str, words[1:])]
        done = subprocess.run(command, cwd=self.cwd, env=self.env, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, f"{shlex.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def files(self) -> dict[str, str]:
        """SHA-256 of each file of the tree, but for what Python compiles."""
        found = (path for path in self.tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(self.tree)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_installed_beside_sglang_s_source(environment, models):
    """All that reads and writes source, without torch; what needs torch says so in a sentence, with what to type."""
    place = environment(engine=False)
    assert place.ran("specwire", "--version").startswith("specwire")
    assert "torch" in place.ran("python", "-m", "specwire", "env")
    target = ("--target", models / "target")
    launch = ("--draft", models / "draft", "--golden", GOLDEN, "--launch", LAUNCH.format(models))
    document = json.loads(place.ran("specwire", "preflight", *target, *launch, "--json"))
    assert (document["verdict"], document["captured_boundaries"]) == ("ok", [2, 4, 6])
    before = place.files()
    place.ran("specwire", "apply", "installed", *target)
    assert "partial" not in place.ran("specwire", "status", "installed")
    place.ran("specwire", "gate", "installed", code=1)
    assert place.ran("specwire", "remove", "installed").endswith("Ready for production restart.\n")
    place.ran("specwire", "gate", "installed", "--pristine")
    assert place.files() == before
    for words in (("check", "--golden", GOLDEN, "--log", LOG), ("verify", "installed", *target, *launch[:4])):
        done = subprocess.run([place.home / "bin" / "specwire", *words], env=place.env, capture_output=True, text=True)
        assert done.returncode in ((0, 2) if words[0] == "check" else (2,))
        assert "Traceback" not in done.stderr and (not done.returncode or "pip install" in done.stderr), done.stderr


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_is_started_by_hand(environment, models, version):
    """Into the engine's environment, whose packages stay; then the README's lines one after the other."""
    place = environment(engine=True)
    pins = "from importlib.metadata import version as v; print(v('torch'), v('transformers'), v('numpy'), v('sglang'))"
    assert said(place.exe, pins) == said(python(version), pins) != ""
    fixture = ("--target", models / "target", "--draft", models / "draft")
    place.ran("specwire", "preflight", *fixture, "--golden", GOLDEN, "--launch", LAUNCH.format(models))
    before = place.files()
    place.ran("specwire", "apply", "installed", "--target", models / "target")
    ids = json.loads(place.ran("specwire", "golden", "show", GOLDEN, "--tokens").splitlines()[0])
    script = place.ran("specwire", "engine-args", "--cpu", *fixture, "--port", port := _free_port())
    (place.cwd / "serve.sh").write_text(script)
    with _server(place, port):
        answers = _post(port, {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "temperature": 0}})
        assert [len(each["output_ids"]) for each in answers] == [2] * len(ids)
    said_so = place.ran("specwire", "check", "--golden", GOLDEN, "--capture", place.cwd / "capture")
    assert said_so.startswith("MATCH")
    place.ran("specwire", "check", "--golden", GOLDEN, "--log", place.cwd / "server.log")
    assert place.ran("specwire", "remove", "installed").endswith("Ready for production restart.\n")
    place.ran("specwire", "gate", "installed", "--pristine")
    assert place.files() == before


@pytest.mark.slow
def test_a_tap_of_python_3_10_writes_what_is_read_here(tmp_path):
    """Where SGLang's own image has Python 3.10, the tap file runs there, and specwire beside it."""
    from safetensors import safe_open

    exe = python("3.10")
    if exe is None or folder_of(exe, "torch") is None:
        pytest.skip("no Python 3.10 with torch: none on PATH, and SPECWIRE_PYTHONS names none")
    code = "import torch, _specwire as s; x = torch.arange(8.).view(2, 4); s.draft_input(None, x, x, input_ids=torch.arange(2))"
    env = {**os.environ, "EAGLE3_DEBUG": "1", "EAGLE3_CAPTURE_DIR": str(tmp_path / "capture")}
    env["PYTHONPATH"] = str(ROOT / "src" / "specwire" / "runtime")
    done = subprocess.run([exe, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "site=draft-input" in done.stderr and "shape=[2, 4]" in done.stderr, done.stderr
    (file,) = (tmp_path / "capture" / "rank0").glob("*.safetensors")
    with safe_open(file, "np") as held:
        assert any(held.get_tensor(name).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] for name in held.keys())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _server:
    """`sh serve.sh` with the taps on, until it answers; its end is waited for."""

    def __init__(self, place: Environment, port: int) -> None:
        self.place, self.port = place, port

    def __enter__(self) -> None:
        env = {**self.place.env, "EAGLE3_DEBUG": "1", "EAGLE3_CAPTURE_DIR": str(self.place.cwd / "capture")}
        self.log = open(self.place.cwd / "server.log", "wb")
        self.process = subprocess.Popen(
            ["sh", "-c", "exec 2>&1; . ./serve.sh"],
            cwd=self.place.cwd,
            env=env,
            stdout=self.log,
            start_new_session=True,
        )
        until = time.monotonic() + 900
        while not _answers(self.port):
            assert self.process.poll() is None and time.monotonic() < until, Path(self.log.name).read_text()[-3000:]
            time.sleep(0.5)

    def __exit__(self, *error: object) -> None:
        """The shell ends at once, the engine and its ranks later: specwire rightly refuses to touch a tree that runs."""
        shell = psutil.Process(self.process.pid)
        family = [shell, *shell.children(recursive=True)]
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            _gone, left = psutil.wait_procs(family, 120)
            for process in left:
                process.kill()
            psutil.wait_procs(left, 30)
        finally:
            self.process.wait(30)
            self.log.close()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _post(port: int, body: dict) -> list[dict]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)
