"""What `bench` and `sweep` share: the stand, the workload, settings from options, and how they are checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specwire.cli import _options as options
from specwire.errors import SpecwireError
from specwire.progress import Progress

if TYPE_CHECKING:
    from specwire.bench.points import Stand, Workload
    from specwire.trees.tree import Tree

    _Numbers = click.ParamType[tuple[float, ...]]
else:  # not subscriptable in the oldest click that will do
    _Numbers = click.ParamType


class Numbers(_Numbers):
    """Numbers of at least `least`, separated by commas."""

    name = "N,N,..."

    def __init__(self, least: float, most: float = 1e6) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(float(part) for part in value.split(","))
        except ValueError:
            found = ()
        if not found or not all(self.least <= number <= self.most for number in found):  # NaN is in no range
            between = f"from {self.least:g} to {self.most:g}"
            self.fail(f"{value!r}: wanted numbers {between}, separated by commas", param, ctx)
        return found


class Seconds(click.FloatRange):
    """A time to wait. click's own range lets NaN through, which no clock reaches."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        return found if found == found else self.fail(f"{value!r} is no time", param, ctx)


SECONDS = Seconds(min=0.1, max=1e6)


def stand_options(function: options.Command) -> options.Command:
    """Which SGLang, target, device, and how long to wait for a server."""
    return options.decorated(
        function,
        options.python_exe,
        click.argument("tree", metavar="[TREE]", required=False),
        click.argument("engine_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE ARGS]"),
        click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="The target model's directory."),
        options.ranks,
        options.device,
        click.option("--no-profile", is_flag=True, help="Run TREE as it is, without the profiling taps."),
        click.option(
            "--boot-timeout",
            default=1800.0,
            type=SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="Give up on a server that is not ready.",
        ),
        click.option(
            "--silent-log",
            default=600.0,
            type=SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="Give up on a booting server whose log stands still.",
        ),
        click.option(
            "--silence",
            default=120.0,
            type=SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="Give up on a request that gets no token.",
        ),
    )


def workload_options(function: options.Command) -> options.Command:
    """What is sent, how, and how often."""
    return options.decorated(
        function,
        click.option(
            "--prompts",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="JSON lines with text or token_ids [default: random ids].",
        ),
        click.option(
            "--prompt-length",
            default=128,
            show_default=True,
            type=click.IntRange(1),
            help="Tokens of a random prompt.",
        ),
        click.option(
            "--new-tokens",
            default=128,
            show_default=True,
            type=click.IntRange(2),
            help="Tokens to generate per request.",
        ),
        click.option(
            "--concurrency",
            type=Numbers(1, 10_000),
            default="1",
            show_default=True,
            help="Closed loop: requests always under way.",
        ),
        click.option("--rate", type=Numbers(1e-3), help="Open loop instead: requests a second, at random moments."),
        click.option(
            "--requests", type=click.IntRange(1), help="Requests per run [default: 4 per concurrent one, at least 8]."
        ),
        click.option(
            "--repeats",
            default=3,
            show_default=True,
            type=click.IntRange(1),
            help="Runs per load: they give the interval.",
        ),
        click.option("--seed", default=0, show_default=True, help="Of random prompts and arrival times."),
    )


def check_named(tree: str | None, target: Path | None) -> None:
    """Raises SpecwireError when what a server is booted from was not named."""
    if not tree or not target:
        raise SpecwireError(
            "a tree and a target are needed to boot a server: name TREE and --target DIR (or, with bench, the --url of one "
            "that runs)."
        )


