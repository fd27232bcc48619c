"""The interpreters that a test can run: SPECWIRE_PYTHONS (EXE:EXE...), this one, those on PATH and pyenv's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path


@lru_cache
def python(version: str) -> str | None:
    """One of this version ("3.12"), the first that runs; None when there is none."""
    named = os.environ.get("SPECWIRE_PYTHONS", "").split(os.pathsep)
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for exe in filter(None, (*named, sys.executable, shutil.which(f"python{version}"), *map(str, pyenv))):
        if said(exe, "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return exe
    return None


@lru_cache
def folder_of(exe: str, package: str) -> Path | None:
    """The site-packages that hold a package which this interpreter would import."""
    code = (
        f"import importlib.util as u; s = u.find_spec({package!r}); print(s.submodule_search_locations[0] if s else '')"
    )
    place = said(exe, code)
    return Path(place).parent if place else None


def said(exe: str, code: str) -> str:
    """What one line of Python prints there; empty when it does not run."""
    try:
        done = subprocess.run([exe, "-P", "-c", code], capture_output=True, text=True, timeout=120)
        if done.returncode:  # before 3.11 there is no -P
            done = subprocess.run([exe, "-c", code], capture_output=True, text=True, timeout=120)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
