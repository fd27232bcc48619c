"""What a bug report needs: versions, devices, and which commands miss something here."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from specwire import __version__
from specwire.errors import SpecwireError
from specwire.interpreter import ask
from specwire.needs import EXTRAS

PACKAGES = (
    "click", "libcst", "torch", "sglang", "transformers", "safetensors", "compressed-tensors", "numpy", "sgl-kernel",
    "flashinfer-python", "triton", "greenlet",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Environment:
    """`packages`: version by name, None where it is not installed. `python`: of the environment that was looked at.

    `devices`: a line for each GPU as its driver names it; `devices_unknown` says why there is no such list.
    `memory`: bytes, None where the system does not say. `missing`: for each package that is not there the commands
    that need it and what to type.
    """

    specwire: str
    python: str
    executable: str
    platform: str
    cores: int
    memory: int | None
    packages: dict[str, str | None]
    devices: tuple[str, ...]
    devices_unknown: str
    missing: dict[str, str]


def look(python: str | None = None) -> Environment:
    """The environment of this interpreter, or of another one. Raises SpecwireError when that cannot be run."""
    version, packages = _asked(python) if python else (platform.python_version(), _versions())
    devices, unknown = _devices()
    return Environment(
        specwire=__version__,
        python=version,
        executable=python or sys.executable,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=_memory(),
        packages=packages,
        devices=devices,
        devices_unknown=unknown,
        missing={
            name: f"needed by {', '.join(commands)}: pip install 'specwire[{extra}]'"
            for name, (extra, commands) in EXTRAS.items()
            if packages[name] is None
        },
    )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


# Runs in the other environment, which need not have specwire: only the standard library.
_ASK = """
import json, platform, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps([platform.python_version(), found]))
"""


def _asked(python: str) -> tuple[str, dict[str, str | None]]:
    try:
        version, packages = json.loads(ask(python, _ASK, *PACKAGES, seconds=60).stdout)
    except (SpecwireError, ValueError) as error:
        raise SpecwireError(f"{python}: cannot be asked for its packages ({error}). Name a Python to run.") from error
    return version, packages


def _devices() -> tuple[tuple[str, ...], str]:
    """Lines of GPUs, or none and the reason."""
    command = ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        return (), "nvidia-smi is not here: no NVIDIA driver, or a container without it"
    except (OSError, subprocess.SubprocessError) as error:
        return (), f"nvidia-smi gave no answer ({error})"
    if done.returncode:
        return (), f"nvidia-smi ended with {done.returncode}"
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()), ""


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
