"""A tree: a directory that holds SGLang's source. Found and read without importing it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specwire.errors import SpecwireError

PACKAGE = "sglang"
MARKER = ".specwire-overlay"


@dataclass(frozen=True)
class Tree:
    """`root` is the directory that holds the `sglang` package; file names are relative to it."""

    root: Path
    named: str

    @classmethod
    def find(cls, named: str | os.PathLike[str], python: str | None = None) -> Tree:
        """The tree that the user named: a package, a checkout, a directory above one, or `installed`.

        Raises SpecwireError when there is no SGLang there.
        """
        named = os.fspath(named)
        if named == "installed":
            return cls(_installed(python or sys.executable), named)
        here = Path(os.path.abspath(named))
        for root in (here, here / "python"):
            if _is_package(root / PACKAGE):
                return cls(root, named)
        # The package itself, perhaps by a link of another name.
        for package in (here, Path(os.path.realpath(here))):
            if package.name == PACKAGE and _is_package(package):
                return cls(package.parent, named)
        raise SpecwireError(
            f"{named}: no SGLang source here. Looked for sglang/srt in it and in its python/ folder. "
            "Name a checkout, a directory that holds the sglang package, or the word 'installed'."
        )

    @property
    def package(self) -> Path:
        return self.root / PACKAGE

    @cached_property
    def version(self) -> str | None:
        """What the tree says it is: its version module, else the metadata installed beside it."""
        for name in ("_version.py", "version.py"):
            try:
                text = (self.package / name).read_text("utf-8", "replace")
            except OSError:
                continue
            if found := re.search(r"^(?:__version__|version)\b[^=\n]*=\s*.*?['\"]([^'\"]+)", text, re.M):
                return found[1]
        infos = sorted(self.root.glob("sglang-*.dist-info"))
        return infos[0].name.removeprefix("sglang-").removesuffix(".dist-info") if infos else None

    @property
    def overlay(self) -> bool:
        """Whether this is a view that specwire made: links into another tree, which is not to be touched."""
        return (self.package / MARKER).is_file()

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def python_files(self, under: str = PACKAGE) -> Iterator[str]:
        """Names of the `.py` files below `under`, in a stable order. No links to directories are followed."""
        folder = self.root / under
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SpecwireError(
                f"{folder}: cannot be listed ({error.strerror}), so what is below stays unknown."
            ) from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from self.python_files(f"{under}/{entry.name}")
            elif entry.name.endswith(".py") and entry.is_file():
                yield f"{under}/{entry.name}"

    def scan(self, word: bytes, under: str = PACKAGE) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of each `.py` file that holds `word`, in a stable order.

        Raises SpecwireError for a file that cannot be read: nobody could say then what the tree holds.
        """
        for name in self.python_files(under):
            path = f"{self.root}/{name}"
            try:
                handle = os.open(path, os.O_RDONLY)
                try:
                    size = os.fstat(handle).st_size
                    data = os.read(handle, size + 1)
                finally:
                    os.close(handle)
                if len(data) != size:
                    data = self.read(name)
            except FileNotFoundError:
                continue  # it went while we were looking
            except OSError as error:
                raise SpecwireError(
                    f"{path}: cannot be read ({error.strerror}), so what it holds stays unknown."
                ) from error
            if data.find(word) >= 0:
                yield name, data


def _is_package(folder: Path) -> bool:
    return (folder / "srt").is_dir() and (folder / "__init__.py").is_file()


def _installed(python: str) -> Path:
    """The directory that holds the `sglang` that `python` would import, asked of that interpreter."""
    # Without the empty entry, which would find a `sglang` folder of the directory that we happen to be in.
    code = (
        "import sys; sys.path = [p for p in sys.path if p];"
        "import importlib.util as u; s = u.find_spec('sglang');"
        "print((list(s.submodule_search_locations or ()) or [''])[0] if s else '')"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecwireError(
            f"{python}: cannot be run ({error}). Name a Python interpreter with --python."
        ) from error
    place = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if not place:
        raise SpecwireError(
            f"no sglang is installed for {python}. Name another environment's interpreter with --python, "
            "or the tree's directory."
        )
    package = Path(place)
    if package.name != PACKAGE or not _is_package(package):
        raise SpecwireError(
            f"{place}: what {python} would import as sglang, but no SGLang source: no sglang/srt in it."
        )
    return package.parent
