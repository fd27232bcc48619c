"""`specwire golden`: make golden files, and look into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from specwire.cli import _options
from specwire.cli._progress import Shown
from specwire.errors import SpecwireError, said, shortened
from specwire.needs import require
from specwire.regular import read_json


@click.group("golden")
def command() -> None:
    """Make golden files: from a reference model, from training data; show one.

    Example: specwire golden build --target models/target --out target.safetensors
    """


@command.command("build")
@click.option("--target", required=True, type=click.Path(path_type=Path), help="The target model's directory.")
@click.option("-o", "--out", required=True, type=_options.OutFile(), metavar="FILE", help="The golden file to write.")
@click.option("--tokens", multiple=True, metavar="IDS", help="Token ids of one prompt, such as 3,4,5; may be repeated.")
@click.option(
    "--prompts",
    "prompts_file",
    type=click.Path(path_type=Path),
    help="JSON file with a list of lists of token ids.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File whose text is one prompt, by the target's own tokenizer; may be repeated.",
)
@click.option(
    "--messages",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help="Conversations, one a line: a list of messages, or an object with messages and tools, by the target's own chat "
    "template.",
)
@click.option(
    "--thinking", type=click.Choice(["on", "off"]), help="The chat template's thinking switch; its own default without."
)
@click.option(
    "--template-args",
    metavar="JSON",
    help='Further variables of the chat template, such as {"reasoning_effort": "low"}.',
)
@click.option(
    "--trained",
    metavar="KS",
    callback=_options.listed,
    help="Boundaries the draft was trained on, in slot order, such as 3,31,59. Without it the engine's usual ones are "
    "recorded as assumed: no difference to them is then a fault.",
)
@click.option("--boundaries", default="all", show_default=True, metavar="all|KS", help="Boundaries to store.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Precision that will be served; the target's own by default.",
)
@click.option("--name", help="The target's name, to be recorded; its directory's by default.")
@click.option(
    "--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]), help="Where layers are computed."
)
@click.option(
    "--threads", type=click.IntRange(1), help="Threads that compute; all cores by default. Beside a busy server: few."
)
@_options.force
@_options.quiet
@_options.as_json
def build(
    target: Path,
    out: Path,
    tokens: tuple[str, ...],
    prompts_file: Path | None,
    texts: tuple[Path, ...],
    messages: Path | None,
    thinking: str | None,
    template_args: str | None,
    trained: list[int] | None,
    boundaries: str,
    dtype: str | None,
    name: str | None,
    device: str,
    threads: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the target in transformers and store every boundary: one layer in memory at a time, so any size will do.

    What has been computed is kept beside the file: stopped or killed, the same command goes on at that layer.

    \b
    Example: specwire golden build --target models/target --out target.safetensors --trained 3,31,59
             specwire golden build --target models/target --out chat.safetensors --messages chat.jsonl --thinking off
    """
    require("torch", "transformers", "greenlet")
    from specwire.goldens.build import build_golden
    from specwire.goldens.texts import from_messages, from_texts

    if sum(map(bool, (tokens, prompts_file, texts, messages))) > 1:
        raise SpecwireError("give one of --tokens, --prompts, --text and --messages")
    if (thinking or template_args) and not messages:
        raise SpecwireError(
            "--thinking and --template-args are the chat template's: give the conversations as --messages"
        )
    prompts, words = [_options.numbers(text, "--tokens") for text in tokens] or None, None
    if prompts_file:
        prompts = _read_prompts(prompts_file)
    elif texts:
        prompts, words = from_texts(target, texts)
    elif messages:
        switch = None if thinking is None else thinking == "on"
        prompts, words = from_messages(target, messages, thinking=switch, arguments=_object(template_args))
    with Shown(quiet) as progress:
        build_golden(
            target,
            out,
            prompts,
            words=words,
            dtype=dtype,
            trained=trained,
            boundaries=None if boundaries == "all" else _options.numbers(boundaries, "--boundaries"),
            name=name,
            device=device,
            threads=threads,
            say=lambda text: _options.note(text, quiet),
            progress=progress,
        )
    _show(out, as_json)


