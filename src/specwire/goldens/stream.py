"""Runs a target of any size: its own forward, one layer of weights in memory at a time, experts one by one.

The model is transformers' own, with its parameters on the meta device and its buffers real. Each prompt, in each
precision, is a lane: the model's untouched forward in a greenlet, which stops before every decoder layer and, in a layer
whose experts are too many to hold, before every expert. When all lanes have come to a layer its weights are read once,
each lane passes, and the weights go. So masks, positions, norms and routing are the model's, whatever it is, and the
numbers are those of the whole model to the last bit: the same operations run on the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError
from specwire.goldens.checkpoint import Checkpoint
from specwire.goldens.quantised import Dense
from specwire.progress import Progress, silent

if TYPE_CHECKING:
    import torch

    from specwire.goldens.resume import Unfinished

WHOLE_EXPERTS = 256 << 20  # bytes: a layer's experts up to here are read together, beyond it one at a time
LARGE = 1 << 20  # numbers: buffers are smaller
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_NORMS = ("norm", "final_layernorm", "ln_f")
Key = tuple[str, int]  # precision and number of a prompt
_AUTO = ("AutoModelForCausalLM", "AutoModelForImageTextToText")


@dataclass
class Heard:
    """What one lane recorded: boundary k [n, hidden], the final norm's output, and for the boundaries that were asked
    for the stream and the branch that the layer before them adds up, both [n, hidden]."""

    boundaries: dict[int, torch.Tensor] = field(default_factory=dict)
    final_norm: torch.Tensor | None = None
    residuals: dict[int, torch.Tensor] = field(default_factory=dict)
    branches: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Before:
    """A lane's stop before a decoder layer."""

    layer: int


@dataclass(frozen=True)
class _Expert:
    """A lane's stop before it uses an expert of the layer that it is in."""

    number: int


class _Enough(BaseException):
    """Ends a lane's forward once the highest boundary that is wanted has been recorded."""


class Lane:
    """One prompt in one precision on its way through the model."""

    def __init__(self, model: Streamed, ids: Sequence[int], name: str) -> None:
        from greenlet import greenlet

        self.model, self.ids, self.name = model, ids, name
        self.heard = Heard()
        self.stop: _Before | _Expert | None = None  # None: at its end
        self.known = 0  # layers whose output an earlier run has recorded: they are not computed again
        self._run = greenlet(lambda: self.model.forward(self))

    def go_on(self) -> None:
        """Run until the next stop, or the end."""
        self.model.lane = self
        self.stop = self._run.switch()

    def stop_at(self, stop: _Before | _Expert) -> None:
        """Wait there until told to go on. Called from within the lane."""
        self._run.parent.switch(stop)
        self.model.lane = self

    def give_up(self) -> None:
        """End the forward where it stands."""
        from greenlet import GreenletExit

        if self._run:
            self._run.throw(GreenletExit)


