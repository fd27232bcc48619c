"""Safetensors files read with suspicion, and written the same way every time.

A golden or a capture may come from anywhere. Nothing here trusts a length, an offset or a name, nothing is
unpickled, and no tensor is held whole: rows are read when they are asked for.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError
from specwire.regular import descriptor, written_whole
from specwire.tensorheader import ITEM_BYTES, TORCH_NAMES, Entry, read_header

if TYPE_CHECKING:
    import torch

FILE_NAMES = {name: code for code, name in TORCH_NAMES.items()}
_UNPACK = {
    "F16": "e",
    "F32": "f",
    "F64": "d",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U8": "B",
    "BOOL": "?",
}


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file whose header has been checked. Holds no file descriptor and no tensor."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, Entry]

    def entry(self, name: str) -> Entry:
        if name not in self.tensors:
            known = ", ".join(sorted(self.tensors)[:6])
            raise SpecwireError(f"no tensor {name!r} in {self.path}: it holds {known or 'nothing'}")
        return self.tensors[name]

    def _readable(self, name: str) -> Entry:
        entry = self.entry(name)
        if not entry.known:
            what = f"has element type {entry.dtype}" if entry.packed else "does not lie in one piece"
            raise SpecwireError(f"tensor {name!r} in {self.path} {what}, which is not supported here")
        return entry

    def rows(self, name: str, first: int = 0, count: int | None = None, into: bytearray | None = None) -> torch.Tensor:
        """Rows `first` to `first + count` of a tensor; `into`, if it is large enough, is used and shared."""
        import torch

        entry = self._readable(name)
        last = entry.shape[0] if count is None else first + count
        if not 0 <= first <= last <= entry.shape[0]:
            raise SpecwireError(f"rows {first}..{last} asked of {name}[{entry.shape[0]}] in {self.path}")
        size = (last - first) * entry.row_bytes
        buffer = into if into is not None and len(into) >= size else bytearray(size)
        self._fill(memoryview(buffer)[:size], entry.start + first * entry.row_bytes)
        shape = (last - first, *entry.shape[1:])
        dtype = getattr(torch, entry.torch_name, None)
        if dtype is None:
            raise SpecwireError(
                f"tensor {name!r} in {self.path} has element type {entry.dtype}, which is not supported here"
            )
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(buffer, dtype=dtype, count=prod(shape)).view(shape)

    def pick(self, name: str, indices: Iterable[int]) -> torch.Tensor:
        """The rows at `indices`, in that order."""
        import torch

        wanted = list(indices)
        entry = self._readable(name)
        if not wanted:
            return torch.empty((0, *entry.shape[1:]), dtype=getattr(torch, entry.torch_name))
        return torch.cat([self.rows(name, first, count) for first, count in _runs(wanted)])

    def values(self, name: str, first: int, count: int) -> list[float]:
        """Single elements as Python numbers, counted over the flattened tensor; needs no torch."""
        entry = self._readable(name)
        item = ITEM_BYTES[entry.dtype]
        if not 0 <= first <= first + count <= prod(entry.shape):
            raise SpecwireError(f"elements {first}..{first + count} asked of {name}{list(entry.shape)} in {self.path}")
        raw = bytearray(count * item)
        self._fill(memoryview(raw), entry.start + first * item)
        if entry.dtype == "BF16":
            halves = struct.unpack(f"<{count}H", raw)
            return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves))))
        if entry.dtype not in _UNPACK:
            raise SpecwireError(
                f"tensor {name!r} in {self.path} has element type {entry.dtype}, which is not supported here"
            )
        return list(struct.unpack(f"<{count}{_UNPACK[entry.dtype]}", raw))

    def _fill(self, view: memoryview, offset: int) -> None:
        with os.fdopen(descriptor(self.path), "rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise SpecwireError(f"{self.path} ended at byte {offset + done}: it shrank while it was read")
                done += got


def open_tensors(path: Path | str) -> TensorFile:
    """Open a safetensors file; SpecwireError, with one sentence, when its header is not well formed."""
    path = Path(path)
    metadata, tensors = read_header(path)
    return TensorFile(path, metadata, tensors)


def _runs(indices: list[int]) -> Iterable[tuple[int, int]]:
    """Neighbouring indices as (first, count), so that they are read in one go."""
    first = last = indices[0]
    for index in indices[1:]:
        if index != last + 1:
            yield first, last - first + 1
            first = index
        last = index
    yield first, last - first + 1


def write_tensors(path: Path | str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors` in this order; the same input gives the same bytes. Replaces `path` in one step."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in tensors.items():
        code = FILE_NAMES[str(tensor.dtype).removeprefix("torch.")]
        begin, end = end, end + tensor.numel() * ITEM_BYTES[code]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(_bytes(tensor))


def _bytes(tensor: torch.Tensor) -> memoryview | bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
