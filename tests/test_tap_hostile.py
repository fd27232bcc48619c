"""The tap file where it is least welcome: no stderr, no disk, another's directory, odd types, a second process."""

from __future__ import annotations

import ast
import gc
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode

from specwire.capture import open_capture
from specwire.errors import SpecwireError

RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
SETTINGS = [
    "DEBUG_RANKS",
    "CAPTURE_BOUNDARIES",
    "DEBUG_STEPS",
    "CAPTURE_LIMIT",
    "GRAPH_MEMORY",
    "GRAPH_ROWS",
    "PROFILE_CYCLES",
]
VARIABLES = ("DEBUG", "CAPTURE_DIR", "PROFILE", *SETTINGS)
IDS = torch.arange(4)


@pytest.fixture
def load(monkeypatch):
    """`load(CAPTURE_DIR=…)`: a tap file of its own, as a new process has it."""

    def loaded(**settings):
        for name in VARIABLES:
            monkeypatch.delenv(f"EAGLE3_{name}", raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(f"EAGLE3_{name}", str(value))
        spec = importlib.util.spec_from_file_location("_specwire_hostile", RUNTIME)
        runtime = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runtime)
        return runtime

    return loaded


def blind(folder):
    path = folder / "rank0" / "blind.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def files(folder):
    return sorted(path.name for path in (folder / "rank0").iterdir() if path.suffix == ".safetensors")


class _Raising(io.StringIO):
    def write(self, text):
        raise RuntimeError("the log shipper is gone")


class _Closed(io.StringIO):
    def __init__(self):
        super().__init__()
        self.close()


@pytest.mark.parametrize("stderr", [None, _Raising(), _Closed(), object()], ids=["none", "raising", "closed", "object"])
def test_no_stderr_stops_nothing(load, monkeypatch, tmp_path, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    runtime = load(DEBUG="1", CAPTURE_DIR=tmp_path / "out", DEBUG_RANKS="not a number")
    runtime.draft_input(None, torch.ones(4, 6), torch.ones(4, 2), input_ids=IDS)
    runtime.embedding(None, object(), input_ids=IDS)
    runtime._lost(ValueError("a cycle"))
    monkeypatch.undo()
    assert len(files(tmp_path / "out")) == 1


def test_a_link_where_a_file_goes_is_not_followed(load, tmp_path):
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    (out / "rank0").mkdir(parents=True)
    (out / "rank0" / "blind.jsonl").symlink_to(victim)
    for number in range(20):
        for name in (f"{number:06d}.embedding-capture.safetensors", f"{number:06d}.embedding-capture.safetensors.part"):
            (out / "rank0" / name).symlink_to(victim)
    runtime = load(CAPTURE_DIR=out)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    runtime.embedding(None, object(), input_ids=object())
    assert victim.read_text() == "precious"
    assert sum(not (out / "rank0" / name).is_symlink() for name in files(out)) == 1


@pytest.mark.parametrize("what", ["directory", "rank"])
def test_a_directory_that_is_a_link_takes_nothing(load, tmp_path, what, capfd):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    if what == "rank":
        out.mkdir()
    (out if what == "directory" else out / "rank0").symlink_to(elsewhere)
    load(CAPTURE_DIR=out).embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert not list(elsewhere.iterdir()) and "blind=disk" in capfd.readouterr().err


@pytest.mark.parametrize("what", ["directory", "rank"])
def test_another_users_directory_takes_nothing(load, tmp_path, monkeypatch, what, capfd):
    out = tmp_path / "out"
    runtime = load(CAPTURE_DIR=out)
    (out / "rank0").mkdir(parents=True)
    me = os.geteuid()
    if what == "directory":
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    elif me == 0:
        os.chown(out / "rank0", 12345, 12345)
    else:
        pytest.skip("only root can give a directory away")
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert not list((out / "rank0").iterdir())
    assert "another user" in capfd.readouterr().err


def test_what_is_made_is_this_users_alone(load, tmp_path):
    load(CAPTURE_DIR=tmp_path / "a" / "b").embedding(None, torch.ones(4, 2), input_ids=IDS)
    folder = tmp_path / "a" / "b"
    assert folder.stat().st_mode & 0o777 == (folder / "rank0").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (folder / "rank0").iterdir())


