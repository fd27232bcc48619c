"""Splits what a person typed into commands and words, as a POSIX shell or bash would. Runs nothing.

Quotes, escapes, comments, line continuations, `;`, `&`, `|`, redirections, here-documents, arrays and variables that the
text itself sets are understood. What only a running shell could know stays as it is written, and the word that holds it is
*open*: a variable that is not set here or is set in one branch, function or subshell alone, `$(...)`, `$((...))`, a
placeholder such as `<model>`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specwire.errors import SpecwireError

LIMIT = 1024 * 1024
WORDS = 2000  # of one command: a launch has some hundred
WORD = 128 * 1024  # characters of one word: Linux hands no longer one to a program
MADE = 4 * LIMIT  # characters of all words, those of variables counted each time they are filled in
Value = str | list[str]
# Private-use characters: one stands before what is open, the other for a blank inside it.
_OPEN, _BLANK = "\ue000", "\ue001"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGN = re.compile(rf"({_NAME})(\+?)=(.*)", re.S)
_VARIABLE = re.compile(
    rf"\$(?:({_NAME})|\{{({_NAME})(\[[@*]\])?(?:(:?[-=])([^}}]{{0,2000}}))?\}}|(\{{[^}}]{{0,2000}}\}})|([@*#?$!0-9-]))"
)
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>|;&\n\"'$`]*(?<! )>(?=[\s/]|$)")
_SETTERS = ("export", "local", "declare", "readonly", "typeset")
_OPENING, _CLOSING = ("if", "while", "until", "case", "for", "select"), ("fi", "done", "esac")
_BETWEEN = ("then", "do", "else", "elif", "!", "time", "{", "}")
_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([^\s;|&<>()'\"]+))")
_FUNCTION = re.compile(r"[ \t]*\)[ \t]*\n?[ \t]*\{(?=\s)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


def is_open(word: str) -> bool:
    """Whether a word holds something that only a running shell knows."""
    return _OPEN in word


def shown(text: str) -> str:
    """Text as it was written, without the marks of what is open."""
    return text.replace(_OPEN, "").replace(_BLANK, " ")


def opened(text: str) -> str:
    """A word, or a part of one, that is open."""
    return _OPEN + text.replace(" ", _BLANK).replace("\n", _BLANK).replace("\t", _BLANK)


@dataclass(frozen=True)
class Command:
    """One command: its words, the line that it begins on, the lines that end in a backslash and a blank, and the
    here-document that it is given, with the variables that are filled in there. `maybe`: it may not run."""

    words: list[str]
    line: int
    torn: tuple[int, ...] = ()
    maybe: bool = False
    here: str = ""
    variables: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class _Here:
    """A here-document that is to begin on the next line: of which command, up to what line."""

    command: int
    end: str
    tabs: bool
    filled_in: bool


@dataclass
class _Branch:
    """Commands that may not run, or not here: what was set before each variable that they set. `until` ends it."""

    until: str
    changed: dict[str, Value | None] = field(default_factory=dict)


@dataclass
class _Reader:
    text: str
    where: str
    variables: dict[str, Value]
    place: int = 0
    commands: list[Command] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    quoted: bool = False  # whether any of the word under way is: then it is no keyword
    made: int = 0
    bare: int = 0  # how many words of the command, from its first on, are written without a quote
    begin: int = 0
    torn: list[int] = field(default_factory=list)
    word: str | None = None
    drop: bool = False
    branches: list[_Branch] = field(default_factory=list)
    waiting: list[_Here] = field(default_factory=list)
    chain: dict[str, Value | None] | None = None  # set after && or ||: what the chain has set, and what was before

    def line(self, place: int) -> int:
        return bisect_right(self._starts, place)

    def __post_init__(self) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def peek(self, length: int = 1) -> str:
        return self.text[self.place : self.place + length]

    def add(self, text: str) -> None:
        self.made += len(text)
        if self.made > MADE or len(self.words) > WORDS:
            raise SpecwireError(
                f"{self.where}: line {self.line(self.place)} comes to more words than any launch has. Give a launch command."
            )
        if self.word is None and not self.words and not self.drop:
            self.begin = max(0, self.place - 1)
        self.word = (self.word or "") + text
        if len(self.word) > WORD:
            raise SpecwireError(
                f"{self.where}: line {self.line(self.place)} has a word of more than {WORD:,} characters, which no program can "
                "be given. Give a launch command."
            )

    def end_word(self) -> None:
        if self.word is not None and not self.drop:
            self.bare += self.bare == len(self.words) and not self.quoted
            self.words.append(self.word)
        self.quoted = False
        self.drop = self.drop and self.word is None
        self.word = None

    def end_command(self) -> None:
        self.end_word()
        self.drop = False
        words, self.words = self._control(self.words), []
        self.bare = 0
        assigned = words[1:] if words[:1] and words[0] in _SETTERS else words
        assigned = [word for word in assigned if not (word.startswith("-") and assigned is not words)]
        if assigned and all(_ASSIGN.fullmatch(word) for word in assigned):
            for word in assigned:
                name, more, value = _ASSIGN.fullmatch(word).groups()
                before = self.variables.get(name, "")
                self.set(name, before + value if more and isinstance(before, str) else value)
        if words:
            maybe = self.chain is not None or any(one.until != "group" for one in self.branches)
            self.commands.append(Command(words, self.line(self.begin), tuple(self.torn), maybe))
        self.torn = []

    def _control(self, words: list[str]) -> list[str]:
        """A command without the keywords of `if`, `for` and the like, whose branches are noted."""
        while words and self.bare and words[0] in (*_OPENING, *_CLOSING, *_BETWEEN):
            keyword, words = words[0], words[1:]
            self.bare -= 1
            if keyword in ("else", "elif") and self.branches:
                self._leave(self.branches[-1].changed)
                self.branches[-1].changed = {}
            elif keyword in ("{", "}", *_CLOSING):
                self.leave(keyword)
            elif keyword in _OPENING:
                self.branches.append(
                    _Branch(_CLOSING[0] if keyword == "if" else "esac" if keyword == "case" else "done")
                )
                if keyword in ("for", "select") and words:
                    self.set(words[0], opened(f"${words[0]}"))
                    return []
                if keyword == "case":
                    return []
        return words

    def set(self, name: str, value: Value) -> None:
        for changed in [
            *(one.changed for one in self.branches[-1:]),
            *([self.chain] if self.chain is not None else []),
        ]:
            changed.setdefault(name, self.variables.get(name))
        self.variables[name] = value

    def leave(self, keyword: str) -> None:
        """End the innermost branch, if this is what ends it; a `{` that is no function's opens one that changes nothing."""
        if keyword == "{":
            self.branches.append(_Branch("group"))
        elif self.branches and keyword == "}" and self.branches[-1].until == "group":
            changed = self.branches.pop().changed
            for one in self.branches[-1:]:
                one.changed |= {name: before for name, before in changed.items() if name not in one.changed}
        elif self.branches and self.branches[-1].until == keyword:
            self._leave(self.branches.pop().changed)

    def _leave(self, changed: Mapping[str, Value | None]) -> None:
        """End a branch that may not have run: what it set is open, beside what was there before."""
        for name, before in changed.items():
            now = self.variables.get(name)
            if isinstance(now, list):
                kept = before if isinstance(before, list) and now[: len(before)] == before else []
                self.set(name, [*kept, opened(f"${{{name}[@]}}")])
            else:
                more = isinstance(before, str) and isinstance(now, str) and before and now.startswith(f"{before} ")
                self.set(name, f"{before} {opened(f'${name}')}" if more else opened(f"${name}"))

    def end_chain(self) -> None:
        if self.chain is not None:
            changed, self.chain = self.chain, None
            self._leave(changed)


