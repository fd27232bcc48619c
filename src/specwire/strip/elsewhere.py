"""Whether any other file of the same package reads a name, as far as text and syntax trees can tell."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator

from specwire.errors import SpecwireError
from specwire.regular import read_source
from specwire.strip.collect import gather
from specwire.strip.judge import Judge
from specwire.strip.plan import ids
from specwire.strip.readers import Elsewhere, loads
from specwire.strip.select import Selector
from specwire.strip.text import Text
from specwire.strip.words import Words
from specwire.trees.walk import package_root, walk


class Neighbours:
    """The files around those that are being stripped. Each directory is listed once, each file parsed once."""

    def __init__(self, words: Words, top: str | None = None) -> None:
        self._words = words
        self._top = os.path.abspath(top) if top else None
        self._listed = functools.cache(lambda root: walk(root).python)
        self._parsed = functools.cache(self._parse)
        self._stars = functools.cache(self._find_stars)

    def of(self, path: str) -> Elsewhere:
        """For one file: (kind, name) -> `path:line` of a reader in another file, or None."""
        own = os.path.abspath(path)
        roots = {package_root(own)}
        if self._top and own.startswith(self._top + os.sep):
            roots.add(self._top)
        stem = _stem(own)

        @functools.cache
        def stems() -> frozenset[str]:
            """The module's name, and those of modules that pass on all of its names by `from it import *`."""
            known = {stem}
            while more := {by for by, of in self._stars(tuple(sorted(roots))) if of in known} - known:
                known |= more
            return frozenset(known)

        @functools.cache
        def find(kind: str, name: str) -> str | None:
            modules = stems() if kind == "global" else frozenset()
            for other in self._files(roots, own):
                data = _read(other)
                if name.encode() not in data or not _is_word(data, name):
                    continue
                if modules and not any(module.encode() in data for module in modules):
                    continue
                if line := self._reads(other, kind, name, modules):
                    return f"{os.path.relpath(other)}:{line}"
            return None

        return find

    def _find_stars(self, roots: tuple[str, ...]) -> list[tuple[str, str]]:
        """(module, module that it takes all names of), by their last names."""
        found = []
        for path in self._files(set(roots), ""):
            for given in re.findall(rb"^\s*from\s+([.\w]+)\s+import\s+\(?\s*\*", _read(path), re.M):
                found.append((_stem(path), given.decode("ascii", "replace").rpartition(".")[2]))
        return found

    def _files(self, roots: set[str], own: str) -> Iterator[str]:
        seen = {own}
        for root in sorted(roots):
            package = root == self._top or os.path.exists(os.path.join(root, "__init__.py"))
            for path in self._listed(root) if package else _siblings(root):
                path = os.path.abspath(path)
                if path not in seen:
                    seen.add(path)
                    yield path

    def _parse(self, path: str) -> tuple[ast.Module, set[int]] | None:
        """The tree, and the ids of the debug code in it: what that reads does not count."""
        try:
            text = Text(_read(path), path)
        except SpecwireError:
            return None
        selector = Selector(text, Judge(gather(text.tree, self._words), {}))
        return text.tree, ids(selector.select().roots)

    def _reads(self, path: str, kind: str, name: str, modules: frozenset[str]) -> int | None:
        parsed = self._parsed(path)
        if parsed is None:
            return 1  # not readable for us, so that nothing can be shown
        tree, gone = parsed
        if kind == "attribute":
            found = next(loads(tree, "." + name, gone), None)
        else:
            found = next((node for node in ast.walk(tree) if _reads_global(node, name, modules)), None)
        return getattr(found, "lineno", None)


def _stem(path: str) -> str:
    """A module's last name; a package's for its `__init__.py`."""
    stem = os.path.basename(path).removesuffix(".py")
    return os.path.basename(os.path.dirname(path)) if stem == "__init__" else stem


def _reads_global(node: ast.AST, name: str, modules: frozenset[str]) -> bool:
    """`from ...module import name`, `module.name`, or a string such as "package.module.name"."""
    if isinstance(node, ast.ImportFrom):
        from_it = (node.module or "").rpartition(".")[2] in (*modules, "")
        named = {alias.name for alias in node.names}
        return from_it and (name in named or ("*" in named and not name.startswith("_")))
    if isinstance(node, ast.Attribute) and node.attr == name:
        return True  # whichever module it is an attribute of: the name and the module stand in one file
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith(tuple(f"{module}.{name}" for module in modules))
    )


def _siblings(folder: str) -> list[str]:
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".py"))


def _is_word(data: bytes, name: str) -> bool:
    return re.search(rb"(?<![A-Za-z0-9_])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9_])", data) is not None


def _read(path: str) -> bytes:
    try:
        return read_source(path)
    except OSError as error:
        raise SpecwireError(f"{path}: cannot be read ({error.strerror}). Leave it out or make it readable.") from error
