"""Builds a golden by running the target in Hugging Face transformers, and measures how noisy it is.

The states are computed one precision above the one that will be served, where the machine can afford it, and
then once more in the serving precision: the distance between the two is the noise floor that a later check
goes by.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError
from specwire.goldens.golden import STRAY, Noise, check_token_ids
from specwire.goldens.labels import ASSUMED, TRUE_LIST
from specwire.goldens.write import States, write_golden
from specwire.model_files import read_config, target_name, text_config
from specwire.regular import read_text
from specwire.tensorfile import open_tensors

if TYPE_CHECKING:
    import torch

SEED = 20
WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


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
    dtype: str | None = None,
    trained: Sequence[int] | None = None,
    boundaries: Sequence[int] | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the target at `target` on `prompts` and write every boundary (or `boundaries`) to `out`.

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

    served = _run(target, prompts, dtype, trained, say)
    exact = _run_if_affordable(target, prompts, WIDER[dtype], trained, say)
    stored = [_stored(states, wanted, dtype) for states in (exact or served)]
    noise = {}
    if exact:
        noise[dtype] = _noise(served, stored, wanted)
        noise[WIDER[dtype]] = _noise(exact, stored, wanted)
    write_golden(
        out,
        stored,
        trained=trained,
        layers=layers,
        dtype=dtype,
        target=target_name(target, name),
        noise=noise,
        source=_source(WIDER[dtype] if exact else dtype),
        extra={"vocab_size": str(vocabulary), **known},
    )


def _default_trained(layers: int, say: Callable[[str], None]) -> list[int]:
    if layers < 7:  # with fewer two of them are the same
        raise SpecwireError(f"a target of {layers} layers has no usual boundaries: say which with --trained")
    trained = [2, layers // 2, layers - 3]
    say(f"--trained was not given: the usual {trained} are recorded, as assumed; {TRUE_LIST}")
    return trained


def _run_if_affordable(
    target: Path,
    prompts: Sequence[Sequence[int]],
    dtype: str,
    trained: Sequence[int],
    say: Callable[[str], None],
) -> list[States] | None:
    need = sum(
        (entry.stop - entry.start) // max(1, entry.row_bytes) * entry.row_bytes * BYTES[dtype] / 2
        for shard in sorted(target.glob("*.safetensors"))
        for entry in open_tensors(shard).tensors.values()
    )
    if need > 0.6 * _available():
        say(f"computing in {dtype} would take {need / 2**30:.0f} GiB: not done, so no noise floor is recorded")
        return None
    try:
        return _run(target, prompts, dtype, trained, say)
    except SpecwireError as error:
        say(f"could not compute in {dtype}, so no noise floor is recorded: {error}")
        return None


def _available() -> int:
    try:
        lines = read_text("/proc/meminfo").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 8 * 2**30


def _run(
    target: Path,
    prompts: Sequence[Sequence[int]],
    dtype: str,
    trained: Sequence[int],
    say: Callable[[str], None],
) -> list[States]:
    """The target's states in one precision, one prompt at a time and without a cache."""
    import torch

    say(f"running {target.name} in {dtype}")
    model = _load(target, dtype)
    with torch.inference_mode(), _listening(model, trained) as heard:
        found = []
        for ids in prompts:
            heard.clear()
            output = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
            found.append(_states(target, ids, output.hidden_states, heard))
    return found


def _load(target: Path, dtype: str) -> Any:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"experts_implementation": "eager"} if dtype == "float64" else {}
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            target,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpecwireError(f"transformers cannot load the target {target}: {first}") from error
    if missing := sorted(info["missing_keys"]):
        raise SpecwireError(
            f"{target} lacks {len(missing)} weights that the model needs, first {missing[0]}: they would be random"
        )
    return model.eval()


@contextmanager
def _listening(model: Any, trained: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Records the final norm's input and output, and the stream to which the layer before a trained boundary
    adds its last branch (`residual`, with the `branch` itself, where the layer is built so)."""
    heard: dict[str, Any] = {}
    base = model.base_model
    base = model.model if base is model else getattr(base, "language_model", base)  # Llama 4 names no base
    norm = _first(base, "norm", "final_layernorm", "ln_f")
    if norm is None:
        raise SpecwireError(
            f"no final norm found in {type(base).__name__}: this architecture is not supported by golden build"
        )

    def on_norm(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        heard["last"], heard["final_norm"] = inputs[0][0], output[0]

    hooks = [norm.register_forward_hook(on_norm)]
    for k in trained:
        layer = base.layers[k - 1] if k else None
        inner = _first(layer, "pre_feedforward_layernorm", "post_attention_layernorm")
        mlp = _first(layer, "post_feedforward_layernorm", "post_mlp_layernorm", "mlp")  # the last to touch the branch
        if inner is not None and mlp is not None:
            hooks.append(
                inner.register_forward_pre_hook(lambda _, args, k=k: heard.update({f"residual.{k}": args[0][0]}))
            )
            hooks.append(
                mlp.register_forward_hook(
                    lambda _, args, output, k=k: heard.update(
                        {f"branch.{k}": (output[0] if isinstance(output, tuple) else output)}
                    )
                )
            )
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _first(module: Any, *names: str) -> Any:
    """The first of these that the module has."""
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _states(target: Path, ids: Sequence[int], hidden_states: Sequence[torch.Tensor], heard: dict[str, Any]) -> States:
    import torch

    layers = len(hidden_states) - 1
    boundaries = {k: hidden_states[k][0].clone() for k in range(layers)}
    boundaries[layers] = heard["last"].clone()
    residuals = {}
    for k, stream in boundaries.items():
        residual, branch = heard.get(f"residual.{k}"), heard.get(f"branch.{k}")
        if residual is not None and branch is not None and torch.equal(residual + branch.view_as(residual), stream):
            residuals[k] = residual.clone()
    for k, stream in boundaries.items():
        if not torch.isfinite(stream).all():
            raise SpecwireError(f"boundary {k} of {target} is not finite in {stream.dtype}: no golden can be built so")
    return States(ids, boundaries, heard["final_norm"].clone(), residuals)


def _stored(states: States, wanted: Sequence[int], dtype: str) -> States:
    import torch

    to = getattr(torch, dtype)
    return States(
        states.token_ids,
        {k: states.boundaries[k].to(to) for k in wanted},
        None if states.final_norm is None else states.final_norm.to(to),
        {k: residual.to(to) for k, residual in states.residuals.items()},
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


def _source(dtype: str) -> str:
    import torch
    import transformers

    from specwire import __version__

    return (
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, computed in "
        f"{dtype}; "
        f"specwire {__version__} golden build"
    )
