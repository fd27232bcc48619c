"""The packages that only some commands need: which extra brings each, and whether it is there."""

from __future__ import annotations

from importlib.util import find_spec

from specwire.errors import SpecwireError

# Package: the extra of specwire that brings it, and the commands that stop without it.
EXTRAS = {
    "torch": ("check", ("check", "verify", "golden build", "golden import")),
    "transformers": ("golden", ("golden build",)),
    "greenlet": ("golden", ("golden build",)),
}


def require(*packages: str) -> None:
    """Raises SpecwireError, with the line to type, when a package is missing: asked before the work begins."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise SpecwireError(missing_package(missing[0]) or f"this command needs {missing[0]}")


NOT_ON_WINDOWS = ("fcntl",)  # what changes files takes locks that only POSIX systems have


def missing_package(name: str) -> str | None:
    """What to do about a package that cannot be imported here; None for one that nobody is expected to miss."""
    if name in NOT_ON_WINDOWS:
        return "this command changes files under a lock that this system does not have: use Linux, macOS or WSL"
    if name not in EXTRAS:
        return None
    return (
        f"this command needs {name}, which this Python does not have. "
        f"Type: pip install 'specwire[{EXTRAS[name][0]}]', in the environment of the engine for the same torch and models"
    )
