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
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from specwire import marks
from specwire.transaction import digest

NAME = marks.NAME.decode()
_Block = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Found:
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
    node: ast.AST | None = None
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
        self.lines = data.splitlines(keepends=True)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    @cached_property
    def module(self) -> ast.Module | None:
        return _parsed(self.data)

    @cached_property
    def found(self) -> tuple[Found, ...]:
        """In file order."""
        if marks.WORD not in self.data or not (marks.NAME in self.data or marks.LITERAL in self.data):
            return ()
        if self.module is None:
            return tuple(self._by_lines())
        return tuple(sorted(self._by_syntax(), key=lambda each: (each.first, each.last)))

    def without(self, going: Iterable[Found]) -> bytes:
        """The file without these; every other byte as it was."""
        kept, at = [], 0
        for start, end in sorted({cut for each in going for cut in each.cuts}):
            kept.append(self.data[at:start])
            at = max(at, end)
        return b"".join([*kept, self.data[at:]])

    def unproven(self, going: Iterable[Found], after: bytes) -> str:
        """Why `after` is not surely the file without `going`; empty when its syntax tree shows that it is."""
        going = list(going)
        if self.module is None:
            return "the file is no valid Python, so nothing can be shown about the rest of it"
        try:
            got = ast.parse(after)
        except (SyntaxError, ValueError):
            return self._emptied(going) or "without it the file would be no valid Python"
        expected = ast.parse(self.data)
        gone = {_place(each.node) for each in going if each.node is not None}
        _drop(expected, gone)
        return "" if ast.dump(expected) == ast.dump(got) else "the syntax tree would change in more than this"

    def original(self) -> set[str]:
        """The hashes that the file's import lines give for what it was."""
        return {each.original for each in self.found if each.original}

    # --- finding -------------------------------------------------------------------------------------

    def _by_syntax(self) -> Iterator[Found]:
        marked = {mark.line: mark for mark in marks.marks(self.data)}
        qualname = qualnames(self.module)
        seen: set[int] = set()
        lines = [number for number, line in enumerate(self.lines, 1) if marks.NAME in line]
        for use in _uses(self.module, lines):
            own = [marked[line] for line in range(use.lineno, use.end_lineno + 1) if line in marked]
            seen |= {mark.line for mark in own}
            yield self._use(use, own, qualname(use.lineno))
        rest = [mark for line, mark in marked.items() if line not in seen]
        whole = {node.lineno: node for node in _statements(self.module)} if rest else {}
        comments = self._comments() if any(not mark.intact or mark.line not in whole for mark in rest) else set()
        for mark in rest:
            node = whole.get(mark.line)
            if mark.intact and node is not None and node.end_lineno == mark.line:
                # An older specwire's tap, which did not use today's name.
                yield self._tap(mark, node, qualname(mark.line))
            elif mark.line in comments:
                yield self._comment(mark, qualname(mark.line))

    def _use(self, use: ast.AST, own: list[marks.Mark], where: str) -> Found:
        if len(own) == 1 and own[0].intact and use.lineno == use.end_lineno:
            return self._tap(own[0], use, where)
        probe = own[0].probe if own else "unknown"
        original = next((mark.original for mark in own if mark.original), None)
        why = "the line is not as it was inserted" if own else "it uses the taps' name and has no mark"
        if use.end_lineno > use.lineno and own:
            why = f"what was one line is {use.end_lineno - use.lineno + 1} now: reformatted or edited"
        stuck = _stuck(use) or self._sharing(use)
        cuts = () if stuck else ((self._starts[use.lineno - 1], self._starts[use.end_lineno]),)
        return Found(probe, use.lineno, use.end_lineno, where, False, why, stuck, cuts, use, original)

    def _tap(self, mark: marks.Mark, node: ast.AST, where: str) -> Found:
        cuts = ((self._starts[mark.line - 1], self._starts[mark.line]),)
        return Found(mark.probe, mark.line, mark.line, where, True, cuts=cuts, node=node, original=mark.original)

    def _comment(self, mark: marks.Mark, where: str) -> Found:
        """A mark that lost its tap: the comment goes, and the line with it when nothing else is on it."""
        start, line = self._starts[mark.line - 1], self.lines[mark.line - 1]
        code = line[: line.rfind(marks.LITERAL)].rstrip(b" \t")
        end = start + len(line)
        commented_out = code.lstrip(b" \t\x0c").startswith(b"#") and marks.NAME in code
        if code.strip(b" \t\x0c") and not commented_out:
            start, end = start + len(code), end - len(line[len(line.rstrip(b"\r\n")) :])
        why = "a mark without its tap"
        return Found(mark.probe, mark.line, mark.line, where, False, why, "", ((start, end),), None, mark.original)

    def _by_lines(self) -> Iterator[Found]:
        """All that can be said about a file that does not parse: marked lines, to be proven by hash or not at all."""
        for mark in marks.marks(self.data):
            cuts = ((self._starts[mark.line - 1], self._starts[mark.line]),)
            why = "" if mark.intact else "the line is not as it was inserted"
            yield Found(mark.probe, mark.line, mark.line, "", mark.intact, why, "", cuts, None, mark.original)

    def _comments(self) -> set[int]:
        """Lines whose comment holds the literal."""
        try:
            tokens = list(tokenize.tokenize(io.BytesIO(self.data).readline))
        except (tokenize.TokenError, SyntaxError):
            return set()
        literal = marks.LITERAL.decode()
        return {token.start[0] for token in tokens if token.type == tokenize.COMMENT and literal in token.string}

    # --- taking out ----------------------------------------------------------------------------------

    def _sharing(self, use: ast.AST) -> str:
        """Whether the lines of `use` hold anything that is not its own."""
        before = self._utf8(use.lineno)[: use.col_offset].removeprefix("\ufeff".encode())
        if isinstance(use, ast.expr):
            before = before.strip().removesuffix(b"@")
        after = self._utf8(use.end_lineno)[use.end_col_offset :].strip()
        if before.strip() or (after and not after.startswith(b"#")):
            return "it shares its line with other code"
        return ""

    def _utf8(self, line: int) -> bytes:
        """A line in the encoding that the syntax tree counts columns in, whatever the file's own."""
        return self.lines[line - 1].decode(_encoding(self.data), "replace").encode()

    def _emptied(self, going: list[Found]) -> str:
        gone = {_place(each.node) for each in going if each.node is not None}
        for node in ast.walk(self.module):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and block and not isinstance(node, ast.Module):
                    if all(_place(each) in gone for each in block):
                        return (
                            f"it is all that is left in the block at line {block[0].lineno}, whose other statements "
                            "are gone: put one back, or delete the block by hand"
                        )
        return ""


