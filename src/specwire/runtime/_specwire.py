# specwire:runtime This file was put here by `specwire apply`; `specwire remove` takes it out again.
"""What the taps call: reports and captures of hidden states, on standard library and torch alone.

EAGLE3_DEBUG=1             one line per tap on stderr
EAGLE3_CAPTURE_DIR=DIR     also one safetensors file per tap, in DIR/rank<R>/
EAGLE3_CAPTURE_BOUNDARIES  which boundaries hidden-state-dump keeps: `all` (default) or `3,31,59`
EAGLE3_CAPTURE_LIMIT=8G    what one process writes at most, in bytes or with K, M, G, T (0: no limit)
EAGLE3_DEBUG_RANKS=0,1     only these ranks report (all take part in collectives)
EAGLE3_DEBUG_STEPS=N       only the first N steps of each site are reported
EAGLE3_GRAPH_MEMORY=512M   what the buffers for graphs may take on the device: with more, that graph is not seen
EAGLE3_GRAPH_ROWS=1024     how many rows of a graph they hold: a replay of more is not seen

Set them alike on every rank and every node: reading a stream can be a collective, and a rank that does not take
part would have the others wait for ever.

A tap never raises into the engine, never changes what it is shown, keeps nothing of a batch alive but its ids, and
neither syncs, prints nor allocates while a graph is being captured: there it copies into a buffer of its own, which is
read after each replay. What it could not see goes into DIR/rank<R>/blind.jsonl.
DIR has to be this user's own; no link in it is followed. Each process writes files of its own name. Python 3.10.
"""

import atexit
import collections
import ctypes
import functools
import inspect
import itertools
import json
import os
import stat
import sys
import threading
import time
import weakref

import torch


def _set(name):
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def _count(text):
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _numbers(text):
    return None if text == "all" else {_count(part) for part in text.split(",") if part.strip()}


def _bytes(text):
    text = text.removesuffix("b")
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}.get(text[-1:], 1)
    return _count(int(float(text[:-1] if scale > 1 else text) * scale))


def _setting(name, read, otherwise):
    """What a variable says, by `read`. What is not understood is said and left out, and the others hold."""
    text = os.environ.get(name, "").strip().lower()
    try:
        return read(text) if text else otherwise
    except (ValueError, OverflowError):
        _say(f"[EAGLE3-DEBUG] setting not understood, and left out: {name}={text[:80]!r}")
        return otherwise


def _say(text):
    """To standard error, whatever has become of it by now."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except Exception:
        pass


DEBUG = _set("EAGLE3_DEBUG")
CAPTURE_DIR = os.environ.get("EAGLE3_CAPTURE_DIR") or None
on = DEBUG or CAPTURE_DIR is not None

_RANKS, _BOUNDARIES = (
    _setting("EAGLE3_DEBUG_RANKS", _numbers, None),
    _setting("EAGLE3_CAPTURE_BOUNDARIES", _numbers, None),
)
_STEPS = _setting("EAGLE3_DEBUG_STEPS", _count, 0) or None
_LIMIT = _setting("EAGLE3_CAPTURE_LIMIT", _bytes, 8 << 30)
_GRAPH_MEMORY = _setting("EAGLE3_GRAPH_MEMORY", _bytes, 512 << 20)
_GRAPH_ROWS = _setting("EAGLE3_GRAPH_ROWS", _count, 1024) or 1024
try:
    CAPTURE_DIR = CAPTURE_DIR and os.path.abspath(CAPTURE_DIR)
except OSError as _error:  # relative, and the working directory is gone
    _say(f"[EAGLE3-DEBUG] EAGLE3_CAPTURE_DIR={CAPTURE_DIR} leads nowhere: {_error}")

_steps = {}  # site -> steps begun
_loops = {}  # site -> the last boundary of the loop under way
_collections = {}  # id of a collection of captured states -> (last boundary, entries seen)
_latest = (None, {})  # mode and rows of the latest forward, for sites that are not given its batch
_widths = {}  # "hidden": how wide one captured state is
_projected = {}  # "input": what stood at the draft's width test
_blind_seen = set()


def embedding(model, hidden, **batch):
    """Boundary 0: `hidden` [tokens, hidden], as it leaves the target's embedding."""
    _tap("embedding-capture", _embedding, model, hidden, batch)


def captured(model, collected, boundary, **batch):
    """What `collected` has grown by: `boundary` as the engine keeps it, None where that cannot be told."""
    _tap("layer-capture", _captured, model, collected, boundary, batch)


def boundary(model, index, hidden, residual=None, stream=None, **batch):
    """The residual stream at boundary `index` (None: one past the last seen), read as this release holds it."""
    _tap("hidden-state-dump", _boundary, model, index, hidden, residual, stream, batch)


def forward_end(model, hidden, collected=None, **batch):
    """The target's final states, and how many boundaries the engine captured on the way."""
    _tap("forward-end", _forward_end, model, hidden, collected, batch)


def concat(which, value, batch=None):
    """The concatenation [tokens, slots * hidden] that the logits processor keeps for the draft."""
    _tap(f"concat-{which}", _concat, which, value, batch)


def draft_input(model, hidden, embeds, **batch):
    """The states and the embeddings that reach the draft."""
    _tap("draft-input", _draft_input, model, hidden, embeds, batch)


