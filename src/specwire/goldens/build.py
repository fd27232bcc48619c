"""Builds a golden by running the target in Hugging Face transformers, and measures how noisy it is.

The states are computed one precision above the one that will be served, and in the serving precision, in one pass over
the checkpoint: the distance between the two is the noise floor that a later check goes by.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.goldens import stream
from specwire.goldens.checkpoint import Checkpoint
from specwire.goldens.golden import STRAY, Noise, PromptText, check_token_ids
from specwire.goldens.labels import ASSUMED, TRUE_LIST
from specwire.goldens.resume import Unfinished
from specwire.goldens.write import States, write_golden
from specwire.model_files import config_hash, quantised_as, read_config, target_name, text_config
from specwire.progress import Progress, silent

SEED = 20
WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}


def default_prompts(vocabulary: int, lengths: Sequence[int] = (8, 5, 13)) -> list[list[int]]:
    """Short prompts, the same every time, with no token twice where the vocabulary allows.

    Unique tokens let a row be traced to its place; different first tokens make the first row tell something.
    The lowest ids are left out: they tend to be markers of the start and the end.
    """
    low = min(16, vocabulary // 4)
    count = sum(lengths)
    picked = random.Random(SEED)
    pool = range(low, vocabulary)
    ids = picked.sample(pool, count) if len(pool) >= count else picked.choices(pool, k=count)
    return [[ids.pop() for _ in range(length)] for length in lengths]


def build_golden(
    target: Path,
    out: Path,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    words: Sequence[PromptText | None] | None = None,
    dtype: str | None = None,
    trained: Sequence[int] | None = None,
    boundaries: Sequence[int] | None = None,
    name: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress = silent,
) -> None:
    """Run the target at `target` on `prompts` and write every boundary (or `boundaries`) to `out`. `words`: what each
    prompt was made from. `threads`: how many compute on a CPU, torch's own number without; another reads meanwhile.

    One layer of weights is in memory at a time, so a target of any size will do, and nothing above the highest boundary is
    read. What has been computed is kept beside `out` until the golden is written: after a stop the same call goes on.

    Raises SpecwireError, with nothing written, when the target cannot be read, when weights are missing, when
    an id is beyond the vocabulary, or when a state is not finite.
    """
    config = text_config(read_config(target))
    layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
    prompts = [list(ids) for ids in prompts] if prompts else default_prompts(vocabulary)
    check_token_ids(prompts, vocabulary, "the prompts")
    known = {} if trained else {"trained_source": ASSUMED}
    trained = list(trained) if trained else _default_trained(layers, say)
    wanted = sorted(set(boundaries) if boundaries is not None else range(layers + 1))
    for k in (*trained, *wanted):
        if not 0 <= k <= layers:
            raise SpecwireError(f"boundary {k} is not one of {target}: it has {layers} layers, so 0..{layers}")
    dtype = dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if dtype not in WIDER:
        raise SpecwireError(f"dtype {dtype!r} cannot be built: choose one of {', '.join(WIDER)}")

    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: memory in large pages, which takes far less time to get
    if threads:
        import torch

        torch.set_num_threads(threads)
    checkpoint = Checkpoint(target, config, device)
    wider = WIDER[dtype]
    made_of = {
        "checkpoint": checkpoint.identity(), "config": config_hash(target), "prompts": prompts, "dtypes": [dtype, wider],
        "trained": trained, "highest": max(wanted), "by": _source(wider, checkpoint.scheme.label),
    }  # fmt: skip
    unfinished = Unfinished(out, made_of)
    heard = stream.run(
        checkpoint,
        prompts,
        [dtype, wider],
        highest=max(wanted),
        watched=trained,
        unfinished=unfinished,
        progress=progress,
    )
    served = [_states(target, ids, heard[dtype, number]) for number, ids in enumerate(prompts)]
    exact = [_states(target, ids, heard[wider, number]) for number, ids in enumerate(prompts)]
    stored = [
        _stored(states, wanted, dtype, of) for states, of in zip(exact, words or [None] * len(exact), strict=True)
    ]
    noise = {dtype: _noise(served, stored, wanted), wider: _noise(exact, stored, wanted)}
    write_golden(
        out,
        stored,
        trained=trained,
        layers=layers,
        dtype=dtype,
        target=target_name(target, name),
        noise=noise,
        source=_source(wider, checkpoint.scheme.label),
        extra={"vocab_size": str(vocabulary), "quantised": quantised_as(config), **known},
    )
    unfinished.discard()


def _default_trained(layers: int, say: Callable[[str], None]) -> list[int]:
    if layers < 7:  # with fewer two of them are the same
        raise SpecwireError(f"a target of {layers} layers has no usual boundaries: say which with --trained")
    trained = [2, layers // 2, layers - 3]
    say(f"--trained was not given: the usual {trained} are recorded, as assumed; {TRUE_LIST}")
    return trained


def _states(target: Path, ids: Sequence[int], heard: stream.Heard) -> States:
    """What one lane recorded, with the residuals of which it is certain that they and their branch make the stream."""
    import torch

    residuals = {}
    for k, branch in heard.branches.items():
        residual, boundary = heard.residuals.get(k), heard.boundaries.get(k)
        if residual is not None and boundary is not None and branch.numel() == residual.numel():
            if torch.equal(residual + branch.view_as(residual), boundary):
                residuals[k] = residual
    for k, boundary in heard.boundaries.items():
        if not torch.isfinite(boundary).all():
            raise SpecwireError(
                f"boundary {k} of {target} is not finite in {boundary.dtype}: no golden can be built so"
            )
    return States(ids, heard.boundaries, heard.final_norm, residuals)


def _stored(states: States, wanted: Sequence[int], dtype: str, words: PromptText | None) -> States:
    import torch

    to = getattr(torch, dtype)
    return States(
        states.token_ids,
        {k: states.boundaries[k].to(to) for k in wanted},
        None if states.final_norm is None else states.final_norm.to(to),
        {k: residual.to(to) for k, residual in states.residuals.items()},
        words,
    )


def _noise(run: Sequence[States], stored: Sequence[States], wanted: Sequence[int]) -> dict[int, Noise]:
    """Relative L2 of each row of `run` against what is stored, per boundary."""
    import torch

    table = {}
    for k in wanted:
        errors = torch.cat(
            [
                (one.boundaries[k].double() - kept.boundaries[k].double()).norm(dim=-1)
                / kept.boundaries[k].double().norm(dim=-1)
                for one, kept in zip(run, stored, strict=True)
            ]
        )
        median = errors.median().item()
        stray = (errors > STRAY * median).double().mean().item() if median else 0.0
        table[k] = Noise(_short(median), _short(errors.max().item()), _short(stray))
    return table


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _source(dtype: str, quantised: str) -> str:
    import torch
    import transformers

    from specwire import __version__

    of = f" from {quantised}" if quantised else ""
    return (
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, computed in {dtype}{of}; "
        f"specwire {__version__} golden build"
    )