def qualnames(module: ast.Module | None) -> Callable[[int], str]:
    """Which function or class a line of the file stands in."""
    spans = list(_spans(module, "")) if module is not None else []
    return lambda line: next((name for start, end, name in reversed(spans) if start <= line <= end), "")


def unchanged(file: TappedFile, going: list[Found], after: bytes, staying: list[Found]) -> tuple[str, str]:
    """(which proof holds, why none does): `original-hash`, `syntax-tree` or neither."""
    rest = TappedFile(after)
    bare = rest.without(rest.found) if staying else after
    if digest(bare) in file.original():
        return "original-hash", ""
    problem = file.unproven(going, after)
    return ("", problem) if problem else ("syntax-tree", "")


def _uses(node: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """The outermost statements and the decorators that use the reserved name, which stands on `lines`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            decorators = getattr(child, "decorator_list", ())
            first = min([child.lineno, *(each.lineno for each in decorators)])
            if bisect_left(lines, first) == bisect_right(lines, child.end_lineno):
                continue
            yield from (each for each in decorators if _names_us(each))
            if any(_names_us(part) for part in _header(child)):
                yield child
                continue
        if isinstance(child, _Block):
            yield from _uses(child, lines)


def _header(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's own parts, without the blocks and decorators that it holds."""
    if not any(isinstance(child, _Block) for child in ast.iter_child_nodes(statement)):
        yield statement
        return
    decorators = getattr(statement, "decorator_list", ())
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.ExceptHandler):
            yield from [child.type] if child.type else []
        elif isinstance(child, ast.match_case):
            yield from [child.pattern, child.guard] if child.guard else [child.pattern]
        elif not isinstance(child, ast.stmt) and child not in decorators:
            yield child


def _names_us(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == NAME:
            return True
        if isinstance(part, ast.Attribute) and part.attr == NAME or isinstance(part, ast.arg) and part.arg == NAME:
            return True
        if isinstance(part, (ast.Global, ast.Nonlocal)) and NAME in part.names:
            return True
        if isinstance(part, ast.alias) and NAME in (*part.name.split("."), part.asname):
            return True
        if isinstance(part, ast.ImportFrom) and NAME in (part.module or "").split("."):
            return True
    return False


def _stuck(use: ast.AST) -> str:
    """Why this use does more than call the tap file; empty when it does not."""
    if isinstance(use, ast.expr):
        return "" if _rooted(use.func if isinstance(use, ast.Call) else use) else "the decorator does more than call the tap file"
    if isinstance(use, (ast.Import, ast.ImportFrom)):
        if len(use.names) > 1:
            return "the import binds other names too: take _specwire out of it by hand"
        bound = use.names[0].asname or use.names[0].name
        return "" if bound == NAME else f"the import binds {bound}, which other code may use"
    if isinstance(use, ast.If):
        if use.orelse:
            return "an `else` hangs on it"
        if not _switch(use.test):
            return "its test asks for more than `_specwire.on`"
        other = next((each for each in use.body if not _reports(each)), None)
        return f"line {other.lineno} below it does more than report" if other is not None else ""
    return "" if _sets(use) or (_reports(use) and _calls_us(use)) else "the statement does more than call the tap file"


def _rooted(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == NAME


def _switch(test: ast.expr) -> bool:
    """`_specwire.on`, alone or as the first of an `and`: nothing else is evaluated while it is off."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _rooted(test.values[0]) and not _binds(test)
    return _rooted(test)


def _reports(statement: ast.stmt) -> bool:
    """An expression whose value nobody takes, or such expressions behind a test; it binds nothing."""
    if isinstance(statement, ast.If):
        return not statement.orelse and not _binds(statement.test) and all(map(_reports, statement.body))
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and not _binds(statement))


def _calls_us(statement: ast.stmt) -> bool:
    return isinstance(statement.value, ast.Call) and _rooted(statement.value.func) if isinstance(statement, ast.Expr) else False


def _sets(statement: ast.stmt) -> bool:
    """`_specwire.on = True`, by hand: it reaches the tap file alone."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and all(isinstance(target, ast.Attribute) and _rooted(target) for target in statement.targets)
    )


def _binds(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for part in ast.walk(node))


def _statements(module: ast.Module) -> Iterator[ast.AST]:
    """Every statement and decorator, the outermost of a line last, so that a table by line keeps that one."""
    for node in reversed(list(ast.walk(module))):
        if isinstance(node, ast.stmt):
            yield node
            yield from getattr(node, "decorator_list", ())


def _place(node: ast.AST) -> tuple[type, int, int]:
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
            yield min([child.lineno, *(each.lineno for each in child.decorator_list)]), child.end_lineno, name
        if isinstance(child, _Block):
            yield from _spans(child, name)