def split_commands(text: str, where: str, variables: Mapping[str, Value] | None = None) -> list[Command]:
    """The commands of a text, each with its words. Assignments (`VAR=x`) stay words of their command.

    Raises SpecwireError for a quote that is not closed and for texts over a megabyte.
    """
    if len(text) > LIMIT:
        raise SpecwireError(f"{where} has more than {LIMIT:,} characters: give a launch command or a short script.")
    cleaned = text.replace(_OPEN, "").replace(_BLANK, "").replace("\r\n", "\n")
    reader = _Reader(cleaned, where, dict(variables or {}))
    while reader.place < len(reader.text):
        _step(reader)
    reader.end_command()
    return reader.commands


def _step(reader: _Reader) -> None:
    char = reader.text[reader.place]
    if char == "<" and (match := _PLACEHOLDER.match(reader.text, reader.place)):
        reader.place = match.end()
        reader.add(opened(match[0]))
        return
    reader.place += 1
    if char in " \t":
        reader.end_word()
    elif char in "\n;|&":
        _operator(reader, char)
    elif char in "<>":
        _redirection(reader)
    elif char == "(":
        _parenthesis(reader)
    elif char == ")":
        reader.end_command()
        reader.leave(")")
    elif char == "#" and reader.word is None:
        end = reader.text.find("\n", reader.place)
        reader.place = len(reader.text) if end < 0 else end
    elif char in "'\"\\":
        reader.quoted = True
        {"'": _single, '"': _double, "\\": _backslash}[char](reader)
    elif char == "`":
        reader.add(opened(f"`{_until(reader, '`')}`"))
    elif char == "$":
        _dollar(reader, quoted=False)
    else:
        reader.add(char)