def test_two_writers_of_one_rank_lose_nothing_and_are_not_mixed(load, tmp_path):
    one, other = load(CAPTURE_DIR=tmp_path), load(CAPTURE_DIR=tmp_path)
    for _ in range(20):
        for value, runtime in enumerate((one, other)):
            runtime.draft_input(None, torch.full((4, 6), float(value)), torch.ones(4, 2), input_ids=IDS)
    assert len(files(tmp_path)) == 40
    for name in files(tmp_path):
        with safe_open(tmp_path / "rank0" / name, "pt") as file:
            assert file.get_tensor("hidden_states").unique().numel() == 1
    with pytest.raises(SpecwireError, match="written by 2 processes.*20 files.*EAGLE3_CAPTURE_DIR"):
        open_capture(tmp_path)
    for name in files(tmp_path):
        if one._me()["name"] in name:
            (tmp_path / "rank0" / name).unlink()
    assert len(open_capture(tmp_path).events) == 20


def test_forked_children_write_as_themselves(load, tmp_path):
    runtime = load(CAPTURE_DIR=tmp_path)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    children = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            for _ in range(5):
                runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert len(files(tmp_path)) == 11
    with pytest.raises(SpecwireError, match="written by 3 processes"):
        open_capture(tmp_path)


def test_a_disk_without_room_leaves_no_part_and_is_on_record(load, tmp_path, monkeypatch, capfd):
    runtime = load(CAPTURE_DIR=tmp_path)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    for _ in range(5):
        runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    monkeypatch.undo()
    assert len(files(tmp_path)) == 1 and not list((tmp_path / "rank0").glob("*.part"))
    assert [line["reason"] for line in blind(tmp_path)] == ["disk"]
    assert capfd.readouterr().err.count("No space left") == 1


def test_a_nearly_full_disk_is_left_alone(load, tmp_path, monkeypatch):
    runtime = load(CAPTURE_DIR=tmp_path)
    disk = types.SimpleNamespace(f_blocks=1000, f_frsize=4096, f_bavail=50)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert not files(tmp_path) and "nearly full" in blind(tmp_path)[0]["detail"]
    disk.f_bavail = 60
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    "text, whole", [("200", 3), ("0.2K", 3), ("0", 9), ("", 9), ("1GB", 9), ("nonsense", 9)], ids=str
)
def test_no_more_is_written_than_the_limit_and_what_there_is_has_no_hole(load, tmp_path, capfd, text, whole):
    runtime = load(CAPTURE_DIR=tmp_path, CAPTURE_LIMIT=text)
    for number in range(8):  # of 64 bytes each, and then one that would fit again
        runtime.embedding(None, torch.full((4, 2), float(number)), input_ids=IDS)
    runtime.embedding(None, torch.ones(1, 1))
    assert len(files(tmp_path)) == whole
    assert ([line["reason"] for line in blind(tmp_path)] == ["limit"]) == (whole == 3)
    assert ("EAGLE3_CAPTURE_LIMIT is 2" in capfd.readouterr().err) == (whole == 3)


@pytest.mark.parametrize(("text", "steps"), [("2", 2), ("0", 5), ("", 5), ("two", 5)])
def test_only_the_first_steps_of_each_site_are_reported(load, capfd, text, steps):
    runtime = load(DEBUG="1", DEBUG_STEPS=text)
    for _ in range(5):
        runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    runtime.draft_input(None, torch.ones(4, 2), torch.ones(4, 2), input_ids=IDS)
    said = capfd.readouterr().err
    assert said.count("site=embedding-capture") == steps and said.count("site=draft-input") == 1
    assert ("setting not understood, and left out: EAGLE3_DEBUG_STEPS='two'" in said) is (text == "two")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("text", ["zero", "1;2", "1e999", "\N{DEVANAGARI DIGIT ONE}x", "nan"])
def test_a_setting_that_is_no_number_does_not_raise_into_the_engine(load, capfd, setting, text):
    runtime = load(DEBUG="1", **{setting: text})
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    said = capfd.readouterr().err
    assert f"setting not understood, and left out: EAGLE3_{setting}=" in said
    assert said.count("site=embedding-capture rank=0 step=0") == 1


