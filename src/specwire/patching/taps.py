"""What of ours is in one file, and the file without it.

An intact tap is a statement, or a decorator, on one line that its own checksum confirms. Whatever else uses
the taps' reserved name, or holds a mark in a comment, is `edited`: a formatter has reflowed it, or a hand
changed it. It can still be taken out when the syntax tree shows that it does nothing but report, and nothing
at all while the taps are off. A mark inside a string is text, and none of ours.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from specwire.patching import marks
from specwire.patching.uses import BLOCK, stuck, uses
from specwire.syntax import Node, decorators, first_line, last_line
from specwire.trees.journal import digest


@dataclass(frozen=True)
class FoundTap:
    """One thing of ours, on lines `first` to `last`.

    `why` says how it differs from what was put there, for an edited one; `stuck` why it cannot be taken out
    without changing something else, mostly empty. `cuts` are the byte ranges to delete.
    """

    probe: str
    first: int
    last: int
    qualname: str
    intact: bool
    why: str = ""
    stuck: str = ""
    cuts: tuple[tuple[int, int], ...] = ()
    node: Node | None = None
    original: str | None = None


@lru_cache(maxsize=2)
def _parsed(data: bytes) -> ast.Module | None:
    """Only ever read: what is inserted, proven and then reported is the same file each time."""
    try:
        data.decode(_encoding(data))  # a bad byte in a comment is let through by the parser, not by Python
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _encoding(data: bytes) -> str:
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


class TappedFile:
    """A file's bytes, with everything of ours found in them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def lines(self) -> list[bytes]:
        return self.data.splitlines(keepends=True)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line begins, and where the last one ends."""
        return [0, *accumulate(map(len, self.lines))]

    @cached_property
    def module(self) -> ast.Module | None:
        return _parsed(self.data)

    @cached_property
    def found(self) -> tuple[FoundTap, ...]:
        """In file order."""
        if marks.WORD not in self.data or not (marks.NAME in self.data or marks.LITERAL in self.data):
            return ()
        if self.module is None:
            return tuple(self._by_lines())
        return tuple(sorted(self._by_syntax(self.module), key=lambda each: (each.first, each.last)))

    def without(self, going: Iterable[FoundTap]) -> bytes:
        """The file without these; every other byte as it was."""
        kept: list[bytes] = []
        at = 0
        for start, end in sorted({cut for each in going for cut in each.cuts}):
            kept.append(self.data[at:start])
            at = max(at, end)
        return b"".join([*kept, self.data[at:]])

    def unproven(self, going: Iterable[FoundTap], after: bytes) -> str:
        """Why `after` is not surely the file without `going`; empty when its syntax tree shows that it is."""
        going = list(going)
        if self.module is None:
            return "the file is no valid Python, so nothing can be shown about the rest of it"
        try:
            got = ast.parse(after)
        except (SyntaxError, ValueError):
            return self._emptied(self.module, going) or "without it the file would be no valid Python"
        expected = ast.parse(self.data)
        gone = {_place(each.node) for each in going if each.node is not None}
        _drop(expected, gone)
        return "" if ast.dump(expected) == ast.dump(got) else "the syntax tree would change in more than this"

    def original(self) -> set[str]:
        """The hashes that the file's import lines give for what it was."""
        return {each.original for each in self.found if each.original}

    # --- finding -------------------------------------------------------------------------------------

    def _by_syntax(self, module: ast.Module) -> Iterator[FoundTap]:
        marked = {mark.line: mark for mark in marks.marks(self.data)}
        qualname = qualnames(module)
        seen: set[int] = set()
        lines = [number for number, line in enumerate(self.lines, 1) if marks.NAME in line]
        for use in uses(module, lines):
            own = [marked[line] for line in range(use.lineno, last_line(use) + 1) if line in marked]
            seen |= {mark.line for mark in own}
            yield self._use(use, own, qualname(use.lineno))
        rest = [mark for line, mark in marked.items() if line not in seen]
        whole = {node.lineno: node for node in _statements(module)} if rest else {}
        comments = self._comments() if any(not mark.intact or mark.line not in whole for mark in rest) else set()
        for mark in rest:
            node = whole.get(mark.line)
            if mark.intact and node is not None and last_line(node) == mark.line:
                # An older specwire's tap, which did not use today's name.
                yield self._tap(mark, node, qualname(mark.line))
            elif mark.line in comments:
                yield self._comment(mark, qualname(mark.line))

    def _use(self, use: Node, own: list[marks.Mark], where: str) -> FoundTap:
        last = last_line(use)
        if len(own) == 1 and own[0].intact and use.lineno == last:
            return self._tap(own[0], use, where)
        probe = own[0].probe if own else "unknown"
        original = next((mark.original for mark in own if mark.original), None)
        why = "the line is not as it was inserted" if own else "it uses the taps' name and has no mark"
        if last > use.lineno and own:
            why = f"what was one line is {last - use.lineno + 1} now: reformatted or edited"
        kept = stuck(use) or self._sharing(use)
        cuts = () if kept else ((self._starts[use.lineno - 1], self._starts[last]),)
        return FoundTap(probe, use.lineno, last, where, False, why, kept, cuts, use, original)

    def _tap(self, mark: marks.Mark, node: Node, where: str) -> FoundTap:
        cuts = ((self._starts[mark.line - 1], self._starts[mark.line]),)
        return FoundTap(mark.probe, mark.line, mark.line, where, True, cuts=cuts, node=node, original=mark.original)

    def _comment(self, mark: marks.Mark, where: str) -> FoundTap:
        """A mark that lost its tap: the comment goes, and the line with it when nothing else is on it."""
        start, line = self._starts[mark.line - 1], self.lines[mark.line - 1]
        code = line[: line.rfind(marks.LITERAL)].rstrip(b" \t")
        end = start + len(line)
        commented_out = code.lstrip(b" \t\x0c").startswith(b"#") and marks.NAME in code
        if code.strip(b" \t\x0c") and not commented_out:
            start, end = start + len(code), end - len(line[len(line.rstrip(b"\r\n")) :])
        why = "a mark without its tap"
        return FoundTap(mark.probe, mark.line, mark.line, where, False, why, "", ((start, end),), None, mark.original)

    def _by_lines(self) -> Iterator[FoundTap]:
        """Of a file that does not parse: its marked lines, to be proven by hash or not at all."""
        for mark in marks.marks(self.data):
            cuts = ((self._starts[mark.line - 1], self._starts[mark.line]),)
            why = "" if mark.intact else "the line is not as it was inserted"
            yield FoundTap(mark.probe, mark.line, mark.line, "", mark.intact, why, "", cuts, None, mark.original)

    def _comments(self) -> set[int]:
        """Lines whose comment holds the literal."""
        try:
            tokens = list(tokenize.tokenize(io.BytesIO(self.data).readline))
        except (tokenize.TokenError, SyntaxError):
            return set()
        literal = marks.LITERAL.decode()
        return {token.start[0] for token in tokens if token.type == tokenize.COMMENT and literal in token.string}

    # --- taking out ----------------------------------------------------------------------------------

    def _sharing(self, use: Node) -> str:
        """Whether the lines of `use` hold anything that is not its own."""
        before = self._utf8(use.lineno)[: use.col_offset].removeprefix("\ufeff".encode())
        if isinstance(use, ast.expr):
            before = before.strip().removesuffix(b"@")
        after = self._utf8(last_line(use))[use.end_col_offset :].strip()
        if before.strip() or (after and not after.startswith(b"#")):
            return "it shares its line with other code"
        return ""

    def _utf8(self, line: int) -> bytes:
        """A line in the encoding that the syntax tree counts columns in, whatever the file's own."""
        return self.lines[line - 1].decode(_encoding(self.data), "replace").encode()

    def _emptied(self, module: ast.Module, going: list[FoundTap]) -> str:
        gone = {_place(each.node) for each in going if each.node is not None}
        for node in ast.walk(module):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and block and not isinstance(node, ast.Module):
                    if all(_place(each) in gone for each in block):
                        return (
                            f"it is all that is left in the block at line {block[0].lineno}, whose other "
                            "statements are gone: put one back, or delete the block by hand"
                        )
        return ""


