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
        here = Path(named)
        for root in (here, here / "python", here.parent):
            package = root / PACKAGE
            if package.is_dir() and (root != here.parent or package.samefile(here)):
                if (package / "srt").is_dir() and (package / "__init__.py").is_file():
                    return cls(Path(os.path.abspath(root)), named)
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

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def python_files(self, under: str = PACKAGE) -> Iterator[str]:
        """Names of the `.py` files below `under`, in a stable order; links to directories are not followed."""
        for folder, folders, files in os.walk(self.root / under):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith(".py"):
                    yield os.path.relpath(os.path.join(folder, name), self.root)


def _installed(python: str) -> Path:
    """The directory that holds the `sglang` that `python` would import, asked of that interpreter."""
    code = (
        "import importlib.util as u; s = u.find_spec('sglang');"
        "print((s.submodule_search_locations or [''])[0] if s else '')"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise SpecwireError(f"{python}: cannot be run ({error}). Name a Python interpreter with --python.") from error
    place = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if not place:
        raise SpecwireError(
            f"no sglang is installed for {python}. Name another environment's interpreter with --python, "
            "or the tree's directory."
        )
    return Path(place).parent
