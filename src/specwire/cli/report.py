from __future__ import annotations

import json
from pathlib import Path

import click

from specwire.cli import _options as options


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULT...")
@click.option(
    "-o", "--out", "html", type=options.OutFile(), metavar="FILE", help="The page to write [default: report.html]."
)
@click.option(
    "--markdown",
    "text",
    type=options.OutFile(),
    metavar="FILE",
    help="Write Markdown, too; without --out, instead.",
)
@click.option("--title", default="Is speculation worth it?", show_default=True, help="The page's title.")
@options.force
@options.as_json
@options.quiet
def command(
    results: tuple[Path, ...],
    html: Path | None,
    text: Path | None,
    title: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """One self-contained HTML page from results of verify, bench and sweep; --markdown for the same as Markdown.

    RESULT is a JSON file, or the --out directory of one of these commands.

    \b
    Example: specwire report verified/ benched/ swept/ --out report.html
             specwire report benched/bench.json --markdown report.md
    """
    from specwire.outgoing import write_text
    from specwire.report.contents import contents
    from specwire.report.markdown import markdown
    from specwire.report.page import page
    from specwire.report.read import read_results

    if not html and not text:
        html = options.OutFile().convert("report.html", None, click.get_current_context())
    blocks = contents(read_results(results))
    written = {html: page(title, blocks)} if html else {}
    if text:
        written[text] = markdown(title, blocks)
    for path, whole in written.items():
        write_text(path, whole)
        options.note(f"wrote {path}", quiet)
    if as_json:
        print(json.dumps({"schema": "specwire.report/1", "written": [str(path) for path in written]}))
