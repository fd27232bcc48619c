"""Training data as people keep it, read as records: token ids, and the states of some layers.

Nothing is unpickled: `.pt` and `.ckpt` files are loaded as plain tensors, and refused when they hold anything
else.
"""

from __future__ import annotations

import gzip
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from specwire.capture import open_capture
from specwire.errors import SpecwireError, said
from specwire.pickles import Refused, look_through
from specwire.regular import open_regular
from specwire.tensorfile import open_tensors

if TYPE_CHECKING:
    import torch

TOKENS = ("token_ids", "input_ids", "tokens")
STATES = ("aux_hidden_state", "aux_hidden_states", "hidden_states", "concat")
FINAL = "hidden_state"
KNOWN = (*TOKENS, *STATES, FINAL)
ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".pt.gz", ".pth.gz", ".ckpt.gz")
LAYERS = 1024  # of one record
SHARED = 4  # how often a file's bytes may be named
LIMIT = 4 << 30  # bytes of one file: 32,768 tokens of a target 7,168 wide with four layers take half of it
BESIDE = ("token_freq.pt",)  # speculators' count of tokens, in the same folder
SHOWN = 40
NESTED = 3  # dicts within dicts that a record's values are looked for in


@dataclass(frozen=True)
class Record:
    """One prompt. `states` are [n, hidden] each, in the file's order; `boundaries` names them where the file
    does."""

    origin: str
    token_ids: tuple[int, ...]
    states: tuple[torch.Tensor, ...]
    boundaries: tuple[int, ...] | None = None
    final_norm: torch.Tensor | None = None
    last_is_end: bool = False  # by the file's layout alone; the id decides where one is given
    of_any_layer: bool = False  # states that are not said to be those that the draft gets: the last may be L


def read_records(path: Path, hidden: int, say: Callable[[str], None] = lambda text: None) -> Iterator[Record]:
    """The records below `path`: a capture directory (or what holds one as `capture`), a file, or a directory of files.

    What lies among the records of a directory and holds neither token ids nor states is passed over, and named by
    `say`. Raises SpecwireError, naming the file, when one of them is not understood or would need unpickling.
    """
    for folder in (path, path / "capture"):
        if any(folder.glob("rank*/*.safetensors")):
            yield from _captured(folder)
            return
    files = (
        [path]
        if path.is_file()
        else sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS) and file.name not in BESIDE)
    )
    if not files:
        raise SpecwireError(
            f"no {', '.join(ENDINGS)} file and no capture at {path}: name a file or directory of training data"
        )
    for file in files:
        try:
            for origin, held in _held(file):
                if len(files) > 1 and not held.keys() & set(KNOWN):
                    say(f"passed over: {origin} holds no record ({', '.join(list(held)[:4]) or 'nothing'})")
                    continue
                yield _record(file, origin, held, hidden)
        except _NoRecord as error:
            if len(files) == 1:
                raise
            say(f"passed over: {error.short}")


class _NoRecord(SpecwireError):
    """A file of plain values that is no record by its form alone; `short` says so in a few words."""

    def __init__(self, short: str, needed: str) -> None:
        super().__init__(f"{short}: {needed}")
        self.short = short


