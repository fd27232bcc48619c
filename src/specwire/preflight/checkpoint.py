"""A model directory's weights, from their headers alone: names, shapes, element types, and small values.

Sharded checkpoints are read through their index, those of torch.save as far as names and places go. No tensor is loaded and nothing is unpickled.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.model_files import open_weights, weight_files
from specwire.regular import open_regular, read_json
from specwire.tensorfile import TensorFile
from specwire.tensorheader import Entry

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
INDEX_LIMIT = 64 * 1024 * 1024
VALUE_LIMIT = 16 * 1024 * 1024
_CODES = {"I64": "q", "I32": "i", "U8": "B", "I8": "b", "BOOL": "B", "I16": "h"}
# How the bits of floating-point numbers are read as whole ones, and those of the exponent.
_EXPONENTS = {
    "BF16": ("H", 0x7F80),
    "F16": ("H", 0x7C00),
    "F32": ("I", 0x7F800000),
    "F64": ("Q", 0x7FF0000000000000),
}


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` by name over all shards; `missing` are names that the index gives and no shard holds."""

    directory: Path
    files: tuple[TensorFile, ...]
    tensors: Mapping[str, Entry]
    missing: tuple[str, ...] = ()

    def find(self, ending: str) -> str | None:
        """The tensor whose name is `ending`, or ends in `.` and it."""
        return ending_in(self.tensors, ending)

    def shape(self, name: str | None) -> tuple[int, ...] | None:
        return self.tensors[name].shape if name is not None and name in self.tensors else None

    def dtypes(self) -> set[str]:
        """Element types of the floating-point tensors, in torch's words."""
        return {entry.torch_name for entry in self.tensors.values() if "F" in entry.dtype}

    def integers(self, name: str) -> array[int]:
        """All values of a small integer or bool tensor, flat. SpecwireError when it is neither."""
        entry = self.tensors[name]
        if entry.dtype not in _CODES or not entry.known or entry.stop - entry.start > VALUE_LIMIT:
            raise SpecwireError(
                f"tensor {name!r} of {self._file(name).path} is {entry.dtype} {list(entry.shape)}: whole numbers, at most "
                f"{VALUE_LIMIT:,} bytes, were expected. Save it as int64 or bool."
            )
        return self._values(name, _CODES[entry.dtype])

    def emptied(self, name: str) -> str | None:
        """That a floating-point tensor is "zero" in all its places or "not finite" in one; None when it is neither,
        or is too large to be read."""
        entry = self.tensors[name]
        if entry.dtype not in _EXPONENTS or not 0 < entry.stop - entry.start <= VALUE_LIMIT:
            return None
        code, exponent = _EXPONENTS[entry.dtype]
        values = self._values(name, code)
        sign = 1 << 8 * values.itemsize - 1
        if any(value & exponent == exponent for value in values):
            return "not finite"
        return None if any(value & ~sign for value in values) else "zero"

    def _file(self, name: str) -> TensorFile:
        return next(file for file in self.files if file.tensors.get(name) is self.tensors[name])

    def _values(self, name: str, code: str) -> array[int]:
        entry = self.tensors[name]
        with open_regular(self._file(name).path) as data:
            data.seek(entry.start)
            values = array(code, data.read(entry.stop - entry.start))
        if sys.byteorder == "big":
            values.byteswap()
        return values


def ending_in(names: Iterable[str], ending: str) -> str | None:
    """The first of `names` that is `ending`, or ends in `.` and it."""
    return next((name for name in names if name == ending or name.endswith(f".{ending}")), None)


def open_checkpoint(directory: Path, role: str = "draft", only: tuple[str, ...] = ()) -> Checkpoint:
    """Read every header of the checkpoint in `directory`; with `only`, and an index, those of the shards that
    hold tensors whose names end so.

    Raises SpecwireError with one sentence when there are no weights, when the index or a header is
    wrong, or when a shard is missing.
    """
    listed, shards = _shards(directory, only)
    if not shards and not listed:
        raise SpecwireError(
            f"no weights of the {role} in {directory}: no *.safetensors there, nor *.bin. Give the checkpoint's directory."
        )
    files = tuple(open_weights(path) for path in shards)
    tensors: dict[str, Entry] = {}
    for file in files:
        for name, entry in file.tensors.items():
            if name in tensors:
                raise SpecwireError(
                    f"tensor {name!r} is in two shards of {directory} ({file.path.name} is the second): "
                    "remove the leftover file."
                )
            tensors[name] = entry
    missing = tuple(sorted(name for name in listed if name not in tensors))
    return Checkpoint(directory, files, tensors, missing)


def _shards(directory: Path, only: tuple[str, ...]) -> tuple[dict[str, str], list[Path]]:
    """What the index says, by tensor name, and the files to read: the indexed ones, else all there are."""
    found = weight_files(directory)
    suffix = found[0].suffix if found else ""
    index = next(
        (
            directory / name
            for name in INDEXES
            if (directory / name).is_file() and suffix in ("", Path(name).suffixes[0])
        ),
        None,
    )
    if index is None:
        return {}, found
    listed = _weight_map(index)
    if only:
        listed = {name: file for name, file in listed.items() if name.endswith(only)}
    names = sorted(set(listed.values()))
    for name in names:
        if not (directory / name).is_file():
            raise SpecwireError(f"shard {name} is not in {directory}, though {index.name} names it: copy it there.")
    return listed, [directory / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        if index.stat().st_size > INDEX_LIMIT:
            raise SpecwireError(f"{index} has more than {INDEX_LIMIT:,} bytes: no index of a checkpoint is so large.")
        document: Any = read_json(index)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecwireError(f"cannot read {index}: {said(error)}. Copy the checkpoint's index again.") from error
    listed = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise SpecwireError(f"{index} has no weight_map of names to files: copy the checkpoint's index again.")
    for name in set(listed.values()):
        if Path(name).name != name or "\\" in name or not name.endswith(index.suffixes[0]):
            raise SpecwireError(
                f"{index} points to {name[:80]!r}: a shard must be a plain *{index.suffixes[0]} name in the same directory."
            )
    return listed