@command.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--target",
    required=True,
    type=click.Path(path_type=Path),
    help="The target model's directory; its config.json is read.",
)
@click.option("-o", "--out", required=True, type=_options.OutFile(), metavar="FILE", help="The golden file to write.")
@click.option(
    "--ids",
    metavar="IDS",
    callback=_options.listed,
    help="Layer ids of the data, in its order, as the trainer wrote them.",
)
@click.option(
    "--convention",
    type=click.Choice(["boundary", "layer-output"]),
    help="Whether an id k is boundary k or the output of layer k.",
)
@click.option(
    "--trained",
    metavar="KS",
    callback=_options.listed,
    help="Boundaries the draft was trained on, in slot order; all of the data's by default.",
)
@click.option("--limit", default=8, show_default=True, help="Records to take.")
@_options.force
@_options.quiet
@_options.as_json
def import_(
    path: Path,
    target: Path,
    out: Path,
    ids: list[int] | None,
    convention: str | None,
    trained: list[int] | None,
    limit: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make a golden of training data: a file, or a directory of files or of a capture.

    \b
    What is read (token ids: token_ids, input_ids or tokens):
      SpecForge      *.ckpt, *.ckpt.gz: aux_hidden_state [1, n, k*h], hidden_state
                     its default ids 1,L/2-1,L-4 are layer-output
      speculators    hs_*.safetensors: hidden_states [n, k+1, h], its last is boundary L
                     ids as in its --target-layer-ids, then L, are boundary
      speculators    (to 0.4) data_*.pt: hidden_states, a list of k+1 [n, h]
                     ids of data_config.json are layer-output
      any dict, or   *.pt, *.pth, *.safetensors: hidden_states or concat as [n, k*h],
      a list of them [n, k, h] or [k, n, h]; hidden_state [n, k*h] with k > 1
      capture        of hidden-state-dump, or the --out of specwire run; with --trained

    \b
    Example:
      specwire golden import features/ --target models/target --ids 1,29,57 --convention layer-output \\
        --out data.safetensors
    """
    from specwire.goldens.imports import import_golden

    if limit < 1:
        raise SpecwireError("--limit must be at least 1")
    import_golden(
        path,
        out,
        target,
        ids=ids,
        convention=convention,
        trained=trained,
        limit=limit,
        say=lambda text: _options.note(text, quiet),
    )
    _show(out, as_json)


@command.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--tokens", is_flag=True, help="Only the token ids of every prompt, as `input_ids` of a request.")
@_options.as_json
def show(file: Path, tokens: bool, as_json: bool) -> None:
    """Say what a golden file holds.

    Example: specwire golden show golden/target.safetensors
    """
    if not tokens:
        return _show(file, as_json)
    from specwire.goldens.show import describe

    prompts = describe(file).get("prompts")
    if prompts is None:
        raise SpecwireError(
            f"{file} holds printed values and no token ids: its prompt is known to whoever made the log"
        )
    print(json.dumps([one["token_ids"] for one in prompts], separators=(",", ":")))


def _show(path: Path, as_json: bool) -> None:
    from specwire.goldens.show import describe, describe_text

    document = describe(path)
    if as_json:
        _options.emit(document)
    else:
        _options.show(describe_text(document))


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SpecwireError(f"--template-args takes a JSON object, not {shortened(text)}")
    return found


def _read_prompts(path: Path) -> list[list[int]]:
    try:
        found: Any = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecwireError(f"cannot read the prompts in {path}: {said(error)}") from error
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(ids, list) and ids and all(type(token) is int for token in ids) for ids in found)
    ):
        raise SpecwireError(f"{path} must hold a JSON list of lists of token ids, none empty")
    return found
