from __future__ import annotations

import click

from specwire.cli import _options as options
from specwire.errors import OK


@click.command(short_help="Print versions, devices and what is missing, for a bug report.")
@click.option("--python", metavar="EXE", help="Look at the packages of this interpreter instead.")
@options.as_json
def command(python: str | None, as_json: bool) -> int:
    """Print versions, devices and what is missing for which command. Nothing is imported, nothing is written.

    \b
    Example: specwire env
             specwire env --python /opt/engine/bin/python --json
    """
    from dataclasses import asdict

    from specwire.environment import look

    found = look(python)
    if as_json:
        options.emit({"schema": "specwire.env/1", **asdict(found)})
        return OK
    rows = [("specwire", found.specwire), ("python", f"{found.python} ({found.executable})")]
    rows += [("system", f"{found.platform}, {options.counted(found.cores, 'core')}{_gib(found.memory)}")]
    rows += [(name, version or "not installed") for name, version in found.packages.items()]
    rows += [("devices", line) for line in found.devices or (f"none seen: {found.devices_unknown}",)]
    rows += [("missing", f"{name}, {why}") for name, why in found.missing.items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        options.say(f"{name:{width}}  {value}")
    return OK


def _gib(memory: int | None) -> str:
    return f", {memory / 2**30:.1f} GiB" if memory else ""
