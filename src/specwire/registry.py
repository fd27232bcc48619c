"""Finds the probes and the checks: a file in `codemods/` or `checks/` is registered by being there."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules(package: str) -> dict[str, ModuleType]:
    """Modules of `package` by public id: the file name, with `-` for `_`, in id order."""
    parent = importlib.import_module(package)
    names = sorted(info.name for info in pkgutil.iter_modules(parent.__path__))
    return {
        name.replace("_", "-"): importlib.import_module(f"{package}.{name}")
        for name in names
        if not name.startswith("_")
    }
