"""Static patch-and-verification toolkit for EAGLE-3 serving in SGLang source trees.

What Python code may call stands here under the names of `specwire.api`, where it is described.
"""

# ruff: noqa: F403, F405
import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "Golden",
    "Outcome",
    "Site",
    "SpecwireError",
    "Tree",
    "Verdict",
    "apply",
    "check_capture",
    "check_log",
    "open_golden",
    "preflight_launch",
    "remove",
    "status",
    "verify_tree",
]

if TYPE_CHECKING:
    from specwire.api import *
else:

    def __getattr__(name):
        """Loaded at first use: a command starts with what it needs and no more."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("specwire.api"), name)

    def __dir__():
        return sorted({*globals(), *__all__})
