"""What gives hand-written debug code away: names of environment switches, tags in messages, one-time flags.

Only names that speak of this work count (EAGLE, draft, hidden states), since every large project has debug
switches of its own that are meant to stay. `Words` takes more on request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

# Byte strings, at least one of which stands in every file that holds something for us. Searching for them is
# all that happens to a clean file, so they are few; what they hit is then looked at line by line.
# (`IPyth`: a search takes the last two letters first, and "on" is everywhere.)
_STOPS = (b"breakpoint", b"pdb", b"pudb", b"debugpy", b"pydevd", b"IPyth", b"icecream")
_FLAGS = (b"_debug", b"_dbg", b"_diag")
_DUMPS = (b"torch.save(", b"print(")
# Where the engine's forwards are: there its own log shows no hidden states.
FORWARDS = re.compile(r"(?!.*multimodal_gen).*(?:\bmodels?\b|speculative|draft|eagle|logits_processor)", re.I)
_PLAIN = (b"DEBUG", b"DBG")
# The first is everywhere in SGLang, and the second in a tool of its own: they are asked for only where models live.
LOGS = (b"logger.", PRINTING := b"set_printoptions(")
NEEDLES = (b"DEBUG", b"EAGLE", b"eagle", b"DBG", b"DIAG", b"[E3", *_FLAGS, *_DUMPS, *_STOPS)

_KIND = frozenset("DEBUG DBG TRACE DUMP PROBE CAPTURE PRINT LOG VERBOSE INSPECT".split())
_KINDS = tuple(word.lower().encode() for word in _KIND) + (b"e3-", b"diag")
_SUBJECT = frozenset("SPEC SPECULATIVE DRAFT HIDDEN HS AUX CONCAT".split())
_ENGINE = ("SGLANG_", "SGL_")

_TAG = re.compile(
    r"(\W*)((?:EAGLE[-_ ]?3?[^\w]*[-_ ]?(?:DEBUG|DBG|TRACE|DUMP|PROBE)|(?:DEBUG|DBG)[^\w]*[-_ ]?EAGLE3?))(?![A-Za-z])",
    re.I,
)
_TAG_ANYWHERE = re.compile(
    rb"['\"\[(\s](?:EAGLE[-_ ]?3?[^\w]*[-_ ]?(?:DEBUG|DBG|TRACE|DUMP|PROBE)|(?:DEBUG|DBG)[^\w]*[-_ ]?EAGLE)",
    re.I,
)
# Tags that are no work of SGLang's in any release, and those that are the engine's own where a file has nothing to do
# with hidden states (0.5.9 has them in its tests of images).
_SHORT_TAG = re.compile(r"\W*(?:\[(?:EAGLE3?|E3|DIAG)\b|E3\s*[-:]|DIAG\b)")
_PLAIN_TAG = re.compile(r"\s*(?:[\[<(#*=!>-]+\s*(?:DEBUG|DBG|TRACE|DUMP|PROBE)\b|(?:DEBUG|DBG)\s*:)")
_PLAIN_TAG_LINE = re.compile(rb"['\"]\s*(?:[\[<(#*=!>-]+\s*(?:DEBUG|DBG)\b|(?:DEBUG|DBG)\s*:)")
_SHORT_TAG_LINE = re.compile(
    rb"#.*(?:\[(?:EAGLE3|E3|DIAG)\b|\bE3-\w)|['\"]\W*(?:\[(?:EAGLE3?|E3|DIAG)\b|E3\s*[-:]|DIAG\b)"
)
_SPEAKS = re.compile(rb"hidden_state|aux_hidden|spec_info|\bdraft_|EAGLE|eagle")
# `eagle3_debug`, `EAGLE3_DEBUG_DIR`, `_debug_eagle_timer`: no name of SGLang's speaks so.
_OWN_NAME = re.compile(
    r"(?:^|_)eagle3?_?(?:debug|dbg|trace|dump|probe)(?:_|$)|(?:^|_)(?:debug|dbg|dump|trace|probe)_eagle3?(?:_|$)", re.I
)
_OWN_NAME_LINE = re.compile(
    rb"(?<![a-z])eagle3?_?(?:debug|dbg|trace|dump|probe)(?![a-z])|(?<![a-z])(?:debug|dbg|dump|trace|probe)_eagle3?(?![a-z])",
    re.I,
)
_CONSTANT = re.compile(r"_?(?:DEBUG|DBG)(?:_[A-Z0-9]+)*")
_CONSTANT_LINE = re.compile(rb"^\s*_?(?:DEBUG|DBG)[A-Z0-9_]*\s*(?::[^=]*)?=\s*(?:True|False|None|\d+)\s*(?:#.*)?$")
_FIELD_LINE = re.compile(rb"^\s+_(?:debug|dbg)_\w+\s*(?::[^=]+=|=\s*(?:None|True|False|\d|(?:enum\.)?auto\())")
# The states themselves; the engine's own messages tell their number of rows and their type.
_STATES = re.compile(
    rb"hidden_states?\b(?!\.shape\[|\.dtype|\.device|\.stride)|aux_hidden|/tmp/\w*|[\"'/_](?:debug|dbg)_"
)
_CALL = 500  # bytes of a call that are looked at
# A comment that says that the lines below it, or beside it, are debug code: by a tag, or in words that alone say little.
_COMMENT = re.compile(
    r"\b_?EAGLE[-_ ]?3?[\])]?[-_: ]*(?:DEBUG|DBG|TRACE|DUMP|PROBE)\b|\b(?:DEBUG|DBG)[-_ ]EAGLE3?\b|\[(?:E3|DIAG|EAGLE3)[^\]]*\]|\bE3-\w",
    re.I,
)
_WEAK_COMMENT = re.compile(
    r"\bdebug[- ]only\b|\[(?:DEBUG|DBG)\]|\bDEBUG:|\bremove (?:me|before|later|this)\b|\bfor debug", re.I
)
_FLAG = re.compile(r"(?:^|_)(?:debug|dbg|debugged)(?:_|$)|^_(?:diag|e3)(?:_|$)")
_UPPER = re.compile(rb"\b[A-Z0-9_]{5,}\b")
_OWN_FLAG = rb"\b_(?:[a-z0-9_]*(?:debug|dbg)|diag|e3)[a-z0-9_]*"
_ONE_TIME = re.compile(rb"\bnot\b(?!\s+in\b).*%b|%b['\"]?(?:\s*,\s*\d+\s*\))?\s*(?:<|==)" % (_OWN_FLAG, _OWN_FLAG))
_STOP = re.compile(
    rb"\bimport icecream\b|\bfrom icecream\b|\bbreakpoint\s*\(|\b(?:i?pdb|pudb|debugpy|pydevd\w*|IPython\b.*\bembed)\b"
)


class Words(NamedTuple):
    """The built-in words and those that the user adds: `envs` are patterns such as `MY_DEBUG*`, `tags` text."""

    envs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    speaks: bool = False  # the file at hand has to do with hidden states, so that plain tags count in it

    def of_file(self, data: bytes) -> Words:
        return self._replace(speaks=_SPEAKS.search(data) is not None)

    def is_switch(self, name: str) -> bool:
        """Whether an environment variable of this name switches debug code that somebody put in by hand."""
        if any(fnmatchcase(name, pattern) for pattern in self.envs):
            return True
        words = set(name.split("_"))
        if not name.isupper() or not words & _KIND:
            return False
        if any(word.startswith("EAGLE") for word in words):
            return True
        return bool(words & {"DEBUG", "DBG"} and words & _SUBJECT) and not name.startswith(_ENGINE)

    def is_tag(self, text: str) -> bool:
        """Whether a message that begins like this is a debug message."""
        if _SHORT_TAG.match(text) or (self.speaks and _PLAIN_TAG.match(text)):
            return True
        return _begins_with_tag(text) or any(text.lstrip().startswith(tag) for tag in self.tags)

    def is_constant(self, name: str) -> bool:
        """Whether a constant of this name is a switch."""
        return self.is_switch(name) or is_own_name(name) or (self.speaks and _CONSTANT.fullmatch(name) is not None)

    def literals(self) -> tuple[bytes, ...]:
        """Byte strings of which one stands in every file that the user's own words could match."""
        return (*(text.encode() for text in self.tags), *(_fixed_part(pattern) for pattern in self.envs))

    def suspects(self, data: bytes, needles: tuple[bytes, ...] = (*NEEDLES, *LOGS)) -> bool:
        """Whether a file is worth parsing: some line of it holds a word that is one of ours on closer look."""
        if any(part in data for part in self.literals()):
            return True
        for needle in needles:
            if needle == PRINTING:
                if any(not line.lstrip().startswith(b"#") for line in _lines_with(data, needle)):
                    return True
            elif needle in _DUMPS or needle in LOGS:
                if _shows(data, needle):
                    return True
            elif any(self._line_counts(line, needle) for line in _lines_with(data, needle)):
                return True
        lines = (line for needle in _PLAIN if needle in needles for line in _lines_with(data, needle))
        plain = any(_PLAIN_TAG_LINE.search(line) or _CONSTANT_LINE.match(line) for line in lines)
        return plain and _SPEAKS.search(data) is not None

    def _line_counts(self, line: bytes, needle: bytes) -> bool:
        if needle in _STOPS:
            return _STOP.search(line) is not None and not line.lstrip().startswith(b"#")
        if needle in _FLAGS:
            return _ONE_TIME.search(line) is not None or _FIELD_LINE.match(line) is not None
        low = line.lower()
        if not any(word in low for word in _KINDS) and b"[" not in line:
            return False
        if any(self.is_switch(word.decode()) for word in _UPPER.findall(line)):
            return True
        return any(pattern.search(line) for pattern in (_TAG_ANYWHERE, _SHORT_TAG_LINE, _OWN_NAME_LINE))


