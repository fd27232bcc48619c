"""The tap file under real CUDA graphs: one script for a machine with a GPU, Python 3.10 or newer and torch, no network.

    python tests/gpu/graphs.py RESULT.json

It needs this file and src/specwire/runtime/_specwire.py, and takes about a minute. A small target and draft are run
eagerly and as graphs, in a process of its own for each setting of the taps. RESULT.json: versions, device, each check
with what was seen, times and sizes; exit code 1 when a check failed.

`--emulated` runs the same on a CPU, with the emulation of tests/emulated_graphs: to try the script, no proof of anything else.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parents[1] / "src" / "specwire" / "runtime" / "_specwire.py"
LAYERS, HIDDEN, WIDTH, STEPS = 6, 256, 4, 3
SHAPES = (16, 4, 1)  # requests
SIZES = (16, 10, 4, 3, 1, 16, 1)  # of the batches, some smaller than their graph's shape
SETTINGS = {"off": {}, "lines": {"EAGLE3_DEBUG": "1"}, "files": {"EAGLE3_CAPTURE_DIR": "capture"}}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32}


class Real:
    """CUDA as it is: captures on a stream of their own, all in one pool."""

    name, often = "cuda", 500

    def __init__(self):
        self.pool = torch.cuda.graph_pool_handle()
        self.stream, self.other = torch.cuda.Stream(), torch.cuda.Stream()

    def graph(self):
        return torch.cuda.CUDAGraph()

    def warm(self):
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)

    def capture(self, graph):
        return torch.cuda.graph(graph, pool=self.pool, stream=self.stream)

    @contextlib.contextmanager
    def elsewhere(self):
        """On another stream than the default one, as the engine's overlapping scheduler replays."""
        self.other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.other):
            yield
        torch.cuda.current_stream().wait_stream(self.other)

    def wait(self):
        torch.cuda.synchronize()

    def allocated(self):
        return torch.cuda.memory_allocated()

    def about(self):
        found = torch.cuda.get_device_properties(0)
        return {"device": found.name, "memory": found.total_memory, "cuda": torch.version.cuda}


class Emulated:
    name, often = "cpu", 10

    def __init__(self):
        sys.path.insert(0, str(HERE.parent / "emulated_graphs"))
        import cuda_graph_emulator as emulator

        self.emulator = emulator
        torch.cuda.is_initialized = lambda: emulator.Graph.capturing is not None
        torch.cuda.is_current_stream_capturing = lambda: emulator.Graph.capturing is not None

    def graph(self):
        return self.emulator.Graph()

    def warm(self):
        return contextlib.nullcontext()

    def capture(self, graph):
        return self.emulator.capture(graph)

    def elsewhere(self):
        return contextlib.nullcontext()

    def wait(self):
        pass

    def allocated(self):
        return 0

    def about(self):
        return {"device": "emulated on a CPU", "memory": 0, "cuda": None}


class System:
    """A target that captures two boundaries and the concatenation, and a draft with its steps in one graph."""

    def __init__(self, device, taps, dtype):
        self.device, self.taps, self.python = device, taps, 0
        random = torch.Generator().manual_seed(0)

        def normal(*shape):
            return (torch.randn(*shape, generator=random) / shape[-1] ** 0.5).to(device.name, dtype)

        self.table, self.layers = normal(1000, HIDDEN), [normal(HIDDEN, HIDDEN) for _ in range(LAYERS)]
        self.fc, self.head = normal(2 * HIDDEN, HIDDEN), normal(HIDDEN, 1000)
        self.layers_to_capture = [2, 5]

    def target(self, ids, positions, batch):
        taps = self.taps
        self.python += 1
        hidden, residual, kept = self.table[ids], None, []
        if taps.on:
            taps.embedding(self, hidden, input_ids=ids, positions=positions, forward_batch=batch)
        for i, weight in enumerate(self.layers):
            if taps.on:
                taps.boundary(self, i, hidden, residual, input_ids=ids, positions=positions, forward_batch=batch)
            if i in self.layers_to_capture:
                kept.append(hidden if residual is None else hidden + residual)
                if taps.on:
                    taps.captured(self, kept, i, input_ids=ids, positions=positions, forward_batch=batch)
            residual = hidden if residual is None else hidden + residual
            hidden = torch.tanh(residual @ weight) * (1 + positions[:, None] / 10).to(residual.dtype)
        if taps.on:
            taps.boundary(self, None, hidden, residual, input_ids=ids, positions=positions, forward_batch=batch)
            taps.forward_end(self, hidden, kept, input_ids=ids, positions=positions, forward_batch=batch)
        concat = torch.cat(kept, dim=-1)
        if taps.on:
            taps.concat("full", concat, batch)
        return concat

    def draft(self, ids, positions, batch):
        taps = self.taps
        states = batch.spec_info.hidden_states
        for _ in range(STEPS):
            self.python += 1
            embeds = self.table[ids]
            if taps.on:
                taps.draft_input(self, states, embeds, input_ids=ids, positions=positions, forward_batch=batch)
                taps.fc_before(self, states, embeds)
            if states.shape[-1] != embeds.shape[-1]:
                states = states @ self.fc
            if taps.on:
                taps.fc_after(self, states, input_ids=ids, positions=positions, forward_batch=batch)
            states = torch.tanh(states + embeds)
            ids = (states @ self.head).argmax(dim=-1)
            positions.add_(1)
        positions.sub_(STEPS)
        return states