def _single(reader: _Reader) -> None:
    reader.add(_until(reader, "'"))


def _operator(reader: _Reader, char: str) -> None:
    if char == "&" and reader.peek() == ">":
        reader.end_word()
        return
    both = char in "&|" and reader.peek() == char
    reader.end_command()
    if both:
        reader.place += 1
        reader.chain = {} if reader.chain is None else reader.chain
    elif char in "\n;":
        reader.end_chain()
    if char == "\n":
        _here_documents(reader)


def _redirection(reader: _Reader) -> None:
    if reader.word is not None and reader.word.isdigit():
        reader.word = None
    reader.end_word()
    if reader.text[reader.place : reader.place + 2] != "<<" and (found := _HERE.match(reader.text, reader.place - 1)):
        end = found[2] or found[3] or found[4]
        reader.waiting.append(_Here(len(reader.commands), end, bool(found[1]), found[0].endswith(f"{found[1]}{end}")))
        reader.place = found.end()
        return
    reader.drop = True
    while reader.peek() and reader.peek() in "<>&":
        reader.place += 1


def _here_documents(reader: _Reader) -> None:
    """The lines behind a command that it is given as its input, up to the one that ends them."""
    for one in reader.waiting:
        lines = []
        while reader.place < len(reader.text):
            end = reader.text.find("\n", reader.place)
            line = reader.text[reader.place : end if end >= 0 else None]
            reader.place = end + 1 if end >= 0 else len(reader.text)
            if (line.lstrip("\t") if one.tabs else line) == one.end:
                break
            lines.append(line)
        if one.command < len(reader.commands):
            filled = dict(reader.variables) if one.filled_in else {}
            command = replace(reader.commands[one.command], here="\n".join(lines), variables=filled)
            reader.commands[one.command] = command
    reader.waiting = []


def _parenthesis(reader: _Reader) -> None:
    """`NAME=(` begins an array, `NAME()` a function; any other opening parenthesis a subshell."""
    match = _ASSIGN.fullmatch(reader.word) if reader.word else None
    if match is None or match[3]:
        function = _FUNCTION.match(reader.text, reader.place) if reader.word or reader.words else None
        if function:
            reader.words, reader.word = [], None
            reader.place = function.end()
        reader.end_command()
        reader.branches.append(_Branch("}" if function else ")"))
        return
    name, more = match[1], match[2]
    command, reader.words, reader.word = [*reader.words, reader.word], [], None
    start = reader.place
    while reader.peek() != ")":
        if not reader.peek():
            raise _not_closed(reader, "(", start)
        if reader.peek() == "\n":
            reader.place += 1
            reader.end_word()
        else:
            _step(reader)
    reader.place += 1
    reader.end_word()
    items, reader.words = reader.words, command[:-1]
    before = reader.variables.get(name)
    known = before if isinstance(before, list) else [before] if before else []
    reader.set(name, [*known, *items] if more else items)


def _backslash(reader: _Reader) -> None:
    torn = re.compile(r"[ \t]+\n").match(reader.text, reader.place)
    if reader.peek() == "\n":
        reader.place += 1
    elif torn:
        # A blank after the backslash: a shell would end the command here. Noted, and read as it was meant.
        reader.torn.append(reader.line(reader.place))
        reader.place = torn.end()
        reader.end_word()
    elif reader.peek():
        reader.place += 1
        reader.add(reader.text[reader.place - 1])


def _until(reader: _Reader, quote: str) -> str:
    end = reader.text.find(quote, reader.place)
    if end < 0:
        raise _not_closed(reader, quote, reader.place)
    found = reader.text[reader.place : end]
    reader.place = end + 1
    return found


