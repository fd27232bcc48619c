from __future__ import annotations

import functools

import click

from specwire import surgery
from specwire.cli import _options as options
from specwire.cli import _trees as trees
from specwire.overlay import make_overlay
from specwire.probe import GROUPS


@click.command()
@options.tree_argument
@click.option("--probe", "names", multiple=True, metavar="NAME", help="Insert this probe; may be repeated. See `specwire probes`.")
@click.option("--group", "groups", multiple=True, type=click.Choice(GROUPS), help="Insert a whole group [default: debug].")
@click.option("--overlay", metavar="DIR", help="Leave TREE alone; make a patched view of it in DIR, fit for PYTHONPATH.")
@options.as_json
@options.show_diff
@options.dry_run
@options.quiet
def command(tree, python, names, groups, overlay, as_json, show_diff, dry_run, quiet):
    """Insert taps into SGLang's source: whole marked lines, silent until EAGLE3_DEBUG=1.

    TREE is a checkout, a directory that holds the sglang package, or the word `installed`.

    \b
    Example: specwire apply installed --group debug
             specwire apply ~/sglang --probe draft-input --diff
    """
    found = trees.opened(tree, python, quiet)
    outcome = surgery.plan_apply(found, surgery.chosen(names, groups), options.progress(quiet))
    write = functools.partial(make_overlay, outcome, overlay) if overlay else outcome.write
    return trees.finish(outcome, write, as_json=as_json, show_diff=show_diff, dry_run=dry_run, quiet=quiet)
