"""Comments that say of themselves that they stand at debug code: they go with what stands below them, or are named."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass

from specwire.strip.text import Text
from specwire.strip.words import is_comment

_OURS = "specwire"


@dataclass(frozen=True)
class Comment:
    text: str
    column: int
    alone: bool  # nothing else is on its line


def comments(text: Text) -> dict[int, Comment]:
    """A file's comments by their lines; none where the tokenizer counts lines in another way than the parser."""
    if b"\r" in text.data.replace(b"\r\n", b"") or not is_comment(text.data.decode(text.encoding), weak=True):
        return {}
    found = {}
    try:
        for token in tokenize.tokenize(io.BytesIO(text.data).readline):
            if token.type == tokenize.COMMENT and _OURS not in token.string:
                line, column = token.start
                found[line] = Comment(token.string, column, not token.line[:column].strip())
    except (tokenize.TokenError, SyntaxError, ValueError):
        return {}
    return found


def marked(text: Text, found: dict[int, Comment], node: ast.stmt) -> bool:
    """Whether a comment beside a statement's first line, or right above it, says that it is debug code."""
    first = text.span(node)[0]
    beside = found.get(first)
    if beside is not None and is_comment(beside.text, weak=True):
        return True
    return bool(going_with(found, [(first, node.col_offset)]))


def going_with(found: dict[int, Comment], starts: list[tuple[int, int]]) -> set[int]:
    """The lines of comments right above statements that go, from the first one down that says that it is debug code.

    `starts`: (line, column) of each statement.
    """
    lines: set[int] = set()
    for first, column in starts:
        above = first - 1
        tagged = None
        while (comment := found.get(above)) is not None and comment.alone and comment.column == column:
            if is_comment(comment.text, weak=True):
                tagged = above
            above -= 1
        if tagged is not None:
            lines.update(range(tagged, first))
    return lines
