"""A tree whose `launch_server` is a fake: everything but the engine itself is real, driver and command line included."""

import json
import os
import shutil
import time
import uuid
from pathlib import Path

import pytest


@pytest.fixture
def fake_tree(tmp_path):
    package = tmp_path / "fake" / "sglang"
    (package / "srt" / "models").mkdir(parents=True)
    for folder in (package, package / "srt", package / "srt" / "models"):
        (folder / "__init__.py").write_text("")
    (package / "srt" / "models" / "registry.py").write_text("")
    (package / "version.py").write_text('__version__ = "9.9"\n')
    shutil.copy(Path(__file__).with_name("fake_launch_server.py"), package / "launch_server.py")
    return package.parent


@pytest.fixture
def models(tmp_path):
    """A target and two drafts, as far as a command looks at them before it boots anything."""
    places = []
    for name in ("target", "draft", "other"):
        place = tmp_path / name
        place.mkdir()
        config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 8, "num_hidden_layers": 2}
        (place / "config.json").write_text(json.dumps(config))
        (place / "model.safetensors").write_bytes(name.encode())
        places.append(place)
    return places


@pytest.fixture(autouse=True)
def nothing_left_running(monkeypatch):
    """No test may leave a process behind: all of them inherit a mark of this test's own."""
    mark = f"SPECWIRE_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    yield
    for _ in range(20):
        if not (left := _processes_with(mark)):
            return
        time.sleep(0.1)
    raise AssertionError(f"left running: {left}")


def _processes_with(mark):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