class Runner:
    """Static inputs, two warm-ups and a capture for each shape, from the largest on; a batch is padded up to a shape."""

    def __init__(self, device, taps, forward, width, mode, states, dtype):
        self.device, self.forward, self.width, self.mode, self.graphs = device, forward, width, mode, {}
        most = max(SHAPES) * width
        self.ids = torch.zeros(most, dtype=torch.int64, device=device.name)
        self.positions = torch.zeros_like(self.ids)
        self.states = torch.zeros(most, states, dtype=dtype, device=device.name)
        self.capture_one_batch_size = taps.graph("captures")(self.capture_one_batch_size)
        self.replay = taps.graph("replays")(lambda runner, batch: runner._replay(batch))

    def batch(self, ids, positions, states, requests):
        return types.SimpleNamespace(
            forward_mode=types.SimpleNamespace(name=self.mode),
            batch_size=requests,
            input_ids=ids,
            positions=positions,
            spec_info=types.SimpleNamespace(hidden_states=states),
            seq_lens=torch.full((requests,), 7, device=self.device.name),
            req_pool_indices=torch.arange(requests, device=self.device.name),
        )

    def live(self, requests, seed):
        random = torch.Generator().manual_seed(seed)
        rows = requests * self.width
        states = torch.randn(rows, self.states.shape[1], generator=random)
        ids, positions = (torch.randint(1, most, (rows,), generator=random) for most in (1000, 9))
        at = self.device.name
        return self.batch(ids.to(at), positions.to(at), states.to(at, self.states.dtype), requests)

    def eager(self, batch):
        return self.forward(batch.input_ids, batch.positions, batch)

    def capture(self):
        for requests in SHAPES:
            rows = requests * self.width
            batch = self.batch(self.ids[:rows], self.positions[:rows], self.states[:rows], requests)
            self.graphs[requests] = self.capture_one_batch_size(requests, batch)

    def capture_one_batch_size(self, requests, batch):
        graph = self.device.graph()
        with self.device.warm():
            for _ in range(2):
                self.eager(batch)
        self.device.wait()
        with self.device.capture(graph):
            out = self.eager(batch)
        return graph, out

    def _replay(self, batch):
        shape = min(each for each in SHAPES if each >= batch.batch_size)
        for static, live in (
            (self.ids, batch.input_ids),
            (self.positions, batch.positions),
            (self.states, batch.spec_info.hidden_states),
        ):
            static.fill_(3)
            static[: len(live)].copy_(live)
        graph, out = self.graphs[shape]
        graph.replay()
        return out[: len(batch.input_ids)]


def one_process(setting, emulated):
    """What one setting of the taps comes to; the eager run and the replays write into captures of their own."""
    device = Emulated() if emulated else Real()
    folder, found = Path.cwd(), {}
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            found[name] = _both(setting, device, dtype, folder / name)
        found["times"] = _times(setting, device, folder / "times")
    print(json.dumps(found))


