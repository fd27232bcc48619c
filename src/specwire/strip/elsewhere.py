"""Whether any other file of the same package reads a name, as far as text and syntax trees can tell."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator

from specwire.errors import SpecwireError
from specwire.regular import read_source
from specwire.strip.binds import FUNCTIONS
from specwire.strip.classes import WATCHING, fields, special, watches
from specwire.strip.collect import gather
from specwire.strip.facts import Facts
from specwire.strip.helpers import is_property, only_looks
from specwire.strip.judge import Judge
from specwire.strip.plan import ids
from specwire.strip.readers import WHOLE, Elsewhere, loads, made_up, outside, wholes
from specwire.strip.select import Selector
from specwire.strip.text import Text
from specwire.strip.words import Words
from specwire.trees.walk import package_root, walk

# Each begins with plain text, which is what makes a search quick.
_MADE_UP = (
    re.compile(rb"attr\([^\n]{1,80}?,\s*(?:f['\"]|['\"][^'\"\n]*['\"]\s*[+%.])"),
    re.compile(rb"globals\(\)\["),
    re.compile(rb"vars\([^()\n]*\)\["),
)
_QUESTION = re.compile(rb"def ((?:is|has)_\w+)\(")
_PROPERTY = re.compile(rb"property\s+def (\w+)\(")
_CLASS = re.compile(rb"class (\w+)\(([^)]*)\)")


class Neighbours:
    """The files around those that are being stripped. Each directory is listed once, each file parsed once."""

    def __init__(self, words: Words, top: str | None = None) -> None:
        self._words = words
        self._top = os.path.abspath(top) if top else None
        self._bytes: dict[str, bytes] = {}
        self._room = 1 << 28
        self.unreadable: set[str] = set()
        for name in ("listed", "parsed", "facts", "stars", "making_up", "watching", "handing_on", "functions"):
            setattr(self, name, functools.cache(getattr(self, name)))

    def of(self, path: str) -> Elsewhere:
        """What the files around one say of its names."""
        own = os.path.abspath(path)
        roots = {package_root(own)}
        if self._top and own.startswith(self._top + os.sep):
            roots.add(self._top)
        return _Around(self, tuple(sorted(roots)), own)

    def making_up(self, roots: tuple[str, ...]) -> tuple[str, ...]:
        files = ((path, self.read(path)) for path in self.files(roots, ""))
        return tuple(path for path, data in files if any(made.search(data) for made in _MADE_UP))

    def watching(self, roots: tuple[str, ...]) -> frozenset[str]:
        """Classes that see each attribute that is set on their objects, and those that build on one of them."""
        found: set[str] = set()
        bases: list[tuple[str, set[str]]] = []
        for path in self.files(roots, ""):
            data = self.read(path)
            for name, given in _CLASS.findall(data):
                bases.append((name.decode(), set(re.findall(r"\w+", given.decode("utf-8", "replace")))))
            if WATCHING.search(data) and (parsed := self.parsed(path)):
                found |= {node.name for node in ast.walk(parsed[0]) if isinstance(node, ast.ClassDef) and watches(node)}
        while more := {name for name, given in bases if given & found} - found:
            found |= more
        return frozenset(found)

    def stars(self, roots: tuple[str, ...]) -> list[tuple[str, str]]:
        """(module, module that it takes all names of), by their last names."""
        found = []
        for path in self.files(roots, ""):
            for given in re.findall(rb"from\s+([.\w]+)\s+import\s+\(?\s*\*", self.read(path)):
                found.append((_stem(path), given.decode("ascii", "replace").rpartition(".")[2]))
        return found

    def handing_on(self, roots: tuple[str, ...]) -> frozenset[bytes]:
        """Functions of the package that read all attributes of what they are given."""
        found = set()
        for path in self.files(roots, ""):
            data = self.read(path)
            for hit in WHOLE.finditer(data):
                heads = list(re.finditer(rb"^(?:async )?def ([A-Za-z_0-9]+)\(([^)]*)", data[: hit.start()], re.M))
                begin = data.rfind(b"\n", 0, hit.start()) + 1
                line = data[begin : data.find(b"\n", hit.end())]
                given = re.findall(rb"[A-Za-z_0-9]+", heads[-1][2]) if heads else []
                if any(_is_word(line, name.decode()) for name in given):
                    found.add(heads[-1][1])
        return frozenset(found)

    def listed(self, root: str) -> list[str]:
        return walk(root).python

    def functions(self, roots: tuple[str, ...], kind: re.Pattern[bytes]) -> dict[str, list[str]]:
        """The files that define a function, by the name that `kind` finds."""
        found: dict[str, list[str]] = {}
        for path in self.files(roots, ""):
            for name in kind.findall(self.read(path)):
                found.setdefault(name.decode(), []).append(path)
        return found

    def files(self, roots: tuple[str, ...], own: str) -> Iterator[str]:
        seen = {own}
        for root in roots:
            package = root == self._top or os.path.exists(os.path.join(root, "__init__.py"))
            for path in self.listed(root) if package else _siblings(root):
                path = os.path.abspath(path)
                if path not in seen:
                    seen.add(path)
                    yield path

    def read(self, path: str) -> bytes:
        """A file's bytes, kept for the next question as long as there is room."""
        if (data := self._bytes.get(path)) is None:
            try:
                data = _read(path)
            except SpecwireError:
                self.unreadable.add(path)
                return b""
            if self._room >= len(data):
                self._bytes[path] = data
                self._room -= len(data)
        return data

    def parsed(self, path: str) -> tuple[ast.Module, set[int]] | None:
        """The tree, and the ids of the debug code in it: what that reads does not count."""
        data = self.read(path)
        if path in self.unreadable:
            return None
        try:
            text = Text(data, path)
            if not self._words.suspects(data):
                return text.tree, set()
            selector = Selector(text, Judge(gather(text.tree, self._words), {}))
            return text.tree, ids(selector.select().roots)
        except (SpecwireError, RecursionError, MemoryError):
            return None

    def facts(self, path: str) -> Facts | None:
        parsed = self.parsed(path)
        return gather(parsed[0], self._words) if parsed else None


