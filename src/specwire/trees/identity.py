"""Hashes that say which tree and which checkpoints a result belongs to."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from specwire.regular import open_regular
from specwire.trees.tree import Tree

SAMPLES, SAMPLE_BYTES, HEAD_BYTES = 64, 1 << 14, 1 << 20
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.py", "*.jinja")


def tree_identity(tree: Tree) -> dict[str, Any]:
    """`{"root", "version", "sha256"}`: the hash is over the names and bytes of all the package's Python files."""
    total = hashlib.sha256()
    for name in tree.python_files():
        total.update(f"{name}\0{hashlib.sha256(tree.read(name)).hexdigest()}\n".encode())
    return {"root": str(tree.root), "version": tree.version, "sha256": total.hexdigest()}


def model_identity(directory: Path) -> dict[str, Any]:
    """`{"path", "sha256", "bytes"}` of a checkpoint.

    Weights can be hundreds of gigabytes, so of a large file the hash takes name, size, head and evenly
    spaced samples: enough to tell another training run, not a forgery.
    """
    total, size = hashlib.sha256(), 0
    for path in sorted({path for pattern in _MODEL_FILES for path in directory.glob(pattern)}):
        length = path.stat().st_size
        size += length
        total.update(f"{path.name}\0{length}\0{_sampled(path, length)}\n".encode())
    return {"path": str(directory), "sha256": total.hexdigest(), "bytes": size}


def newest_change(place: Path, *patterns: str) -> tuple[float, Path | None]:
    """The latest modification below a directory, of its files that match, in seconds since the epoch; and where."""
    newest, where = 0.0, None
    for pattern in patterns:
        for path in place.rglob(pattern):
            changed = os.stat(path).st_mtime
            if changed > newest:
                newest, where = changed, path
    return newest, where


def _sampled(path: Path, length: int) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        if length <= 2 * SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
        else:
            digest.update(file.read(HEAD_BYTES))
            for number in range(SAMPLES):
                file.seek(number * (length - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
