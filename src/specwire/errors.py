"""The errors that end a command, and the exit codes that say which kind of end it was."""

from __future__ import annotations

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


def said(error: Exception) -> str:
    """What an error says, without the number and the file name that an OSError repeats: the message has named it."""
    return getattr(error, "strerror", None) or str(error)