class _Around(Elsewhere):
    """The files around one, as they are asked about its names."""

    def __init__(self, neighbours: Neighbours, roots: tuple[str, ...], own: str) -> None:
        self._neighbours, self._roots, self._own = neighbours, roots, own
        for name in ("reader", "whole", "whole_module", "looks", "alters", "plain", "watches", "field"):
            setattr(self, name, functools.cache(getattr(self, name)))

    @functools.cached_property
    def _modules(self) -> frozenset[str]:
        """The module's name, and those of modules that pass on all of its names by `from it import *`."""
        known = {_stem(self._own)}
        while more := {by for by, of in self._neighbours.stars(self._roots) if of in known} - known:
            known |= more
        return frozenset(known)

    def _holding(self, *words: str) -> Iterator[tuple[str, bytes]]:
        """The other files that hold one of these as a word."""
        for path in self._neighbours.files(self._roots, self._own):
            data = self._neighbours.read(path)
            hidden = path in self._neighbours.unreadable
            if hidden or any(word.encode() in data and _is_word(data, word) for word in words):
                yield path, data

    def _nodes(self, path: str) -> tuple[ast.Module, set[int]] | None:
        return self._neighbours.parsed(path)

    def reader(self, kind: str, name: str) -> str | None:
        modules = self._modules if kind == "global" else frozenset()
        for path, data in (*self._holding(name), *self._making_up()):
            if data and modules and not any(module.encode() in data for module in modules):
                continue
            if (parsed := self._nodes(path)) is None:
                return _place(path, None)  # not readable for us, so that nothing can be shown
            tree, gone = parsed
            if kind == "attribute":
                found = next(loads(tree, "." + name, gone), None)
            else:
                made = (node for node in outside(tree, gone) if made_up(node, name))
                read = (node for node in ast.walk(tree) if _reads_global(node, name, modules))
                found = next(read, None) or next(made, None)
            if found is not None:
                return _place(path, found)
        return None

    def _making_up(self) -> Iterator[tuple[str, bytes]]:
        """The other files that put names together as they run: `getattr(x, f"_buf_{n}")`."""
        for path in self._neighbours.making_up(self._roots):
            if path != self._own:
                yield path, self._neighbours.read(path)

    def whole(self, classes: frozenset[str], holder: str) -> str | None:
        pattern = re.compile(
            rb"(?<![A-Za-z0-9_])(?:" + b"|".join(map(re.escape, _encoded(classes))) + rb")(?![A-Za-z0-9_])"
        )
        handing = self._neighbours.handing_on(self._roots)
        for path in self._neighbours.files(self._roots, self._own):
            data = self._neighbours.read(path)
            speaks = bool(classes) and pattern.search(data) is not None
            if not speaks and not (holder and holder.encode() in data):
                continue
            if WHOLE.search(data) is None and not (speaks and any(name in data for name in handing)):
                continue
            if (parsed := self._nodes(path)) is None:
                return _place(path, None)
            tree, gone = parsed
            for node, read in wholes(tree, gone):
                if (
                    (speaks and read not in ("self", "cls"))
                    or (holder and read == holder)
                    or _in_class(tree, node, classes)
                ):
                    return _place(path, node)
            called = (
                node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node).encode() in handing
            )
            if speaks and (call := next(called, None)) is not None:
                return _place(path, call)
        return None

    def looks(self, method: str) -> bool:
        purities = [facts is not None and only_looks(node, facts) for facts, node in self._defined(method, _QUESTION)]
        return bool(purities) and all(purities)

    def alters(self, attribute: str) -> bool:
        """A name that is also a plain attribute of something says nothing of what is asked for here."""
        defined = self._defined(attribute, _PROPERTY)
        if not any(is_property(node) and not (facts and only_looks(node, facts)) for facts, node in defined):
            return False
        plain = re.compile(rb"(?:\.|^[ \t]+)" + re.escape(attribute.encode()) + rb"[ \t]*(?::[ \t]*\w|=[^=])", re.M)
        return not any(plain.search(data) for _, data in self._holding(attribute))

    def _defined(
        self, name: str, kind: re.Pattern[bytes]
    ) -> Iterator[tuple[Facts | None, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """The functions of a name in other files, with what is known of the file."""
        for path in dict.fromkeys(self._neighbours.functions(self._roots, kind).get(name, ())):
            if path == self._own or (parsed := self._nodes(path)) is None:
                continue
            facts = self._neighbours.facts(path)
            for node in ast.walk(parsed[0]):
                if isinstance(node, FUNCTIONS) and node.name == name:
                    yield facts, node

    def watches(self, name: str) -> bool:
        return name in self._neighbours.watching(self._roots)

    def _classes(self, name: str) -> Iterator[tuple[ast.ClassDef, dict[str, ast.ClassDef], str]]:
        """The classes of a name in other files, with the others of their files."""
        head = re.compile(rb"\bclass\s+" + re.escape(name.encode()) + rb"\b")
        for path, data in self._holding(name):
            if head.search(data) is None or (parsed := self._nodes(path)) is None:
                continue
            classes = {node.name: node for node in ast.walk(parsed[0]) if isinstance(node, ast.ClassDef)}
            if name in classes:
                yield classes[name], classes, path

    def hands_on(self) -> frozenset[str]:
        return frozenset(name.decode() for name in self._neighbours.handing_on(self._roots))

    def whole_module(self) -> str | None:
        for path, data in self._holding(*self._modules):
            if WHOLE.search(data) is None:
                continue
            if (parsed := self._nodes(path)) is None:
                return _place(path, None)
            for node, read in wholes(*parsed):
                if read == "" or read in self._modules:
                    return _place(path, node)
        return None

    def plain(self, name: str) -> bool:
        found = list(self._classes(name))
        return bool(found) and all(
            special(owner, classes, lambda other: other != name and self.plain(other)) is None
            for owner, classes, _ in found
        )

    def field(self, name: str) -> str | None:
        for path, _ in self._holding(name):
            if (parsed := self._nodes(path)) is None:
                return f"of {_place(path, None)}"
            if owner := fields(parsed[0], self.plain).names.get(name):
                return f"{owner} of {os.path.relpath(path)}"
        return None


def _place(path: str, node: ast.AST | None) -> str:
    return f"{os.path.relpath(path)}:{getattr(node, 'lineno', 1)}"


def _encoded(words: frozenset[str]) -> list[bytes]:
    return sorted(word.encode() for word in words)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _in_class(tree: ast.Module, node: ast.AST, classes: frozenset[str]) -> bool:
    """Whether a node stands in one of these classes, or in one that builds on one of them."""
    return any(
        isinstance(owner, ast.ClassDef)
        and (owner.name in classes or any(ast.unparse(base).rpartition(".")[2] in classes for base in owner.bases))
        and any(part is node for part in ast.walk(owner))
        for owner in ast.walk(tree)
    )


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
        and (node.value == name or node.value.endswith(tuple(f"{module}.{name}" for module in modules)))
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
