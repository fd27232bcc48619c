from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from specwire.cli import _options as options
from specwire.strip.words import Words

if TYPE_CHECKING:
    from specwire.gate.leftovers import Leftover, Report


@click.command()
@click.argument("trees", metavar="TREE...", nargs=-1, required=True)
@options.python_exe
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "junit"]),
    default="text",
    help="How findings are printed.",
)
@click.option(
    "--pristine",
    is_flag=True,
    help="Also compare each file with the hashes of the release that the tree says it is.",
)
@click.option(
    "--record",
    metavar="FILE",
    help="A RECORD file or wheel for --pristine to compare with, in place of the installed one.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="'RULE PATTERN -- REASON'",
    help="Let a rule's findings pass in files whose names match. Shown in the output.",
)
@click.option(
    "--env",
    "envs",
    multiple=True,
    metavar="PATTERN",
    help="Also take this environment variable for a debug switch.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TEXT",
    help="Also take messages that begin like this for debug messages.",
)
@click.option(
    "--exclude",
    "excludes",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files or directories of this name, or with a slash this path, e.g. 'tests' or 'srt/debug_*'.",
)
@options.as_json
@options.quiet
def command(
    trees: tuple[str, ...],
    python: str | None,
    form: str,
    pristine: bool,
    record: str | None,
    allowed: tuple[str, ...],
    envs: tuple[str, ...],
    tags: tuple[str, ...],
    excludes: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """Fail when instrumentation is left: taps, hand-written debug code, debugger stops, patch remains.

    TREE is SGLang's source, the word 'installed', or any directory or files. A line that has to stay says so:
    `# specwire-allow: RULE -- reason`, at its end or on a line of its own above it.

    \b
    Example: specwire gate installed --pristine
             specwire gate . --format sarif > specwire.sarif
    """
    from specwire.gate.leftovers import scan

    paths, base = _scope(trees, python)
    report = scan(paths, base, Words(envs, tags), allowed, excludes)
    if pristine or record:
        report = _with_differences(report, trees, python, record)
    form = "json" if as_json else form
    if form == "text":
        _print(report, quiet)
    else:
        from specwire.gate import formats
        from specwire.outgoing import clean

        # UTF-8 whatever the terminal speaks: these are for machines.
        click.echo(clean(formats.FORMATS[form](report)).encode("utf-8", "backslashreplace"), nl=False)
        for why in report.unknown:
            options.note(f"inconclusive: {why}", quiet)
    return report.exit_code


def _scope(trees: tuple[str, ...], python: str | None) -> tuple[list[str], str]:
    """What to look at, and the directory that names are relative to."""
    from specwire.errors import SpecwireError

    if len(trees) == 1 and trees[0] == "installed":
        from specwire.trees.tree import Tree

        tree = Tree.find("installed", python)
        return [str(tree.package)], str(tree.root)
    for path in trees:
        if not os.path.exists(path):
            raise SpecwireError(f"{path}: no such file or directory. Name a source tree, or the word 'installed'.")
    if len(trees) > 1 or not os.path.isdir(trees[0]):
        return list(trees), os.curdir
    path = os.path.abspath(trees[0])
    if os.path.basename(path) == "sglang" and os.path.isdir(os.path.join(path, "srt")):
        return [path], os.path.dirname(path)
    package = os.path.join(path, "sglang")
    if os.path.isdir(package) and any(name.endswith(".dist-info") for name in os.listdir(path)):
        return [package], path  # site-packages: the rest of it is other people's
    return [path], path


def _with_differences(report: Report, trees: tuple[str, ...], python: str | None, record: str | None) -> Report:
    from specwire.errors import SpecwireError
    from specwire.gate.pristine import NoRecord, differences
    from specwire.trees.tree import Tree

    if len(trees) > 1:
        raise SpecwireError("--pristine compares one tree with its release. Name one.")
    tree = Tree.find(trees[0], python)
    try:
        found = differences(tree, record)
    except NoRecord as error:
        return report._replace(unknown=(*report.unknown, str(error)))
    named = [finding._replace(file=os.path.relpath(tree.path(finding.file), report.base)) for finding in found]
    return report._replace(findings=(*report.findings, *named))


def _print(report: Report, quiet: bool) -> None:
    for finding in report.findings:
        options.say(f"{_place(report, finding)}: {finding.rule}: {finding.message}")
    for finding in report.allowed:
        options.say(f"{_place(report, finding)}: allowed {finding.rule}: {finding.message} - {finding.reason}")
    for why in report.unknown:
        options.say(f"inconclusive: {why}")
    if report.skipped:
        options.note(f"not looked into: {', '.join(report.skipped)}", quiet)
    word = (
        "clean"
        if report.clean
        else options.counted(len(report.findings), "finding")
        if report.findings
        else "inconclusive"
    )
    allowed = f", {len(report.allowed)} allowed" if report.allowed else ""
    excluded = f", {options.counted(len(report.excluded), 'file')} excluded" if report.excluded else ""
    options.say(f"{word}: {options.counted(report.files, 'Python file')}{allowed}{excluded}")


def _place(report: Report, finding: Leftover) -> str:
    from specwire.gate.formats import shown

    path = shown(report, finding)
    return f"{path}:{finding.line}" if finding.line else path
