"""The proof after an edit: the new syntax tree is the old one without exactly what was to go, and so are the lines."""

from __future__ import annotations

import ast
from typing import Any

from specwire.errors import SpecwireError
from specwire.strip.text import Text, parse


def prove(text: Text, after: bytes, gone: list[ast.stmt], lines: set[int]) -> None:
    """Raises unless `after` is what `text` is without `gone` on `lines`: AssertionError, a bug of specwire's, when the
    trees differ, SpecwireError when it is the file that does not allow it.

    The expected tree is made from the original's by dropping the statements. It is never taken from the bytes
    that the editing made, so that a line too many or too few cannot pass.
    """
    encoding, found = parse(after, text.name)
    places = {_place(node) for node in gone}
    expected = _Drop(places).visit(ast.parse(text.data, filename=text.name))
    if ast.dump(found) != ast.dump(expected):
        raise AssertionError(f"{text.name}: the edited file's syntax tree is not the original's without the debug code")
    kept = [line for number, line in enumerate(text.lines, 1) if number not in lines]
    same = after.startswith(text.bom) and after[len(text.bom) :].splitlines(keepends=True) == kept
    if encoding != text.encoding or not same:
        raise SpecwireError(
            f"{text.name}: the lines that stay would be read differently (a mix of line ends, or a comment that would "
            "become the file's encoding). Nothing was written. Take the debug code out by hand."
        )


_Place = tuple[str, int, int, int | None, int | None]


class _Drop(ast.NodeTransformer):
    """Drops statements by their place in the source."""

    def __init__(self, places: set[_Place]) -> None:
        self.places = places

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt) and _place(node) in self.places:
            return None
        return self.generic_visit(node)


def _place(node: ast.stmt) -> _Place:
    return type(node).__name__, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
