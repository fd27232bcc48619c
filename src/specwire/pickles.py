"""Files of torch.save, looked through before torch loads them: what they would build is bounded by what they hold.

torch's own loader with `weights_only` runs no code of the file. It does what the file says, though: makes a
`bytearray` of any size, unpacks a compressed record to any size, repeats a reference ten million times. So the
pickle's opcodes are counted, its names are compared with those that plain tensors need, and compressed records
are refused: torch.save compresses none.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, Any, cast

PICKLE_LIMIT = 64 * 1024 * 1024
OPCODE_LIMIT = 1_000_000  # some forty thousand tensors
DEPTH_LIMIT = 200
DIRECTORY_LIMIT = 16 * 1024 * 1024

_PLAIN = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.nn.parameter", "Parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    # Refused later, by their layout or device, with a sentence of their own.
    ("torch._utils", "_rebuild_sparse_tensor"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"),
    ("torch.serialization", "_get_layout"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("builtins", "set"),
    ("__builtin__", "set"),
    ("builtins", "complex"),
    ("__builtin__", "complex"),
}
_NEEDLESS = ("INST", "OBJ", "STACK_GLOBAL", "NEWOBJ_EX", "BYTEARRAY8", "NEXT_BUFFER", "EXT1", "EXT2", "EXT4")
_LEGACY_PARTS = 5  # magic number, protocol, system, the object, the storages' keys


class Refused(Exception):
    """The file holds what no dict of plain tensors needs, or would come to more than it stores."""


def look_through(file: IO[bytes]) -> None:
    """Raise Refused, or leave the file at its start, to be loaded."""
    start = file.read(4)
    file.seek(0)
    if start == b"PK\x03\x04":
        _archive(file)
    else:
        for _ in range(_LEGACY_PARTS):
            _opcodes(file)
    file.seek(0)


def _archive(file: IO[bytes]) -> None:
    if _directory_size(file) > DIRECTORY_LIMIT:
        raise Refused("its directory lists more records than any prompt has")
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                raise Refused("it has compressed records, and torch.save compresses none")
            for record in records:
                if record.filename.endswith(".pkl"):
                    if record.file_size > PICKLE_LIMIT:
                        raise Refused(f"its {record.filename[-20:]!r} has {record.file_size:,} bytes")
                    _opcodes(io.BytesIO(archive.read(record)))
    except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError) as error:
        raise Refused("it is a damaged archive") from error


def _directory_size(file: IO[bytes]) -> int:
    """Bytes of a zip's list of records, as the two kinds of its end say it, whichever says more."""
    file.seek(0, 2)
    file.seek(max(0, file.tell() - (1 << 16) - 200))
    tail = file.read()
    short, long = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    sizes = [struct.unpack_from("<I", tail, short + 12)[0]] if 0 <= short <= len(tail) - 16 else []
    if sizes == [0xFFFFFFFF]:
        sizes = []
    sizes += [struct.unpack_from("<Q", tail, long + 40)[0]] if 0 <= long <= len(tail) - 48 else []
    file.seek(0)
    return max(sizes, default=0)


@dataclass(frozen=True)
class _Made:
    """What one place of a pickle's stack holds: how many tuples, shared ones counted each time, and how deep.

    Only tuples count: they can be keys, and a key is hashed through and through.
    """

    size: int = 1
    depth: int = 0


def _opcodes(stream: IO[bytes]) -> None:
    """Go through one pickle without making anything. Raises Refused for a name that plain tensors do not need, and for
    too much of anything."""
    stack: list[_Made | None] = []  # None is a mark
    memo: dict[int, _Made | None] = {}
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(cast("IO[bytes]", _Bounded(stream)))):
            if number > OPCODE_LIMIT:
                raise Refused(f"it takes more than {OPCODE_LIMIT:,} steps to load")
            if opcode.name == "GLOBAL":
                _check_name(*str(argument).split(" ", 1))
            elif opcode.name in _NEEDLESS:
                raise Refused(f"it holds {opcode.name}, which no tensor needs")
            _step(stack, memo, opcode, argument)
    except (ValueError, IndexError, KeyError, EOFError, OverflowError) as error:
        raise Refused("its pickle is damaged") from error


def _step(stack: list[_Made | None], memo: dict[int, _Made | None], opcode: Any, argument: Any) -> None:
    """What an opcode does to the stack, by pickletools' own description of it."""
    name, (takes_mark, takes, gives) = opcode.name, _EFFECTS[opcode.name]
    if name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
        return
    if name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
        return
    if name == "MARK":
        stack.append(None)
        return
    if name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
        return
    taken: list[_Made | None] = []
    if takes_mark or (name == "POP" and stack[-1] is None):
        while (top := stack.pop()) is not None:
            taken.append(top)
    elif name == "POP":
        stack.pop()
    taken += (stack.pop() for _ in range(takes))
    if gives:
        stack += [_of(name, taken)] * gives


def _effect(opcode: pickletools.OpcodeInfo) -> tuple[bool, int, int]:
    """Whether an opcode takes all down to a mark, how many it takes below that, and how many it gives."""
    before = opcode.stack_before
    marked = pickletools.markobject in before
    takes = before.index(pickletools.markobject) if marked else len(before)
    return marked, 0 if opcode.name == "POP" else takes, len(opcode.stack_after)


_EFFECTS = {opcode.name: _effect(opcode) for opcode in pickletools.opcodes}
_LEAF = _Made()


def _of(name: str, taken: list[_Made | None]) -> _Made:
    if not name.startswith("TUPLE"):
        return _LEAF
    parts = [part for part in taken if part is not None]
    made = _Made(1 + sum(part.size for part in parts), 1 + max((part.depth for part in parts), default=0))
    if made.size > OPCODE_LIMIT or made.depth > DEPTH_LIMIT:
        raise Refused("its tuples hold each other over and over")
    return made


class _Bounded:
    """The stream, whose reads are for what it can hold: a length in a pickle is only a claim."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.left = PICKLE_LIMIT

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise Refused(f"it claims {size:,} bytes in one piece of its pickle")
        self.left -= size
        return self.stream.read(size)

    def readline(self) -> bytes:
        line = self.stream.readline(min(self.left, 4096))
        self.left -= len(line)
        return line


def _check_name(module: str, name: str) -> None:
    storage_or_dtype = module in ("torch", "torch.cuda") and (name.endswith("Storage") or name.islower())
    if not storage_or_dtype and (module, name) not in _PLAIN:
        raise Refused(f"it names {module[:40]}.{name[:40]}")
