"""Splits what a person typed into commands and words, as a POSIX shell would. Runs nothing.

Quotes, escapes, comments, line continuations, `;`, `&`, `|`, redirections and variables that the text
itself sets are understood. What only a running shell could know stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specwire.errors import SpecwireError

LIMIT = 1024 * 1024
_ASSIGN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\})")


@dataclass
class _Reader:
    text: str
    place: int = 0
    commands: list[list[str]] = field(default_factory=lambda: [[]])
    word: str | None = None
    drop: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    def end_word(self) -> None:
        if self.word is not None and not self.drop:
            self.commands[-1].append(self.word)
        self.drop = self.drop and self.word is None
        self.word = None

    def end_command(self) -> None:
        self.end_word()
        words = self.commands[-1]
        assigned = words[1:] if words[:1] == ["export"] else words
        if assigned and all(_ASSIGN.match(word) for word in assigned):
            self.variables.update(word.split("=", 1) for word in assigned)
        if words:
            self.commands.append([])

    def add(self, text: str) -> None:
        self.word = (self.word or "") + text


def split_commands(text: str, where: str, variables: Mapping[str, str] | None = None) -> list[list[str]]:
    """The commands of a text, each a list of words. Assignments (`VAR=x`) stay words of their command.

    Raises SpecwireError for a quote that is not closed and for texts over a megabyte.
    """
    if len(text) > LIMIT:
        raise SpecwireError(f"{where} has more than {LIMIT:,} characters: give a launch command or a short script.")
    reader = _Reader(re.sub(r"\\[ \t]*\r?\n", " ", text).replace("\r\n", "\n"), variables=dict(variables or {}))
    while reader.place < len(reader.text):
        _step(reader, where)
    reader.end_command()
    return [words for words in reader.commands if words]


def _step(reader: _Reader, where: str) -> None:
    char = reader.text[reader.place]
    reader.place += 1
    if char in " \t":
        reader.end_word()
    elif char in "\n;|&":
        _operator(reader, char)
    elif char in "<>":
        if reader.word is not None and reader.word.isdigit():
            reader.word = None
        reader.end_word()
        reader.drop = True
        while reader.place < len(reader.text) and reader.text[reader.place] in "<>&":
            reader.place += 1
    elif char == "#" and reader.word is None:
        end = reader.text.find("\n", reader.place)
        reader.place = len(reader.text) if end < 0 else end
    elif char == "'":
        reader.add(_until(reader, "'", where))
    elif char == '"':
        reader.add(_double(reader, where))
    elif char == "\\" and reader.place < len(reader.text):
        reader.add(reader.text[reader.place])
        reader.place += 1
    elif char == "$":
        _variable(reader)
    else:
        reader.add(char)


def _operator(reader: _Reader, char: str) -> None:
    if char == "&" and reader.place < len(reader.text) and reader.text[reader.place] == ">":
        reader.end_word()
        return
    reader.end_command()
    reader.drop = False


def _until(reader: _Reader, quote: str, where: str) -> str:
    end = reader.text.find(quote, reader.place)
    if end < 0:
        raise _not_closed(reader, quote, reader.place, where)
    found = reader.text[reader.place : end]
    reader.place = end + 1
    return found


def _double(reader: _Reader, where: str) -> str:
    start, parts = reader.place, []
    while reader.place < len(reader.text):
        char = reader.text[reader.place]
        reader.place += 1
        if char == '"':
            return "".join(parts)
        if char == "\\" and reader.text[reader.place : reader.place + 1] in ("$", "`", '"', "\\"):
            parts.append(reader.text[reader.place])
            reader.place += 1
        elif char == "$":
            found = _VARIABLE.match(reader.text, reader.place - 1)
            parts.append(_expanded(reader, found) if found else "$")
            reader.place = found.end() if found else reader.place
        else:
            parts.append(char)
    raise _not_closed(reader, '"', start, where)


def _not_closed(reader: _Reader, quote: str, start: int, where: str) -> SpecwireError:
    after = reader.text[start:].splitlines()[:1]
    return SpecwireError(f"{where}: the quote {quote} before {''.join(after)[:40]!r} is not closed. Close it.")


def _variable(reader: _Reader) -> None:
    """An unquoted variable: its value, split into words at blanks as a shell does."""
    found = _VARIABLE.match(reader.text, reader.place - 1)
    if not found:
        reader.add("$")
        return
    reader.place = found.end()
    value = _expanded(reader, found)
    words = value.split()
    for number, word in enumerate(words):
        if number or value[:1].isspace():
            reader.end_word()
        reader.add(word)
    if words and value[-1:].isspace():
        reader.end_word()


def _expanded(reader: _Reader, found: re.Match[str]) -> str:
    name, default = found[1] or found[2], found[3]
    if name in reader.variables:
        return reader.variables[name]
    return default if default is not None else found[0]
