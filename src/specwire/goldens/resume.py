"""What a build has computed so far, beside the golden that it will be: a stop costs the layer that was under way.

A directory `.NAME.part` holds one file for each boundary, whole or not there, and what they were computed from. Another
checkpoint, other prompts or another precision make another build.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.goldens.stream import Heard, Key
from specwire.progress import Progress
from specwire.regular import read_text, written_whole
from specwire.tensorfile import open_tensors, write_tensors

MANIFEST = "build.json"


class Unfinished:
    """The layers of a build that are on the disk. `traits`: what the model was seen to be (`Streamed.traits`)."""

    def __init__(self, out: Path, made_of: Mapping[str, Any]) -> None:
        self.folder = out.parent / f".{out.name}.part"
        text = json.dumps(made_of, sort_keys=True, separators=(",", ":"), default=str)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.traits: dict[str, bool] = {}

    def earlier(self, keys: list[Key], say: Progress) -> dict[Key, Heard]:
        """What an earlier build of the very same golden recorded; nothing, and the directory anew, for any other."""
        if not self.folder.exists():
            return {}
        manifest = self._manifest()
        if manifest.get("key") != self._key:
            say(
                f"{self.folder.name} is of another build (checkpoint, prompts or precision have changed): starting again"
            )
            self.discard()
            return {}
        self.traits = {str(name): bool(value) for name, value in manifest.get("traits", {}).items()}
        if not self.traits.get("resumable"):
            say("this model keeps state from layer to layer, which is not kept on disk: starting again")
            self.discard()
            return {}
        heard: dict[Key, Heard] = {key: Heard() for key in keys}
        k = 0
        while (file := self.folder / _name(k)).exists():
            tensors = open_tensors(file)
            for dtype, prompt in keys:
                own, start = heard[dtype, prompt], f"{dtype}.{prompt}."
                own.boundaries[k] = tensors.rows(f"{start}boundary")
                if f"{start}residual" in tensors.tensors:
                    own.residuals[k], own.branches[k] = (tensors.rows(f"{start}{it}") for it in ("residual", "branch"))
                if f"{start}final_norm" in tensors.tensors:
                    own.final_norm = tensors.rows(f"{start}final_norm")
            k += 1
        if k > 1:
            say(f"going on after layer {k - 1}, of which {self.folder.name} has the states")
        return heard if k > 1 else {}

    def keep(self, layer: int, heard: Mapping[Key, Heard], traits: Mapping[str, bool]) -> None:
        """Write what is known once `layer` layers are done. Raises SpecwireError when there is no room for it."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if traits != self.traits or not (self.folder / MANIFEST).exists():
                self.traits = dict(traits)
                with written_whole(self.folder / MANIFEST) as file:
                    file.write(json.dumps({"key": self._key, "traits": self.traits}).encode())
            for k in range(layer + 1):
                if not (self.folder / _name(k)).exists():
                    self._write(k, heard)
        except OSError as error:
            raise SpecwireError(
                f"{self.folder}: layer {layer} cannot be kept ({said(error)}). The layers before it are: make room, and type "
                "the same again."
            ) from error

    def discard(self) -> None:
        """Delete the directory: the golden is written, or it is another's."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, k: int, heard: Mapping[Key, Heard]) -> None:
        tensors = {}
        for (dtype, prompt), own in heard.items():
            start = f"{dtype}.{prompt}."
            tensors[f"{start}boundary"] = own.boundaries[k]
            if k in own.residuals and k in own.branches:
                tensors[f"{start}residual"], tensors[f"{start}branch"] = own.residuals[k], own.branches[k]
            if own.final_norm is not None and k == max(own.boundaries):
                tensors[f"{start}final_norm"] = own.final_norm
        write_tensors(self.folder / _name(k), tensors, {})

    def _manifest(self) -> dict[str, Any]:
        try:
            read = json.loads(read_text(self.folder / MANIFEST))
        except (OSError, ValueError, RecursionError):
            return {}
        return read if isinstance(read, dict) and isinstance(read.get("traits", {}), dict) else {}


def _name(k: int) -> str:
    return f"boundary.{k}.safetensors"
