from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from specwire.cli import _bench as shared
from specwire.cli import _options as options
from specwire.cli._progress import Shown
from specwire.errors import SpecwireError


@click.command()
@shared.stand_options
@click.option(
    "--draft",
    "drafts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A draft to measure; several stand side by side.",
)
@click.option("--steps", type=click.IntRange(1), help="Draft steps per cycle [default: the engine's].")
@click.option("--topk", type=click.IntRange(1), help="Branches per step.")
@click.option("--draft-tokens", type=click.IntRange(2), help="Tokens that a verify takes.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="In the environment of every server.")
@click.option("--no-baseline", is_flag=True, help="Compare the drafts among themselves, with the first.")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Measure a server that runs already; several stand side by side.",
)
@shared.workload_options
@click.option(
    "--boots",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Boot each server so often, in turns, and pool the runs.",
)
@click.option(
    "--require", type=float, metavar="SPEEDUP", help="Exit 1 unless every draft is at least so many times as fast."
)
@click.option(
    "-o", "--out", type=options.OutDir("bench.json"), metavar="DIR", help="Keep logs, profiles and bench.json here."
)
@options.as_json
@options.quiet
def command(
    drafts: tuple[Path, ...],
    steps: int | None,
    topk: int | None,
    draft_tokens: int | None,
    env: tuple[str, ...],
    no_baseline: bool,
    urls: tuple[str, ...],
    boots: int,
    require: float | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **rest: Any,
) -> int:
    """Is speculation faster? Boots the real server without and with it, and measures both on the same prompts.

    Everything after `--` goes to every server. A difference counts only when its interval excludes noise.

    \b
    Example: specwire bench installed --target DIR --draft DIR --concurrency 1,8 --out results
             specwire bench installed --target DIR --draft A --draft B -- --mem-fraction-static 0.8
             specwire bench --url http://127.0.0.1:30000 --prompts prompts.jsonl
    """
    from specwire.bench.http import Address
    from specwire.bench.points import Setting
    from specwire.bench.render import bench_text
    from specwire.bench.run import SCHEMA, bench, exit_code, provenance
    from specwire.cli._jobs import place_for
    from specwire.outgoing import write_text

    say = click.get_current_context().with_resource(Shown(quiet, first_after=0.0, every=0.0, lines=True))
    if not urls and not drafts and no_baseline:
        raise SpecwireError("nothing to measure: name a --draft, or leave out --no-baseline.")
    if not urls:
        shared.check_named(rest["tree"], rest["target"])
    for draft in drafts:
        shared.check_draft(draft)
    with place_for(out) as place:
        workload = shared.workload_of(**rest)
        speculative = shared.speculation(steps, topk, draft_tokens)
        arguments, settings_env = tuple(rest["engine_arguments"]), shared.environment_of(env)
        settings = [Setting(Address.parse(url).url, url=url) for url in urls]
        stand = tree = None
        if not urls:
            stand, tree = shared.stand_of(out=place, say=say, **rest)
            settings = [] if no_baseline else [Setting("baseline", None, arguments, settings_env)]
            names = shared.names_of(drafts)
            settings += [
                Setting(name, draft, (*speculative, *arguments), settings_env)
                for name, draft in zip(names, drafts, strict=True)
            ]
        belongs = provenance(tree, rest["target"], drafts, sys.argv)

        def whole(measured: dict[str, Any]) -> dict[str, Any]:
            return {"schema": SCHEMA, **measured, "provenance": belongs}

        def keep(measured: dict[str, Any]) -> None:
            write_text(place / "bench.json", f"{json.dumps(whole(measured), indent=2, allow_nan=False)}\n")

        document = whole(bench(stand, settings, workload, boots, place, say, keep))
        if as_json:
            print(json.dumps(document, indent=2, allow_nan=False))
        else:
            options.show(bench_text(document))
    return exit_code(document, require)
