from __future__ import annotations

from pathlib import Path

import click

from specwire.cli import _options as options


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@options.as_json
def command(
    folder: Path,
    as_json: bool,
) -> None:
    """Where the time of a speculative cycle goes, from what the worker-profile taps recorded in DIR.

    \b
    Example: specwire apply installed --group profile --overlay view
             EAGLE3_PROFILE=DIR PYTHONPATH=view python -m sglang.launch_server ...
             specwire profile DIR
    """
    from specwire.bench.profile import read_profile, summarise
    from specwire.bench.render import profile_lines

    profiles = read_profile(folder)
    found = summarise(profiles)
    if as_json:
        options.emit(found)
    else:
        print(f"{found['ranks']} rank{'s' * (found['ranks'] > 1)}, clock {found['clock']} on {found['device']}")
        options.show("\n".join(profile_lines(found)))
