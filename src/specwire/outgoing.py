"""The one place where text goes out, to a terminal or a file: secrets are hidden, and nothing steers a terminal.

What is secret is known from where it was given: the value of an option or a variable whose name says so, the user
part of a URL, a word that is shaped like a key. From then on it is hidden wherever it turns up, the engine's own log
among them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import IO, Any, TextIO

from specwire.regular import AnyPath, written_whole

HIDDEN = "***"
LONGEST = 2000  # characters of one sentence
_SHLEX = 1 << 15  # characters of a text whose words are told by a shell's rules at once; of a longer one, line by line

_known: set[str] = set()


# --- what goes out ------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Text of several lines, fit to be shown and kept."""
    return printable(hide(text))


def sentence(text: str, most: int = LONGEST) -> str:
    """The same, cut in the middle when it is very long: the end mostly says what to do."""
    text = clean(text)
    if len(text) <= most:
        return text
    tail = most // 4
    left_out = len(text) - most
    return f"{text[: most - tail]} [... {left_out:,} characters left out ...] {text[-tail:]}"


def excerpt(text: str, lines: int, most: int = 400) -> str:
    """The first lines of what a file holds, each cut in the middle when it is very long; `[...]` stands for the rest."""
    held = text.split("\n", lines)
    shown = [sentence(line, most) for line in held[:lines]]
    return "\n".join([*shown, *(["[...]", ""] if any(held[lines:]) else held[lines:])])


def hide(text: str) -> str:
    """The text with every secret that is known by now replaced."""
    return _pattern(frozenset(_known)).sub(HIDDEN, text) if _known else text


