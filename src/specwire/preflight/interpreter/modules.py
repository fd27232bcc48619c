"""Finds classes and functions in a tree's source: names followed through imports and inheritance."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from specwire.errors import SpecwireError
from specwire.gate.pristine import release_name
from specwire.patching.marks import marks
from specwire.preflight.interpreter.module import Module, bound_names
from specwire.preflight.interpreter.values import ClassRef, External, Function
from specwire.trees.tree import Tree

MODELS = "sglang/srt/models"


@lru_cache(maxsize=256)
def _syntax(data: bytes) -> ast.Module:
    """Only ever read: a verdict asks one tree in several ways, and each way reads the same files."""
    return ast.parse(_untapped(data))


def _untapped(data: bytes) -> bytes:
    """A file as it is without its taps, each line where it was: what only reports is no part of a rule."""
    tapped = [mark.line for mark in marks(data) if mark.intact]
    if not tapped:
        return data
    lines = data.splitlines(keepends=True)
    for line in tapped:
        lines[line - 1] = b"\n"
    return b"".join(lines)


@dataclass(eq=False)
class Source:
    """A tree's source files, parsed when first asked for."""

    tree: Tree
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _classes: dict[str, ClassRef | None] = field(default_factory=dict)
    _set_by: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    _mentions: dict[str, int] = field(default_factory=dict)
    _mros: dict[ClassRef, list[ClassRef]] = field(default_factory=dict)
    _attributes: dict[tuple[ClassRef, str, ClassRef | None], tuple[ClassRef, ast.stmt] | None] = field(
        default_factory=dict
    )
    _texts: dict[ast.AST, str] = field(default_factory=dict)
    _names: dict[ast.AST, list[str]] = field(default_factory=dict)

    @cached_property
    def release(self) -> str:
        """What a sentence calls the tree."""
        return release_name(self.tree)

    def mentions(self, word: str) -> int:
        """How often a name stands anywhere in the engine's sources, in a string or a comment as well."""
        if word not in self._mentions:
            whole, short = re.compile(rf"\b{re.escape(word)}\b".encode()), word.encode()
            files = (self.tree.read(name) for name in self.tree.python_files("sglang/srt"))
            self._mentions[word] = sum(len(whole.findall(data)) for data in files if short in data)
        return self._mentions[word]

    def module(self, name: str) -> Module | None:
        """The module in file `name`, or None when there is none. Raises SpecwireError when it is broken."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def _parse(self, name: str) -> Module | None:
        try:
            data = self.tree.read(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SpecwireError(
                f"{name}: cannot be read ({error.strerror}), so what it holds stays unknown."
            ) from error
        try:
            return Module(name, _syntax(data))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
            why = str(error)[:200] or "nested too deeply"
            raise SpecwireError(
                f"{name}: not Python that this interpreter can parse ({why}). "
                "Restore the file, or name another tree with --tree."
            ) from error

    def dotted(self, dotted: str) -> Module | None:
        """The module of a dotted name such as `sglang.srt.models.llama`."""
        path = dotted.replace(".", "/")
        return self.module(f"{path}.py") or self.module(f"{path}/__init__.py")

    def resolve(self, module: Module, name: str, before: int | None = None, depth: int = 6) -> Any:
        """What a module-level name stands for: a ClassRef, a Function, a Module, an External, or the
        `ast.Assign` node that binds it; None when the module does not bind it."""
        row = module.binding(name, before)
        if row is None:
            return None
        _, node, original = row
        if isinstance(node, ast.ClassDef):
            return ClassRef(module, node)
        if isinstance(node, ast.FunctionDef):
            return Function(module, node)
        if isinstance(node, ast.Import):
            return External(original)
        if isinstance(node, ast.ImportFrom):
            return self.imported(module, node, original, depth)
        return node

    def imported(self, module: Module, node: ast.ImportFrom, original: str, depth: int = 6) -> Any:
        dotted = node.module or ""
        if node.level:
            package = module.name.removesuffix("/__init__.py").removesuffix(".py").split("/")
            up = node.level if not module.name.endswith("/__init__.py") else node.level - 1
            dotted = ".".join([*package[: len(package) - up], *([dotted] if dotted else [])])
        if not dotted.startswith("sglang") or depth == 0:
            return External(f"{dotted}.{original}")
        other = self.dotted(dotted)
        if other is not None and other.binding(original):
            return self.resolve(other, original, None, depth - 1) or External(f"{dotted}.{original}")
        return self.dotted(f"{dotted}.{original}") or External(f"{dotted}.{original}")

    def text(self, node: ast.AST) -> str:
        """The source of an expression, written out once however often it is run."""
        if node not in self._texts:
            self._texts[node] = ast.unparse(node)
        return self._texts[node]

    def names_in(self, node: ast.AST) -> list[str]:
        """The names that stand in a function or an expression, in alphabetical order."""
        if node not in self._names:
            self._names[node] = sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)})
        return self._names[node]

    def mro(self, cls: ClassRef) -> list[ClassRef]:
        """The class and its bases within the tree, nearest first (depth first, no duplicates, and no end in circles)."""
        if cls not in self._mros:
            found: dict[ClassRef, None] = {}
            left = [cls]
            while left:
                ref = left.pop()
                if ref in found:
                    continue
                found[ref] = None
                resolved = [
                    self.resolve(ref.module, base.id, before=ref.node.lineno)
                    for base in ref.node.bases
                    if isinstance(base, ast.Name)
                ]
                left += reversed([base for base in resolved if isinstance(base, ClassRef)])
            self._mros[cls] = list(found)
        return self._mros[cls]

    def method(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.FunctionDef] | None:
        """Where a method is defined; None for what the class makes otherwise, or not at all."""
        found = self.attribute(cls, name)
        return (found[0], found[1]) if found and isinstance(found[1], ast.FunctionDef) else None

    def attribute(self, cls: ClassRef, name: str, after: ClassRef | None = None) -> tuple[ClassRef, ast.stmt] | None:
        """Where a class attribute or method is defined; with `after`, only beyond that class."""
        key = (cls, name, after)
        if key not in self._attributes:
            self._attributes[key] = self._attribute(cls, name, after)
        return self._attributes[key]

    def _attribute(self, cls: ClassRef, name: str, after: ClassRef | None) -> tuple[ClassRef, ast.stmt] | None:
        order = self.mro(cls)
        if after is not None:
            order = order[order.index(after) + 1 :] if after in order else []
        for ref in order:
            for node in reversed(ref.node.body):
                if name in bound_names(node):
                    return ref, node
        return None

    def may_set(self, cls: ClassRef, name: str) -> bool:
        """Whether code of the class or of its bases could set this attribute: what it never names, it never sets."""
        key = (cls.module.name, cls.node.lineno)
        if key not in self._set_by:
            self._set_by[key] = frozenset(
                node.attr if isinstance(node, ast.Attribute) else str(node.value)
                for ref in self.mro(cls)
                for node in ast.walk(ref.node)
                if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
                or (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier())
            )
        return name in self._set_by[key]

    def model_class(self, architectures: Iterable[str]) -> ClassRef | None:
        """The class that the engine's registry gives for a config's architectures: the first that an EntryClass lists."""
        for architecture in architectures:
            if architecture not in self._classes:
                self._classes[architecture] = self._entry(architecture)
            if found := self._classes[architecture]:
                return found
        return None

    def _entry(self, architecture: str) -> ClassRef | None:
        marker = f"class {architecture}".encode()
        for name in self.tree.python_files(MODELS):
            data = self.tree.read(name)
            if marker not in data or b"EntryClass" not in data:
                continue
            module = self.module(name)
            row = module.binding("EntryClass") if module else None
            listed = {node.id for node in ast.walk(row[1]) if isinstance(node, ast.Name)} if row else set()
            if module and architecture in listed:
                resolved = self.resolve(module, architecture)
                if isinstance(resolved, ClassRef):
                    return resolved
        return None
