"""What gives hand-written debug code away: names of environment switches, tags in messages, one-time flags.

Only names that speak of this work count (EAGLE, draft, hidden states), since every large project has debug
switches of its own that are meant to stay. `Words` takes more on request.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

# Byte strings, at least one of which stands in every file that holds something for us. Searching for them is
# all that happens to a clean file, so they are few; what they hit is then looked at line by line.
# (`IPyth`: a search takes the last two letters first, and "on" is everywhere.)
_STOPS = (b"breakpoint", b"pdb", b"pudb", b"debugpy", b"pydevd", b"IPyth")
NEEDLES = (b"DEBUG", b"EAGLE", b"eagle", b"DBG", b"_debug", b"_dbg", *_STOPS)
_FLAGS = (b"_debug", b"_dbg")

_KIND = frozenset("DEBUG DBG TRACE DUMP PROBE CAPTURE PRINT LOG VERBOSE INSPECT".split())
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
_FLAG = re.compile(r"(?:^|_)(?:debug|dbg|debugged)(?:_|$)")
_UPPER = re.compile(rb"\b[A-Z0-9_]{5,}\b")
_OWN_FLAG = rb"\b_[a-z0-9_]*(?:debug|dbg)[a-z0-9_]*"
_ONE_TIME = re.compile(rb"\bnot\b(?!\s+in\b).*%b|%b['\"]?(?:\s*,\s*\d+\s*\))?\s*(?:<|==)" % (_OWN_FLAG, _OWN_FLAG))
_STOP = re.compile(rb"\bbreakpoint\s*\(|\b(?:i?pdb|pudb|debugpy|pydevd\w*|IPython\b.*\bembed)\b")


class Words(NamedTuple):
    """The built-in words and those that the user adds: `envs` are patterns such as `MY_DEBUG*`, `tags` text."""

    envs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

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
        return _begins_with_tag(text) or any(text.lstrip().startswith(tag) for tag in self.tags)

    def literals(self) -> tuple[bytes, ...]:
        """Byte strings of which one stands in every file that the user's own words could match."""
        return (*(text.encode() for text in self.tags), *(_fixed_part(pattern) for pattern in self.envs))

    def suspects(self, data: bytes, needles: tuple[bytes, ...] = NEEDLES) -> bool:
        """Whether a file is worth parsing: some line of it holds a word that is one of ours on closer look."""
        if any(part in data for part in self.literals()):
            return True
        return any(self._line_counts(line, needle) for needle in needles for line in _lines_with(data, needle))

    def _line_counts(self, line: bytes, needle: bytes) -> bool:
        if needle in _STOPS:
            return _STOP.search(line) is not None and not line.lstrip().startswith(b"#")
        if needle in _FLAGS:
            return _ONE_TIME.search(line) is not None
        if any(self.is_switch(word.decode()) for word in _UPPER.findall(line)):
            return True
        return _TAG_ANYWHERE.search(line) is not None


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


def _lines_with(data: bytes, needle: bytes):
    at = data.find(needle)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield data[start:end]
        at = data.find(needle, end)


def _fixed_part(pattern: str) -> bytes:
    return max(re.split(r"[*?\[\]]", pattern), key=len).encode()
