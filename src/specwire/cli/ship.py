from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from specwire.cli import _options as options
from specwire.cli._progress import Shown


@click.command()
@options.tree_argument
@click.option(
    "--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The target model's directory."
)
@click.option(
    "--draft", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The draft model's directory."
)
@click.option(
    "--verify",
    "verified",
    required=True,
    type=click.Path(path_type=Path),
    metavar="RESULT",
    help="verify.json, or the directory that verify kept it in.",
)
@click.option("--launch", metavar="ARGS", help="The launch command, or only its arguments, as typed.")
@click.option(
    "--launch-file", type=click.Path(path_type=Path), metavar="FILE", help="A script or a file that holds the launch."
)
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the draft was trained on [default: that of the verify].",
)
@click.option(
    "--record", metavar="FILE", help="A RECORD file or wheel to compare the tree with [default: the installed one]."
)
@options.as_json
@options.quiet
def command(
    tree: str,
    python: str | None,
    target: Path,
    draft: Path,
    verified: Path,
    launch: str | None,
    launch_file: Path | None,
    golden: Path | None,
    record: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Sign off a cleaned-up tree, or name the first thing that is missing.

    Looks whether the server is stopped, the tree clean and the release's own, preflight ok, and the last
    verify a match of this very tree, target and draft. Exit: 0 signed off, 1 something is missing, 2 could
    not look, 3 something cannot be told.

    \b
    Example: specwire ship installed --target DIR --draft DIR --verify verified/ --launch-file launch.sh
    """
    from specwire.errors import SpecwireError
    from specwire.ship import Shipment, exit_code, ship
    from specwire.trees.tree import Tree

    if (launch is None) == (launch_file is None):
        raise SpecwireError('the launch that is to go out is needed, once: --launch "ARGS" or --launch-file FILE.')
    shipment = Shipment(Tree.find(tree, python), target, draft, verified, launch, launch_file, golden, record)
    with Shown(quiet) as progress:
        document = ship(shipment, progress)
    if as_json:
        options.emit(document)
    else:
        options.show("\n".join(_lines(document)))
    return exit_code(document)


def _lines(document: dict[str, Any]) -> Iterator[str]:
    if document["missing"]:
        missing = document["missing"]
        how = "cannot be told" if missing["state"] == "unknown" else "does not hold"
        yield f"NOT SIGNED OFF: {missing['id']} {how}: {missing['why']}"
        return
    yield "SIGNED OFF"
    yield from (f"[OK] {step['id']}: {step['why']}" for step in document["steps"])
    yield f"SGLang {document['tree']['version']} {document['tree']['root']} sha256 {document['tree']['sha256']}"
    yield from (f"{name} {document[name]['path']} sha256 {document[name]['sha256']}" for name in ("target", "draft"))
    yield f"verified by {document['verified']}, specwire {document['specwire']}"
