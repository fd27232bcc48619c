"""`specwire check`: compare what a run recorded with a golden, and name the cause."""

from __future__ import annotations

from pathlib import Path

import click

from specwire.cli import _options
from specwire.errors import SpecwireError
from specwire.trees.tree import Tree


@click.command("check")
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    help="The golden file to compare with. Without one: the self-check of --capture by the --target's own head.",
)
@click.option("--capture", type=click.Path(path_type=Path), help="Capture directory of a run (EAGLE3_CAPTURE_DIR).")
@click.option("--log", type=click.Path(path_type=Path), help="Log with [EAGLE3-DEBUG] lines; - reads stdin.")
@click.option("--target", type=click.Path(path_type=Path), help="The served target's directory, for more checks.")
@click.option("--draft", type=click.Path(path_type=Path), help="The draft's directory, for more checks.")
@click.option("--tree", metavar="TREE", help="The SGLang tree that ran; its own rules then go into the diagnosis.")
@click.option("--launch", metavar='"ARGS"', help="The engine's launch arguments, as typed.")
@_options.accept_length
@_options.trained
@click.option(
    "--beside",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Capture of another run of the same system, on other ranks, whose acceptance is set beside this one's.",
)
@click.option("--html", type=_options.OutFile(), metavar="FILE", help="Also write one self-contained page.")
@_options.force
@_options.quiet
@_options.as_json
def command(
    golden: Path | None,
    capture: Path | None,
    log: Path | None,
    target: Path | None,
    draft: Path | None,
    tree: str | None,
    launch: str | None,
    accept_length: float | None,
    trained: list[int] | None,
    beside: tuple[Path, ...],
    html: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Compare a capture, or a log, with a golden and name the cause.

    Exits 0 for a match, 1 for a mismatch, 3 when something needed for a verdict was missing. Without a golden that
    is always so, unless something is found to be wrong: lm_head(norm(last state)) must give the returned logprobs,
    which shows whose states were captured, and not whether the draft was trained on these layers.

    \b
    Example: specwire check --golden golden/target.safetensors --capture out/capture --draft models/draft
             specwire check --target models/target --capture out/capture
    """
    from specwire.diagnosis.check import EXIT, check_capture
    from specwire.diagnosis.context import make_context
    from specwire.diagnosis.render import render_text

    if (capture is None) == (log is None):
        raise SpecwireError("give either --capture DIR or --log FILE to check")
    if golden is None and capture is None:
        raise SpecwireError("a log holds five values of a state: give --golden FILE to compare them with")
    context = make_context(
        target=target,
        draft=draft,
        launch=launch,
        accept_length=accept_length,
        tree=Tree.find(tree) if tree else None,
        beside=beside,
        trained=trained,
    )
    if capture:
        document = check_capture(golden, capture, context)
    elif golden and log:
        from specwire.diagnosis.log_check import check_log

        document = check_log(golden, log, context)
    if html:
        from specwire.diagnosis.html import write_page

        write_page(html, document, _options.typed())
        _options.note(f"wrote {html}", quiet)
    if as_json:
        _options.emit(document)
    else:
        _options.show(render_text(document, colour=_options.colour()))
    return EXIT[document["verdict"]]
