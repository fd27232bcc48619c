"""Options and output habits that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specwire import outgoing
from specwire.errors import SpecwireError


def numbers(text: str, option: str) -> list[int]:
    """What an option such as `--tokens 3,4,5` lists, in brackets or not, with commas or blanks: at least one.

    Raises SpecwireError for anything else.
    """
    plain = text.strip()
    if (plain[:1], plain[-1:]) in (("[", "]"), ("(", ")")):
        plain = plain[1:-1]
    try:
        found = [int(part) for part in plain.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found:
        raise SpecwireError(f"{option} takes whole numbers separated by commas, not {text!r}")
    return found


def listed(ctx: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    """The callback of an option that takes `numbers`; None when it was not given."""
    return None if text is None else numbers(text, option.opts[0])


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else there.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress and no notes on stderr.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Each site on a line of its own, not a sum by probe.")
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
show_diff = click.option(
    "--diff", "show_diff", is_flag=True, help="Print a unified diff of what would change; write nothing."
)
ranks = click.option(
    "--tp",
    "--tp-size",
    "ranks",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Ranks: GPUs, or CPU processes.",
)
device = click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cuda", "cpu"]))
graphs = click.option(
    "--graphs",
    default="on",
    show_default="on, as launched",
    type=click.Choice(["on", "off"]),
    help="CUDA graphs: on, as launched, and read after each replay, or off, so that every forward runs as Python.",
)
graphs_or_both = click.option(
    "--graphs",
    default="on",
    show_default="on, as launched",
    type=click.Choice(["on", "off", "both"]),
    help="CUDA graphs: on, as launched, and read after each replay; off, so that every forward runs as Python; or "
    "both, one run after the other, compared row by row.",
)
accept_length = click.option(
    "--accept-length", type=float, help="The acceptance length that was seen in service; a hint, never a proof."
)
trained = click.option(
    "--trained",
    metavar="KS",
    callback=listed,
    help="The boundaries that the draft was trained on, in slot order, such as 3,31,59; overrules the golden.",
)
wait = click.option(
    "--wait", type=float, metavar="SECONDS", help="While a process runs from the tree, wait so long for its end."
)
force = click.option(
    "--force",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, option, given: ctx.meta.update(force=given),
    help="Replace a file that is there.",
)
python_exe = click.option("--python", metavar="EXE", help="Whose SGLang the word 'installed' means.")


Command = Callable[..., Any]


def decorated(function: Command, *decorators: Callable[[Command], Command]) -> Command:
    """The function with several options at once, in the order of the help text."""
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


class OutFile(click.Path):
    """A file to be written when all is done: that it can be is known before the work begins, not after.

    One that is there is only replaced with `--force`, which every command with such a file has.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if os.path.lexists(path) and not (ctx and ctx.meta.get("force") and path.is_file()):
            again = "name another, or replace it with --force" if path.is_file() else "that is no file: name another"
            self.fail(f"{path} is there already: {again}.", param, ctx)
        folder = path.parent
        if not folder.is_dir():
            self.fail(f"{path}: there is no directory {folder}. Make it first.", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"{path}: nothing may be written in {folder}.", param, ctx)
        return path


class OutDir(click.Path):
    """A directory for a command's results, made when there is none; refused when it holds such `results` already."""

    def __init__(self, *results: str) -> None:
        super().__init__(path_type=Path, file_okay=False)
        self.results = results

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        for old in (path / name for name in self.results):
            if old.is_dir() and any(old.iterdir()) or old.is_file():
                self.fail(f"{old} is of an earlier run: name another directory, or move this one away.", param, ctx)
        return path


def tree_argument(function: Command) -> Command:
    return python_exe(click.argument("tree", metavar="TREE")(function))


def emit(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout. NaN and infinity are not JSON: callers give None for them."""
    import json

    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def typed() -> str:
    """The command as it was given, and where, for whoever wants to repeat it."""
    import shlex

    return f"cd {shlex.quote(os.getcwd())}\nspecwire {shlex.join(sys.argv[1:])}"


def colour() -> bool:
    """Whether stdout takes colour: NO_COLOR and FORCE_COLOR, set and not empty, overrule what it is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def say(text: str) -> None:
    """One line of a result on stdout. Names and source come from anywhere: none of it steers the terminal."""
    show(outgoing.sentence(text).replace("\n", "\\n"))


def show(text: str) -> None:
    """A result of several lines on stdout, no wider than the terminal, where it is one."""
    print(outgoing.folded(text, outgoing.columns()))


def note(text: str, quiet: bool = False) -> None:
    """A progress line or a remark: on stderr, so that stdout holds results only."""
    if not quiet:
        print(outgoing.sentence(text), file=sys.stderr, flush=True)


def noted(quiet: bool) -> Callable[[str], None]:
    """`note`, for work that says what it does while it does it."""
    return lambda text: note(text, quiet)
