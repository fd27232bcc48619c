from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from specwire.cli import _options as options
from specwire.errors import OK


@click.command(short_help="Print the environment and the arguments of a server that is started by hand.")
@click.option("--tree", default="installed", show_default=True, metavar="TREE", help="The SGLang that will serve.")
@click.option(
    "--target", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The target model's directory."
)
@click.option("--draft", metavar="DIR", type=click.Path(path_type=Path), help="The draft model's directory.")
@options.ranks
@options.device
@options.graphs
@click.option("--cpu", is_flag=True, help="The same as --device cpu.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="The server's port [default: a free one].")
@options.python_exe
@options.as_json
def command(
    tree: str,
    target: Path,
    draft: Path | None,
    ranks: int,
    device: str,
    graphs: str,
    cpu: bool,
    port: int | None,
    python: str | None,
    as_json: bool,
) -> int:
    """Print the environment and the arguments with which `verify` would start the engine, for a server by hand.

    No cached prefix and no chunks, so that each token of a prompt passes through the model in one prefill and has its
    row in the golden. With --graphs off, CUDA graphs are off in the words of the release; with them on, chunks are as large as
    the release has them, since prefills are only captured up to a chunk's size.

    \b
    Example: specwire engine-args --cpu --target DIR --draft DIR --tp 2 > serve.sh
             specwire engine-args --target DIR --draft DIR --json
    """
    from specwire.engine import arguments
    from specwire.engine.graphs import eager
    from specwire.engine.run import resolve_device
    from specwire.preflight.interpreter.modules import Source
    from specwire.preflight.option_source import read_options
    from specwire.trees.tree import Tree

    exe = python or sys.executable
    chosen = resolve_device("cpu" if cpu else device, exe)
    found = Tree.find(tree, python)
    extra = [f"--port={port}"] if port else []
    chunks_or_off: tuple[str, ...] = ()
    if chosen == "cuda" and graphs == "off":
        chunks_or_off = eager((), read_options(Source(found)).by_name).arguments
    elif chosen == "cuda":
        chunks_or_off = ("--no-chunked-prefill-size",)  # without chunks no prefill is captured
    argv = arguments.server_arguments(
        target.absolute(), draft and draft.absolute(), tp=ranks, device=chosen, extra=[*extra, *chunks_or_off], tokens=0
    )
    if port:  # the user's comes last and wins; the one found free is only in the way
        argv = [flag for flag in argv if not flag.startswith("--port=") or flag == extra[0]]
    own = arguments.environment(found.root, ranks=arguments.rank_count(argv), device=chosen, extra={})
    added = {name: value for name, value in own.items() if os.environ.get(name) != value}
    words = [exe, "-m", "sglang.launch_server", *argv]
    if as_json:
        options.emit({"schema": "specwire.engine-args/1", "device": chosen, "env": added, "argv": words})
        return OK
    for name, value in added.items():
        print(f"export {name}={shlex.quote(value)}")
    print(" \\\n    ".join([shlex.join(words[:3]), *map(shlex.quote, words[3:])]))
    return OK
