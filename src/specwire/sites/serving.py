"""Which model files serve a target: the one whose EntryClass lists its architecture, and those that it imports from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from specwire.errors import SpecwireError
from specwire.trees.tree import Tree

MODELS = "sglang/srt/models"
_PACKAGE = MODELS.replace("/", ".")


def serving_files(tree: Tree, architectures: Iterable[str]) -> frozenset[str]:
    """Names, relative to the tree's root, of the model files through which a target of these architectures runs.

    Imports are followed wherever they stand in a file, also those that only some condition reaches. Raises
    SpecwireError when no file of the tree registers any of the architectures.
    """
    wanted = list(architectures)
    names = tree.python_files(MODELS)
    reached: set[str] = set()
    ahead = [name for name in names if _registers(tree.read(name), wanted)]
    if not ahead:
        raise SpecwireError(
            f"{tree.root}: no file in {MODELS} registers {' or '.join(wanted) or 'a model without architectures'} as its "
            "EntryClass. Name a target that this tree serves, or leave --target out."
        )
    known = set(names)
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [each for each in _imports(_syntax(tree.read(name)), known.__contains__) if each not in reached]
    return frozenset(reached)


def _registers(data: bytes, architectures: list[str]) -> bool:
    if b"EntryClass" not in data or not any(name.encode() in data for name in architectures):
        return False
    listed = {
        part.id
        for node in _syntax(data).body
        if isinstance(node, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id == "EntryClass" for to in node.targets)
        for part in ast.walk(node.value)
        if isinstance(part, ast.Name)
    }
    return bool(listed & set(architectures))


def _syntax(data: bytes) -> ast.Module:
    """A file that cannot be parsed imports nothing that we could follow: `apply` says what is wrong with it."""
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _imports(syntax: ast.Module, is_file: Callable[[str], bool]) -> Iterator[str]:
    for node in ast.walk(syntax):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [_PACKAGE if node.level else "", node.module]))
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for module in modules:
            if module.startswith(f"{_PACKAGE}.") and is_file(name := f"{module.replace('.', '/')}.py"):
                yield name
