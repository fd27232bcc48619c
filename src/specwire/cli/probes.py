from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from specwire.cli import _options as options
from specwire.cli._progress import Shown
from specwire.errors import FAULT, OK
from specwire.patching import surgery
from specwire.trees.tree import Tree

if TYPE_CHECKING:
    from specwire.patching.coverage import CoverageRow


@click.command()
@click.option(
    "--coverage",
    "tree",
    metavar="TREE",
    help="Instead: which targets and drafts of TREE the probes reach, and why not the rest.",
)
@options.python_exe
@options.as_json
@options.quiet
def command(
    tree: str | None,
    python: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """List the probes: name, group, what each reports, and where.

    \b
    Example: specwire probes --json
             specwire probes --coverage installed
    """
    if tree is not None:
        return _coverage(Tree.find(tree, python), as_json, quiet)
    known = surgery.probes()
    if as_json:
        rows = [
            {
                "name": name,
                "group": probe.group,
                "reports": probe.reports,
                "site": probe.site,
                "files": list(probe.files),
            }
            for name, probe in known.items()
        ]
        options.emit({"schema": "specwire.probes/1", "probes": rows})
        return OK
    width = max(map(len, known))
    for name, probe in known.items():
        options.show(f"{name:{width}}  {probe.group:8}  {probe.reports}\n{'':{width}}            at {probe.site}")
    return OK


def _coverage(tree: Tree, as_json: bool, quiet: bool) -> int:
    from specwire.patching.coverage import coverage, totals  # LibCST takes a while to import

    with Shown(quiet) as progress:
        rows = coverage(tree, progress)
    if as_json:
        options.emit({
            "schema": "specwire.coverage/1",
            "tree": str(tree.root),
            "version": tree.version,
            **totals(rows),
            "rows": [{**vars(row), "covered": row.covered} for row in rows],
        })  # fmt: skip
    else:
        for line in _table(rows):
            options.show(line)
        print(f"SGLang {tree.version or 'of unknown version'}: {_sum(totals(rows))}")
    return FAULT if any(row.failed for row in rows) else OK


def _table(rows: list[CoverageRow]) -> Iterable[str]:
    cells = [(row.file.removeprefix("sglang/srt/"), row.name, row.family, _reach(row)) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(3)] if cells else []
    for cell in cells:
        yield "  ".join([*(text.ljust(width) for text, width in zip(cell, widths, strict=False)), cell[3]])


def _sum(count: dict[str, int]) -> str:
    return (
        f"{count['loops_covered']} of {count['loops']} capture loops, "
        f"{count['drafts_covered']} of {count['drafts']} EAGLE-3 drafts; "
        f"{count['elsewhere']} that go through another's loop, "
        f"{count['other_heads']} heads that take one state, "
        f"{count['not_recognised']} not recognised"
    )


def _reach(row: CoverageRow) -> str:
    """What is tapped, and each reason that something is not, once."""
    taps = ", ".join(f"{probe} {count}" for probe, count in row.taps.items())
    reasons: dict[str, list[str]] = {}
    for probe, why in row.why.items():
        reasons.setdefault(why, []).append(probe)
    missing = [why if not taps else f"no {', '.join(probes)}: {why}" for why, probes in reasons.items()]
    return "; ".join([*(["NOT RECOGNISED"] if row.failed else []), *([taps] if taps else []), *missing])
