"""Other Python interpreters: asked a question, or started with a program. None runs code of the working directory."""

from __future__ import annotations

import os
import subprocess
import sys

from specwire.errors import SpecwireError

# Before Python 3.11 there is no such switch: the question itself then leaves the working directory out.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_WITHOUT_HERE = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"

Answer = subprocess.CompletedProcess[str]


def ask(python: str, question: str, *arguments: str, seconds: float) -> Answer:
    """Run the program `question` in the interpreter `python`.

    Raises SpecwireError when there is no such interpreter, or when it says nothing for so many seconds.
    """
    return _answer([python, "-c", _WITHOUT_HERE + question, *arguments], seconds)


def own_module(name: str, *arguments: str) -> Answer:
    """Run a module of this interpreter, such as pip, to its end."""
    return _answer([sys.executable, "-P", "-m", name, *arguments], None)


def _answer(command: list[str], seconds: float | None) -> Answer:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **SAFE_PATH},
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SpecwireError(
            f"{command[0]}: cannot be run ({error}). Name a Python interpreter with --python."
        ) from error