def _taps(setting, folder):
    for name in ("EAGLE3_DEBUG", "EAGLE3_CAPTURE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(SETTINGS[setting])
    if setting == "files":
        os.environ["EAGLE3_CAPTURE_DIR"] = str(folder)
    spec = importlib.util.spec_from_file_location("_specwire", RUNTIME)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _runners(device, taps, dtype):
    system = System(device, taps, dtype)
    target = Runner(device, taps, system.target, WIDTH, "TARGET_VERIFY", 1, dtype)
    return system, (target, Runner(device, taps, system.draft, 1, "DECODE", 2 * HIDDEN, dtype))


def _both(setting, device, dtype, folder):
    taps = _taps(setting, folder / "eager")
    _, runners = _runners(device, taps, dtype)
    wanted = [runner.eager(runner.live(size, seed)).clone() for seed, size in enumerate(SIZES) for runner in runners]
    taps = _taps(setting, folder / "replay")
    system, runners = _runners(device, taps, dtype)
    before = device.allocated()
    for runner in runners:
        runner.capture()
    device.wait()
    python, said = system.python, device.allocated() - before
    with device.elsewhere():
        replays = [
            runner.replay(runner, runner.live(size, seed)).clone()
            for seed, size in enumerate(SIZES)
            for runner in runners
        ]
    device.wait()
    far = [float((a.float() - b.float()).abs().max()) for a, b in zip(wanted, replays)]
    return {
        "python_calls_in_replays": system.python - python,
        "outputs_differ_by": max(far),
        "buffers": sum(map(len, taps._buffers.values())),
        "allocated_by_capture": said,
        "compared": _compared(folder) if setting == "files" else None,
    }


def _compared(folder):
    """Each recorded event of the replays beside the eager one."""
    eager, replayed = (
        [_event(path) for path in sorted((folder / part / "rank0").glob("*.safetensors"))]
        for part in ("eager", "replay")
    )
    blind = [path.read_text() for path in folder.glob("*/rank0/blind.jsonl")]
    found = {"events": len(eager), "replayed": len(replayed), "blind": blind, "rows": 0, "padding": 0, "furthest": 0.0}
    found["bytewise"] = 0
    for (mine, held), (about, other) in zip(eager, replayed):
        if (mine["site"], mine["boundary"], mine["mode"]) != (about["site"], about["boundary"], about["mode"]):
            found["furthest"] = float("inf")
            break
        for name in held.keys() | other.keys():
            a, b = held.get(name), other.get(name)
            if a is None or b is None or a.shape != b.shape:
                found["padding"] += 1
                continue
            found["bytewise"] += bool(torch.equal(a, b))
            if a.is_floating_point():
                far = (a.double() - b.double()).norm(dim=-1) / a.double().norm(dim=-1).clamp_min(1e-300)
                found["rows"] += len(far)
                found["furthest"] = max(found["furthest"], float(far.max()))
            elif not torch.equal(a, b):
                found["furthest"] = float("inf")
    found["replayed_as"] = sorted({about["graph"] for about, _ in replayed})
    return found


def _event(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header.pop("__metadata__")["specwire"])
    held = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        raw = bytearray(data[8 + size + first : 8 + size + last])
        held[name] = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return about, held


def _times(setting, device, folder):
    """Microseconds for a replay of the target's largest graph, with and without what reads the rows after it."""
    taps = _taps(setting, folder)
    _, (runner, _) = _runners(device, taps, torch.bfloat16)
    runner.capture()
    batch, graph = runner.live(SHAPES[0], 0), runner.graphs[SHAPES[0]][0]

    def timed(run, count):
        run()
        device.wait()
        begun = time.perf_counter()
        for _ in range(count):
            run()
        device.wait()
        return round((time.perf_counter() - begun) / count * 1e6, 1)

    alone = timed(graph.replay, device.often)
    return {"graph_us": alone, "with_reading_us": timed(lambda: runner.replay(runner, batch), device.often // 10)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--setting", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.setting:
        one_process(options.setting, options.emulated)
        return 0
    found, begun = {}, time.monotonic()
    for setting in SETTINGS:
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, __file__, str(options.result), "--setting", setting]
            run = subprocess.run(
                [*command, *(["--emulated"] if options.emulated else [])],
                cwd=place,
                capture_output=True,
                text=True,
                timeout=600,
            )
        last = (run.stdout.strip().splitlines() or ["{}"])[-1]
        found[setting] = json.loads(last) if run.returncode == 0 else {"failed": run.stderr[-2000:]}
    device = Emulated() if options.emulated else Real()
    document = {
        "schema": "specwire.gpu/1",
        "torch": torch.__version__,
        "python": platform.python_version(),
        **device.about(),
        "seconds": round(time.monotonic() - begun, 1),
        "checks": checks(found),
        "seen": found,
    }
    options.result.write_text(json.dumps(document, indent=2) + "\n")
    for name, good in document["checks"].items():
        print(f"{'ok  ' if good else 'FAIL'} {name}")
    return 0 if all(document["checks"].values()) else 1


def checks(found):
    """Each thing that has to hold, by what was seen."""
    if any("failed" in each for each in found.values()):
        return {f"{name} ran to its end": "failed" not in each for name, each in found.items()}
    runs = [each[dtype] for each in found.values() for dtype in ("float32", "bfloat16")]
    compared = [found["files"][dtype]["compared"] for dtype in ("float32", "bfloat16")]
    return {
        "no Python runs in a replay": all(run["python_calls_in_replays"] == 0 for run in runs),
        "taps change no output": all(
            run["outputs_differ_by"] == found["off"][dtype]["outputs_differ_by"]
            for each in found.values()
            for dtype, run in each.items()
            if dtype != "times"
        ),
        "every eager event has a replayed one": all(one["events"] == one["replayed"] > 0 for one in compared),
        "all were recorded at replay": all(one["replayed_as"] == ["replay"] for one in compared),
        "no padding is recorded": all(one["padding"] == 0 for one in compared),
        "no tap was blind": not any(one["blind"] for one in compared),
        "rows are the eager ones": all(
            one["furthest"] <= bound for one, bound in zip(compared, (64 * 2.0**-24, 64 * 2.0**-8))
        ),
        "silent taps take no memory": all(found["off"][dtype]["buffers"] == 0 for dtype in ("float32", "bfloat16")),
    }


if __name__ == "__main__":
    sys.exit(main())
