from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from specwire.cli import _jobs as jobs
from specwire.cli import _options as options
from specwire.cli._progress import Shown


@click.command()
@jobs.job_options
@click.option(
    "-o",
    "--out",
    required=True,
    type=options.OutDir("capture", "engine.log"),
    metavar="DIR",
    help="Where captures and the engine's log go.",
)
@options.as_json
@options.quiet
def command(
    out: Path,
    as_json: bool,
    quiet: bool,
    **job: Any,
) -> int:
    """Run the patched engine on the golden's tokens and capture; compare later with `specwire check`.

    Without a golden it runs on --tokens, or on short prompts of its own, and keeps the logprobs for the self-check.

    A TREE without taps is left alone: the run uses a patched view of it in DIR/tree.

    \b
    Example: specwire run installed --target DIR --draft DIR --golden FILE --out captures --tp 2
    """
    from specwire import verify
    from specwire.patching import surgery

    found = jobs.job_of(**job)
    with jobs.place_for(out) as place:
        verify.check_job(found)
        with Shown(quiet, first_after=0.0) as progress:
            status = surgery.status(found.tree)
            tapped = status.result == "applied"
            if tapped:  # then the tree's taps are those that were chosen
                found = replace(found, probes=tuple({site.probe for site in status.sites if site.state == "applied"}))
            view = found.tree.root if tapped else verify.patched_view(found, place / "tree", progress)
            record = verify.run_record(found, place, verify.run(found, view, place, progress))
    if as_json:
        options.emit({"schema": "specwire.run/1", **record, "capture": str(place / "capture")})
    else:
        print(f"captured: {place / 'capture'} (engine's log: {record['log']}, {record['seconds']} s)")
        by = f"--golden {found.golden}" if found.golden else f"--target {found.target} --draft {found.draft}"
        print(f"next: specwire check {by} --capture {place / 'capture'}")
    return 0
