"""Other Python interpreters: asked a question, or started with a program. None runs code of the working directory."""

from __future__ import annotations

import os
import subprocess

from specwire.errors import SpecwireError

# Before Python 3.11 there is no such switch: the question itself then leaves the working directory out.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_WITHOUT_HERE = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "


def ask(python: str, question: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the one-line program `question` in the interpreter `python`.

    Raises SpecwireError when there is no such interpreter, or when it says nothing for so many seconds.
    """
    try:
        return subprocess.run(
            [python, "-c", _WITHOUT_HERE + question],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **SAFE_PATH},
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SpecwireError(f"{python}: cannot be run ({error}). Name a Python interpreter with --python.") from error
