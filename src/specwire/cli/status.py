from __future__ import annotations

import click

from specwire.cli import _options as options
from specwire.cli import _trees as trees
from specwire.patching import guarded, surgery


@click.command()
@options.tree_argument
@options.as_json
@options.verbose
@options.quiet
def command(
    tree: str,
    python: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Say which taps are in a tree, where, and whether a hand has been on them.

    A change that was cut off (a killed process, a full disk) is finished or undone first, and named.

    \b
    Example: specwire status installed --json
    """
    with guarded.opened(tree, python, options.note, writes=False) as found:
        outcome = surgery.status(found)
    return trees.show(outcome, as_json=as_json, show_diff=False, dry_run=False, quiet=quiet, every_site=verbose)