def qualnames(module: ast.Module | None) -> Callable[[int], str]:
    """Which function or class a line of the file stands in."""
    spans = list(_spans(module, "")) if module is not None else []
    return lambda line: next((name for start, end, name in reversed(spans) if start <= line <= end), "")


def unchanged(file: TappedFile, going: list[FoundTap], after: bytes, staying: list[FoundTap]) -> tuple[str, str]:
    """(which proof holds, why none does): `original-hash`, `syntax-tree` or neither."""
    rest = TappedFile(after)
    bare = rest.without(rest.found) if staying else after
    if digest(bare) in file.original():
        return "original-hash", ""
    problem = file.unproven(going, after)
    return ("", problem) if problem else ("syntax-tree", "")


def _statements(module: ast.Module) -> Iterator[Node]:
    """Every statement and decorator, the outermost of a line last, so that a table by line keeps that one."""
    for node in reversed(list(ast.walk(module))):
        if isinstance(node, ast.stmt):
            yield node
            yield from decorators(node)


def _place(node: Node) -> tuple[type, int, int]:
    return type(node), node.lineno, node.col_offset


def _drop(module: ast.Module, gone: set[tuple[type, int, int]]) -> None:
    """Take the nodes at these places out of every block and every decorator list."""
    for node in ast.walk(module):
        for field in ("body", "orelse", "finalbody", "decorator_list"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                block[:] = [each for each in block if _place(each) not in gone]


def _spans(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}.{child.name}" if prefix else child.name
            yield first_line(child), last_line(child), name
        if isinstance(child, BLOCK):
            yield from _spans(child, name)
