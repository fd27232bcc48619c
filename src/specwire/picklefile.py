"""Checkpoints of torch.save (`pytorch_model.bin`): their tensors' names, shapes and places. Nothing is unpickled.

The pickle's opcodes are followed with nothing but names, numbers and tuples on the stack, after `pickles` has bounded
them; a tensor is what the call that would build it says. The bytes lie in the archive as they are, so they are read from
there like those of safetensors.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from specwire.errors import SpecwireError
from specwire.pickles import PICKLE_LIMIT, Refused, look_through
from specwire.regular import open_regular
from specwire.tensorfile import FILE_NAMES, TensorFile
from specwire.tensorheader import ITEM_BYTES, TENSOR_LIMIT, Entry, checked_name, is_naturals

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64",
    "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_HEADER = struct.Struct(
    "<26xHH"
)  # of a record in a zip: the lengths of its name and of what else stands before its data


@dataclass(frozen=True)
class _Name:
    """A name that the pickle would import; it is never looked up."""

    word: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def packed(self) -> bool:
        """Whether its elements lie one after another, in the order of the shape."""
        want, step = [], 1
        for size in reversed(self.shape):
            want.append(step)
            step *= size
        pairs = zip(self.shape, self.strides, reversed(want))
        return 0 in self.shape or all(size == 1 or have == wanted for size, have, wanted in pairs)


def open_pickled(path: Path) -> TensorFile:
    """The tensors of a file of torch.save, by name.

    Raises SpecwireError, with one sentence, for anything that is no archive of plain tensors by their names.
    """
    try:
        with open_regular(path) as file:
            if file.read(2) != b"PK":
                raise Refused("it is no archive, as torch.save has made since 1.6")
            file.seek(0)
            look_through(file)
            with zipfile.ZipFile(file) as archive:
                tensors = _named(_followed(archive))
                records = {record.filename: record for record in archive.infolist()}
                return TensorFile(
                    path, {}, {name: _placed(path, name, tensors[name], file, records) for name in tensors}
                )
    except (Refused, zipfile.BadZipFile, struct.error, RuntimeError, EOFError, ValueError) as error:
        raise SpecwireError(
            f"{path} cannot be read as tensors of torch.save: {error}. Save the checkpoint as safetensors."
        ) from error
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {error.strerror or error}") from error


def _followed(archive: zipfile.ZipFile) -> Any:
    """What the archive's pickle would come to, with a _Tensor for each tensor."""
    record = next((one for one in archive.infolist() if one.filename.rpartition("/")[2] == "data.pkl"), None)
    if record is None or record.file_size > PICKLE_LIMIT:
        raise Refused("it has no data.pkl of a size to be read")
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(archive.read(record)):
            if opcode.name == "STOP":
                return stack[-1]
            _step(opcode, argument, stack, marks, memo)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError, OverflowError) as error:
        raise Refused("its pickle is not one of tensors") from error
    raise Refused("its pickle has no end")


def _step(opcode: Any, argument: Any, stack: list[Any], marks: list[int], memo: dict[int, Any]) -> None:
    name = opcode.name
    if name == "MARK":
        marks.append(len(stack))
    elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "GLOBAL":
        stack.append(_Name(argument.replace(" ", ".", 1)))
    elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
        stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(name))
    elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
    elif name in ("TUPLE", "LIST", "DICT"):
        items = _to_mark(stack, marks)
        pairs = zip(items[::2], items[1::2])
        stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _filled({}, pairs))
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
    elif name in ("SETITEM", "SETITEMS"):
        items = _to_mark(stack, marks) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        _filled(stack[-1], zip(items[::2], items[1::2]))
    elif name in ("APPEND", "APPENDS"):
        items = _to_mark(stack, marks) if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
    elif name in ("REDUCE", "NEWOBJ"):
        arguments = stack.pop()
        stack[-1] = _called(stack[-1], arguments)
    elif name == "BINPERSID":
        stack[-1] = _storage(stack[-1])
    elif name in ("BUILD", "POP"):  # BUILD: what an object is given beside what it holds
        stack.pop()
    elif name not in ("PROTO", "FRAME"):
        if argument is None or opcode.stack_before or len(opcode.stack_after) != 1:
            raise Refused(f"it holds {name}, which no tensor needs")
        stack.append(argument)


def _to_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    start = marks.pop()
    items = stack[start:]
    del stack[start:]
    return items


def _filled(into: dict[Any, Any], pairs: Any) -> dict[Any, Any]:
    """A dict with the pairs whose keys are words or numbers; others hold no tensors."""
    into.update((key, value) for key, value in pairs if isinstance(key, (str, int)))
    return into


def _storage(told: Any) -> _Storage:
    _, kind, key, _, _ = told[:5]
    return _Storage(_STORAGES.get(kind.word.rpartition(".")[2], ""), str(key))


def _called(what: Any, arguments: Any) -> Any:
    """What a call comes to: a tensor, a dict, or nothing of interest."""
    word = what.word.rpartition(".")[2] if isinstance(what, _Name) else ""
    if word == "OrderedDict":
        return _filled({}, arguments[0] if arguments else ())
    if word == "_rebuild_parameter":
        return arguments[0]
    if word == "Size":
        return tuple(arguments[0])
    if not word.startswith("_rebuild_tensor"):
        return None
    storage, offset, shape, strides = arguments[:4]
    dtype = FILE_NAMES.get(arguments[6].word.rpartition(".")[2], "") if word == "_rebuild_tensor_v3" else storage.dtype
    return _Tensor(storage, dtype, offset, tuple(shape), tuple(strides))


def _named(found: Any) -> Mapping[str, _Tensor]:
    """The tensors by name. An engine loads none that lie deeper, below a `state_dict` or the like."""
    tensors = (
        {name: value for name, value in found.items() if isinstance(value, _Tensor)} if isinstance(found, dict) else {}
    )
    if not tensors or len(tensors) > TENSOR_LIMIT or not all(isinstance(name, str) for name in tensors):
        raise Refused("it holds no tensors by name at its top")
    return tensors


def _placed(path: Path, name: str, tensor: _Tensor, file: BinaryIO, records: Mapping[str, zipfile.ZipInfo]) -> Entry:
    """Where a tensor's bytes lie in the file."""
    checked_name(path, name)
    numbers = [tensor.offset, *tensor.shape, *tensor.strides]
    if not is_naturals(numbers) or len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > 8:
        raise Refused(f"the tensor {name!r} has no proper shape")
    record = next((one for key, one in records.items() if key.endswith(f"/data/{tensor.storage.key}")), None)
    if record is None:
        raise Refused(f"the bytes of the tensor {name!r} are not in it")
    if not tensor.dtype or not tensor.packed:
        return Entry(tensor.dtype or "OTHER", tensor.shape, 0, 0, packed=False)
    file.seek(record.header_offset)
    first = record.header_offset + _HEADER.size + sum(_HEADER.unpack(file.read(_HEADER.size)))
    item = ITEM_BYTES[tensor.dtype]
    start, size = tensor.offset * item, prod(tensor.shape) * item
    there = min(record.file_size, file.seek(0, 2) - first)
    if start + size > there:
        raise Refused(f"the tensor {name!r} needs {start + size:,} bytes, {there:,} are there")
    return Entry(tensor.dtype, tensor.shape, first + start, first + start + size)
