"""`specwire preflight`: will this draft be fed what it was trained on? Seconds, no GPU, no engine."""

from __future__ import annotations

from pathlib import Path

import click

from specwire.cli._options import as_json, emit, note, python_exe, quiet, trained
from specwire.errors import FINDING, INCONCLUSIVE, OK

CODES = {"ok": OK, "fault": FINDING, "inconclusive": INCONCLUSIVE}


@click.command()
@click.option("--target", required=True, type=click.Path(path_type=Path), help="The target model's directory.")
@click.option("--draft", required=True, type=click.Path(path_type=Path), help="The draft model's directory.")
@click.option(
    "--tree",
    "trees",
    multiple=True,
    metavar="TREE",
    help="The SGLang that will serve [installed]. Several: a table of what each would capture.",
)
@python_exe
@click.option("--golden", type=click.Path(path_type=Path), help="Whose metadata says what the draft was trained on.")
@trained
@click.option(
    "--launch",
    metavar="ARGS",
    help="The launch command, or only its arguments, as typed. "
    "[this, --launch-file or --pid is required, except with several --tree]",
)
@click.option(
    "--launch-file",
    type=click.Path(path_type=Path),
    help="A script or a file that holds the launch, instead of --launch.",
)
@click.option("--pid", type=int, metavar="N", help="A running server's process id, instead of --launch.")
@as_json
@quiet
def command(
    target: Path,
    draft: Path,
    trees: tuple[str, ...],
    python: str | None,
    golden: Path | None,
    trained: list[int] | None,
    launch: str | None,
    launch_file: Path | None,
    pid: int | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Judge a target, a draft and a launch by their configs, headers and the tree's own layer-id rule.

    Reads which boundaries this SGLang will capture for this draft, how wide they are together, what fc
    takes, and whether algorithm, vocabulary map, heads, norms, positions and element types fit. Imports
    neither torch nor sglang. Exit: 0 ok, 1 a fault, 2 could not, 3 something that a verdict needs is missing.

    \b
    Example:
      specwire preflight --target K2.5 --draft K2.5-eagle3 --golden k25.safetensors --tree installed \\
        --launch "python -m sglang.launch_server --model-path K2.5 --speculative-algorithm EAGLE3
                  --speculative-draft-model-path K2.5-eagle3 --tp 8"

    \b
    Before an upgrade (no launch needed):
      specwire preflight --target T --draft D --trained 3,31,59 --tree sglang==0.5.9 --tree sglang==0.5.23
    """
    given = [name for name, value in (("--launch", launch), ("--launch-file", launch_file), ("--pid", pid)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} say the same thing: give one.")
    if not given and len(trees) < 2:
        raise click.UsageError(
            'give the launch: --launch "ARGS", --launch-file FILE or --pid N (several --tree need none).'
        )
    from specwire.preflight import preflight
    from specwire.preflight.render import page
    from specwire.trees.tree import Tree

    note("reading configs, headers and the tree's source", quiet or as_json)
    document = preflight(
        target,
        draft,
        [Tree.find(name, python) for name in trees or ("installed",)],
        launch=launch,
        launch_from=launch_file,
        pid=pid,
        golden=golden,
        trained=trained,
    )
    if as_json:
        emit(document)
    else:
        print(page(document))
    return CODES[document["verdict"]]
