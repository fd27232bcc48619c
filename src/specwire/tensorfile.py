"""Safetensors files read with suspicion, and written the same way every time.

A golden or a capture may come from anywhere. Nothing here trusts a length, an offset or a name, nothing is
unpickled, and no tensor is held whole: rows are read when they are asked for.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError

if TYPE_CHECKING:
    import torch

HEADER_LIMIT = 32 * 1024 * 1024
TENSOR_LIMIT = 200_000
NAME_LIMIT = 512
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
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
class Entry:
    """One tensor of a file: its element type and shape, and where its bytes lie, counted from the file's
    start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def torch_name(self) -> str:
        return TORCH_NAMES.get(self.dtype, self.dtype)

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]


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

    def rows(
        self, name: str, first: int = 0, count: int | None = None, into: bytearray | None = None
    ) -> torch.Tensor:
        """Rows `first` to `first + count` of a tensor; `into`, when it is large enough, is used and shared.
        """
        import torch

        entry = self.entry(name)
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
        entry = self.entry(name)
        if not wanted:
            return torch.empty((0, *entry.shape[1:]), dtype=getattr(torch, entry.torch_name))
        return torch.cat([self.rows(name, first, count) for first, count in _runs(wanted)])

    def values(self, name: str, first: int, count: int) -> list[float]:
        """Single elements as Python numbers, counted over the flattened tensor; needs no torch."""
        entry = self.entry(name)
        item = ITEM_BYTES[entry.dtype]
        if not 0 <= first <= first + count <= prod(entry.shape):
            raise SpecwireError(
                f"elements {first}..{first + count} asked of {name}{list(entry.shape)} in {self.path}"
            )
        raw = bytearray(count * item)
        self._fill(memoryview(raw), entry.start + first * item)
        if entry.dtype == "BF16":
            halves = struct.unpack(f"<{count}H", raw)
            return list(
                struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))
            )
        if entry.dtype not in _UNPACK:
            raise SpecwireError(
                f"tensor {name!r} in {self.path} has element type {entry.dtype}, which is not supported here"
            )
        return list(struct.unpack(f"<{count}{_UNPACK[entry.dtype]}", raw))

    def _fill(self, view: memoryview, offset: int) -> None:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise SpecwireError(
                        f"{self.path} ended at byte {offset + done}: it shrank while it was read"
                    )
                done += got


def open_tensors(path: Path | str) -> TensorFile:
    """Read and check the header of a safetensors file.

    Raises SpecwireError, with one sentence, for anything that is not exactly a well-formed file.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            _refuse_pickle(path, start)
            if len(start) < 8:
                raise SpecwireError(f"{path} has {size} bytes: too short for a safetensors file")
            length = int.from_bytes(start, "little")
            if length > HEADER_LIMIT:
                raise SpecwireError(
                    f"{path} claims a header of {length:,} bytes, more than the {HEADER_LIMIT:,} that are "
                    "read: "
                    "it is no safetensors file, or it holds far too many tensors"
                )
            if 8 + length > size:
                raise SpecwireError(
                    f"{path} is truncated: its header should end at byte {8 + length:,}, the file at {size:,}"
                )
            raw = file.read(length)
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {error.strerror or error}") from error
    return _checked(path, _parse(path, raw), 8 + length, size)


def _refuse_pickle(path: Path, start: bytes) -> None:
    # A pickle begins with the PROTO opcode and torch.save wraps one in a zip archive. Read as a header
    # length, either is absurd, so no real safetensors file is mistaken for one.
    if int.from_bytes(start, "little") <= HEADER_LIMIT:
        return
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise SpecwireError(
            f"{path} is a Python pickle, not safetensors; pickles are never opened here. Save it as "
            "safetensors"
        )
    if start[:4] == b"PK\x03\x04":
        raise SpecwireError(
            f"{path} is a zip archive (torch.save makes such files), not safetensors; it was not opened. "
            "Convert it with: specwire golden import"
        )


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise SpecwireError(f"the header of {path} names a key twice")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=no_twins)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SpecwireError(
            f"{path} is not safetensors: its header is not JSON ({type(error).__name__})"
        ) from error
    if not isinstance(header, dict):
        raise SpecwireError(f"{path} is not safetensors: its header is no JSON object")
    return header


def _checked(path: Path, header: dict[str, Any], data_start: int, size: int) -> TensorFile:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SpecwireError(f"the metadata of {path} is not a map of strings to strings")
    if len(header) > TENSOR_LIMIT:
        raise SpecwireError(
            f"{path} holds {len(header):,} tensors, more than the {TENSOR_LIMIT:,} that are read"
        )
    tensors = {_name(path, name): _entry(path, name, value, data_start) for name, value in header.items()}
    end = data_start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            what = "overlaps the one before it" if entry.start < end else "leaves a gap before it"
            raise SpecwireError(
                f"tensor {name!r} of {path} {what}: it starts at byte {entry.start:,}, not at {end:,}"
            )
        end = entry.stop
    if end > size:
        raise SpecwireError(
            f"{path} is truncated: its tensors should end at byte {end:,}, the file ends at {size:,}"
        )
    if end < size:
        raise SpecwireError(
            f"{path} has {size - end:,} bytes after its last tensor: it is damaged or two files in one"
        )
    return TensorFile(path, metadata, tensors)


def _name(path: Path, name: str) -> str:
    if (
        not name
        or len(name) > NAME_LIMIT
        or ".." in name
        or "/" in name
        or "\\" in name
        or not name.isprintable()
    ):
        raise SpecwireError(
            f"{path} holds a tensor with the name {name[:40]!r}, which no file of this kind has"
        )
    return name


def _entry(path: Path, name: str, value: Any, data_start: int) -> Entry:
    shape = value.get("shape") if isinstance(value, dict) else None
    offsets = value.get("data_offsets") if isinstance(value, dict) else None
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise SpecwireError(f"tensor {name!r} of {path} has no proper dtype, shape and data_offsets")
    if value.get("dtype") not in ITEM_BYTES:
        raise SpecwireError(
            f"tensor {name!r} of {path} has the unknown element type {str(value.get('dtype'))[:20]!r}"
        )
    need = prod(shape) * ITEM_BYTES[value["dtype"]]
    if offsets[1] - offsets[0] != need:
        raise SpecwireError(
            f"tensor {name!r} of {path} needs {need:,} bytes for {value['dtype']} {shape}, its offsets give "
            f"{offsets[1] - offsets[0]:,}"
        )
    return Entry(value["dtype"], tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


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
    """Write `tensors` in the order given; the same input gives the same bytes. Replaces `path` in one step.
    """
    path = Path(path)
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in tensors.items():
        code = FILE_NAMES[str(tensor.dtype).removeprefix("torch.")]
        begin, end = end, end + tensor.numel() * ITEM_BYTES[code]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(_bytes(tensor))
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _bytes(tensor: torch.Tensor) -> memoryview | bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