def printable(text: str) -> str:
    """The text with what steers a terminal, or turns the reading direction, shown as its number."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def columns(most: int = 1 << 16) -> int:
    """How many characters a line on stdout may have: `most`, or fewer on a terminal that is narrower, 80 at least."""
    if not sys.stdout.isatty():
        return most
    return min(most, max(80, shutil.get_terminal_size().columns))


def folded(text: str, width: int) -> str:
    """The text with its longer lines broken between words, the rest below the column that a row's text begins in."""
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def _folded(line: str, width: int) -> Iterator[str]:
    indent = max(
        (at for at in map(re.Match.end, _COLUMN.finditer(_COLOUR.sub("", line))) if at <= width // 2), default=4
    )
    while (bare := len(_COLOUR.sub("", line))) > width:
        at = line.rfind(" ", indent + 1, width + len(line) - bare + 1)
        at = at if at >= 0 else line.find(" ", width)  # a word that is longer stays whole
        if at < 0 or not line[at:].strip():
            break
        yield line[:at].rstrip()
        line = " " * indent + line[at:].strip()
    yield line


def write_text(path: AnyPath, text: str, durable: bool = False) -> None:
    """Write a page, a table or a document, cleaned: all of it or nothing. Raises OSError."""
    with written_whole(path, durable) as file:
        file.write(clean(text).encode("utf-8", "backslashreplace"))


class Outlet:
    """A stream of the process that text is cleaned for. On a terminal colours stay, and what draws a bar on stderr."""

    def __init__(self, stream: TextIO, drawn: bool = False) -> None:
        self._stream = stream
        terminal = stream.isatty()
        coloured = terminal or bool(os.environ.get("FORCE_COLOR"))
        self._kept = _DRAWING if drawn and terminal else _COLOUR if coloured else None

    def write(self, text: str) -> int:
        text = hide(text)
        if self._kept is None or text.isprintable():
            return self._stream.write(printable(text))
        pieces = self._kept.split(text)  # what is kept stands at every odd place
        return self._stream.write("".join(each if at % 2 else printable(each) for at, each in enumerate(pieces)))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_COLUMN = re.compile(r"(?:^| ) +(?=\S)")
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")
_DRAWING = re.compile(r"(\x1b\[[0-9;?]{0,20}[A-KSThlm]|\r)")


# --- what is secret -----------------------------------------------------------------------------------


def know(values: Iterable[str]) -> None:
    """Hide these from now on. What is too short to be told from other words stays as it is."""
    _known.update(value for value in values if len(value) >= 4 and value.lower() not in _NO_SECRETS)


def know_words(words: Iterable[str]) -> None:
    """Hide what is secret in a command line, and in command lines that are words of it."""
    know(_in_words(list(words)))


def know_text(text: str) -> None:
    """Hide what is secret in a command line as typed, a script, a YAML or JSON file."""
    know(_in_text(text))


def know_environment(env: Mapping[str, str]) -> None:
    """Hide the values of variables whose names say that they are secret; a path is none."""
    know(value for name, value in env.items() if _is_secret_variable(name) and len(value) >= 8 and value[0] != "/")


def know_document(value: Any) -> None:
    """Hide what is secret in the strings of a JSON document, and in lists of them that are command lines."""
    if isinstance(value, str):
        know_text(value) if len(value) < 1 << 16 else None
    elif isinstance(value, list):
        if value and all(isinstance(each, str) for each in value):
            know_words(value)
        else:
            for each in value:
                know_document(each)
    elif isinstance(value, dict):
        know(each for name, each in value.items() if isinstance(each, str) and _is_secret(name))
        for each in value.values():
            know_document(each)


def known_in(words: Iterable[str]) -> list[str]:
    """The secrets that these words hold, longest first."""
    words = list(words)
    return sorted((each for each in _known if any(each in word for word in words)), key=len, reverse=True)


def knows() -> bool:
    """Whether there is anything to hide."""
    return bool(_known)


def copy_hidden(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy a log line by line to its end, with secrets hidden."""
    while line := source.readline(1 << 16):
        target.write(hide(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))
        target.flush()


@lru_cache(maxsize=8)
def _pattern(known: frozenset[str]) -> re.Pattern[str]:
    """Longest first; what is short is looked for as a word of its own."""
    forms = sorted({form for secret in known for form in _forms(secret)}, key=len, reverse=True)
    return re.compile("|".join(map(_looked_for, forms)))


def _looked_for(form: str) -> str:
    escaped = re.escape(form)
    if len(form) < 40 and re.fullmatch(
        r"[+-]?\d*\.?\d*(?:[eE][+-]?\d+)?", form
    ):  # a figure: only where it cannot be one of ours
        return rf"(?:(?<=[=\"'])|(?<=-key )|(?<=token )|(?<=secret )|(?<=password )){escaped}(?![A-Za-z0-9.])"
    return escaped if len(form) >= 8 else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _forms(secret: str) -> set[str]:
    """How it may be written: as it is, in JSON, in Python, on a command line, on a page, in a URL."""
    if re.fullmatch(r"[\w.-]+", secret, re.ASCII):
        return {secret}
    import html
    from urllib.parse import quote

    quoted = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    quoted |= {shlex.quote(secret).removeprefix("'").removesuffix("'"), quote(secret, safe=""), quote(secret)}
    return quoted | {html.escape(form) for form in quoted} | {printable(form) for form in quoted}


_NEVER_LAST = frozenset(
    "eos bos pad unk sep cls mask image audio video end start begin stop think special per new draft next num input "
    "output max last first tool each speculative logit logprob".split()
)  # an `eos_token` is none
_TELLING = frozenset(
    "password passwd passphrase secret secrets apikey accesskey secretkey privatekey credential credentials bearer "
    "authorization".split()
)
_NO_SECRETS = frozenset((HIDDEN, "true", "false", "none", "null", "bearer", "basic"))
_KEYS = frozenset("api access secret private admin auth account signing encryption license".split())
_IN_VARIABLES = frozenset("key token secret password pass auth cookie pat".split())
_SETTINGS = ("SGLANG_", "SGL_", "NCCL_", "CUDA_", "TORCH", "PYTORCH_", "EAGLE3_")
_ENDINGS = ("token", "password", "secret", "apikey", "passwd")

# Each begins where a word begins, and looks at none twice: a text may be one word of a million letters.
_NAMED = re.compile(
    r"""(?<![\w-])(-*+\w[\w-]*+)["']?\s*+(?:=|:\s)\s*+(?:"([^"\n]++)"|'([^'\n]++)'|([^\s"',}\])&]++))"""
)
_USER = re.compile(r"://([^\s/\"'?#]+)@")
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)\s+([\w.~+/=-]{8,})")
_SHAPED = re.compile(
    r"\b(?:(?:sk|pk|rk)-[\w-]{16,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpr]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*)"
)


def _is_secret(name: str) -> bool:
    """Whether the name of an option or a field says that its value is one."""
    parts = [part for part in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) if part]
    if not parts:
        return False
    if not _TELLING.isdisjoint(parts) or (parts[-1] == "key" and not _KEYS.isdisjoint(parts[:-1])):
        return True
    if parts[-1] == "token":
        return len(parts) == 1 or parts[-2] not in _NEVER_LAST
    return parts[-1].endswith(_ENDINGS)


def _is_secret_variable(name: str) -> bool:
    """The same of a variable; those with which engine and libraries are set have parts such as `TOKEN` in them."""
    if _is_secret(name) or re.search(r"ACCESS_?KEY|API_?KEY", name, re.IGNORECASE):
        return True
    return not name.startswith(_SETTINGS) and name.lower().split("_")[-1] in _IN_VARIABLES


def _in_words(words: list[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-{1,2}[\w-]+", name) and _is_secret(name):
            yield value if equals else words[at + 1] if at + 1 < len(words) else ""
        elif equals and re.fullmatch(r"(?:-[A-Za-z])?[A-Z][A-Z0-9_]*|-{0,2}[A-Za-z][\w-]*", name):
            variable = name.rpartition("-")[2]
            if _is_secret_variable(variable) if variable.isupper() else _is_secret(name):
                yield value
        yield from _anywhere(word)
        if any(char.isspace() for char in word) or word.startswith(("{", "[")):
            yield from _in_text(word)


def _in_text(text: str) -> Iterator[str]:
    for part in [text] if len(text) < _SHLEX else text.replace("\\\n", " ").split("\n"):
        yield from _in_line(part)
    for name, *values in _NAMED.findall(text):
        bare = name.strip("-")
        value = next(filter(None, values), "")
        if _is_secret(bare) and not (bare == "token" and value.isdigit()):  # a tap's line has a token's number
            yield value
    yield from _anywhere(text)


def _in_line(text: str) -> Iterator[str]:
    if not text.strip():
        return
    try:  # shlex takes a word letter by letter, each time all of it
        words = shlex.split(text, comments=False) if len(text) < _SHLEX else text.split()
    except ValueError:  # an open quote: whatever follows it may belong to a value
        words = [word.strip("\"'") for word in text.split()]
        for match in re.finditer(r"(?<![\w-])-++(\w[\w-]*+)[= ]++[\"']([^\n]+)", text):
            if _is_secret(match[1]):
                yield match[2]
    if words != [text]:
        yield from _in_words(words)


def _anywhere(text: str) -> Iterator[str]:
    for user in _USER.findall(text) if "@" in text else ():
        from urllib.parse import unquote

        _, colon, password = user.partition(":")
        yield user
        yield from (unquote(user), password, unquote(password)) if colon else (unquote(user),)
    yield from _BEARER.findall(text)
    yield from _SHAPED.findall(text)
