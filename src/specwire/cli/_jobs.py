"""What `run` and `verify` share: naming a job, a place for its files, and progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specwire.cli import _options as options
from specwire.engine import temporary
from specwire.errors import SpecwireError
from specwire.regular import make_private

if TYPE_CHECKING:
    from specwire.verify import Job


def job_options(function: options.Command) -> options.Command:
    """The arguments that name a job: TREE, target, draft, golden, ranks, device, the engine's own arguments."""
    return options.decorated(
        function,
        options.tree_argument,
        click.argument("engine_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE ARGS]"),
        click.option("--target", required=True, type=click.Path(path_type=Path), help="The target model's directory."),
        click.option("--draft", required=True, type=click.Path(path_type=Path), help="The draft model's directory."),
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
            help="How many tokens to generate [default: 4; without a golden 8].",
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
        click.option(
            "--timeout",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="Give up on the engine after this long.",
        ),
    )


def job_of(
    *,
    tree: str,
    python: str | None,
    engine_arguments: tuple[str, ...],
    target: Path,
    draft: Path,
    golden: Path | None,
    tokens: tuple[str, ...],
    new_tokens: int | None,
    ranks: int,
    device: str,
    names: tuple[str, ...],
    graphs: str,
    timeout: float,
) -> Job:
    """The job that the options name. Raises SpecwireError when there is no such tree or probe."""
    from specwire.trees.tree import Tree
    from specwire.verify import NEW_TOKENS, Job, probes_of

    if golden and tokens:
        raise SpecwireError("a golden has prompts of its own: give --golden or --tokens, not both")
    return Job(
        tree=Tree.find(tree, python),
        target=target,
        draft=draft,
        golden=golden,
        ranks=ranks,
        device=device,
        python=python or sys.executable,
        engine_arguments=tuple(engine_arguments),
        probes=probes_of(names, golden is not None),
        timeout=timeout,
        tokens=tuple(tuple(options.numbers(text, "--tokens")) for text in tokens),
        new_tokens=new_tokens or (NEW_TOKENS if golden else 8),
        graphs=graphs,
    )


@contextlib.contextmanager
def place_for(out: Path | None) -> Iterator[Path]:
    """The directory that was asked for, kept; else a temporary one that goes unless something in it tells of a failure."""
    if out is not None:
        ours = not out.exists()
        make_private(out)
        try:
            yield out.resolve()
        except (KeyboardInterrupt, Exception) as error:
            if any(out.iterdir()):
                if isinstance(error, KeyboardInterrupt):
                    options.note(f"stopped; what there is by now is kept in {out}")
            elif ours:
                out.rmdir()
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