@pytest.mark.parametrize("wrong", SETTINGS)
@pytest.mark.parametrize("text", ["?", "-3"])
def test_one_setting_that_is_not_understood_leaves_the_others_as_they_are(load, capfd, wrong, text):
    """A limit of the disk is not lost by a slip of the pen elsewhere."""
    given = {
        "DEBUG_RANKS": ("0,2", {0, 2}, None), "CAPTURE_BOUNDARIES": ("3,5", {3, 5}, None), "DEBUG_STEPS": ("4", 4, None),
        "CAPTURE_LIMIT": ("1.5K", 1536, 8 << 30), "GRAPH_MEMORY": ("2m", 2 << 20, 512 << 20), "GRAPH_ROWS": ("7", 7, 1024),
        "PROFILE_CYCLES": ("9", 9, 1_000_000),
    }  # fmt: skip
    held = {name: f"_{name.rpartition('_')[2] if 'GRAPH' not in name else name}" for name in given}
    runtime = load(DEBUG="1", **{name: text if name == wrong else value for name, (value, _, _) in given.items()})
    said = capfd.readouterr().err
    for name, (_, understood, otherwise) in given.items():
        assert getattr(runtime, held[name]) == (otherwise if name == wrong else understood), name
    assert said.count("setting not understood") == 1


@pytest.mark.parametrize(
    "name",
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e8m0fnu int8 uint8 int32 bool "
    "uint16".split(),
)
def test_every_type_is_written_or_on_record(load, tmp_path, capfd, name):
    dtype = getattr(torch, name)
    runtime = load(CAPTURE_DIR=tmp_path, DEBUG="1")
    value = torch.ones(4, 6).to(dtype)
    runtime.draft_input(None, value, value[:, :2], input_ids=IDS)
    said = capfd.readouterr().err
    assert not blind(tmp_path) and f"dtype={name} norm={24**0.5:.6g} hs_first5=[1, 1, 1, 1, 1]" in said
    with safe_open(tmp_path / "rank0" / files(tmp_path)[0], "pt") as file:
        assert torch.equal(file.get_tensor("hidden_states").float(), value.float())
    assert len(open_capture(tmp_path).events) == 1


@pytest.mark.parametrize("device", ["cuda", "npu", "xpu", "musa"])
@pytest.mark.parametrize("asks", ["the device", "the engine"])
def test_no_tap_looks_while_any_accelerator_captures_a_graph(load, tmp_path, monkeypatch, device, asks):
    runtime = load(CAPTURE_DIR=tmp_path, DEBUG="1")
    capturing = [True]
    stub = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    if asks == "the device":
        stub.is_current_stream_capturing = lambda: capturing[0]
    else:
        module = types.SimpleNamespace(is_capture_mode=True)
        monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.runner_utils.capture_mode", module)
    monkeypatch.setattr(torch, device, stub, raising=False)

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} while a graph is captured")

    hidden, embeds = torch.ones(4, 6), torch.ones(4, 2)
    with Refusing():
        runtime.embedding(None, hidden, input_ids=IDS)
        runtime.captured(None, [hidden], 1)
        runtime.boundary(None, 1, hidden, residual=hidden)
        runtime.draft_input(None, hidden, embeds, input_ids=IDS)
        runtime.fc_before(None, hidden, embeds)
        runtime.fc_after(None, hidden)
        runtime.concat("full", hidden)
    assert {line["reason"] for line in blind(tmp_path)} == {"cuda-graph"} and not files(tmp_path)
    capturing[0] = False
    if asks == "the engine":
        module.is_capture_mode = False
    runtime.embedding(None, hidden, input_ids=IDS)
    assert len(files(tmp_path)) == 1


def test_the_made_up_rows_of_a_warm_up_are_not_recorded(load, tmp_path, monkeypatch):
    runtime = load(CAPTURE_DIR=tmp_path)
    module = types.SimpleNamespace(is_capture_mode=True)
    monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.cuda_graph_runner", module)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert not blind(tmp_path) and not (tmp_path / "rank0").exists()
    module.is_capture_mode = False
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert len(files(tmp_path)) == 1


def test_the_line_of_a_whole_prefill_makes_no_copy_of_it(load):
    runtime = load(DEBUG="1")
    value = torch.ones(2048, 21504, dtype=torch.bfloat16)
    largest, held = 0, value.untyped_storage().data_ptr()

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            made = function(*args, **(kwargs or {}))
            for each in made if isinstance(made, (list, tuple)) else [made]:
                if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() != held:
                    largest = max(largest, each.numel() * each.element_size())
            return made

    with Sizes():
        runtime.concat("full", value)
    assert 0 < largest <= 8 << 20 < value.numel() * 2


@pytest.mark.parametrize("shape", [(5, 3), (1, 1 << 21), (3, 7, 2), (4, 0), (0, 4), (7,)], ids=str)
def test_the_norm_is_the_whole_tensors(load, shape):
    runtime = load()
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert runtime._square_sum(value).sqrt().item() == pytest.approx(value.double().norm().item(), rel=1e-12)
    strided = torch.randn(64, 96).t()
    assert runtime._square_sum(strided).sqrt().item() == pytest.approx(strided.double().norm().item(), rel=1e-12)


