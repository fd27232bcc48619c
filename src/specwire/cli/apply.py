from __future__ import annotations

import shlex
from pathlib import Path

import click

from specwire.cli import _options as options
from specwire.cli import _trees as trees
from specwire.cli._progress import Shown
from specwire.errors import FAULT
from specwire.model_files import read_config
from specwire.patching import guarded, surgery
from specwire.patching.compiled import refuse_unchecked
from specwire.patching.overlay import make_overlay
from specwire.probe import GROUPS
from specwire.sites.serving import serving_files


@click.command()
@options.tree_argument
@click.option(
    "--probe",
    "names",
    multiple=True,
    metavar="NAME",
    help="Insert this probe; may be repeated. See `specwire probes`.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Insert a whole group [default: debug].",
)
@click.option(
    "--target",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Tap only the files that serve this target, by its config.json, and the drafts.",
)
@click.option(
    "--overlay", metavar="DIR", help="Leave TREE alone; make a patched view of it in DIR, fit for PYTHONPATH."
)
@click.option(
    "--force",
    is_flag=True,
    help="Write even though a process runs from the tree; discard edits in an old view.",
)
@options.wait
@options.as_json
@options.show_diff
@options.dry_run
@options.verbose
@options.quiet
def command(
    tree: str,
    python: str | None,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    target: Path | None,
    overlay: str | None,
    force: bool,
    wait: float | None,
    as_json: bool,
    show_diff: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Insert taps into SGLang's source: whole marked lines, silent until EAGLE3_DEBUG=1.

    TREE is a checkout, a directory that holds the sglang package, or the word `installed`. While a process
    runs from it, nothing is written. A site that is not recognised keeps no other one out: it is named, and the
    exit code is 3.

    \b
    Example: specwire apply installed --group debug
             specwire apply installed --target models/target
             specwire apply ~/sglang --probe draft-input --diff
             specwire apply installed --overlay /tmp/view   # then: PYTHONPATH=/tmp/view python -m sglang...
    """
    only_look = dry_run or show_diff
    look = guarded.looked_at(tree, python)
    with look if only_look else guarded.opened(tree, python, options.note, writes=not overlay) as found:
        models = serving_files(found, read_config(target).get("architectures") or ()) if target else None
        with Shown(quiet) as progress:
            outcome = surgery.plan_apply(found, surgery.chosen(names, groups), progress, models)
        if outcome.exit_code != FAULT and not only_look:
            if overlay:
                options.note(f"the patched view is {make_overlay(outcome, overlay, force)}", quiet)
            elif outcome.changes:
                refuse_unchecked(outcome.changes)
                outcome = guarded.write(outcome, options.noted(quiet), force, wait or 0.0)
    code = trees.show(outcome, as_json=as_json, show_diff=show_diff, dry_run=dry_run, quiet=quiet, every_site=verbose)
    if not (only_look or as_json) and outcome.exit_code != FAULT:
        options.note(_next(tree, overlay), quiet)
    return code


def _next(tree: str, overlay: str | None) -> str:
    """What to type once the taps are in."""
    view = f"PYTHONPATH={shlex.quote(overlay)} " if overlay else ""
    out = "" if overlay else f"\n      specwire remove {shlex.quote(tree)}"
    return f"next: {view}EAGLE3_DEBUG=1 EAGLE3_CAPTURE_DIR=DIR python -m sglang.launch_server ...{out}"
