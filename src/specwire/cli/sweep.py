from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from specwire.cli import _bench as shared
from specwire.cli import _options as options
from specwire.cli._progress import Shown


@click.command()
@shared.stand_options
@click.option(
    "--grid",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML: steps, topk, draft_tokens, [env], [arguments].",
)
@click.option(
    "--draft", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The draft model's directory."
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="In the environment of every server.")
@shared.workload_options
@click.option("--stop-early", is_flag=True, help="Spare further runs of a point that is far behind.")
@click.option("--retry-failed", is_flag=True, help="Measure again what failed in an earlier go.")
@click.option("--no-confirm", is_flag=True, help="Do not measure the best point and the baseline once more at the end.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Logs, profiles and results; name it again to go on after a stop.",
)
@options.as_json
@options.dry_run
@options.quiet
def command(
    grid: Path,
    draft: Path,
    env: tuple[str, ...],
    stop_early: bool,
    retry_failed: bool,
    no_confirm: bool,
    out: Path,
    as_json: bool,
    dry_run: bool,
    quiet: bool,
    **rest: Any,
) -> int:
    """Which setting is fastest? Measures a grid of steps, top-k, draft tokens and environment, and a baseline.

    Every point is on disk as soon as it is measured: stopped or killed, the same command goes on.

    \b
    Example: specwire sweep installed --target DIR --draft DIR --grid grid.toml --out sweep
    with     steps = [1, 2, 3, 5]
             topk = [1]
             [env]
             NCCL_PROTO = ["", "LL"]
    """
    from specwire.bench.grid import read_grid
    from specwire.bench.render import sweep_text
    from specwire.bench.run import provenance
    from specwire.bench.sweep import exit_code, held, sweep

    say = click.get_current_context().with_resource(Shown(quiet, first_after=0.0, every=0.0, lines=True))
    shared.check_named(rest["tree"], rest["target"])
    shared.check_draft(draft)
    points = read_grid(grid, draft, rest["engine_arguments"], shared.environment_of(env))
    if dry_run:
        if as_json:
            options.emit(
                {
                    "schema": "specwire.sweep-plan/1",
                    "points": [{"id": point.id, "name": point.setting.name} for point in points.points],
                    "left_out": [{"where": each["where"], "why": each["why"]} for each in points.left_out],
                }
            )
        else:
            for point in points.points:
                print(f"{point.id}  {point.setting.name}")
            for each in points.left_out:
                print(f"left out: {each['where']}: {each['why']}")
        options.note(f"dry run: {len(points.points)} points, nothing was booted or written", quiet)
        return 0
    with held(out):
        workload = shared.workload_of(**rest)
        stand, tree = shared.stand_of(out=out, say=say, **rest)
        found = provenance(tree, rest["target"], [draft], sys.argv)
        document = sweep(
            stand,
            points,
            workload,
            out,
            found,
            stop_early=stop_early,
            retry_failed=retry_failed,
            confirm=not no_confirm,
            say=say,
        )
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        options.show(sweep_text(document))
    return exit_code(document)
