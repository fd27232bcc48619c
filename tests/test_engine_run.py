"""What specwire asks of the engine and how it reads it, without booting one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from specwire.engine import plugin
from specwire.engine.arguments import CPU_KERNELS, environment, rank_count, server_arguments
from specwire.engine.log import BootProgress, last_error
from specwire.engine.process import kill_all, processes_of, start
from specwire.engine.run import DRIVER, resolve_device, run_engine
from specwire.errors import SpecwireError


def arguments(tmp_path, *extra, draft=None, device="cpu", dtype="bfloat16", tokens=10):
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps({"torch_dtype": dtype}))
    return server_arguments(target, draft, tp=2, device=device, extra=extra, tokens=tokens)


# Arguments


def test_the_cpu_run_has_no_cached_prefix_no_chunks_and_a_backend_that_can_draft(tmp_path):
    argv = arguments(tmp_path, draft=Path("/draft"))
    assert {"--disable-radix-cache", "--chunked-prefill-size=-1"} <= set(argv)
    assert {"--device=cpu", "--attention-backend=intel_amx"} <= set(argv)
    assert {"--speculative-algorithm=EAGLE3", "--speculative-draft-model-path=/draft"} <= set(argv)
    assert {"--speculative-num-steps=2", "--speculative-eagle-topk=1"} <= set(argv)


def test_a_gpu_run_is_given_nothing_that_is_for_the_cpu(tmp_path):
    argv = arguments(tmp_path, draft=Path("/draft"), device="cuda", dtype="float32")
    for word in ("cpu", "amx", "cuda-graph", "max-total-tokens", "dtype", "fraction"):
        assert not any(word in flag for flag in argv)


def test_without_a_draft_nothing_speculates(tmp_path):
    assert not any("speculative" in flag for flag in arguments(tmp_path))


def test_the_users_arguments_come_last_and_so_win(tmp_path):
    argv = arguments(tmp_path, "--speculative-algorithm", "EAGLE", "--mem-fraction-static=0.5", draft=Path("/d"))
    assert argv[-3:] == ["--speculative-algorithm", "EAGLE", "--mem-fraction-static=0.5"]
    assert argv.index("--speculative-algorithm=EAGLE3") < argv.index("--speculative-algorithm")


def test_any_of_the_users_speculation_steps_replaces_all_of_ours(tmp_path):
    argv = arguments(tmp_path, "--speculative-num-steps", "5", draft=Path("/draft"))
    assert [flag for flag in argv if "topk" in flag or "draft-tokens" in flag] == []


def test_a_default_without_an_opposite_can_be_taken_back(tmp_path):
    argv = arguments(tmp_path, "--no-disable-radix-cache", "--no-chunked-prefill-size", "--no-such-flag")
    assert not any("radix" in flag or "chunked" in flag for flag in argv)
    assert argv[-1] == "--no-such-flag"  # the engine's own business


@pytest.mark.parametrize("dtype, told", [("float32", True), ("bfloat16", False)])
def test_a_float32_checkpoint_stays_float32(tmp_path, dtype, told):
    assert ("--dtype=float32" in arguments(tmp_path, dtype=dtype)) is told


def test_the_cache_has_room_for_long_prompts(tmp_path):
    assert "--max-total-tokens=10000" in arguments(tmp_path, tokens=5000)


# Environment


def test_the_cpu_environment_puts_the_kernels_before_the_tree_and_writes_nothing_there(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    env = environment(Path("/tree"), ranks=8, device="cpu", extra={"OMP_NUM_THREADS": "7"})
    assert env["PYTHONPATH"].split(os.pathsep) == [str(CPU_KERNELS), "/tree", "/mine"]
    assert env["PYTHONDONTWRITEBYTECODE"] == "1" and env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert len(env["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == 8
    assert env["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    "extra, booted",
    [([], 2), (["--pp-size=2"], 4), (["--pipeline-parallel-size", "3"], 6), (["--tp-size=1", "--pp-size", "2"], 2)],
)
def test_every_stage_has_ranks_of_its_own(tmp_path, extra, booted):
    assert rank_count(arguments(tmp_path, *extra)) == booted


def test_the_gpu_environment_holds_no_kernels_and_no_cpu_settings(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    env = environment(Path("/tree"), ranks=8, device="cuda", extra={})
    assert env["PYTHONPATH"] == "/tree"
    assert "SGLANG_USE_CPU_ENGINE" not in env and "TORCHDYNAMO_DISABLE" not in env


def test_device_auto_asks_that_interpreter(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho cuda\n")
    python.chmod(0o755)
    assert resolve_device("auto", str(python)) == "cuda"
    with pytest.raises(SpecwireError, match="cannot be run"):
        resolve_device("auto", str(tmp_path / "nothing"))
    with pytest.raises(SpecwireError, match="none of auto, cuda, cpu"):
        resolve_device("tpu", sys.executable)


# The plugin


def test_the_plugin_does_nothing_and_imports_nothing_on_a_gpu_server(monkeypatch):
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    code = "import sys, specwire.engine.plugin as p; p.activate(); print('sglang' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "False", done.stderr


def test_the_plugin_is_found_through_its_entry_point():
    from importlib.metadata import entry_points

    found = {entry.name: entry.load() for entry in entry_points(group="sglang.srt.plugins")}
    assert found["specwire-cpu"] is plugin.activate


# The log

CRASH = """\
[2026-01-01 10:00:00 TP0] Load weight begin. avail mem=20.00 GB
[2026-01-01 10:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "a.py", line 1, in load
    inner()
KeyError: 'first'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in load
    raise RuntimeError(
RuntimeError: Cannot find any model weights with `/draft`

[2026-01-01 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "c.py", line 3, in gather
    all_reduce()
RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1
[2026-01-01 10:00:02] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "engine.py", line 4, in wait
    reader.recv()
EOFError
"""


@pytest.mark.parametrize(
    "log, error",
    [
        pytest.param(CRASH, "RuntimeError: Cannot find any model weights with `/draft`", id="the cause"),
        pytest.param(CRASH.split("10:00:02]")[1], "EOFError", id="an echo when there is nothing better"),
        pytest.param(
            "usage: x\nsglang serve: error: unrecognized arguments: --no-such\n",
            "unrecognized arguments: --no-such",
            id="usage",
        ),
        pytest.param("[2026-01-01] all is well\n", None, id="no error"),
    ],
)
def test_the_last_error_is_the_cause(log, error):
    assert last_error(log) == error


def test_progress_follows_the_log():
    progress, heard = BootProgress(2), []
    for line in (
        "[2026-01-01 10:00:00 TP0] Init parallel begin.",
        "[2026-01-01 10:00:00 TP1] Load weight begin. avail mem=1 GB",
        "[2026-01-01 10:00:00 TP1] max_total_num_tokens=2048, chunked_prefill_size=-1",
        "[2026-01-01 10:00:00 TP0] max_total_num_tokens=2048, chunked_prefill_size=-1",
        "specwire: engine up after 3 s",
        "[2026-01-01 10:00:00 TP0] Prefill batch, #new-seq: 1",
    ):
        progress.feed(line)
        heard.append(str(progress))
    assert heard == [
        "starting the ranks",
        "loading weights",
        "1 of 2 ranks up",
        "2 of 2 ranks up",
        "engine up",
        "prefill",
    ]


# Processes

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("ready", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_a_process_tree_that_ignores_signals_and_changes_sessions(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        driver, run_id = start([sys.executable, "-c", STUBBORN], dict(os.environ), log, tmp_path)
    while "ready" not in (tmp_path / "log").read_text():
        time.sleep(0.05)
    assert len(processes_of(run_id)) == 2
    kill_all(driver, run_id)
    assert processes_of(run_id) == []


def test_what_the_engine_leaves_in_memory_and_among_temporary_files_goes(tmp_path):
    segment = Path(f"/dev/shm/sglang_loads_{os.getpid()}_{tmp_path.name}")
    body = (
        f"import mmap, tempfile, time\nfile = open({str(segment)!r}, 'w+b')\nfile.truncate(64)\n"
        "held = mmap.mmap(file.fileno(), 64)\nkept = tempfile.NamedTemporaryFile(delete=False)\n"
        "print(kept.name, 'ready', flush=True)\ntime.sleep(60)\n"
    )
    with open(tmp_path / "log", "wb") as log:
        driver, run_id = start([sys.executable, "-c", body], dict(os.environ), log, tmp_path)
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    temporary = Path((tmp_path / "log").read_text().split()[0])
    assert temporary.exists() and segment.exists()
    kill_all(driver, run_id)
    assert not temporary.parent.exists() and not segment.exists()
    assert temporary.parent.parent == Path(tempfile.gettempdir())


# Runs that fail, on a package that only pretends to be an engine


def pretend_engine(tmp_path, body: str) -> Path:
    package = tmp_path / "tree" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(body)
    return tmp_path / "tree"


def run_pretended(tmp_path, body: str, **options):
    return run_engine(
        pretend_engine(tmp_path, body),
        tmp_path,
        None,
        [[[1]]],
        tp=1,
        device="cpu",
        extra_args=[],
        env={"SPECWIRE_TEST": str(tmp_path)},
        out=tmp_path / "out",
        max_new_tokens=1,
        python=sys.executable,
        **options,
    )


def alive(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


def test_a_crash_is_told_with_its_last_error_and_the_log(tmp_path):
    with pytest.raises(SpecwireError, match=r"ValueError: nothing to serve\. Log: .*engine\.log"):
        run_pretended(tmp_path, "raise ValueError('nothing to serve')\n")


def test_an_engine_that_hangs_is_ended_at_the_timeout_and_progress_is_told_meanwhile(tmp_path):
    heard = []
    body = "print('hanging', flush=True)\nimport time; time.sleep(600)\n"
    for seconds in (3, 12, 96):  # until the machine is not too busy to get as far as hanging
        with pytest.raises(SpecwireError, match=f"did not finish within {seconds} s; its last words: ") as ended:
            run_pretended(tmp_path / str(seconds), body, timeout=seconds, on_progress=heard.append)
        if "its last words: hanging" in str(ended.value):
            break
    else:
        pytest.fail(str(ended.value))
    assert heard and heard[0].startswith("importing the engine")
    assert alive(f"SPECWIRE_TEST={tmp_path}") == []


def test_an_engine_does_not_outlive_a_caller_that_was_killed(tmp_path):
    root = pretend_engine(tmp_path, "import time; time.sleep(60)\n")
    call = (
        "import sys; from pathlib import Path; from specwire.engine.run import run_engine\n"
        f"run_engine(Path({str(root)!r}), Path('.'), None, [[[1]]], tp=1, device='cpu', extra_args=[], "
        f"env={{}}, out=Path({str(tmp_path / 'out')!r}), max_new_tokens=1, python=sys.executable)"
    )
    mark = f"SPECWIRE_TEST={tmp_path}"
    caller = subprocess.Popen([sys.executable, "-c", call], env=os.environ | {"SPECWIRE_TEST": str(tmp_path)})
    wait_until(lambda: len(alive(mark)) == 2)
    caller.kill()
    caller.wait()
    wait_until(lambda: alive(mark) == [])


def test_another_sglang_than_the_trees_is_refused(tmp_path):
    other = tmp_path / "other" / "sglang"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    root = pretend_engine(tmp_path, "")
    with pytest.raises(SpecwireError, match=f"imports sglang from {other.parent}, although {root}"):
        run_engine(
            root,
            tmp_path,
            None,
            [[[1]]],
            tp=1,
            device="cpu",
            extra_args=[],
            env={"PYTHONPATH": str(other.parent)},
            out=tmp_path / "out",
            max_new_tokens=1,
            python=sys.executable,
        )


def wait_until(true, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("too_long", [False, True])
def test_the_first_answer_is_sent_as_a_prompt_and_may_be_refused(too_long: bool, capsys) -> None:
    """A context may have no room for it: what was asked for is there by then."""
    spec = importlib.util.spec_from_file_location("driver_by_path", DRIVER)
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    asked = []

    class Engine:
        def generate(self, input_ids: list[list[int]], sampling_params: dict) -> list[dict]:
            asked.append((input_ids, sampling_params["max_new_tokens"]))
            if too_long and len(asked) == 3:
                raise ValueError("longer than the context")
            return [{"output_ids": [7, 8, 9], "meta_info": {}} for _ in input_ids]

    job = {"batches": [[[1, 2], [3]], [[4]]], "sampling_params": {"max_new_tokens": 3}, "again": True}
    found = driver._answers(Engine(), job)
    assert [len(batch) for batch in found] == [2, 1] and found[0][0]["output_ids"] == [7, 8, 9]
    assert asked == [([[1, 2], [3]], 3), ([[4]], 3), ([[1, 2, 7, 8]], 1)]
    assert ("longer than the context" in capsys.readouterr().out) == too_long
    asked.clear()
    driver._answers(Engine(), job | {"again": False})
    assert len(asked) == 2