def _held(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a file holds by name, once for each record in it: tensors, and whatever else there is."""
    import torch

    if file.name.endswith(".safetensors"):
        tensors_file = open_tensors(file)
        entries = tensors_file.tensors
        _bounded(file, sum(entry.stop - entry.start for name, entry in entries.items() if name in KNOWN))
        yield (
            str(file),
            {
                name: tensors_file.rows(name)
                if name in KNOWN and entry.shape
                else _Unread(entry.torch_name, entry.shape)
                for name, entry in entries.items()
            },
        )
        return
    loaded, stored = _loaded(file)
    if isinstance(loaded, (list, tuple)) and loaded and all(isinstance(one, dict) for one in loaded):
        records = {f"{file}[{number}]": _flat(one, f"{file}[{number}]") for number, one in enumerate(loaded)}
    elif isinstance(loaded, dict):
        records = {str(file): _flat(loaded, str(file))}
    else:
        raise _NoRecord(
            f"{file} holds {_described(loaded)}",
            f"a dict is needed, or a list of them, with token ids ({', '.join(TOKENS)}) and states ({', '.join(STATES)}), "
            "as by torch.save({'input_ids': ids, 'hidden_states': states}, FILE)",
        )
    tensors = [
        (f"{name} of {origin}", tensor)
        for origin, one in records.items()
        for name in one.keys() & set(KNOWN)
        for tensor in (one[name] if isinstance(one[name], (list, tuple)) else [one[name]])
        if isinstance(tensor, torch.Tensor)
    ]
    for where, tensor in tensors:
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise SpecwireError(f"{where} is no plain tensor ({tensor.layout}, {tensor.device})")
    # A few stored bytes may be said to be a tensor of any size, and one tensor to be any number of them.
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
    _bounded(file, size)
    if size > SHARED * stored + (1 << 20):
        raise SpecwireError(f"{file} says to hold {size:,} bytes of tensors, and stores {stored:,}: save each once")
    yield from records.items()


def _flat(held: Mapping[Any, Any], origin: str) -> dict[str, Any]:
    """A record's values by name, those of dicts within it too (`batch`, `inputs`, ...), whatever these are called.

    Raises SpecwireError when a name that a record is read by stands for two things.
    """
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    level = [("", held)]
    for _ in range(NESTED):
        for prefix, one in level:
            for name, value in ((str(name), value) for name, value in one.items()):
                if name in KNOWN and name in values and not _same(values[name], value):
                    raise SpecwireError(
                        f"{origin} holds {places[name]} and {prefix}{name}, which differ: keep one of them"
                    )
                values.setdefault(name, value)
                places.setdefault(name, f"{prefix}{name}")
        level = [
            (f"{prefix}{name}.", value)
            for prefix, one in level
            for name, value in one.items()
            if isinstance(value, dict)
        ]
    return values


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and not isinstance(one, (torch.Tensor, list, tuple)) and bool(one == other)


def _loaded(file: Path) -> tuple[Any, int]:
    """What torch.save wrote, compressed or not, and how many bytes that is; nothing but tensors and plain containers is
    loaded."""
    import torch

    try:
        with open_regular(file) as stored, tempfile.TemporaryFile() as whole:
            _bounded(file, os.fstat(stored.fileno()).st_size)
            if file.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=stored) as packed:
                    while block := packed.read(1 << 20):
                        _bounded(file, whole.tell() + len(block))
                        whole.write(block)
                whole.seek(0)
            held: IO[bytes] = whole if file.name.endswith(".gz") else stored
            look_through(held)
            return torch.load(held, map_location="cpu", weights_only=True), os.fstat(held.fileno()).st_size
    except SpecwireError:
        raise
    except Exception as error:  # torch reports a refused pickle, a cut file and a foreign one by several types
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise SpecwireError(f"cannot read {file}: {said(error)}") from error
        why = str(error) if isinstance(error, Refused) else type(error).__name__
        raise SpecwireError(
            f"{file} was not loaded: it is damaged, or holds Python objects beside tensors, which are never unpickled here "
            f"({why}). Save a dict of tensors"
        ) from error


def _bounded(file: Path, size: int) -> None:
    if size > LIMIT:
        raise SpecwireError(f"{file} holds {size:,} bytes, more than the {LIMIT:,} that are read of one file: cut it")


@dataclass(frozen=True)
class _Unread:
    """A tensor of a file that nothing here needs."""

    dtype: str
    shape: tuple[int, ...]


def _record(file: Path, origin: str, held: Mapping[str, Any], hidden: int) -> Record:
    import torch

    tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    tensors |= {name: torch.tensor(held[name]) for name in TOKENS if _is_ids(held.get(name))}
    lists = {name: value for name, value in held.items() if name in STATES and _is_tensors(value)}
    ids_name = next((name for name in TOKENS if name in tensors), None)
    states_name = next((name for name in STATES if name in tensors or name in lists), None)
    if ids_name is None or (states_name is None and FINAL not in tensors):
        said = ", ".join(f"{name}: {_described(value)}" for name, value in list(held.items())[:SHOWN])
        raise SpecwireError(
            f"{origin} holds [{said}{', ...' if len(held) > SHOWN else ''}]: tensors of token ids ({', '.join(TOKENS)}) and "
            f"states ({', '.join((*STATES, FINAL))}) are needed"
        )
    if (prompts := math.prod(tensors[ids_name].shape[:-1])) > 1:
        raise SpecwireError(f"{ids_name} of {origin} are of {prompts:,} prompts in a batch: save a record for each")
    ids = tensors[ids_name].reshape(-1)
    if str(ids.dtype).removeprefix("torch.") not in ("int64", "int32", "int16", "uint8") or len(ids) == 0:
        raise SpecwireError(f"{ids_name} of {origin} are no token ids: {_described(tensors[ids_name])}")
    if states_name is None:  # an older layout of speculators, with the last layer's output as `target`
        states = _layers(origin, FINAL, tensors[FINAL], len(ids), hidden)
        if len(states) == 1:
            raise SpecwireError(
                f"{origin} holds {FINAL} of one layer alone, as SpecForge's final states are: the layers that the draft gets "
                f"are needed ({', '.join(STATES)})"
            )
        return Record(origin, tuple(ids.tolist()), states)
    listed = lists.get(states_name)
    if listed and len(listed) > LAYERS:
        raise SpecwireError(f"{states_name} of {origin} lists {len(listed):,} layers: no target has as many")
    if listed:
        states = tuple(part for one in listed for part in _layers(origin, states_name, one, len(ids), hidden))
    else:
        states = _layers(origin, states_name, tensors[states_name], len(ids), hidden)
    final = tensors.get(FINAL) if states_name.startswith("aux") else None
    # speculators keeps the verifier's last states behind the layers that the draft gets.
    last_is_end = states_name == "hidden_states" and (
        bool(listed) or (file.name.startswith("hs_") and tensors[states_name].dim() == 3)
    )
    return Record(
        origin,
        tuple(ids.tolist()),
        states,
        final_norm=_plain(final, len(ids), hidden),
        last_is_end=last_is_end,
        of_any_layer=states_name == "hidden_states",
    )


def _is_ids(value: Any) -> bool:
    """Token ids as a list, alone or in a batch of one."""
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], (list, tuple)):
        value = value[0]
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(type(one) is int and 0 <= one < 1 << 31 for one in value)
    )


def _is_tensors(value: Any) -> bool:
    import torch

    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, torch.Tensor) for one in value)


def _described(value: Any, deep: int = 3) -> str:
    """A value's type, and its shape or length."""
    if (shape := getattr(value, "shape", None)) is not None:
        return f"{str(value.dtype).removeprefix('torch.')} {list(shape)}"
    kind = type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"{kind} of {len(value)}" + (f", the first {_described(value[0], deep - 1)}" if value and deep else "")
    return kind


def _plain(tensor: torch.Tensor | None, tokens: int, hidden: int) -> torch.Tensor | None:
    """SpecForge's `hidden_state`, after the final norm; None when it is not [tokens, hidden], with or without
    a batch of 1."""
    if tensor is None or tensor.numel() != tokens * hidden:
        return None
    return tensor.reshape(tokens, hidden)


def _layers(file: str, name: str, states: torch.Tensor, tokens: int, hidden: int) -> tuple[torch.Tensor, ...]:
    """Cut states into layers of [tokens, hidden]: from [tokens, k * hidden], [tokens, k, hidden] or [k,
    tokens, hidden]."""
    shape = list(states.shape)
    if str(states.dtype).removeprefix("torch.") not in ("float64", "float32", "bfloat16", "float16"):
        raise SpecwireError(f"{name} of {file} is {states.dtype}: states are floating point of 16 bits or more")
    if states.dim() == 3 and shape[0] == 1 and shape[2] != hidden:
        states = states[0]
    if states.dim() == 2 and states.shape[0] == tokens and states.shape[1] % hidden == 0:
        return tuple(part.contiguous() for part in states.chunk(states.shape[1] // hidden, dim=1))
    if states.dim() == 3 and states.shape[2] == hidden:
        by_token, by_layer = shape[0] == tokens, shape[1] == tokens
        if by_token and by_layer:
            raise SpecwireError(
                f"{name} of {file} is {shape} for {tokens} tokens: which axis is the layers cannot be told; "
                "save one token more or less"
            )
        if by_token:
            return tuple(part.contiguous() for part in states.unbind(dim=1))
        if by_layer:
            return tuple(part.contiguous() for part in states.unbind(dim=0))
    if hidden in shape[1:] or (shape and shape[-1] % hidden == 0):
        rows = next((size for size in shape if size != 1 and size % hidden), shape[0])
        raise SpecwireError(
            f"{name} of {file} is {shape}, {rows} rows of states for {tokens} token ids: save one row for each"
        )
    raise SpecwireError(f"{name} of {file} is {shape}: with {tokens} tokens and hidden size {hidden} no layout fits")


def _captured(path: Path) -> Iterator[Record]:
    """Whole prompts of the first rank's hidden-state-dump."""
    capture = open_capture(path)
    events = [event for event in capture.at("hidden-state-dump", rank=capture.ranks[0]) if event.token_ids]
    if not events:
        raise SpecwireError(
            f"no prefill of hidden-state-dump with token ids in {path}: apply that probe and run with "
            "EAGLE3_CAPTURE_DIR"
        )
    prompts: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
    for event in events:
        for first, rows, prefix in event.requests:
            if event.boundary is not None and not prefix and rows and first + rows <= event.rows:
                ids = tuple((event.token_ids or ())[first : first + rows])
                prompts.setdefault(ids, {}).setdefault(event.boundary, event.file.rows("hidden_states", first, rows))
    for ids, states in prompts.items():
        known: Sequence[int] = sorted(states)
        yield Record(str(path), ids, tuple(states[k] for k in known), boundaries=tuple(known))