def fc_before(model, hidden, embeds, **batch):
    """What stands at the draft's width test."""
    _tap("draft-fc", _fc_before, hidden)


def fc_after(model, hidden, **batch):
    """What the width test made of it: projected, or passed on as it was."""
    _tap("draft-fc", _fc_after, model, hidden, batch)


def graph(what):
    """Decorator of what `captures` a graph, or `replays` some for a batch. Silent: the very function it is given."""
    return {"captures": _captures, "replays": _replays}[what] if on else lambda function: function


# --- one function per site -----------------------------------------------------------------------


def _embedding(site, model, hidden, batch):
    _remember(batch)
    _report(site, _next_step(site), {"hidden_states": hidden}, batch, boundary=0, model=model)


def _captured(site, model, collected, boundary, batch):
    count = 0 if collected is None else len(collected)
    last, seen = _collections.get(id(collected), (None, 0))
    if last is None or count < seen or (boundary is not None and boundary <= last):
        last, seen = -1, 0  # another forward's collection, for all that it may have an old one's id
        _next_step(site)
    if len(_collections) > 64:
        _collections.clear()
    _collections[id(collected)] = (last if boundary is None else boundary, count)
    alone = count - seen == 1 and boundary is not None
    for number in range(seen, count):
        value = _entry(collected, number)
        if alone:
            _widths["hidden"] = int(value.shape[-1])
        note = None if alone else "taken over as it was; which boundary it is cannot be told here"
        _report(site, _steps[site] - 1, {"hidden_states": value}, batch, boundary if alone else None, model, note)


def _boundary(site, model, index, hidden, residual, stream, batch):
    last = _loops.get(site)
    if index is None:
        if last is None:
            return  # no layer ran in the loop: the engine ran them another way, as two batches overlapped
        index = last + 1
        del _loops[site]
    else:
        if last is None or index <= last:
            _next_step(site)
        _loops[site] = index
    if _BOUNDARIES is not None and index not in _BOUNDARIES:
        return
    if stream is not None:
        hidden = stream.snapshot(hidden, batch.get("forward_batch"))
    elif residual is not None:
        hidden = hidden + residual
    _report(site, _steps[site] - 1, {"hidden_states": hidden}, batch, boundary=index, model=model)


def _forward_end(site, model, hidden, collected, batch):
    if isinstance(collected, torch.Tensor):
        note = f"captured: one tensor {list(collected.shape)}"
    else:
        note = f"captured: {0 if collected is None else len(collected)}"
    _report(site, _next_step(site), {"hidden_states": hidden}, batch, model=model, note=note)


def _concat(site, which, value, batch):
    mode, rows = _latest if batch is None else _facts({"forward_batch": batch})
    names = ("token_ids", "positions")  # of the last row of each request they would not be
    own = {name: kept for name, kept in _latest[1].items() if name in names and which == "full"}
    rows = {**{name: kept for name, kept in rows.items() if name not in names}, **own}
    _report(site, _next_step(site), {"hidden_states": value}, (mode, rows), width=_widths.get("hidden"))


def _draft_input(site, model, hidden, embeds, batch):
    _remember(batch)
    tensors = {"hidden_states": hidden, "embeds": embeds}
    _report(site, _next_step(site), tensors, batch, model=model, width=int(embeds.shape[-1]))


def _fc_before(site, hidden):
    # A copy, where it is to be written at all: the states themselves are the engine's to free.
    copy = None
    if CAPTURE_DIR and _tape is not None:
        copy = _tape.keep("draft-fc input", hidden.detach())
    elif CAPTURE_DIR:
        copy = hidden.detach().to("cpu", copy=True)
    _projected["input"] = (weakref.ref(hidden), hidden.shape[-1], copy)


def _fc_after(site, model, hidden, batch):
    if "input" not in _projected:
        return
    before, width, copy = _projected.pop("input")
    ran = hidden is not before()
    note = "fc ran" if ran else f"fc did not run: the states are already {width} wide"
    kept = {} if copy is None else {"input": copy}
    _report(site, _next_step(site), {"output": hidden}, batch, model=model, note=note, kept=kept, fc_ran=ran)


def _remember(batch):
    global _latest
    _latest = _facts(batch)
    if _tape is not None:
        _tape.copied.clear()


def _entry(collected, number):
    if isinstance(collected, (list, tuple)):
        return collected[number]
    width = collected._feature_size  # one packed buffer: that chunk of it
    return collected._buffer[..., number * width : (number + 1) * width]


# --- when to look, and when not to ---------------------------------------------------------------


def _tap(site, look, *args):
    if torch.compiler.is_compiling():
        _compiled(site)
        return
    try:
        capturing = _capturing()
        if _tape is not None:
            _tape.capturing = capturing
            look(site, *args)
        elif capturing:
            _blind(site, "cuda-graph", "ran while a graph was captured; its replays are not seen")
        elif not _engine_captures():  # else the warm-up before a capture, whose rows are made up
            _read()
            look(site, *args)
    except _Blind as error:
        _blind(site, *error.args)
    except Exception as error:
        _blind(site, "error", f"{type(error).__name__}: {error}")


class _Blind(Exception):
    """A reason and a detail: why something cannot be seen."""