class Streamed:
    """A target's model in one precision, without weights: they come by `enter` and go by `leave`, layer by layer."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, made_in: torch.dtype, watched: Sequence[int]) -> None:
        """`made_in`: the precision that quantised tensors are made dense in. `watched`: boundaries whose last addition is
        recorded too. Raises SpecwireError for an unknown model."""
        import torch
        from transformers.conversion_mapping import get_model_conversion_mapping

        self.checkpoint, self.name, self.device = checkpoint, dtype, checkpoint.device
        self.made_in = made_in
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.model = _skeleton(checkpoint.directory, self.dtype)
        if self.device != "cpu":
            for module in self.model.modules():
                module._buffers.update(
                    {key: value.to(self.device) for key, value in module._buffers.items() if value is not None}
                )
        self.path, self.text, self.layers, self.norm = _parts(self.model)
        self.lane: Lane | None = None
        self.highest = len(self.layers)
        self._mapping = get_model_conversion_mapping(self.model)
        self._renamings, self._converters = self._split_mapping()
        self._shapes = self.model.state_dict()
        self._plan = {
            re.compile(name.replace("*", ".*")): to for name, to in self.model._get_dtype_plan(self.dtype).items()
        }
        self._patterns: dict[str, dict[str, str | None]] = {}  # which of a conversion's sources a tensor is
        self._sources = self._by_target()
        self._targets = self._by_layer()
        self._lazy: list[_LazyExperts] = []
        # What was seen of its layers: whether they give tuples, and whether all that they hand on is one stream.
        self.traits = {"tuples": False, "resumable": True}
        self._hook(watched)

    def forward(self, lane: Lane) -> None:
        """The model's own forward for one lane, in its greenlet."""
        import torch

        base = getattr(self.model, "model", self.model.base_model)
        try:
            base(input_ids=torch.tensor([list(lane.ids)], device=self.device), use_cache=False)
        except _Enough:
            pass

    # --- weights ----------------------------------------------------------------------------------------

    def needs_first(self) -> list[Dense]:
        """What is in no layer: norms and projections beside them. Of embeddings only rows are read, when they are used."""
        return [source for target in self._outside() for source in self._sources[target]]

    def begin(self, stored: Stored) -> None:
        """Fill what is in no layer of what is `stored`, which is all that `needs_first` names."""
        self._load(self._outside(), stored)

    def _outside(self) -> list[str]:
        body = f"{self.path}." if self.path else ""
        unwanted = [f"{body}layers.", *(f"{name}.weight" for name, _ in self._embeddings())]
        if self.highest < len(self.layers):
            unwanted.append(next(name for name, module in self.model.named_modules() if module is self.norm) + ".")
        return [
            target for target in self._sources if target.startswith(body) and not target.startswith(tuple(unwanted))
        ]

    def needs(self, layer: int) -> list[Dense]:
        """The dense tensors of a layer that are read together: all but experts that come one at a time."""
        return [
            source for target in self._of_layer(layer) if not self._is_lazy(target) for source in self._sources[target]
        ]

    def by_expert(self, layer: int) -> bool:
        """Whether experts of a layer come one at a time."""
        return any(self._is_lazy(target) for target in self._of_layer(layer))

    def enter(self, layer: int, stored: Stored) -> None:
        """Fill a layer of what is `stored`, which is all that `needs` names."""
        self._load([target for target in self._of_layer(layer) if not self._is_lazy(target)], stored)
        self._lazy = [_LazyExperts(self, target) for target in self._of_layer(layer) if self._is_lazy(target)]

    def leave(self, layer: int) -> None:
        """Let go of a layer's weights."""
        import torch

        for lazy in self._lazy:
            lazy.put_back()
        self._lazy = []
        for module in self.layers[layer].modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)

    def expert(self, target: str, number: int) -> torch.Tensor:
        """One expert of a stacked parameter, converted as the whole would be."""
        made = self.checkpoint.expert(number, target, lambda: self._expert(target, number))
        return made.to(self._precision(target))

    def _expert(self, target: str, number: int) -> torch.Tensor:
        """The same in the precision that it was stored or made dense in: conversion only moves numbers, so that it is done
        once for all precisions."""
        sources = self._sources[target]
        own = [source for source in sources if (match := _EXPERT.search(source.name)) and int(match[1]) == number]
        dense = {}
        for source in own or sources:
            stored = self.checkpoint.parts(source.parts, *(() if own else (number, 1)))
            dense[source.name] = self.checkpoint.scheme.make(source, stored, self.made_in)
        return self._converted(target, dense)[target][0]

    def _load(self, targets: Sequence[str], stored: Stored) -> None:
        import torch

        for target in targets:
            dense = {source.name: stored.dense(source) for source in self._sources[target]}
            to = self._precision(target)
            dense = {name: tensor.to(to) if tensor.is_floating_point() else tensor for name, tensor in dense.items()}
            for name, value in self._converted(target, dense).items():
                holder, _, last = name.rpartition(".")
                module, wants = self.model.get_submodule(holder), self._shapes[name]
                if value.shape != wants.shape:
                    raise SpecwireError(
                        f"{self.checkpoint.directory}: {name} has shape {list(value.shape)}, and the config makes it "
                        f"{list(wants.shape)}"
                    )
                if last in module._buffers:
                    module._buffers[last] = value
                else:
                    module._parameters[last] = torch.nn.Parameter(value, requires_grad=False)

    def _converted(self, target: str, dense: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What transformers' own conversion makes of the tensors of one parameter, by name: it may make several of one."""
        from transformers.core_model_loading import WeightConverter

        patterns = self._patterns[target]
        if not any(patterns.values()):
            (value,) = dense.values()
            return {target: value}
        origin = next(each for each in self._converters if next(iter(patterns.values())) in each.source_patterns)
        converter: WeightConverter = deepcopy(origin)
        for name, tensor in dense.items():
            converter.add_tensor(target, name, patterns[name], tensor)
        converter.operations = [_alone(operation) for operation in converter.operations]
        try:
            made = converter.convert(target, model=self.model, config=self.model.config)
        except Exception as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise SpecwireError(f"{self.checkpoint.directory}: {target} cannot be converted: {why}") from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def _precision(self, target: str) -> torch.dtype:
        """Of a parameter: some stay in float32 whatever the model is run in."""
        kept = self._shapes[target].dtype
        return next((to for pattern, to in self._plan.items() if pattern.search(target)), kept)

    def missing(self, layers: int) -> list[str]:
        """Parameters of the first `layers` layers that nothing in the checkpoint fills: they would be random."""
        wanted = [f"{self._layer(number)}." for number in range(layers)]
        there = set(self._sources) | self._others()
        return sorted(
            name for name, _ in self.model.named_parameters() if name.startswith(tuple(wanted)) and name not in there
        )

    def _others(self) -> set[str]:
        """Further targets of conversions that make several parameters of one tensor."""
        found = set()
        for target in self._sources:
            for converter in self._converters:
                for first in converter.target_patterns[:1]:
                    if len(converter.target_patterns) > 1 and first in target:
                        found |= {target.replace(first, other) for other in converter.target_patterns[1:]}
        return found

    def _by_target(self) -> dict[str, list[Dense]]:
        """The dense tensors of the checkpoint by the parameter that they make, the first where they make several."""
        from transformers.core_model_loading import rename_source_key

        prefix = self.model.base_model_prefix
        found: dict[str, list[Dense]] = {}
        for name, source in sorted(self.checkpoint.dense.items(), key=lambda pair: _natural(pair[0])):
            target, pattern = rename_source_key(name, self._renamings, self._converters, prefix, self._shapes)
            if target not in self._shapes and name in self._shapes:
                target, pattern = rename_source_key(name, [], [], prefix, self._shapes)
            if target in self._shapes:
                found.setdefault(target, []).append(source)
                self._patterns.setdefault(target, {})[name] = pattern
        return found

    def _split_mapping(self) -> tuple[list[Any], list[Any]]:
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        renamings = [entry for entry in self._mapping if isinstance(entry, WeightRenaming)]
        return renamings, [entry for entry in self._mapping if isinstance(entry, WeightConverter)]

    def _layer(self, number: int) -> str:
        return f"{self.path}.layers.{number}" if self.path else f"layers.{number}"

    def _by_layer(self) -> dict[int, list[str]]:
        start = f"{self.path}.layers." if self.path else "layers."
        found: dict[int, list[str]] = {}
        for target in self._sources:
            if target.startswith(start):
                found.setdefault(int(target.removeprefix(start).partition(".")[0]), []).append(target)
        return found

    def _of_layer(self, number: int) -> list[str]:
        return self._targets.get(number, [])

    def _is_lazy(self, target: str) -> bool:
        """A stacked parameter of experts that a loop takes one by one, and that are too large together."""
        holder, _, name = target.rpartition(".")
        module = self.model.get_submodule(holder)
        if not hasattr(type(module).forward, "__wrapped__") or not hasattr(module, "num_experts"):
            return False
        shape = self._shapes[target].shape
        if len(shape) != 3 or shape[0] != module.num_experts:
            return False
        return self._shapes[target].numel() * self.made_in.itemsize > WHOLE_EXPERTS

    def _embeddings(self) -> Iterator[tuple[str, Any]]:
        import torch

        for name, module in self.model.named_modules():
            inside = name.startswith(f"{self.path}.") if self.path else True
            if inside and ".layers." not in name and isinstance(module, torch.nn.Embedding):
                yield name, module

    # --- hooks ------------------------------------------------------------------------------------------

    def _hook(self, watched: Sequence[int]) -> None:
        for number, layer in enumerate(self.layers):
            layer.forward = self._unless_known(number, layer.forward)
            layer.register_forward_pre_hook(
                lambda _, args, kwargs, k=number: self._before(k, args, kwargs), with_kwargs=True
            )
            layer.register_forward_hook(self._after)
        self.norm.register_forward_hook(self._at_norm)
        for name, module in self._embeddings():
            row = module.weight.new_zeros((1, *module.weight.shape[1:]), device=self.device)
            module._parameters["weight"] = type(module.weight)(row, requires_grad=False)  # some ask where it is
            module.register_forward_pre_hook(lambda module, args, name=name: self._rows(module, name, args))
        for k in watched:
            self._watch(k)

    def _before(self, layer: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        lane = self.lane
        assert lane is not None
        states = args[0] if args else kwargs["hidden_states"]
        if states.dim() != 3 or states.shape[1] != len(lane.ids):
            raise SpecwireError(
                f"{self.checkpoint.directory}: {type(self.layers[layer]).__name__} takes states of shape "
                f"{list(states.shape)}: not one stream of [prompts, tokens, hidden], so it has no boundaries as EAGLE-3 means them"
            )
        lane.heard.boundaries[layer] = states[0].detach().clone().cpu()
        if any(_keeps(value) for value in kwargs.values()):
            self.traits["resumable"] = False
        if layer >= self.highest:
            raise _Enough
        if layer >= lane.known:
            lane.stop_at(_Before(layer))

    def _unless_known(self, layer: int, compute: Callable[..., Any]) -> Callable[..., Any]:
        """A layer's forward, or what an earlier run recorded of it."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            lane = self.lane
            assert lane is not None
            if layer >= lane.known:
                return compute(*args, **kwargs)
            states = lane.heard.boundaries[layer + 1].to(self.device)[None]
            return (states,) if self.traits["tuples"] else states

        return forward

    def _after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, tuple):
            self.traits["tuples"] = True
            self.traits["resumable"] = self.traits["resumable"] and len(output) == 1

    def _at_norm(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        lane = self.lane
        assert lane is not None
        if lane.stop is None or len(lane.heard.boundaries) < len(self.layers):
            return  # a model may use its final norm in other places
        lane.heard.boundaries[len(self.layers)] = args[0][0].detach().clone().cpu()
        lane.heard.final_norm = output[0].detach().clone().cpu()
        raise _Enough

    def _watch(self, k: int) -> None:
        """Record the stream to which the layer before boundary k adds its last branch, and that branch."""
        layer = self.layers[k - 1] if k else None
        inner = _first(layer, "pre_feedforward_layernorm", "post_attention_layernorm")
        last = _first(layer, "post_feedforward_layernorm", "post_mlp_layernorm", "mlp")  # the last to touch the branch
        if inner is None or last is None:
            return

        def stream(_: Any, args: tuple[Any, ...]) -> None:
            assert self.lane is not None
            self.lane.heard.residuals[k] = args[0][0].detach().clone().cpu()

        def branch(_: Any, args: tuple[Any, ...], output: Any) -> None:
            assert self.lane is not None
            output = output[0] if isinstance(output, tuple) else output
            self.lane.heard.branches[k] = output.detach().clone().cpu()

        inner.register_forward_pre_hook(stream)
        last.register_forward_hook(branch)

    def _rows(self, module: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Fill an embedding with the rows that these ids take, and number the ids by them."""
        import torch

        ids = args[0]
        wanted, places = torch.unique(ids, return_inverse=True)
        sources = self._sources.get(f"{name}.weight")
        if not sources:
            raise SpecwireError(
                f"{self.checkpoint.directory} lacks 1 weights that the model needs, first {name}.weight"
            )
        (source,) = sources
        if source.quantised:
            whole = self.checkpoint.scheme.make(source, self.checkpoint.parts(source.parts), self.made_in)
            rows = whole[wanted]
        else:
            rows = self.checkpoint.rows(source.name, wanted.tolist())
        kept = module._parameters["weight"].dtype
        module._parameters["weight"] = torch.nn.Parameter(rows.to(device=self.device, dtype=kept), requires_grad=False)
        module.padding_idx = None
        return (places, *args[1:])


class Stored:
    """What was read of a layer, made dense when it is asked for, and let go of when it is asked for the last time."""

    def __init__(
        self, checkpoint: Checkpoint, parts: dict[str, torch.Tensor], dtype: torch.dtype, readers: int
    ) -> None:
        """`dtype`: what quantised tensors are made in. `readers`: how many times each is asked for."""
        self._checkpoint, self._parts, self._dtype, self._readers = checkpoint, parts, dtype, readers
        self._made: dict[str, tuple[torch.Tensor, int]] = {}

    def dense(self, source: Dense) -> torch.Tensor:
        made, times = self._made.pop(source.name, (None, self._readers))
        if made is None:
            parts = {name: self._parts.pop(name) for name in source.parts}
            made = self._checkpoint.scheme.make(source, parts, self._dtype)
        if times > 1:
            self._made[source.name] = made, times - 1
        return made


class _LazyExperts:
    """Stands where a stacked parameter of experts was: gives one expert when it is asked for."""

    def __init__(self, model: Streamed, target: str) -> None:
        holder, _, self._name = target.rpartition(".")
        self._model, self._target = model, target
        self._module = model.model.get_submodule(holder)
        self._parameter = self._module._parameters.pop(self._name)
        self._module.__dict__[self._name] = self
        self._held: tuple[int, torch.Tensor] | None = None

    def __getitem__(self, number: Any) -> torch.Tensor:
        number = int(number)
        lane = self._model.lane
        assert lane is not None
        if lane.stop != _Expert(number):
            lane.stop_at(_Expert(number))
        if self._held is None or self._held[0] != number:
            self._held = number, self._model.expert(self._target, number)
        return self._held[1]

    def put_back(self) -> None:
        del self._module.__dict__[self._name]
        self._module._parameters[self._name] = self._parameter


def run(
    checkpoint: Checkpoint,
    prompts: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    *,
    highest: int,
    watched: Sequence[int],
    unfinished: Unfinished | None = None,
    progress: Progress = silent,
) -> dict[Key, Heard]:
    """Every boundary up to `highest` of every prompt in every precision, by (dtype, prompt), in one pass over the disk.

    `dtypes` go from narrow to wide. `unfinished` keeps what has been recorded after each layer, and knows what an earlier
    run has: those layers are not computed again, where the model hands on nothing but its stream.

    Raises SpecwireError for a model that transformers does not know, for weights that are missing, wrongly shaped or
    not finite, and for a shard that is not there.
    """
    import torch

    widest = getattr(torch, dtypes[-1])
    models = []
    for dtype in dtypes:
        model = Streamed(checkpoint, dtype, widest, [k for k in watched if k <= highest])
        model.highest = highest
        if gone := model.missing(highest):
            raise SpecwireError(
                f"{checkpoint.directory} lacks {len(gone)} weights that the model needs, first {gone[0]}: they would be random"
            )
        models.append(model)
    with torch.inference_mode(), ThreadPoolExecutor(1) as reader:
        stored = Stored(checkpoint, checkpoint.parts(_parts_of(models[0].needs_first())), widest, len(models))
        for model in models:
            model.begin(stored)
        lanes = [Lane(model, ids, f"{model.name} {number}") for model in models for number, ids in enumerate(prompts)]
        keys = [(model.name, number) for model in models for number in range(len(prompts))]
        if unfinished and (earlier := unfinished.earlier(keys, progress)):
            for key, lane in zip(keys, lanes, strict=True):
                lane.heard = earlier[key]
                lane.known = max(lane.heard.boundaries)
            for model in models:
                model.traits = dict(unfinished.traits)
        heard = {key: lane.heard for key, lane in zip(keys, lanes, strict=True)}
        try:
            _pass(checkpoint, models, lanes, heard, highest, reader, unfinished, progress)
        finally:
            for lane in lanes:
                lane.give_up()
    return heard


def _pass(
    checkpoint: Checkpoint,
    models: Sequence[Streamed],
    lanes: Sequence[Lane],
    heard: Mapping[Key, Heard],
    highest: int,
    reader: ThreadPoolExecutor,
    unfinished: Unfinished | None,
    progress: Progress,
) -> None:
    first = lanes[0].known
    for lane in lanes:
        lane.go_on()  # to the first layer that is not known, or the end
    coming = _read(checkpoint, models[0], first, highest, reader)
    for layer in range(first, highest):
        progress(f"layer {layer + 1}/{highest}, {checkpoint.bytes_read / 2**30:.2f} GiB read", layer / highest)
        stored = Stored(checkpoint, coming.result(), models[0].made_in, len(models))
        coming = _read(checkpoint, models[0], layer + 1, highest, reader)
        # Experts are read once for all, so that all must be there; any other layer is held in one precision at a time.
        together = [models] if models[0].by_expert(layer) else [[model] for model in models]
        for group in together:
            for model in group:
                model.enter(layer, stored)
            _through(layer, [lane for lane in lanes if lane.model in group])
            for model in group:
                model.leave(layer)
        checkpoint.forget_expert()
        if unfinished:
            traits = [model.traits for model in models]
            unfinished.keep(layer + 1, heard, {name: value for each in traits for name, value in each.items()})


def _read(
    checkpoint: Checkpoint, model: Streamed, layer: int, highest: int, reader: ThreadPoolExecutor
) -> Future[dict[str, torch.Tensor]]:
    """Read a layer's stored tensors while the one before is computed."""
    names = _parts_of(model.needs(layer)) if layer < highest else []
    return reader.submit(checkpoint.parts, names)


def _parts_of(sources: Sequence[Dense]) -> list[str]:
    return [part for source in sources for part in source.parts]


def _through(layer: int, lanes: Sequence[Lane]) -> None:
    """Bring every lane past a layer. Those that wait for experts go by the lowest first, so that each is read once."""
    waiting = [lane for lane in lanes if lane.stop == _Before(layer)]
    while waiting:
        lane = min(waiting, key=lambda each: each.stop.number if isinstance(each.stop, _Expert) else -1)
        lane.go_on()
        if not isinstance(lane.stop, _Expert):
            waiting.remove(lane)


def _skeleton(target: Path, dtype: torch.dtype) -> Any:
    """The target's model with parameters on the meta device and real buffers."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(target, local_files_only=True, trust_remote_code=False)
        for part in (
            config,
            *(value for value in vars(config).values() if isinstance(value, transformers.PretrainedConfig)),
        ):
            if hasattr(part, "quantization_config"):
                del part.quantization_config
            part._experts_implementation = "eager"
        auto = next((kind for kind in _AUTO if type(config) in getattr(transformers, kind)._model_mapping), _AUTO[0])
        with _without_weights():
            return getattr(transformers, auto).from_config(config, dtype=dtype, trust_remote_code=False).eval()
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpecwireError(
            f"transformers cannot load the target {target}: {first}. A golden can also come from training data or from the "
            "engine's own dump: see specwire golden import --help"
        ) from error


@contextmanager
def _without_weights() -> Iterator[None]:
    """Modules that are made here have their parameters on the meta device, not initialised, and their buffers real.

    A parameter is made before a module has it, and one of all experts may be larger than the memory: what is large is taken
    for one. A buffer that were would be missed in the forward, loudly.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from transformers.modeling_utils import PreTrainedModel

    class Large(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function in (torch.empty, torch.zeros, torch.ones) and kwargs.get("device") is None:
                shape = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args or kwargs["size"]
                if prod(shape) > LARGE:
                    kwargs = {**kwargs, "device": "meta"}
            return function(*args, **kwargs)

    def on_meta(module: Any, name: str, parameter: Any) -> None:
        moved = None if parameter is None else torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, moved)

    register, initialise = torch.nn.Module.register_parameter, PreTrainedModel.initialize_weights
    torch.nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    PreTrainedModel.initialize_weights = lambda model, *_: None
    try:
        with Large():
            yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
        PreTrainedModel.initialize_weights = initialise


def _parts(model: Any) -> tuple[str, Any, Any, Any]:
    """Path and module of the language model's body, its decoder layers, its final norm."""
    import torch

    text = model.config.get_text_config()
    for name, module in model.named_modules():
        layers = getattr(module, "layers", None)
        norm = _first(module, *_NORMS)
        if isinstance(layers, torch.nn.ModuleList) and norm is not None and "vision" not in name:
            if len(layers) == text.num_hidden_layers and any(
                isinstance(m, torch.nn.Embedding) for m in module.children()
            ):
                return name, module, layers, norm
    raise SpecwireError(
        f"no decoder layers with a final norm found in {type(model).__name__}: this architecture is not supported by golden build"
    )


def _alone(operation: Any) -> Any:
    """What transformers does to stack the experts, where each has but one: the same without a copy."""
    from transformers.core_model_loading import MergeModulelist

    if type(operation) is not MergeModulelist or operation.dim:
        return operation

    class Alone(MergeModulelist):  # type: ignore[misc]
        def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            stacked = {name: each[0][None] if len(each) == 1 else each for name, each in input_dict.items()}
            return super().convert(stacked, *args, **kwargs)

    return Alone(operation.dim)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Orders names so that expert 10 comes after expert 9: experts are stacked in this order."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]


def _keeps(value: Any) -> bool:
    """Whether an argument of a layer may carry something from one layer to the next."""
    import torch

    if value is None or isinstance(value, (torch.Tensor, int, float, str, bool)):
        return False
    if isinstance(value, tuple):
        return any(_keeps(each) for each in value)
    return True


def _first(module: Any, *names: str) -> Any:
    """The first of these that the module has."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)
