"""The profiling part of the tap file: what it costs when off, what it adds up to when on, and that it never raises."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
BATCH = types.SimpleNamespace(
    forward_mode=types.SimpleNamespace(name="DECODE"), reqs=["a", "b"], extend_num_tokens=None
)


def load(**environment):
    """The tap file as an engine process with this environment would import it."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        spec = importlib.util.spec_from_file_location("_specwire_under_test", RUNTIME)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def taps(tmp_path):
    return load(EAGLE3_PROFILE=str(tmp_path))


def lines(taps, folder):
    taps._write()
    (file,) = folder.glob("rank0.*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


class Clock:
    """Time that passes only when a stage says so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


def test_off_it_gives_back_the_very_function():
    def verify():
        yield 1

    assert load(EAGLE3_PROFILE="").timed("verify")(verify) is verify


def test_results_and_exceptions_pass_through(taps, tmp_path):
    @taps.timed("cycle")
    def cycle(worker, batch, fails=False):
        """Doc."""
        if fails:
            raise KeyError("engine's own")
        return draft(worker, batch)

    @taps.timed("draft")
    def draft(worker, batch):
        return ("draft", batch)

    assert cycle(None, BATCH) == ("draft", BATCH)
    assert (cycle.__name__, cycle.__doc__) == ("cycle", "Doc.")
    with pytest.raises(KeyError, match="engine's own"):
        cycle(None, BATCH, fails=True)
    about, fine, failed = lines(taps, tmp_path)
    assert about["schema"] == "specwire.profile/1" and about["clock"] == "monotonic"
    assert (fine["mode"], fine["batch"], set(fine["parts"])) == ("DECODE", 2, {"draft", "other"})
    assert failed["failed"] and "failed" not in fine


def test_generators_are_timed_only_while_they_run(taps, tmp_path):
    clock = taps.time = Clock()

    @taps.timed("cycle")
    def cycle(worker, batch):
        total = 0
        for part in draft(worker, batch):
            clock.now += 10
            total += part
        return total

    @taps.timed("draft")
    def draft(worker, batch):
        for part in (1, 2, 3):
            clock.now += 1
            yield part

    assert cycle(None, BATCH) == 6
    _, line = lines(taps, tmp_path)
    assert line["parts"]["draft"] == [3000, 4] and line["parts"]["other"] == [30000, 1] and line["ms"] == 33000


def test_generators_keep_send_throw_close_and_return(taps):
    log = []

    def stage():
        try:
            got = yield "first"
            log.append(got)
            try:
                yield "second"
            except ValueError:
                yield "caught"
            return "result"
        finally:
            log.append("closed")

    def drive(function):
        running = function()
        out = [next(running), running.send("sent"), running.throw(ValueError)]
        with pytest.raises(StopIteration) as end:
            next(running)
        other = function()
        next(other)
        other.close()
        return [*out, end.value.value]

    plain, log_plain = drive(stage), log.copy()
    log.clear()
    assert drive(taps.timed("draft")(stage)) == plain and log == log_plain == ["sent", "closed", "closed"]


@pytest.mark.parametrize(
    "result, expected",
    [
        (types.SimpleNamespace(accept_lens=torch.tensor([3, 1])), [3, 1]),
        ((None, types.SimpleNamespace(accept_length_per_req_cpu=[2, 0]), None, True), [3, 1]),
        (types.SimpleNamespace(accept_lens=None, num_correct_drafts_per_req_cpu=[2, 0]), [3, 1]),
        (None, []),
    ],
    ids=["v2", "v1", "v2-list", "unknown"],
)
def test_acceptance_is_read_from_whatever_verify_returns(taps, tmp_path, result, expected):
    verify = taps.timed("verify")(lambda worker, batch: result)
    taps.timed("cycle")(verify)(None, BATCH)
    assert lines(taps, tmp_path)[1]["accepted"] == expected


def test_the_baseline_is_recorded_too(taps, tmp_path):
    taps.timed("target")(lambda worker, model_worker_batch: types.SimpleNamespace(can_run_cuda_graph=True))(
        None, model_worker_batch=BATCH
    )
    line = lines(taps, tmp_path)[1]
    assert (line["kind"], line["mode"], line["batch"], line["graph"]) == ("target", "DECODE", 2, True)


def test_stages_outside_a_cycle_are_no_cycles(taps):
    taps.timed("draft")(lambda: None)()
    assert not taps._lines


def test_nothing_it_is_shown_can_make_it_raise(taps, capsys):
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    cycle = taps.timed("cycle")(lambda *args: "fine")
    assert [cycle(), cycle(None, Hostile()), cycle(Hostile())] == ["fine"] * 3
    assert capsys.readouterr().err.count("[EAGLE3-PROFILE]") == 1


def test_it_stops_after_as_many_cycles_as_it_may_record(tmp_path):
    taps = load(EAGLE3_PROFILE=str(tmp_path), EAGLE3_PROFILE_CYCLES="3")
    cycle = taps.timed("cycle")(lambda *args: None)
    for _ in range(10):
        cycle(None, BATCH)
    assert [line.get("kind") for line in lines(taps, tmp_path)] == [None, "cycle", "cycle", "cycle", "stopped"]


TREES = st.recursive(
    st.tuples(st.sampled_from(["draft", "verify", "target", "draft-extend"]), st.floats(0, 5), st.just(())),
    lambda inner: st.tuples(
        st.sampled_from(["draft", "verify", "target"]), st.floats(0, 5), st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


@given(calls=st.lists(TREES, max_size=5), own=st.floats(0, 5))
@settings(max_examples=25, deadline=None)
def test_parts_add_up_to_the_cycle_and_none_is_counted_twice(tmp_path_factory, calls, own):
    folder = tmp_path_factory.mktemp("profile")
    taps = load(EAGLE3_PROFILE=str(folder))
    clock = taps.time = Clock()
    expected = {"other": own}

    def run(call):
        stage, took, inner = call
        expected[stage] = expected.get(stage, 0.0) + took

        @taps.timed(stage)
        def body():
            clock.now += took
            for each in inner:
                run(each)

        body()

    @taps.timed("cycle")
    def cycle():
        clock.now += own
        for each in calls:
            run(each)

    cycle()
    _, line = lines(taps, folder)
    assert line["ms"] == pytest.approx(sum(ms for ms, _ in line["parts"].values()), abs=0.01)
    assert {stage: ms / 1000 for stage, (ms, _) in line["parts"].items()} == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_killed_process_leaves_its_cycles_behind(tmp_path):
    script = textwrap.dedent(f"""
        import importlib.util, time
        spec = importlib.util.spec_from_file_location("taps", {str(RUNTIME)!r})
        taps = importlib.util.module_from_spec(spec); spec.loader.exec_module(taps)
        cycle = taps.timed("cycle")(lambda: time.sleep(0.001))
        for _ in range(50): cycle()
        print("idle", flush=True); time.sleep(60)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "EAGLE3_PROFILE": str(tmp_path)}, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"idle\n"
    time.sleep(1.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (file,) = tmp_path.glob("*.jsonl")
    assert len(file.read_text().splitlines()) == 51


class FakeEvent:
    """A device event: recorded now, done once the device has caught up."""

    caught_up = 0.0
    made = 0

    def __init__(self, enable_timing):
        FakeEvent.made += 1

    def record(self):
        self.at = FakeEvent.clock.now

    def query(self):
        return FakeEvent.caught_up >= self.at

    def elapsed_time(self, other):
        assert self.query() and other.query(), "read before it was done: a real event would raise"
        return (other.at - self.at) * 1000


@pytest.fixture
def device(taps, monkeypatch):
    """A GPU that runs behind: its events are done only when `FakeEvent.caught_up` says so."""
    FakeEvent.clock = taps.time = Clock()
    FakeEvent.caught_up, FakeEvent.made = 0.0, 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    return FakeEvent


def staged(taps, clock):
    def passes(seconds):
        clock.now += seconds

    draft = taps.timed("draft")(lambda worker, batch: passes(1))
    verify = taps.timed("verify")(lambda worker, batch: passes(3))
    return taps.timed("cycle")(lambda worker, batch: (passes(0.5), draft(worker, batch), verify(worker, batch)))


def test_device_events_are_read_only_when_done(taps, device):
    cycle = staged(taps, device.clock)
    for _ in range(5):
        cycle(None, BATCH)
    assert not taps._lines, "nothing may be read while the device is behind"
    device.caught_up = 200.0
    cycle(None, BATCH)
    assert [line["ms"] for line in taps._lines] == [4500] * 6
    assert [line["gap_ms"] for line in taps._lines] == [None, 0, 0, 0, 0, 0]
    assert taps._lines[0]["parts"] == {"draft": (1000, 1), "verify": (3000, 1), "other": (500, 1)}


def test_device_events_are_used_again(taps, device):
    cycle = staged(taps, device.clock)
    device.caught_up = 1e9
    for _ in range(200):
        cycle(None, BATCH)
    assert len(taps._lines) == 200 and device.made <= 16


def test_a_device_that_never_answers_costs_bounded_memory(taps, device, capsys):
    cycle = staged(taps, device.clock)
    for _ in range(1200):
        cycle(None, BATCH)
    assert len(taps._pending) <= 1025 and "behind" in capsys.readouterr().err


def test_nothing_is_recorded_while_a_graph_is_captured(taps, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    staged(taps, device.clock)(None, BATCH)
    assert device.made == 0 and not taps._pending
