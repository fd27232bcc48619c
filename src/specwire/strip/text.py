"""A source file as lines of bytes, and which lines a syntax node has for itself."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from functools import cached_property

from specwire.errors import SpecwireError
from specwire.syntax import Node, decorators, first_line, last_line

ALLOW = b"# specwire-allow:"

# What may follow a statement on its last line and goes with it.
_TAIL = re.compile(rb"[ \t\f]*;?[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)?")
_ELSE = re.compile(rb"[ \t\f]*else[ \t\f]*:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)?")


class Text:
    """`data` split into lines as Python's tokenizer counts them. Line numbers start at 1.

    Raises SpecwireError when the bytes are not Python that this interpreter can parse.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        self.bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        self.lines = data[len(self.bom) :].splitlines(keepends=True)
        self.encoding, self.tree = parse(data, name)

    @cached_property
    def _utf8_lines(self) -> list[bytes]:
        # Columns of syntax nodes count bytes of UTF-8, whatever the file's own encoding is.
        return [line.decode(self.encoding).encode() for line in self.lines]

    def span(self, node: ast.stmt | ast.ExceptHandler) -> range:
        """The lines of a statement, decorators included."""
        return range(first_line(node), last_line(node) + 1)

    def trouble(self, first: ast.stmt, last: ast.stmt) -> str | None:
        """Why the lines from `first` to `last` cannot go as a whole; None when nothing else is on them."""
        start, end = self.span(first)[0], last_line(last)
        head = self._utf8_lines[start - 1][: _column(first)]
        tail = self._utf8_lines[end - 1][last.end_col_offset :]
        if head.strip(b" \t\f@"):
            return f"shares line {start} with other code"
        if not _TAIL.fullmatch(tail):
            return f"shares line {end} with other code"
        before = self.lines[start - 2].rstrip(b"\r\n") if start > 1 else b""
        if before.endswith(b"\\") and not before.lstrip().startswith(b"#"):
            return f"line {start} continues the line above it"
        return None

    def allowed(self, group: list[ast.stmt]) -> bool:
        """Whether a comment says that these statements are to stay: on one of their lines, or right above them."""
        first, last = self.span(group[0])[0], last_line(group[-1])
        above = self.lines[first - 2] if first > 1 else b""
        own = any(ALLOW in line for line in self.lines[first - 1 : last])
        return own or (ALLOW in above and above.lstrip().startswith(b"#"))

    def is_elif(self, node: ast.stmt) -> bool:
        """Whether an `if` statement is spelled as the `elif` of another."""
        line = self._utf8_lines[node.lineno - 1]
        return isinstance(node, ast.If) and line[node.col_offset :].startswith(b"elif")

    def else_line(self, after: ast.stmt, first: ast.stmt) -> int | None:
        """The line that says `else:` and nothing more, between the end of a block and the next block's start."""
        between = range(last_line(after) + 1, first.lineno)
        found = [number for number in between if _ELSE.fullmatch(self.lines[number - 1])]
        return found[0] if len(found) == 1 else None

    def text(self, line: int) -> str:
        return self.lines[line - 1].decode(self.encoding, "replace").strip()

    def without(self, numbers: set[int]) -> bytes:
        kept = [line for number, line in enumerate(self.lines, 1) if number not in numbers]
        return self.bom + b"".join(kept)


def parse(data: bytes, name: str) -> tuple[str, ast.Module]:
    """Encoding (without the BOM's name) and syntax tree. Raises SpecwireError where there is no such thing."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        tree = ast.parse(data, filename=name)
        data.decode(encoding)
    except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise SpecwireError(
            f"{name}{line}: not Python that this interpreter can parse ({getattr(error, 'msg', error)}). "
            "Nothing was written. Leave the file out, or run specwire under the Python that the file is for."
        ) from error
    return "utf-8" if encoding == "utf-8-sig" else encoding, tree


def _column(node: ast.stmt) -> int:
    parts: list[Node] = [node, *decorators(node)]
    return min((part.lineno, part.col_offset) for part in parts)[1]
