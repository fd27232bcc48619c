"""What `run` and `verify` share: naming a job, a place for its files, and progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from specwire import temporary
from specwire.cli import _options as options
from specwire.errors import SpecwireError
from specwire.regular import make_private


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that name a job: TREE, target, draft, golden, ranks, device, the engine's own arguments."""
    for decorate in reversed(
        (
            options.tree_argument,
            click.argument("engine_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE ARGS]"),
            click.option(
                "--target", required=True, type=click.Path(path_type=Path), help="The target model's directory."
            ),
            click.option(
                "--draft", required=True, type=click.Path(path_type=Path), help="The draft model's directory."
            ),
            click.option(
                "--golden",
                type=click.Path(path_type=Path),
                help="The golden file to compare with. Without one: the self-check.",
            ),
            click.option(
                "--tokens",
                multiple=True,
                metavar="IDS",
                help="Without a golden: token ids of one prompt, such as 3,4,5; may be repeated.",
            ),
            click.option(
                "--new-tokens",
                type=click.IntRange(1),
                metavar="N",
                help="How many tokens to generate [default: 2; without a golden 8].",
            ),
            options.ranks,
            options.device,
            click.option(
                "--probe",
                "names",
                multiple=True,
                metavar="NAME",
                help="Tap with this probe [default: all debug probes, and hidden-state-dump for the last two boundaries].",
            ),
            options.graphs,
            click.option(
                "--timeout",
                type=click.FloatRange(min=1),
                metavar="SECONDS",
                help="Give up on the engine after this long.",
            ),
        )
    ):
        function = decorate(function)
    return function


def job_of(
    tree, python, engine_arguments, target, draft, golden, tokens, new_tokens, ranks, device, names, graphs, timeout
):
    """The job that the options name. Raises SpecwireError when there is no such tree or probe."""
    from specwire.patching.surgery import chosen
    from specwire.trees.tree import Tree
    from specwire.verify import Job

    if golden and tokens:
        raise SpecwireError("a golden has prompts of its own: give --golden or --tokens, not both")
    if golden is None and not names:
        names = (*chosen((), ()), "hidden-state-dump")  # its last boundary is the stream before the final norm
    return Job(
        Tree.find(tree, python),
        target,
        draft,
        golden,
        ranks,
        device,
        python or sys.executable,
        tuple(engine_arguments),
        tuple(chosen(names, ())),
        timeout,
        tuple(tuple(options.numbers(text, "--tokens")) for text in tokens),
        new_tokens or (2 if golden else 8),
        graphs=graphs,
    )


@contextlib.contextmanager
def place_for(out: Path | None) -> Iterator[Path]:
    """The directory that was asked for, kept; else a temporary one that goes unless something in it tells of a failure."""
    if out is not None:
        make_private(out)
        try:
            yield out.resolve()
        except KeyboardInterrupt:
            if any(out.iterdir()):
                options.note(f"stopped; what there is by now is kept in {out}")
            raise
        return
    place = temporary.make()
    try:
        yield place
    except SpecwireError as error:
        if temporary.is_empty(place):
            raise
        temporary.keep(place)
        raise SpecwireError(f"{error}\nKept for a look: {place}") from error
    finally:
        temporary.discard(place)  # unless it is kept
