from __future__ import annotations

import click

from specwire import surgery
from specwire.cli import _options as options
from specwire.cli import _trees as trees


@click.command()
@options.tree_argument
@click.option("--probe", "names", multiple=True, metavar="NAME", help="Remove only this probe's taps; may be repeated.")
@click.option("--force", is_flag=True, help="Also remove taps that somebody has edited.")
@options.as_json
@options.show_diff
@options.dry_run
@options.quiet
def command(tree, python, names, force, as_json, show_diff, dry_run, quiet):
    """Take taps out again and prove that nothing else changed. Needs only the tree.

    \b
    Example: specwire remove installed
             specwire remove ~/sglang --probe draft-fc --json
    """
    found = trees.opened(tree, python, quiet)
    outcome = surgery.plan_remove(found, surgery.chosen(names, ()) if names else None, force)
    return trees.finish(outcome, outcome.write, as_json=as_json, show_diff=show_diff, dry_run=dry_run, quiet=quiet)
