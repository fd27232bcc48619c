"""Headers of safetensors files, read with suspicion: no length, offset, name or shape is trusted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from specwire.errors import SpecwireError
from specwire.regular import open_regular

HEADER_LIMIT = 32 * 1024 * 1024

TENSOR_LIMIT = 200_000

NAME_LIMIT = 512

_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,23}")

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


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its element type and shape, and where its bytes lie, counted from the file's
    start. `packed`: its elements lie there one after another."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    packed: bool = True

    @property
    def torch_name(self) -> str:
        return TORCH_NAMES.get(self.dtype, self.dtype)

    @property
    def known(self) -> bool:
        """Whether its elements can be read here; of others the shape is all that is known."""
        return self.packed and self.dtype in ITEM_BYTES

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]


def read_header(path: Path) -> tuple[Mapping[str, str], dict[str, Entry]]:
    """The metadata of a safetensors file, and where each of its tensors lies.

    Raises SpecwireError, with one sentence, for anything that is not exactly a well-formed file.
    """
    try:
        with open_regular(path) as file:
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
            f"{path} is a Python pickle, not safetensors; pickles are never opened here. Save it as safetensors"
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
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecwireError(f"{path} is not safetensors: its header is not JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise SpecwireError(f"{path} is not safetensors: its header is no JSON object")
    return header


def _checked(
    path: Path, header: dict[str, Any], data_start: int, size: int
) -> tuple[Mapping[str, str], dict[str, Entry]]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SpecwireError(f"the metadata of {path} is not a map of strings to strings")
    if len(header) > TENSOR_LIMIT:
        raise SpecwireError(f"{path} holds {len(header):,} tensors, more than the {TENSOR_LIMIT:,} that are read")
    tensors = {checked_name(path, name): _entry(path, name, value, data_start) for name, value in header.items()}
    end = data_start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            what = "overlaps the one before it" if entry.start < end else "leaves a gap before it"
            raise SpecwireError(f"tensor {name!r} of {path} {what}: it starts at byte {entry.start:,}, not at {end:,}")
        end = entry.stop
    if end > size:
        raise SpecwireError(f"{path} is truncated: its tensors should end at byte {end:,}, the file ends at {size:,}")
    if end < size:
        raise SpecwireError(f"{path} has {size - end:,} bytes after its last tensor: it is damaged or two files in one")
    return metadata, tensors


def checked_name(path: Path, name: str) -> str:
    """A tensor's name; SpecwireError for one that no model has."""
    if not name or len(name) > NAME_LIMIT or ".." in name or "/" in name or "\\" in name or not name.isprintable():
        raise SpecwireError(f"{path} holds a tensor with the name {name[:40]!r}, which no file of this kind has")
    return name


def _entry(path: Path, name: str, value: Any, data_start: int) -> Entry:
    facts = value if isinstance(value, dict) else {}
    shape, offsets = facts.get("shape"), facts.get("data_offsets")
    if not is_naturals(shape) or not is_naturals(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise SpecwireError(f"tensor {name!r} of {path} has no proper dtype, shape and data_offsets")
    if not isinstance(value.get("dtype"), str) or not _TYPE.fullmatch(value["dtype"]):
        raise SpecwireError(f"tensor {name!r} of {path} has the unknown element type {str(value.get('dtype'))[:20]!r}")
    # Of a type that is not known here, be it of four bits, the place is all that can be told: who needs its values says so.
    need = prod(shape) * ITEM_BYTES[value["dtype"]] if value["dtype"] in ITEM_BYTES else offsets[1] - offsets[0]
    if offsets[1] < offsets[0] or offsets[1] - offsets[0] != need:
        raise SpecwireError(
            f"tensor {name!r} of {path} needs {need:,} bytes for {value['dtype']} {shape}, its offsets give "
            f"{offsets[1] - offsets[0]:,}"
        )
    return Entry(value["dtype"], tuple(shape), data_start + offsets[0], data_start + offsets[1])


def is_naturals(values: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of whole numbers that a file could count."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
