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
@options.graphs
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

    Without a golden it runs on --tokens, or on short prompts of its own, and makes the self-check: exit 3 when it
    holds, 1 when it fails. See `specwire check --help`.

    A TREE without taps is left alone: the run uses a patched view of it in DIR/tree.

    \b
    Example: specwire run installed --target DIR --draft DIR --golden FILE --out captures --tp 2
    """
    from specwire import verify
    from specwire.diagnosis.check import EXIT
    from specwire.needs import require
    from specwire.patching import surgery

    found = jobs.job_of(**job)
    if found.golden is None:
        require("torch")  # the self-check's, asked for before the engine boots
    with jobs.place_for(out) as place:
        verify.check_job(found)
        with Shown(quiet, first_after=0.0) as progress:
            status = surgery.status(found.tree)
            tapped = status.result == "applied"
            if tapped:  # then the tree's taps are those that were chosen
                found = replace(found, probes=tuple({site.probe for site in status.sites if site.state == "applied"}))
            view = found.tree.root if tapped else verify.patched_view(found, place / "tree", progress)
            record = verify.run_record(found, place, verify.run(found, view, place, progress))
            judged = None if found.golden else verify.check_run(found, place)
    if as_json:
        told = {name: judged[name] for name in ("verdict", "why", "self_check", "causes")} if judged else {}
        options.emit({"schema": "specwire.run/1", **record, "capture": str(place / "capture"), **told})
    else:
        print(f"captured: {place / 'capture'} (engine's log: {record['log']}, {record['seconds']} s)")
        if judged:
            from specwire.diagnosis.render import render_text

            options.show(render_text(judged, colour=options.colour()))
        else:
            print(f"next: specwire check --golden {found.golden} --capture {place / 'capture'}")
    return EXIT[judged["verdict"]] if judged else 0
