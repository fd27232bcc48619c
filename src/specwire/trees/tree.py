"""A tree: a directory that holds SGLang's source. Found and read without importing it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.interpreter import ask
from specwire.regular import SOURCE_LIMIT, descriptor, read_source, read_text
from specwire.trees.released import REQUIREMENT, released

PACKAGE = "sglang"
MARKER = ".specwire-overlay"


@dataclass(frozen=True)
class Tree:
    """`root` is the directory that holds the `sglang` package; file names are relative to it."""

    root: Path
    named: str

    @classmethod
    def find(cls, named: str | os.PathLike[str], python: str | None = None) -> Tree:
        """The tree that the user named: a package, a checkout, a directory above one, `installed`, `sglang==VERSION`.

        Raises SpecwireError when there is no SGLang there.
        """
        named = os.fspath(named)
        if requirement := REQUIREMENT.fullmatch(named):
            return cls(released(requirement[1], lambda text: print(text, file=sys.stderr, flush=True)), named)
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
            "Name a checkout, a directory that holds the sglang package, the word 'installed', or a release "
            "as sglang==0.5.23, which is then fetched."
        )

    @property
    def package(self) -> Path:
        return self.root / PACKAGE

    @cached_property
    def version(self) -> str | None:
        """What the tree says it is: its version module, else the metadata installed beside it."""
        for name in ("_version.py", "version.py"):
            try:
                text = read_text(self.package / name, "replace", SOURCE_LIMIT)
            except OSError:
                continue
            if found := re.search(r"^(?:__version__|version)\b[^=\n]*=\s*.*?['\"]([^'\"]+)", text, re.M):
                return found[1]
        infos = sorted(self.root.glob("sglang-*.dist-info"))
        return infos[0].name.removeprefix("sglang-").removesuffix(".dist-info") if infos else None

    @property
    def fetched(self) -> bool:
        """Whether this is a release in the cache, which other commands rely on being as it was published."""
        return REQUIREMENT.fullmatch(self.named) is not None

    @property
    def overlay(self) -> bool:
        """Whether this is a view that specwire made: links into another tree, which is not to be touched."""
        return (self.package / MARKER).is_file()

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self, name: str) -> bytes:
        """A file's bytes. Raises OSError, also when it is no regular file or larger than a module can be."""
        return read_source(self.path(name))

    def python_files(self, under: str = PACKAGE) -> list[str]:
        """Names of the `.py` files below `under`, in a stable order.

        Links to directories are followed, since Python imports from there too; but each file comes once, by its
        own name where it has one below `under`. In a view, directories are real and files are links.
        """
        names, links = self._listed(under)
        if links:
            names += links if self.overlay else self._led_to(names, links)
            names.sort(key=lambda name: name.split("/"))
        return names

    def _listed(self, under: str) -> tuple[list[str], list[str]]:
        """The `.py` files below a directory, and apart from them the links: to such files, and to directories."""
        names: list[str] = []
        links: list[str] = []
        folder = self.root / under
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return names, links
        except OSError as error:
            raise SpecwireError(
                f"{folder}: cannot be listed ({error.strerror}), so what is below stays unknown."
            ) from error
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_symlink():
                if entry.is_dir() or (entry.name.endswith(".py") and os.path.exists(entry)):
                    links.append(f"{under}/{entry.name}")
            elif entry.is_dir(follow_symlinks=False):
                for mine, below in zip((names, links), self._listed(f"{under}/{entry.name}"), strict=True):
                    mine += below
            elif entry.name.endswith(".py"):  # a pipe in a module's place among them, which reading it will say
                names.append(f"{under}/{entry.name}")
        return names, links

    def _led_to(self, names: list[str], links: list[str]) -> list[str]:
        """The files that `links` lead to and that are none of `names`: each once, whichever links lead there."""
        seen, found = {_identity(self.path(name)) for name in names}, []
        package, links = os.path.realpath(self.package), sorted(links, key=self._is_alias)
        while links:
            name = links.pop(0)
            path = self.path(name)
            reached = [name]
            if path.is_dir():
                real = os.path.realpath(path)
                if _identity(path) in seen or os.path.commonpath((real, package)) == real:
                    continue  # been there, or a link back up
                seen.add(_identity(path))
                reached, further = self._listed(name)
                links += further
            new = [each for each in reached if _identity(self.path(each)) not in seen]
            seen |= {_identity(self.path(each)) for each in new}
            found += new
        return found

    def _is_alias(self, link: str) -> bool:
        """Whether a link leads to another link, whose name is then the one that counts."""
        path = self.path(link)
        return os.path.islink(os.path.join(path.parent, os.readlink(path)))

    def scan(self, word: bytes, under: str = PACKAGE) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of each `.py` file that holds `word`, in a stable order.

        Raises SpecwireError for a file that cannot be read: nobody could say then what the tree holds.
        """
        for name in self.python_files(under):
            path = f"{self.root}/{name}"
            try:
                handle = descriptor(path)
                try:
                    size = os.fstat(handle).st_size
                    data = os.read(handle, min(size, SOURCE_LIMIT) + 1)
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


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_package(folder: Path) -> bool:
    return (folder / "srt").is_dir() and (folder / "__init__.py").is_file()


def _installed(python: str) -> Path:
    """The directory that holds the `sglang` that `python` would import, asked of that interpreter."""
    code = (
        "import importlib.util as u; s = u.find_spec('sglang');"
        "print((list(s.submodule_search_locations or ()) or [''])[0] if s else '')"
    )
    done = ask(python, code, seconds=60)
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