_ACCELERATORS = ("cuda", "npu", "xpu", "musa", "mlu", "hpu", "gcu")
_ENGINE_CAPTURES = (
    "sglang.srt.model_executor.cuda_graph_runner",
    "sglang.srt.model_executor.runner_utils.capture_mode",
)


def _capturing():
    """Whether a graph is being captured, by whatever accelerator there is: then nothing may sync or print."""
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is not None and getattr(device, "is_initialized", device.is_available)():
            if getattr(device, "is_current_stream_capturing", _engine_captures)():
                return True
    return False


def _engine_captures():
    """The engine's own word: true in a capture and in the warm-up before it, not where a replay lets Python run."""
    return any(getattr(sys.modules.get(name), "is_capture_mode", False) for name in _ENGINE_CAPTURES)


def _compiled(site):
    _blind(site, "torch-compile", "runs inside a compiled region and is not seen there")
    return 0


if on:  # called while a region is compiled, not in the region; importing dynamo is dear, so not when off
    _compiled = torch.compiler.assume_constant_result(_compiled)


def _blind(site, reason, detail):
    """Say once, and put on record, what could not be looked at. A hole in the files is said even where lines are not."""
    if (site, reason, detail) in _blind_seen or len(_blind_seen) == 1000:  # some errors are worded anew each time
        return
    _blind_seen.add((site, reason, detail))
    if DEBUG or reason in ("disk", "limit"):
        _say(f"[EAGLE3-DEBUG] site={site} rank={_rank()[0]} blind={reason} {detail}")
    try:
        if CAPTURE_DIR:
            _append_blind({"site": site, "reason": reason, "detail": detail, "pid": os.getpid()})
    except Exception:
        pass


def _next_step(site):
    _steps[site] = _steps.get(site, 0) + 1
    return _steps[site] - 1


# --- reporting -----------------------------------------------------------------------------------


