"""Training data as people keep it, read as records: token ids, and the states of some layers.

Nothing is unpickled: `.pt` and `.ckpt` files are loaded as plain tensors, and refused when they hold anything
else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.capture import open_capture
from specwire.errors import SpecwireError
from specwire.tensorfile import open_tensors

if TYPE_CHECKING:
    import torch

TOKENS = ("token_ids", "input_ids", "tokens")
STATES = ("aux_hidden_state", "aux_hidden_states", "hidden_states", "concat")
FINAL = "hidden_state"
LIMIT = 4 << 30  # bytes of one record: 32,768 tokens of a target 7,168 wide with four layers take half of it


@dataclass(frozen=True)
class Record:
    """One prompt. `states` are [n, hidden] each, in the file's order; `boundaries` names them where the file
    does."""

    origin: str
    token_ids: tuple[int, ...]
    states: tuple[torch.Tensor, ...]
    boundaries: tuple[int, ...] | None = None
    final_norm: torch.Tensor | None = None
    last_is_end: bool = False


def read_records(path: Path, hidden: int) -> Iterator[Record]:
    """The records below `path`: a capture directory, a file, or a directory of files.

    Raises SpecwireError, naming the file, when one of them is not understood or would need unpickling.
    """
    if path.is_dir() and any(path.glob("rank*/*.safetensors")):
        yield from _captured(path)
        return
    files = (
        [path]
        if path.is_file()
        else sorted(
            file for file in path.rglob("*") if file.suffix in (".safetensors", ".pt", ".ckpt", ".pth")
        )
    )
    if not files:
        raise SpecwireError(
            f"no .safetensors, .pt or .ckpt file and no capture at {path}: name a file or directory of "
            "training data"
        )
    for file in files:
        yield _record(file, _tensors(file), hidden)


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    import torch

    known = (*TOKENS, *STATES, FINAL)
    if file.suffix == ".safetensors":
        held = open_tensors(file)
        names = [name for name, entry in held.tensors.items() if entry.shape]
        _bounded(file, sum(entry.stop - entry.start for name, entry in held.tensors.items() if name in known))
        return {name: held.rows(name) if name in known else torch.empty(0) for name in names}
    _bounded(file, file.stat().st_size)
    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # torch reports a refused pickle, a cut file and a foreign one by several types
        raise SpecwireError(
            f"{file} was not loaded: it is damaged, or holds Python objects beside tensors, which are never "
            "unpickled here "
            f"({type(error).__name__}). Save a dict of tensors"
        ) from error
    if not isinstance(loaded, dict):
        raise SpecwireError(
            f"{file} holds a {type(loaded).__name__}: a dict with token ids and states is needed"
        )
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    for name in tensors.keys() & set(known):
        if tensors[name].layout != torch.strided or tensors[name].device.type != "cpu":
            raise SpecwireError(f"{name} of {file} is no plain tensor ({tensors[name].layout}, {tensors[name].device})")
    # A few stored bytes may be said to be a tensor of any size.
    _bounded(file, sum(value.numel() * value.element_size() for name, value in tensors.items() if name in known))
    return tensors


def _bounded(file: Path, size: int) -> None:
    if size > LIMIT:
        raise SpecwireError(f"{file} holds {size:,} bytes of one prompt, more than the {LIMIT:,} that are read: cut it")


def _record(file: Path, tensors: dict[str, torch.Tensor], hidden: int) -> Record:
    ids_name = next((name for name in TOKENS if name in tensors), None)
    states_name = next((name for name in STATES if name in tensors), None)
    if ids_name is None or states_name is None:
        raise SpecwireError(
            f"{file} holds {sorted(tensors)[:8]}: token ids ({', '.join(TOKENS)}) and states "
            f"({', '.join(STATES)}) are needed"
        )
    ids = tensors[ids_name].reshape(-1)
    if str(ids.dtype).removeprefix("torch.") not in ("int64", "int32", "int16", "uint8") or len(ids) == 0:
        raise SpecwireError(
            f"{ids_name} of {file} are no token ids: {tensors[ids_name].dtype}, shape "
            f"{list(tensors[ids_name].shape)}"
        )
    final = tensors.get(FINAL) if states_name.startswith("aux") else None
    return Record(
        str(file),
        tuple(ids.tolist()),
        _layers(file, states_name, tensors[states_name], len(ids), hidden),
        final_norm=_plain(final, len(ids), hidden),
        # speculators keeps the verifier's last states behind the layers that the draft gets.
        last_is_end=file.name.startswith("hs_") and tensors[states_name].dim() == 3,
    )


def _plain(tensor: torch.Tensor | None, tokens: int, hidden: int) -> torch.Tensor | None:
    """SpecForge's `hidden_state`, after the final norm; None when it is not [tokens, hidden], with or without
    a batch of 1."""
    if tensor is None or tensor.numel() != tokens * hidden:
        return None
    return tensor.reshape(tokens, hidden)


def _layers(
    file: Path, name: str, states: torch.Tensor, tokens: int, hidden: int
) -> tuple[torch.Tensor, ...]:
    """Cut states into layers of [tokens, hidden]: from [tokens, k * hidden], [tokens, k, hidden] or [k,
    tokens, hidden]."""
    shape = list(states.shape)
    if str(states.dtype).removeprefix("torch.") not in ("float64", "float32", "bfloat16", "float16"):
        raise SpecwireError(f"{name} of {file} is {states.dtype}: states are floating point of 16 bits or more")
    if states.dim() == 3 and shape[0] == 1 and shape[2] != hidden:
        states = states[0]
    if states.dim() == 2 and states.shape[0] == tokens and states.shape[1] % hidden == 0:
        return tuple(part.contiguous() for part in states.split(hidden, dim=1))
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
    raise SpecwireError(
        f"{name} of {file} is {shape}: with {tokens} tokens and hidden size {hidden} no layout fits"
    )


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
                ids = tuple(event.token_ids[first : first + rows])
                prompts.setdefault(ids, {}).setdefault(
                    event.boundary, event.file.rows("hidden_states", first, rows)
                )
    for ids, states in prompts.items():
        known: Sequence[int] = sorted(states)
        yield Record(str(path), ids, tuple(states[k] for k in known), boundaries=tuple(known))
