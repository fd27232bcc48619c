"""The driver's job as a file: what the engine is to do, without the secrets that it is started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwire import outgoing
from specwire.regular import open_anew

HANDED = "SPECWIRE_HANDED"  # the driver takes these words out of its environment before the engine looks at it


def write_job(path: Path, job: Mapping[str, Any]) -> dict[str, str]:
    """Write the job, and return what the driver must be given by its environment to have the whole of it.

    Nobody else reads that environment; a file would stay, and a command line is for everybody to see.
    """
    outgoing.know_words(job["argv"])
    secrets = outgoing.known_in([json.dumps(job), *job["argv"]])
    whole: Any = dict(job)
    for number, secret in enumerate(secrets):
        whole = _replaced(whole, secret, f"<hidden {number}>")
    with open_anew(path) as file:
        file.write(json.dumps(whole).encode())
    return {HANDED: json.dumps(secrets)} if secrets else {}


def _replaced(value: Any, old: str, new: str) -> Any:
    """The same with another word in every text of it."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return {name: _replaced(each, old, new) for name, each in value.items()} if isinstance(value, dict) else value