def _double(reader: _Reader) -> None:
    start = reader.place
    reader.add("")
    while reader.place < len(reader.text):
        char = reader.text[reader.place]
        reader.place += 1
        if char == '"':
            return
        if char == "\\" and reader.peek() in ("$", "`", '"', "\\"):
            reader.add(reader.peek())
            reader.place += 1
        elif char == "\\" and reader.peek() == "\n":
            reader.place += 1
        elif char == "`":
            reader.add(opened(f"`{_until(reader, '`')}`"))
        elif char == "$":
            _dollar(reader, quoted=True)
        else:
            reader.add(char)
    raise _not_closed(reader, '"', start)


def _not_closed(reader: _Reader, quote: str, start: int) -> SpecwireError:
    kind = "bracket" if quote == "(" else "quote"
    return SpecwireError(f"{reader.where}: the {kind} {quote} on line {reader.line(start)} is not closed. Close it.")


def _dollar(reader: _Reader, quoted: bool) -> None:
    """What stands behind a `$`: a variable, an array, or what only a running shell can compute."""
    if reader.peek() == "(":
        reader.add(opened(f"${_balanced(reader)}"))
        return
    if reader.peek() == '"' and not quoted:
        return  # $"...": as the quote alone
    if reader.peek() == "'" and not quoted:
        reader.place += 1
        _escaped(reader)
        return
    found = _VARIABLE.match(reader.text, reader.place - 1)
    if not found:
        reader.add("$")
        return
    reader.place = found.end()
    value = _expanded(reader, found)
    if isinstance(value, list) and quoted:
        assigned = bool(_ASSIGN.match(reader.word or "")) and all(map(_ASSIGN.fullmatch, reader.words))
        _spread(reader, value, whole=assigned or found[0].endswith("[*]}"))
    elif isinstance(value, list):
        _split(reader, " ".join(value))
    elif quoted:
        reader.add(value)
    else:
        _split(reader, value)


def _escaped(reader: _Reader) -> None:
    """What stands in `$'...'`: its escapes are those of C."""
    start, made = reader.place, ""
    while (char := reader.peek()) != "'":
        if not char:
            raise _not_closed(reader, "'", start)
        if char == "\\":
            reader.place += 1
            char = reader.peek()
            made += opened(f"\\{char}") if char in "xuUc01234567" else _ESCAPES.get(char, char)
        else:
            made += char
        reader.place += 1
    reader.place += 1
    reader.quoted = True
    reader.add(made)


def _balanced(reader: _Reader) -> str:
    """A text in parentheses, those included, up to the one that closes the first."""
    start, depth = reader.place, 0
    while reader.place < len(reader.text):
        char = reader.text[reader.place]
        reader.place += 1
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return reader.text[start : reader.place]
    raise _not_closed(reader, "(", start)


def _split(reader: _Reader, value: str) -> None:
    """An unquoted value: words, split at blanks as a shell does."""
    words = value.split()
    for number, word in enumerate(words):
        if number or value[:1].isspace():
            reader.end_word()
        reader.add(word)
    if words and value[-1:].isspace():
        reader.end_word()


def _spread(reader: _Reader, items: Sequence[str], whole: bool) -> None:
    """An array's items, each a word of its own, or all in one."""
    if whole:
        reader.add(" ".join(items))
        return
    if not items and reader.word == "":
        reader.word = None  # "${EMPTY[@]}" is no word at all
    for number, item in enumerate(items):
        if number:
            reader.end_word()
        reader.add(item)


def _expanded(reader: _Reader, found: re.Match[str]) -> Value:
    name, array, operator, default = found[1] or found[2], found[3], found[4], found[5]
    if name is None:
        return opened(found[0])
    if name in reader.variables:
        value = reader.variables[name]
        if array or not isinstance(value, list):
            return value
        return value[0] if value else ""
    if operator is not None:
        made = _default(reader, default)
        if operator.endswith("="):
            reader.set(name, made)
        return made
    return opened(found[0])


def _default(reader: _Reader, text: str) -> str:
    """What stands behind `:-`, with its own variables and without its quotes."""
    reader.made += len(text)
    made = _VARIABLE.sub(lambda found: _joined(_expanded(reader, found)), text)
    return made.replace('"', "").replace("'", "")


def _joined(value: Value) -> str:
    return " ".join(value) if isinstance(value, list) else value