def _report(site, step, tensors, batch, boundary=None, model=None, note=None, width=None, kept=None, **extra):
    rank, world = _rank()
    if _RANKS is not None and rank not in _RANKS:
        return
    mode, rows = _facts(batch) if isinstance(batch, dict) else batch
    tensors = {name: value.detach() for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    shift = 1 if _named_before(batch) else 0
    about = {
        "schema": "specwire.capture/1",
        "site": site,
        "rank": rank,
        "world_size": world,
        "step": step,
        "mode": mode,
        "graph": "eager",
        "boundary": boundary,
        "captured": _ids(getattr(model, "layers_to_capture", None), shift),
        "note": note,
        "pid": os.getpid(),
        "model": type(model).__name__ if model is not None else None,
        **extra,
    }
    if _tape is not None:
        now = None if model is None else (weakref.ref(model), shift)
        _tape.record(about, tensors, kept or {}, rows, width, now)
        return
    tensors |= kept or {}
    if _live is not None:
        tensors, rows = _live.rows_of(tensors, rows)
    _emit(about, tensors, rows, width)


def _emit(about, tensors, rows, width):
    """To what is asked for: the line, the file."""
    site = about["site"]
    if _STEPS is not None and about["step"] >= _STEPS:
        return
    if (given := _other_rows(tensors, rows)) is not None:
        about["shard"] = given
    for wanted, sink in ((DEBUG, _print), (CAPTURE_DIR, _save)):
        try:
            if wanted:
                sink(about, tensors, rows, width)
        except OSError as error:
            _blind(site, "disk", f"not written: {error.strerror or error}")
        except Exception as error:
            _blind(site, "error", f"{type(error).__name__}: {error}")


def _named_before(batch):
    return isinstance(batch, dict) and batch.get("after")


def _facts(batch):
    """(forward mode, what tells one row from another): token ids, positions, and where each request's rows begin."""
    forward = batch.get("forward_batch")
    found = {"token_ids": batch.get("input_ids"), "positions": batch.get("positions")}
    for name in ("extend_seq_lens", "extend_prefix_lens", "seq_lens", "req_pool_indices"):
        found[name] = getattr(forward, name, None)
    rows = {
        name: value.detach().squeeze(0) if value.dim() == 2 else value.detach()
        for name, value in found.items()
        if isinstance(value, torch.Tensor) and not value.is_floating_point()
    }
    return getattr(getattr(forward, "forward_mode", None), "name", None), rows


def _other_rows(tensors, rows):
    """How many token ids came with states of another number of rows: then they are a shard, or all ranks' together."""
    ids, states = rows.get("token_ids"), tensors.get("hidden_states", tensors.get("input"))
    if ids is None or states is None or ids.dim() != 1 or states.dim() != 2 or ids.shape[0] == states.shape[0]:
        return None
    return int(ids.shape[0])


def _print(about, tensors, rows, width):
    _say(_line(about, tensors, rows, width))


def _line(about, tensors, rows, width):
    value = tensors.get("output", tensors.get("hidden_states"))
    parts = value.split(width, dim=-1) if width and value.shape[-1] % width == 0 else ()
    ids = [(name, key) for name, key in (("token", "token_ids"), ("position", "positions")) if key in rows]
    ids = [(name, rows[key].reshape(-1)[:1].to(value.device)) for name, key in ids if rows[key].numel()]
    # All numbers of a line come over in one transfer.
    pieces = [_square_sum(value), *(_first5(part) for part in (value, *parts)), *(number for _, number in ids)]
    numbers = iter(torch.cat([_wide(piece).reshape(-1) for piece in pieces]).tolist())
    taken = [list(itertools.islice(numbers, piece.numel())) for piece in pieces]
    fields = {
        "site": about["site"],
        "rank": about["rank"],
        "step": about["step"],
        "mode": about["mode"] or "-",
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "norm": f"{taken[0][0] ** 0.5:.6g}",
        "hs_first5": _listed(taken[1]),
        "boundary": "-" if about["boundary"] is None else about["boundary"],
    }
    fields |= {name: int(number) for (name, _), (number,) in zip(ids, taken[2 + len(parts) :])}
    if parts:
        fields["slots"] = "[" + ", ".join(_listed(each) for each in taken[2 : 2 + len(parts)]) + "]"
    if "shard" in about:
        fields["shard"] = f"{value.shape[0]}/{about['shard']}"
    if about["graph"] != "eager":
        fields["graph"] = about["graph"]
    if about["note"]:
        fields["note"] = repr(about["note"])
    return "[EAGLE3-DEBUG] " + " ".join(f"{name}={text}" for name, text in fields.items())


def _listed(numbers):
    return "[" + ", ".join(f"{number:.6g}" for number in numbers) + "]"


def _first5(value):
    """The first five values of the first row."""
    return value.reshape(-1)[:0] if value.dim() == 0 or value.numel() == 0 else value[(0,) * (value.dim() - 1)][:5]


def _square_sum(value):
    """The sum of squares, by blocks of a million values: a double copy of a whole prefill may not fit the device."""
    total = torch.zeros(1, dtype=_wide_type(value), device=value.device)
    rows = value.reshape(-1, value.shape[-1]) if value.numel() else value.reshape(0, 1)
    for block in rows.split(max(1, (1 << 20) // rows.shape[-1])):
        total += _wide(block).square().sum()
    return total


def _wide(value):
    """As floating point wide enough to add up in; eight-bit floats go by way of float32, which every device can."""
    return (value.float() if value.element_size() == 1 else value).to(_wide_type(value))


def _wide_type(value):
    return torch.float64 if value.device.type in ("cpu", "cuda") else torch.float32


def _ids(value, shift):
    """The boundaries that layer ids stand for: shifted by one where they name the layer before the boundary."""
    try:
        return None if value is None else [int(part) + shift for part in value]
    except (TypeError, ValueError):
        return None


def _rank():
    """(rank, ranks). Kept only once there is a process group: a warm-up may come before."""
    global _known_rank
    if _known_rank is None:
        group = torch.distributed
        if not (group.is_available() and group.is_initialized()):
            return 0, 1
        _known_rank = group.get_rank(), group.get_world_size()
    return _known_rank


_known_rank = None

# --- graphs: kept while one is captured, read after each replay ------------------------------------
#
# The engine runs a forward twice before it captures it. These warm-ups tell what the taps will keep, so that buffers are
# there before the capture. In the capture a tap copies into them, and the copies become operations of the graph. Graphs
# share the buffers: one replays at a time, and is read at once. A count that each graph raises tells which one it was,
# and whether one was missed.

_tape = None  # what is recorded in the capture under way
_live = None  # the batch whose replay is under way
_tapes = []
_buffers = {}  # (place in the forward, what it is of, device) -> bytes
_counts = {}  # device -> how often each tape's graph has run
_TAPES = 1024
_BY_TOKEN = ("token_ids", "positions")


class _Tape:
    """What the taps of one graph keep, in the order of its forward."""

    def __init__(self):
        self.capturing = False
        self.planned = []  # in the warm-ups: each buffer that will be needed
        self.copied = {}  # rows of this forward that have been kept: where they lie -> the buffer
        self.entries, self.kept, self.seen = [], 0, 0
        self.device, self.number, self.refused = None, len(_tapes), None

    def keep(self, name, value):
        """In a warm-up `value` itself; in the capture a buffer that holds its rows after each replay."""
        value = value[..., :_GRAPH_ROWS] if name in _BY_TOKEN else value[:_GRAPH_ROWS]
        if not self.capturing:
            self.planned.append((name, str(value.device), value.numel() * value.element_size()))
            self._provide(value.device)
            return value
        buffer = _buffers.get((self.kept, name, str(value.device)))
        size = value.numel() * value.element_size()
        if self.refused or self.device is None or buffer is None or len(buffer) < size:
            raise _Blind(*(self.refused or ("cuda-graph", "captured otherwise than in the warm-ups before")))
        if not self.kept:
            _counts[self.device][self.number : self.number + 1].add_(1)
        self.kept += 1
        return buffer[:size].view(value.dtype).view(value.shape).copy_(value)

    def _provide(self, device):
        """Buffers for one forward, once two in a row were alike. None where all together would be too large."""
        half, odd = divmod(len(self.planned), 2)
        if odd or self.planned[:half] != self.planned[half:]:
            return
        wanted = {(place, *each[:2]): each[2] for place, each in enumerate(self.planned[:half])}
        missing = {key: size for key, size in wanted.items() if len(_buffers.get(key, ())) < size}
        total = sum(len(each) for key, each in _buffers.items() if key not in missing) + sum(missing.values())
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" and missing else None
        self.refused = None
        if total > _GRAPH_MEMORY or (free is not None and sum(missing.values()) > free // 2):
            bound = f"EAGLE3_GRAPH_MEMORY={_GRAPH_MEMORY}" if total > _GRAPH_MEMORY else f"half of the {free} left"
            self.refused = "graph-memory", f"its buffers would take {total} bytes of the device, more than {bound}"
        elif self.number >= _TAPES:
            self.refused = "cuda-graph", f"more than {_TAPES} graphs"
        else:
            with torch.inference_mode(False):
                for key, size in missing.items():
                    _buffers[key] = torch.empty(size, dtype=torch.uint8, device=device)
                if device not in _counts:
                    _counts[device] = torch.zeros(_TAPES, dtype=torch.int64, device=device)
            self.device = device
            self.total = total

    def record(self, about, tensors, kept, rows, width, model):
        """One tap of the forward. Its batch's rows, static ones, are kept as the graph saw them."""
        ids = {name: self._row(name, rows[name]) for name in _BY_TOKEN if name in rows}
        names = f"{about['site']} {about['boundary']} "
        held = {**kept, **{name: self.keep(names + name, value) for name, value in tensors.items()}}
        if self.capturing:
            tokens, requests = _shape(rows)
            counts = {name: value.shape[0] for name, value in tensors.items()}
            counts |= dict.fromkeys(kept, tokens)
            self.entries.append((about, held, ids, width, counts, tokens, requests, model))

    def _row(self, name, value):
        """The same ids go by at every tap of a forward, and are kept once."""
        where = (value.data_ptr(), tuple(value.shape), value.dtype)
        if where not in self.copied:
            self.copied[where] = self.keep(name, value)
        return self.copied[where]

    def report(self):
        """Everything that the replay left, without its padding."""
        steps = {}
        for about, held, ids, width, counts, tokens, requests, model in self.entries:
            site = about["site"]
            try:
                if (site, about["step"]) not in steps:
                    steps[site, about["step"]] = _next_step(site)
                alive = _live.alive(tokens, requests)
                cut = {name: _cut(value, counts[name], alive) for name, value in held.items()}
                rows = {name: _cut(value, tokens, alive, -1) for name, value in ids.items()}
                rows |= {name: value for name, value in _live.rows.items() if name not in _BY_TOKEN}
                now = None if model is None else _ids(getattr(model[0](), "layers_to_capture", None), model[1])
                more = {} if now == about["captured"] else {"captured_now": now}
                more |= {"mode": _live.mode or about["mode"], "graph": "replay", "graph_rows": tokens}
                if all(value.shape[0] for value in cut.values()):
                    _emit({**about, **more, "step": steps[site, about["step"]]}, cut, rows, width)
            except _Blind as error:
                _blind(site, *error.args)
            except Exception as error:
                _blind(site, "error", f"{type(error).__name__}: {error}")


class _Live:
    """The batch that graphs are replayed for: its mode, its own rows, how many tokens and requests it has."""

    def __init__(self, batch):
        ids, positions = getattr(batch, "input_ids", None), getattr(batch, "positions", None)
        self.mode, self.rows = _facts({"forward_batch": batch, "input_ids": ids, "positions": positions})
        self.tokens = ids.shape[0] if isinstance(ids, torch.Tensor) else None
        self.requests = getattr(batch, "batch_size", None)
        self.shape = None  # of the graph that was read last: its tokens

    def alive(self, tokens, requests):
        """{rows of the graph's shape: how many of them are no padding}."""
        found = {requests: self.requests}
        each = tokens // requests if tokens and requests else None
        alike = None if each is None or self.requests is None else each * self.requests
        # A step of the draft has as many tokens for each request, whatever the batch came with.
        found[tokens] = alike if self.mode == "DECODE" or self.tokens is None else self.tokens
        return {rows: count for rows, count in found.items() if rows is not None and count is not None}

    def rows_of(self, tensors, rows):
        """What an eager tap sees while a graph's replay is under way may be padded, too."""
        tokens, requests = _shape(rows)
        alive = self.alive(tokens, requests)
        if self.shape is not None and self.tokens is not None:
            alive.setdefault(self.shape, self.tokens)
        fit = {name: value[: alive.get(value.shape[0], value.shape[0])] for name, value in tensors.items()}
        own = {name: value[..., : alive.get(value.shape[-1], value.shape[-1])] for name, value in rows.items()}
        return fit, own


def _shape(rows):
    """(tokens, requests) of a batch's rows; None where they do not tell."""
    ids = rows.get("token_ids", _latest[1].get("token_ids"))
    requests = next((rows[name] for name in ("seq_lens", "req_pool_indices", "extend_seq_lens") if name in rows), None)
    return None if ids is None else ids.shape[-1], None if requests is None else requests.shape[0]


def _cut(value, count, alive, axis=0):
    """Of `count` rows, of which `value` holds the first ones, those that are no padding."""
    if count not in alive:
        raise _Blind("cuda-graph", f"{count} rows of a graph: which of them are padding cannot be told")
    if alive[count] > value.shape[axis]:
        detail = f"a replay of {alive[count]} rows; buffers hold EAGLE3_GRAPH_ROWS={_GRAPH_ROWS}"
        raise _Blind("graph-memory", detail)
    return value.narrow(axis, 0, alive[count])


def _captures(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        global _tape, _latest
        outer, before, latest, _tape = _tape, dict(_steps), _latest, _Tape()
        try:
            return function(*args, **kwargs)
        finally:
            done, _tape, _latest = _tape, outer, latest
            _steps.clear()
            _steps.update(before)
            _captured_one(done)

    return run


def _captured_one(tape):
    try:
        if tape.entries:
            tape.copied.clear()
            tape.seen = int(_counts[tape.device][tape.number])
            _tapes.append(tape)
            if DEBUG and tape.total > getattr(_captured_one, "said", 0):
                _captured_one.said = tape.total
                _say(
                    f"[EAGLE3-DEBUG] buffers for what graphs replay take {tape.total / (1 << 20):.1f} MB of the device"
                )
    except Exception as error:
        _blind("graph-replay", "error", f"{type(error).__name__}: {error}")


def _replays(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        global _live, _latest
        outer = _live
        try:
            _read()  # what ran outside of any such function is nobody's to tell
            batch = next(each for each in (*args[1:], *kwargs.values()) if hasattr(each, "forward_mode"))
            _live = _Live(batch)
            _latest = (_live.mode, _live.rows)
        except Exception as error:
            _blind("graph-replay", "error", f"{type(error).__name__}: {error}")
        try:
            result = function(*args, **kwargs)
            _read()
            return result
        finally:
            _live = outer

    return run


def _read():
    """Report what was replayed since the last look. Each once, or it is said that it was missed."""
    try:
        if not _tapes:
            return
        ran = []
        for device, counts in _counts.items():
            now = counts.tolist()
            for tape in _tapes:
                if tape.device == device:
                    ran += [tape] * (now[tape.number] - tape.seen)
                    tape.seen = now[tape.number]
        if len(ran) == 1 and _live is not None:
            _live.shape = ran[0].entries[0][5]
            ran[0].report()
        else:
            for site in {entry[0]["site"] for tape in ran for entry in tape.entries}:
                _blind(site, "graph-gap", "graphs were replayed where nothing reads what they left, or two at a time")
    except Exception as error:
        _blind("graph-replay", "error", f"{type(error).__name__}: {error}")


# --- safetensors, written plainly: the engine's environment need not have the package -------------

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_NO_LINK = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

_writing_process = {"pid": None}  # of this process: its name in file names, its next number, the bytes it wrote


def _me():
    if _writing_process["pid"] != os.getpid():  # the first one, or a child that was forked off
        name = f"{os.getpid()}-{os.urandom(3).hex()}"  # a container's processes have the same numbers each time
        _writing_process.update(pid=os.getpid(), name=name, numbers=itertools.count(), bytes=0)
    return _writing_process


def _save(about, tensors, rows, width):
    """One file, whole or not at all."""
    states = tensors.get("hidden_states", tensors.get("input"))
    if states is None or states.dim() != 2:
        raise TypeError("no rows of states: " + ("no tensor" if states is None else f"shape {list(states.shape)}"))
    me = _me()
    about["process"], about["time"] = me["name"], time.time()
    held = {**tensors, **{name: value.to(torch.int64) for name, value in rows.items()}}
    held = {name: value if value.dtype in _DTYPES else value.float() for name, value in sorted(held.items())}
    header, offset = {"__metadata__": {"specwire": json.dumps(about)}}, 0
    for name, value in held.items():
        end = offset + value.numel() * value.element_size()
        header[name] = {
            "dtype": _DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if _LIMIT and me["bytes"] + offset > _LIMIT:
        me["bytes"] = _LIMIT  # nothing after the first hole: what is there is whole up to it
        _blind(about["site"], "limit", f"nothing more is written: EAGLE3_CAPTURE_LIMIT is {_LIMIT} bytes")
        return
    folder = _folder()
    try:
        _leave_room(folder, offset)
        path = f"{next(me['numbers']):06d}.{about['site']}.{me['name']}.safetensors"
        _write_whole(folder, path, len(text).to_bytes(8, "little") + text, held.values())
        me["bytes"] += offset
    finally:
        os.close(folder)


def _write_whole(folder, path, head, values):
    part = path + ".part"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=folder)
    try:
        with open(file, "wb") as out:
            out.write(head)
            for value in values:
                # Named, so that its memory stays until it is written. numpy need not be there.
                value = value.cpu().contiguous()
                size = value.numel() * value.element_size()
                out.write((ctypes.c_char * size).from_address(value.data_ptr()) if size else b"")
        os.rename(part, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)  # a full disk would keep the room that is left
        raise


def _leave_room(folder, size):
    """OSError where the file would take the last of a disk that others need too: a twentieth, or a GiB."""
    disk = os.fstatvfs(folder)
    if disk.f_blocks and size + min(1 << 30, disk.f_blocks * disk.f_frsize // 20) > disk.f_bavail * disk.f_frsize:
        raise OSError("the disk is nearly full, and what is left is not for captures")


def _append_blind(line):
    folder = _folder()
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _NO_LINK
        file = os.open("blind.jsonl", flags, 0o600, dir_fd=folder)
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
                os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)
    finally:
        os.close(folder)


def _folder():
    """A descriptor of this rank's directory in CAPTURE_DIR: whoever takes it closes it."""
    outer = _own_directory(CAPTURE_DIR)
    try:
        return _own_directory(f"rank{_rank()[0]}", outer)
    finally:
        os.close(outer)


def _own_directory(path, inside=None):
    """A descriptor of a directory of this user's own, made where there is none. OSError for a link, or another's."""
    try:
        if inside is None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o700, dir_fd=inside)
    except FileExistsError:
        pass
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=inside)
    if os.fstat(found).st_uid != os.geteuid():
        os.close(found)
        raise PermissionError(f"{path} is another user's: name a directory of your own")
    return found


# --- profile: time in the stages of a speculative cycle -------------------------------------------
#
# EAGLE3_PROFILE=DIR         one JSON line per cycle in DIR/rank<R>.<pid>.jsonl, written twice a second
# EAGLE3_PROFILE_CYCLES=N    stop after N cycles (default one million)
#
# On a GPU the clock is CUDA events on the engine's own stream: recorded in passing, read cycles later
# when they are done, so nothing ever waits for the device. On a CPU it is the monotonic clock.

PROFILE_DIR = os.environ.get("EAGLE3_PROFILE") or None
_PENDING, _QUEUED = 1024, 65536  # cycles held at most: unread events, unwritten lines

_here = threading.local()  # .open: the spans under way in this thread; .last: the cycle before
_pending = collections.deque()  # cycles whose events may not be done yet, oldest first
_lines = collections.deque(maxlen=_QUEUED)
_events = []  # CUDA events to use again
_writer = {"pid": None, "file": None, "cycles": 0, "lost": 0}
_writing = threading.Lock()


class _Span:
    """One call of a stage: where its time begins and ends, and the stages it called in turn."""

    __slots__ = ("stage", "inner", "begin", "end", "host_begin", "host_end", "about", "accepted", "failed", "before")

    def __init__(self, stage):
        self.stage, self.inner, self.about, self.accepted, self.failed = stage, [], None, None, False
        self.begin = self.end = self.before = None


def timed(stage):
    """Decorator that times a stage of the worker. With profiling off: the very function it is given."""
    return functools.partial(_timed, stage) if PROFILE_DIR else lambda function: function


def _timed(stage, function):
    if inspect.isgeneratorfunction(function):
        return functools.wraps(function)(
            lambda *args, **kwargs: _each_resumption(stage, function(*args, **kwargs), args, kwargs)
        )
    if inspect.iscoroutinefunction(function):
        return function  # its call takes no time and its work has no one stretch of it

    @functools.wraps(function)
    def run(*args, **kwargs):
        span = _begin(stage, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            _end(span, None, failed=True)
            raise
        _end(span, result)
        return result

    return run


def _each_resumption(stage, running, args, kwargs):
    """Drive a generator; its time is what it runs between yields, not what its caller does meanwhile."""
    send, value = running.send, None
    while True:
        span = _begin(stage, args, kwargs)
        try:
            item = send(value)
        except StopIteration as done:
            _end(span, done.value)
            return done.value
        except BaseException:
            _end(span, None, failed=True)
            raise
        _end(span, item)
        try:
            send, value = running.send, (yield item)
        except GeneratorExit:
            running.close()
            raise
        except BaseException as error:
            send, value = running.throw, error


def _begin(stage, args, kwargs):
    """A new span, or None where none can be had: while a graph is captured, or once enough was seen."""
    try:
        gpu = torch.cuda.is_initialized()
        if _writer["cycles"] >= _CYCLES or _capturing():
            return None
        if not hasattr(_here, "open"):
            _here.open, _here.last = [], None
        span = _Span(stage)
        if not _here.open:
            span.about = _about(args, kwargs)
        _here.open.append(span)
        span.host_begin = time.monotonic()
        span.begin = _mark() if gpu else span.host_begin
        return span
    except Exception as error:
        _lost(error)
        return None


def _end(span, result, failed=False):
    if span is None:
        return
    try:
        span.end = span.host_end = time.monotonic()
        if not isinstance(span.begin, float):
            span.end = _mark()
        span.failed = failed
        while _here.open and _here.open.pop() is not span:
            pass  # an inner span that never ended: its time is this one's
        if span.stage == "verify" and not failed:
            span.accepted = _accepted(result)
        if _here.open:
            _here.open[-1].inner.append(span)
        elif span.stage in ("cycle", "target"):
            span.about["graph"] = _graph(result)
            span.before, _here.last = _here.last, span
            _pending.append(span)
            _settle()
    except Exception as error:
        _here.open = []
        _lost(error)


def _mark():
    event = _events.pop() if _events else torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _about(args, kwargs):
    """Mode, requests and tokens of the batch, as they are before the worker changes them."""
    batch = args[1] if len(args) > 1 else kwargs.get("batch", kwargs.get("model_worker_batch"))
    rows = getattr(batch, "reqs", None)
    rows = getattr(batch, "seq_lens", None) if rows is None else rows
    mode = getattr(getattr(batch, "forward_mode", None), "name", None)
    tokens = getattr(batch, "extend_num_tokens", None) if mode not in ("DECODE", "IDLE") else None
    return {"mode": mode, "batch": None if rows is None else len(rows), "tokens": tokens}


def _accepted(result):
    """Tokens that each request got in this cycle, the bonus token counted: a list, or a tensor on its way here."""
    for part in result if isinstance(result, tuple) else (result,):
        lengths = getattr(part, "accept_lens", None)
        if isinstance(lengths, torch.Tensor):
            if not lengths.is_cuda:
                return lengths.tolist()
            return torch.empty(lengths.shape, dtype=lengths.dtype, pin_memory=True).copy_(lengths, non_blocking=True)
        for name in ("accept_length_per_req_cpu", "num_correct_drafts_per_req_cpu"):
            drafts = getattr(part, name, None)
            if drafts is not None:
                return [int(each) + 1 for each in drafts]
    return None


def _graph(result):
    """Whether the target's forward replayed a graph, as the result says it."""
    ran = (
        result[-1]
        if isinstance(result, tuple) and isinstance(result[-1], bool)
        else getattr(result, "can_run_cuda_graph", None)
    )
    return ran if isinstance(ran, bool) else None


def _settle():
    """Read the clocks of the cycles that are over on the device too. Never waits for one that is not."""
    while _pending:
        span = _pending[0]
        if not isinstance(span.end, float) and not span.end.query():
            if len(_pending) > _PENDING:
                _pending.popleft().before = None
                _lost("the device is a thousand cycles behind")
            return
        _pending.popleft()
        parts, accepted = {}, []
        _exclusive(span, parts, accepted)
        before, span.before = span.before, None
        gap = (
            _milliseconds(before.end, span.begin)
            if before is not None and type(before.end) is type(span.begin)
            else None
        )
        line = {
            "kind": span.stage,
            "t": round(span.host_begin, 6),
            "ms": _milliseconds(span.begin, span.end),
            "host_ms": _milliseconds(span.host_begin, span.host_end),
            "gap_ms": gap,
            **span.about,
            "parts": parts,
            "accepted": [int(each) for part in accepted for each in part],
        }
        if span.failed:
            line["failed"] = True
        _recycle(span, before)
        _queue(line)


def _exclusive(span, parts, accepted):
    """Add up each stage's own time, without that of the stages inside it, over the whole cycle."""
    own = _milliseconds(span.begin, span.end) - sum(_exclusive(each, parts, accepted) for each in span.inner)
    name = "other" if span.stage == "cycle" else span.stage
    so_far = parts.get(name, (0.0, 0))
    parts[name] = (round(so_far[0] + own, 4), so_far[1] + 1)
    if span.accepted is not None:
        accepted.append(span.accepted)
    return _milliseconds(span.begin, span.end)


def _milliseconds(begin, end):
    took = (end - begin) * 1000 if isinstance(begin, float) else begin.elapsed_time(end)
    return round(took, 4)


def _recycle(span, before):
    """Take the events back, but for the last: the next cycle measures its distance from it."""
    if isinstance(span.begin, float):
        return
    if before is not None and not isinstance(before.end, float):
        _events.append(before.end)
    kept, spans = span.end, [span]
    while spans:
        each = spans.pop()
        spans += each.inner
        _events.extend(event for event in (each.begin, each.end) if event is not kept)
    span.inner = []


def _lost(error):
    _writer["lost"] += 1
    if _writer["lost"] == 1:
        _say(f"[EAGLE3-PROFILE] a cycle was not recorded: {error!r}")


def _queue(line):
    _writer["lost"] += len(_lines) == _QUEUED
    if _writer["lost"]:
        line["lost"] = _writer["lost"]
    _lines.append(line)
    _writer["cycles"] += 1
    if _writer["cycles"] == _CYCLES:
        _lines.append({"kind": "stopped", "cycles": _CYCLES})
    if _writer["pid"] != os.getpid():  # first cycle of this process: its parent's thread did not come along
        _writer.update(pid=os.getpid(), file=None)
        threading.Thread(target=_write_now_and_then, daemon=True).start()
        atexit.register(_write)


def _write_now_and_then():
    while True:
        time.sleep(0.5)  # these processes are often killed: little may be unwritten at any time
        _write()


def _write():
    with _writing:
        try:
            if not _lines:
                return
            if _writer["file"] is None:
                _writer["file"] = _open_profile()
            text = []
            while _lines:
                text.append(json.dumps(_lines.popleft(), separators=(",", ":")) + "\n")
            _writer["file"].write("".join(text))
            _writer["file"].flush()
        except Exception as error:
            _lost(error)


def _open_profile():
    rank, world = _rank()
    folder = _own_directory(os.path.abspath(PROFILE_DIR))
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
        file = open(os.open(f"rank{rank}.{_me()['name']}.jsonl", flags, 0o600, dir_fd=folder), "w")
    finally:
        os.close(folder)
    gpu = torch.cuda.is_initialized()
    about = {
        "schema": "specwire.profile/1",
        "rank": rank,
        "world_size": world,
        "pid": os.getpid(),
        "clock": "cuda-events" if gpu else "monotonic",
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "monotonic": time.monotonic(),
        "unix": time.time(),
    }
    file.write(json.dumps(about) + "\n")
    return file


_CYCLES = _setting("EAGLE3_PROFILE_CYCLES", _count, 0) or 1_000_000