def _begins_with_tag(text: str) -> bool:
    """A tag is set off: by a bracket or the like, by what follows it, or by capitals. Else it is a sentence's beginning."""
    found = _TAG.match(text)
    if found is None:
        return False
    rest = text[found.end() :]
    return bool(found[1].strip()) or found[2].isupper() or not re.match(r"\s+\w", rest)


def is_flag(name: str) -> bool:
    """Whether a name such as `_debug_done` says that it is there for debugging."""
    return bool(_FLAG.search(name.lower()))


def is_own_name(name: str) -> bool:
    """Whether a name such as `_eagle3_debug_timer` says that it is there for debugging this."""
    return bool(_OWN_NAME.search(name))


def names_itself(text: str) -> bool:
    """Whether a text such as a file's name says so."""
    return bool(_OWN_NAME_LINE.search(text.encode("utf-8", "replace")))


def is_comment(text: str, weak: bool = False) -> bool:
    """Whether a comment says that it stands at debug code. `weak`: also in words that others use, too."""
    return bool(_COMMENT.search(text) or (weak and _WEAK_COMMENT.search(text)))


def _shows(data: bytes, needle: bytes) -> bool:
    """Whether a call that begins so has to do with hidden states, or a dump with a file that is nobody's."""
    at = data.find(needle)
    while at >= 0:
        end = data.find(b")\n", at, at + _CALL)
        found = _STATES.search(data, at, at + _CALL if end < 0 else end)
        start = data.rfind(b"\n", 0, at) + 1
        if found and (needle in _DUMPS[:1] or found[0][:1] in b"ha") and b"#" not in data[start:at]:
            return True
        at = data.find(needle, at + 1)
    return False


def _lines_with(data: bytes, needle: bytes) -> Iterator[bytes]:
    at = data.find(needle)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield data[start:end]
        at = data.find(needle, end)


def _fixed_part(pattern: str) -> bytes:
    return max(re.split(r"[*?\[\]]", pattern), key=len).encode()
