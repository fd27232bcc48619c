from __future__ import annotations

import click

from specwire import surgery
from specwire.cli import _options as options


@click.command()
@options.as_json
def command(as_json):
    """List the probes: name, group, what each reports, and where.

    \b
    Example: specwire probes --json
    """
    known = surgery.probes()
    if as_json:
        rows = [
            {"name": name, "group": probe.group, "reports": probe.reports, "site": probe.site, "files": list(probe.files)}
            for name, probe in known.items()
        ]
        options.emit({"schema": "specwire.probes/1", "probes": rows})
        return 0
    width = max(map(len, known))
    for name, probe in known.items():
        print(f"{name:{width}}  {probe.group:8} {probe.reports}\n{'':{width}}           at {probe.site}")
    return 0
