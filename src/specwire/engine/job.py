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
    secrets = outgoing.known_in(job["argv"])
    argv = list(job["argv"])
    for number, secret in enumerate(secrets):
        argv = [word.replace(secret, f"<hidden {number}>") for word in argv]
    with open_anew(path) as file:
        file.write(json.dumps({**job, "argv": argv}).encode())
    return {HANDED: json.dumps(secrets)} if secrets else {}
