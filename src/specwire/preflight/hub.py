"""Models of a hub in the local cache: where a launch that names one would find it. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from specwire.regular import read_text

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Whether a name is one of a hub, OWNER/MODEL, and no path."""
    return bool(_ID.fullmatch(name))


def snapshot(name: str, environment: Mapping[str, str]) -> Path | None:
    """The cached files of a hub's model, of the revision that `main` stands for here; None when it is not cached."""
    if not is_hub_id(name):
        return None
    folder = _cache({**os.environ, **environment}) / f"models--{name.replace('/', '--')}"
    try:
        revision = read_text(folder / "refs" / "main").strip()
        found = folder / "snapshots" / revision
        return found if re.fullmatch(r"[\w.-]+", revision) and (found / "config.json").is_file() else None
    except (OSError, ValueError):
        return None


def _cache(environment: Mapping[str, str]) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"
