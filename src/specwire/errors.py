"""The errors that end a command, and the exit codes that say which kind of end it was."""

from __future__ import annotations

import errno
import reprlib

OK = 0
FINDING = 1
FAULT = 2
INCONCLUSIVE = 3


class SpecwireError(Exception):
    """Could not be done: bad input, unknown structure, a failed engine. Ends a command with 2.

    The message has three parts: what was looked for, where (`path:line` or `key[index]`),
    and what to do next. Whoever raises it has written nothing.
    """

    exit_code = FAULT


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 60
_BRIEF.maxlist = _BRIEF.maxtuple = 12


def shortened(value: object) -> str:
    """A value of a file as a sentence shows it: its repr, with the middle left out of what is long or deep."""
    try:
        return _BRIEF.repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits
        return f"a {type(value).__name__} too large to show"


def said(error: Exception) -> str:
    """What an error says, without the number and the file name that an OSError repeats: the message has named it."""
    return getattr(error, "strerror", None) or str(error)


def remedy(error: OSError) -> str:
    """What to do about an error of the system's that nobody has said more about."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or name another place."
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return "Name another path."
    return "Nothing more was done."
