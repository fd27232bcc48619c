from __future__ import annotations

import click

from specwire.cli import _options as options
from specwire.cli import _trees as trees
from specwire.patching import guarded, surgery


@click.command()
@options.tree_argument
@click.option("--probe", "names", multiple=True, metavar="NAME", help="Remove only this probe's taps; may be repeated.")
@click.option(
    "--force",
    is_flag=True,
    help="Also remove taps that somebody has edited, and while a process runs from the tree.",
)
@options.wait
@options.as_json
@options.show_diff
@options.dry_run
@options.quiet
def command(
    tree: str,
    python: str | None,
    names: tuple[str, ...],
    force: bool,
    wait: float | None,
    as_json: bool,
    show_diff: bool,
    dry_run: bool,
    quiet: bool,
) -> int:
    """Take taps out again and prove that nothing else changed. Needs only the tree.

    \b
    Example: specwire remove installed
             specwire remove ~/sglang --probe draft-fc --json
    """
    only_look = dry_run or show_diff
    look = guarded.looked_at(tree, python)
    with look if only_look else guarded.opened(tree, python, options.note) as found:
        outcome = surgery.plan_remove(found, list(names) or None, force)
        if outcome.changes and not only_look:
            outcome = guarded.write(outcome, options.noted(quiet), force, wait or 0.0)
    code = trees.show(outcome, as_json=as_json, show_diff=show_diff, dry_run=dry_run, quiet=quiet)
    if not (as_json or only_look):
        trees.finale(outcome)
    return code