def stand_of(
    *,
    tree: str,
    python: str | None,
    target: Path,
    ranks: int,
    device: str,
    no_profile: bool,
    out: Path,
    say: Progress,
    **_: Any,
) -> tuple[Stand, Tree]:
    """The stand, and the tree it runs. Makes the profiled view in OUT/tree.

    Raises SpecwireError when there is no such tree or target, or a worker is not recognised.
    """
    from specwire.bench.points import Stand
    from specwire.bench.run import profiled_view
    from specwire.engine.run import resolve_device
    from specwire.model_files import read_config
    from specwire.trees.tree import Tree

    found = Tree.find(tree, python)
    read_config(target)
    python = python or sys.executable
    root = found.root if no_profile else profiled_view(found, out / "tree", say)
    return Stand(root, target, ranks, resolve_device(device, python), python, not no_profile), found


def workload_of(
    *,
    target: Path | None,
    prompts: Path | None,
    prompt_length: int,
    new_tokens: int,
    concurrency: tuple[float, ...],
    rate: tuple[float, ...] | None,
    requests: int | None,
    repeats: int,
    seed: int,
    boot_timeout: float,
    silent_log: float,
    silence: float,
    **_: Any,
) -> Workload:
    """The workload that the options describe. Raises SpecwireError for prompts that cannot be sent."""
    from specwire.bench.client import Load
    from specwire.bench.points import Workload
    from specwire.bench.prompts import prompts_from, random_prompts, repeated
    from specwire.bench.server import Patience

    loads = [Load("open", each) for each in rate] if rate else [Load("closed", int(each)) for each in concurrency]
    counts = [requests or max(8, 4 * int(load.value) if load.kind == "closed" else 8) for load in loads]
    most = max(counts)
    if prompts:
        sent = repeated(prompts_from(prompts, new_tokens), most)
        warm_up = sent[: max(2, min(most, 4))]
    else:
        vocabulary = _vocabulary(target)
        sent = random_prompts(most, prompt_length, new_tokens, vocabulary, seed)
        warm_up = random_prompts(max(2, min(8, most)), prompt_length, min(new_tokens, 32), vocabulary, seed + 1_000_003)
    patience = Patience(boot_timeout, silent_log, silence)
    return Workload(tuple(sent), tuple(warm_up), tuple(zip(loads, counts, strict=True)), repeats, seed, patience)


def check_draft(draft: Path) -> None:
    """Raises SpecwireError for a directory that holds no draft model."""
    from specwire.model_files import read_config

    if not read_config(draft).get("architectures"):
        raise SpecwireError(f"{draft}/config.json names no architecture: is this a draft model's directory?")


def names_of(drafts: tuple[Path, ...]) -> list[str]:
    """A short name for each draft: its directory's, with what is above it where that alone is not unique."""
    for depth in range(1, 8):
        names = ["/".join(draft.resolve().parts[-depth:]) for draft in drafts]
        if len(set(names)) == len(drafts):
            return names
    raise SpecwireError("the same draft is named twice.")


def speculation(steps: int | None, topk: int | None, draft_tokens: int | None) -> tuple[str, ...]:
    """The engine's arguments for these; all three are set as soon as one is, for the engine wants all or none."""
    if steps is None and topk is None and draft_tokens is None:
        return ()
    steps, topk = steps or 3, topk or 1
    tokens = draft_tokens or (steps + 1 if topk == 1 else min(1 + topk + (steps - 1) * topk**2, 64))
    return (
        f"--speculative-num-steps={steps}",
        f"--speculative-eagle-topk={topk}",
        f"--speculative-num-draft-tokens={tokens}",
    )


def environment_of(given: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` settings. Raises SpecwireError for anything else."""
    pairs = [each.partition("=") for each in given]
    if wrong := [each for each, (name, sign, _) in zip(given, pairs, strict=True) if not (name and sign)]:
        raise SpecwireError(f"--env {wrong[0]}: wanted NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _vocabulary(target: Path | None) -> int:
    from specwire.model_files import read_config, text_config

    if target is None:
        raise SpecwireError(
            "random prompts need the vocabulary's size: name the model with --target, or prompts with --prompts."
        )
    size: int = text_config(read_config(target))["vocab_size"]
    return size
