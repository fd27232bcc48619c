"""After a signal, whichever: no process, no shared memory, no temporary directory; and after a kill -9 the next run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_trees import FILES, make_tree

from specwire.engine.segments import processes_of
from specwire.regular import make_private

# What stands in for an engine: it maps shared memory, starts processes of its own, one in another session, and waits.
ENGINE = b"""
import mmap, os, subprocess, sys, tempfile, time
segment = open("/dev/shm/sglang_loads_" + os.environ["SPECWIRE_TEST"], "w+b")
segment.truncate(64)
held = mmap.mmap(segment.fileno(), 64)
for apart in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=apart)
tempfile.NamedTemporaryFile(delete=False)
print("Init torch distributed begin", os.environ["SPECWIRE_RUN_ID"], flush=True)
time.sleep(100)
"""
CONFIG = {"architectures": ["A"], "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 8}

SEGMENTS = Path(__file__).parents[2] / "src" / "specwire" / "engine" / "segments.py"


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_tree(folder / "tree", {**FILES, "sglang/__init__.py": ENGINE})
        for role in ("target", "draft"):
            (folder / role).mkdir()
            (folder / role / "config.json").write_text(json.dumps(CONFIG))
            (folder / role / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (folder / "tmp").mkdir()
        self.segment = Path(f"/dev/shm/sglang_loads_{folder.name}")
        self.run_id = ""

    def start(self, command: str, *more: str) -> subprocess.Popen:
        """A command, once its engine stands."""
        words = [command, str(self.folder / "tree"), "--target", str(self.folder / "target")]
        words += ["--draft", str(self.folder / "draft"), "--device", "cuda", *more]
        env = {**os.environ, "TMPDIR": str(self.folder / "tmp"), "SPECWIRE_TEST": self.folder.name}
        started = subprocess.Popen(
            [sys.executable, "-m", "specwire", *words],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored below nohup
        )
        until = time.monotonic() + 60
        while not self.run_id:
            assert started.poll() is None, started.stderr.read()
            assert time.monotonic() < until
            words = [word for log in self.logs() for word in log.read_text().split()]
            self.run_id = next((word for word in words if len(word) == 32 and word.isalnum()), "")
            time.sleep(0.05)
        assert len(processes_of(self.run_id)) == 3 and self.segment.exists()
        return started

    def logs(self) -> list[Path]:
        """The engine's log, once it is there; what goes while we look (a view being made) is passed over."""
        names = ("engine.log", "server.log")
        return [Path(place, name) for place, _, files in os.walk(self.folder) for name in files if name in names]

    def left(self) -> list[str]:
        return sorted(os.listdir(self.folder / "tmp"))


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    for pid in processes_of(made.run_id) if made.run_id else ():
        os.kill(pid, signal.SIGKILL)
    made.segment.unlink(missing_ok=True)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, *(pytest.param(each, marks=SLOW) for each in (2, 1))])
@pytest.mark.parametrize(
    "command", ["verify", *(pytest.param(each, marks=SLOW) for each in ("bench", "run --out", "verify --out"))]
)
def test_nothing_is_left(scene, number, command):
    name, *out = command.split()
    more = ["--out", str(scene.folder / "out")] if out else []
    more += ["--prompt-length", "4", "--no-profile"] if name == "bench" else []
    started = scene.start(name, *more)
    started.send_signal(number)
    error = started.communicate(timeout=30)[1]
    assert started.returncode == 128 + number and "Traceback" not in error and "stopped" in error
    assert processes_of(scene.run_id) == [] and not scene.segment.exists() and scene.left() == []
    if out:
        assert f"kept in {scene.folder / 'out'}" in error
        modes = {path.stat().st_mode & 0o77 for path in (scene.folder / "out", scene.folder / "out" / "capture")}
        assert modes == {0} and (scene.folder / "out" / "engine.log").stat().st_mode & 0o77 == 0


@pytest.mark.slow
def test_a_second_signal_does_not_stop_the_putting_away(scene):
    started = scene.start("verify")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        started.send_signal(number)
        time.sleep(0.01)
    started.communicate(timeout=30)
    assert started.returncode in (130, 143)  # the system hands on the lower number first
    assert processes_of(scene.run_id) == [] and not scene.segment.exists() and scene.left() == []


@pytest.mark.parametrize("driver", [False, pytest.param(True, marks=SLOW)], ids=["alone", "driver too"])
def test_the_next_run_sweeps_up_what_a_kill_left(scene, driver, monkeypatch):
    from specwire.engine import temporary

    started = scene.start("verify")
    time.sleep(1)  # by then the segments are written down
    if driver:
        everybody = processes_of(scene.run_id)
        started.kill()
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
    started.kill()
    started.communicate(timeout=30)
    until = time.monotonic() + 10
    while processes_of(scene.run_id) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(scene.run_id) == []
    assert driver or not scene.segment.exists()  # the driver, which hears of the end, puts that away
    assert len(scene.left()) == 2
    for name in ("specwire-mine", "specwire-kept"):
        (scene.folder / "tmp" / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scene.folder / "tmp"))
    made = temporary.make()
    assert scene.left() == sorted(["specwire-kept", "specwire-mine", made.name]) and not scene.segment.exists()
    temporary.keep(made)
    temporary.sweep()
    assert made.exists()


def test_what_a_living_run_has_is_not_swept_up(tmp_path, monkeypatch):
    from specwire.engine import temporary

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = temporary.make("x" * 32)
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}; from specwire.engine import temporary; temporary.sweep()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert made.exists()
    temporary.discard(made)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "foreign segment"])
def test_a_sweep_follows_nothing(tmp_path, monkeypatch, kind):
    from specwire.engine import temporary

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / ".running").write_bytes(b"")
    place = tmp_path / "tmp" / "specwire-abc"
    make_private(place)
    if kind == "link":
        place.rmdir()
        place.symlink_to(tmp_path / "precious")
    elif kind == "pipe":
        os.mkfifo(place / ".running")
    else:
        (place / ".running").write_bytes(b"")
        (place / ".segments").write_text(f"{tmp_path}/precious/.running\n/dev/shm/../..{tmp_path}/precious/.running")
    temporary.sweep()
    assert (tmp_path / "precious" / ".running").exists()


def test_what_a_fork_maps_is_its_parent_s(tmp_path):
    """A fork shows the environment that its first parent began with, so that no run's id tells of it."""
    name = f"/dev/shm/sglang_loads_specwire_test_{os.getpid()}"
    code = f"""
import mmap, os, signal, sys, time
sys.path.insert(0, {str(SEGMENTS.parent)!r})
import segments
child = os.fork()
if not child:
    file = open({name!r}, "w+b"); file.write(b"x" * 4096); file.flush()
    held = mmap.mmap(file.fileno(), 4096)
    time.sleep(60)
while segments.segments_of("", [child]) == []:
    time.sleep(0.05)
segments.release("", but=os.getpid())
os.kill(child, signal.SIGKILL)
"""
    try:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        assert not os.path.exists(name)
    finally:
        Path(name).unlink(missing_ok=True)
