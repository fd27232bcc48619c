"""A target's checkpoint, whatever its size: which file holds which tensor, and one tensor at a time.

Nothing is mapped into memory: a mapped shard counts as memory as soon as it has been read, and a layer's experts would
fill a machine. What is quantised comes out dense, tensor by tensor (`quantised`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError, said
from specwire.goldens.quantised import Dense, Scheme, scheme_of
from specwire.regular import read_text
from specwire.tensorfile import TensorFile, open_tensors
from specwire.tensorheader import Entry

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of a model's directory by name. `bytes_read` counts what was read of them, in bytes."""

    def __init__(self, directory: Path, config: Mapping[str, Any], device: str = "cpu") -> None:
        """`device`: where what is read comes to lie.

        Raises SpecwireError when there is no safetensors file, or a quantisation that cannot be undone.
        """
        self.directory, self.device = directory, device
        self.scheme: Scheme = scheme_of(config, directory)
        self.bytes_read, self._counting = 0, Lock()
        self._files: dict[str, TensorFile] = {}
        self._expert: tuple[int, dict[str, torch.Tensor]] = (-1, {})
        self._where = self._listed()

    @cached_property
    def dense(self) -> dict[str, Dense]:
        """What the model's own parameters are made of, by the name that an unquantised checkpoint would have."""
        return self.scheme.dense(self._where)

    def parts(self, names: Iterable[str], first: int = 0, count: int | None = None) -> dict[str, torch.Tensor]:
        """Tensors as they are stored, or rows of them. Raises SpecwireError for a shard that is missing or cut."""
        found = {}
        for name in names:
            file = self._file(name)
            found[name] = file.rows(name, first, count) if file.entry(name).shape else _scalar(file, name)
            self._count(found[name])
        return {name: tensor.to(self.device) for name, tensor in found.items()}

    def expert(self, number: int, target: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """One expert of a parameter, as `make` makes it. Kept until another's turn comes, so that every prompt and precision
        that needs it has it of one reading."""
        if self._expert[0] != number:
            self._expert = number, {}
        held = self._expert[1]
        if target not in held:
            held[target] = make()
        return held[target]

    def forget_expert(self) -> None:
        """Let go of the expert that was read last: the next layer has one of the same number."""
        self._expert = -1, {}

    def rows(self, name: str, indices: list[int]) -> torch.Tensor:
        """Some rows of a tensor that is not quantised, in this order."""
        picked = self._file(name).pick(name, indices)
        self._count(picked)
        return picked.to(self.device)

    def entry(self, name: str) -> Entry:
        """Element type and shape of a stored tensor."""
        return self._file(name).entry(name)

    def identity(self) -> list[tuple[str, int, int]]:
        """Name, size in bytes and time of change (ns) of each shard that is there: another list, another checkpoint."""
        there = [self.directory / name for name in sorted(set(self._where.values())) if self._path(name).exists()]
        return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in there]

    def _count(self, tensor: torch.Tensor) -> None:
        with self._counting:  # the next layer is read by a thread of its own
            self.bytes_read += tensor.numel() * tensor.element_size()

    def _file(self, name: str) -> TensorFile:
        shard = self._where[name]
        if shard not in self._files:
            if not self._path(shard).exists():
                raise SpecwireError(
                    f"{self._path(shard)}: this shard is not here, and holds {name}. Fetch it, then type the same again."
                )
            self._files[shard] = open_tensors(self._path(shard))
        if name not in self._files[shard].tensors:
            raise SpecwireError(
                f"{self._path(shard)} does not hold {name}, which {INDEX} says it does: fetch it again."
            )
        return self._files[shard]

    def _path(self, shard: str) -> Path:
        return self.directory / shard

    def _listed(self) -> dict[str, str]:
        """File name by tensor name: from the index where there is one, which knows shards that are not here."""
        index = self.directory / INDEX
        if index.exists():
            try:
                listed = json.loads(read_text(index))["weight_map"]
                where = {str(name): str(shard) for name, shard in listed.items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise SpecwireError(f"{index}: cannot be read as an index of shards ({said(error)})") from error
            if strange := [shard for shard in where.values() if Path(shard).name != shard]:
                raise SpecwireError(f"{index}: {strange[0]!r} is no file beside it")
            return where
        shards = sorted(path.name for path in self.directory.glob("*.safetensors"))
        if not shards:
            raise SpecwireError(f"{self.directory} holds no *.safetensors: a golden is built from such a checkpoint")
        self._files = {shard: open_tensors(self._path(shard)) for shard in shards}
        return {name: shard for shard, file in self._files.items() for name in file.tensors}


def _scalar(file: TensorFile, name: str) -> torch.Tensor:
    import torch

    entry = file.entry(name)
    return torch.tensor(file.values(name, 0, 1)[0], dtype=getattr(torch, entry.torch_name))
