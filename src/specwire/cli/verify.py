from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from specwire.cli import _jobs as jobs
from specwire.cli import _options as options
from specwire.cli._progress import Shown


@click.command()
@jobs.job_options
@options.graphs_or_both
@click.option(
    "-o",
    "--out",
    type=options.OutDir("capture", "engine.log", "verify.json"),
    metavar="DIR",
    help="Keep captures, the engine's log and verify.json here.",
)
@options.accept_length
@options.trained
@click.option("--html", type=options.OutFile(), metavar="FILE", help="Also write one self-contained page.")
@options.force
@options.as_json
@options.quiet
def command(
    out: Path | None,
    accept_length: float | None,
    trained: list[int] | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **job: Any,
) -> int:
    """Run the real engine on a patched view of TREE and compare what reaches the draft with a golden.

    Without a golden the self-check is all there is: see `specwire check --help`. TREE itself is never written.
    Everything after `--` goes to the engine as on its own command line.

    \b
    Example: specwire verify installed --target DIR --draft DIR --golden FILE --tp 8
             specwire verify ~/sglang ... -- --speculative-algorithm EAGLE3 --speculative-num-steps 3
    """
    from specwire import verify
    from specwire.diagnosis import render
    from specwire.diagnosis.check import EXIT
    from specwire.needs import require
    from specwire.outgoing import write_text

    require("torch")  # the comparison's, asked for before the engine boots
    found = jobs.job_of(**job)
    with jobs.place_for(out) as place:
        with Shown(quiet, first_after=0.0) as progress:
            document = verify.verify(found, place, progress, accept_length, trained)
        text = json.dumps(document, indent=2, allow_nan=False)
        write_text(place / "verify.json", f"{text}\n")
        if html:
            from specwire.diagnosis.html import write_page

            write_page(html, document, options.typed())
        if as_json:
            print(text)
        else:
            options.show(render.render_text(document, colour=options.colour()))
    return EXIT[document["verdict"]] if document["tree_restored"] else 1