@pytest.mark.parametrize("settings", [{"DEBUG": "1"}, {"CAPTURE_DIR": "out"}], ids=["lines", "files"])
def test_nothing_of_a_batch_is_kept_alive_but_its_ids(load, tmp_path, settings):
    runtime = load(**{name: tmp_path / value if value == "out" else value for name, value in settings.items()})

    class Batch:
        def __init__(self):
            self.spec_info = types.SimpleNamespace(hidden_states=torch.ones(4, 6))

    batch, embeds = Batch(), torch.ones(4, 2)
    runtime.embedding(None, embeds, input_ids=IDS, forward_batch=batch)
    runtime.draft_input(None, batch.spec_info.hidden_states, embeds, input_ids=IDS, forward_batch=batch)
    runtime.fc_before(None, batch.spec_info.hidden_states, embeds)
    held = [weakref.ref(each) for each in (batch, batch.spec_info.hidden_states, embeds)]
    del batch, embeds
    gc.collect()
    assert [each() for each in held] == [None, None, None]


def test_the_rank_is_not_kept_from_before_there_were_ranks(load, tmp_path, monkeypatch):
    runtime = load(CAPTURE_DIR=tmp_path)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank5"]


@pytest.mark.parametrize("rows, shard", [(4, None), (2, 4), (8, 4)], ids=["whole", "a part", "of all ranks"])
def test_rows_that_are_a_shard_are_marked(load, tmp_path, capfd, rows, shard):
    runtime = load(CAPTURE_DIR=tmp_path, DEBUG="1")
    runtime.boundary(None, 1, torch.ones(rows, 2), input_ids=IDS)
    (event,) = open_capture(tmp_path).events
    assert event.shard == shard and bool(event.requests) == (shard is None)
    assert (f"shard={rows}/4" in capfd.readouterr().err) == (shard is not None)


def test_a_part_file_is_said(load, tmp_path):
    runtime = load(CAPTURE_DIR=tmp_path)
    runtime.embedding(None, torch.ones(4, 2), input_ids=IDS)
    (tmp_path / "rank0" / "000007.draft-input.1-abcdef.safetensors.part").write_bytes(b"half")
    ((rank, site, reason),) = [(line["rank"], line["site"], line["reason"]) for line in open_capture(tmp_path).blind]
    assert (rank, site, reason) == (0, "draft-input", "unfinished")


def test_a_profile_is_written_through_no_link(load, tmp_path, monkeypatch):
    victim, out = tmp_path / "victim", tmp_path / "profile"
    victim.write_text("precious")
    out.symlink_to(tmp_path)
    runtime = load(PROFILE=out)
    with pytest.raises(OSError):
        runtime._open_profile()
    out.unlink()
    runtime._open_profile().close()
    assert victim.read_text() == "precious" and len(list(out.glob("rank0.*.jsonl"))) == 1


def test_off_is_one_truth_test(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runtime = load()
    assert runtime.on is False and runtime.DEBUG is False and runtime.CAPTURE_DIR is None
    assert runtime.timed("cycle")(len) is len and not list(tmp_path.iterdir())


STUB = """
import sys, types
class Anything:
    assume_constant_result = staticmethod(lambda function: function)
torch = types.ModuleType("torch")
torch.__getattr__ = lambda name: Anything()
sys.modules["torch"] = torch
source = open(sys.argv[1]).read()
exec(compile(source, sys.argv[1], "exec"), {"__name__": "_specwire"})
"""


def test_the_tap_file_runs_on_python_3_10(tmp_path):
    ast.parse(RUNTIME.read_bytes(), feature_version=(3, 10))
    named = [shutil.which("python3.10"), *Path.home().glob(".pyenv/versions/3.10*/bin/python")]
    asked = [(each, subprocess.run([each, "--version"], capture_output=True, text=True)) for each in named if each]
    python = next((each for each, said in asked if said.stdout.startswith("Python 3.10")), None)
    if python is None:
        pytest.skip("no Python 3.10 here")
    ran = subprocess.run(
        [python, "-c", STUB, str(RUNTIME)],
        env={**os.environ, "EAGLE3_DEBUG": "1", "EAGLE3_CAPTURE_DIR": str(tmp_path), "EAGLE3_CAPTURE_LIMIT": "2G"},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
