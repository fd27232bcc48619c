"""What a tree's own draft class would build for a draft's config, and which tensors it would load.

The class is read and walked like the target's: its modules give the parameters, its `load_weights`, run on
the checkpoint's names alone, tells which tensor fills which parameter and which are dropped silently.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specwire.preflight.checkpoint import ending_in
from specwire.preflight.interpreter import attributes, evaluate, execute
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    Builtin,
    ClassRef,
    Config,
    External,
    Frame,
    Function,
    NotUnderstood,
    Raised,
    Thing,
)

# What every config class of transformers sets when the file does not.
DEFAULTS = {
    "tie_word_embeddings": False,
    "rope_scaling": None,
    "rope_parameters": None,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "model_type": "llama",
    "max_position_embeddings": 2048,
}
# No config class knows it: reading it from a config that lacks it stops the engine.
NEVER = ("draft_vocab_size",)
_NORMS = {"RMSNorm", "GemmaRMSNorm", "LayerNorm"}
_LINEAR = {"Linear", "ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear"}
_TABLES = {"VocabParallelEmbedding", "ParallelLMHead", "Embedding"}
_LEAVES = _NORMS | _LINEAR | _TABLES | {"QKVParallelLinear", "MergedColumnParallelLinear"}


@dataclass(frozen=True)
class DraftModel:
    """What a tree builds for a draft. `text`: the source of the class's own file.

    `parameters`: shape by name (None where the source does not tell). `optional`: those that need no tensor, as
    they start at zero, or are of modules that may not be built, for all that the source tells. `filled`: the
    tensors that load each. `dropped`: tensors of the checkpoint that nothing takes. `problem` says what was not
    understood, or, where `stops` is true, why the engine would not come up.
    """

    where: str
    class_name: str
    text: str = field(repr=False)
    parameters: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    head_from_target: bool | None = None
    tied: bool = False
    filled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    problem: str | None = None
    stops: bool = False

    @property
    def fc_if_wider(self) -> bool:
        """Whether its forward runs `fc` only on states that are not as wide as the embedding."""
        return any(
            isinstance(node, ast.If)
            and "embed" in ast.unparse(node.test)
            and any(
                isinstance(part, ast.Attribute) and part.attr == "fc" for one in node.body for part in ast.walk(one)
            )
            for node in ast.walk(ast.parse(self.text))
        )

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """The shape of the parameter whose name is `ending` or ends in `.` and it."""
        name = ending_in(self.parameters, ending)
        return self.parameters[name] if name is not None else None


def read_draft(source: Source, config: Mapping[str, Any], tensors: Iterable[str]) -> DraftModel | None:
    """What this tree builds and loads for a draft, given its config.json and its tensors' names.

    None when the tree has no class for the draft's architecture.
    """
    cls = source.model_class(config.get("architectures") or [])
    if cls is None:
        return None
    machine = evaluate.machine_for(source)
    root = Thing(cls, [Config.of(config, DEFAULTS, NEVER)])
    parameters: dict[str, tuple[int, ...] | None] = {}
    where = cls.module.where(cls.node)
    model = DraftModel(where, cls.name, "", parameters)
    try:
        with machine.reading(where):
            model = replace(model, text=_text(source, cls.module))
            execute.build(machine, root)
            optional = _parameters(machine, root, parameters)
            if machine.broken:
                return replace(model, problem=f"the engine would stop: {machine.broken[0]}", stops=True)
            if ending_in(parameters, "fc.weight") is None:
                raise NotUnderstood(f"{where}: {cls.name} has no fc")
            head = root.attrs.get("load_lm_head_from_target")
            model = replace(
                model,
                optional=optional,
                head_from_target=head if isinstance(head, bool) else None,
                tied=root.attrs.get("lm_head") is not None and "lm_head.weight" not in parameters,
            )
            filled, dropped = _loaded(machine, root, parameters, list(tensors))
            return replace(model, filled=filled, dropped=dropped)
    except Raised as error:
        return replace(model, problem=f"the engine would stop: {error} ({error.where})", stops=True)
    except NotUnderstood as error:
        return replace(model, problem=f"not understood: {error}")


def _text(source: Source, module: Module) -> str:
    """The module without its comments; with them where it is nested too deeply to be written out again."""
    try:
        return source.text(module.node)
    except RecursionError:
        return source.tree.read(module.name).decode("utf-8", "replace")


def _parameters(machine: Machine, root: Thing, shapes: dict[str, tuple[int, ...] | None]) -> frozenset[str]:
    """Put the shape of each parameter below `root` into `shapes`; the names of those that need no tensor."""
    optional: set[str] = set()
    for prefix, leaf, maybe in _leaves(machine, root, "", False, set()):
        own = {prefix + name: shape for name, shape in _leaf(leaf).items()}
        shapes.update(own)
        optional.update(own if maybe else [prefix + "bias"] if _bias_starts_at_zero(machine, leaf) else ())
    return frozenset(optional)


def _leaves(
    machine: Machine, thing: Thing, prefix: str, maybe: bool, seen: set[int]
) -> Iterator[tuple[str, Thing, bool]]:
    """The modules that hold parameters, at or below `thing`: the prefix of their names, and whether they may be
    missing. A module met twice keeps its first name."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    maybe = maybe or thing.maybe
    if thing.class_name in _LEAVES:
        yield prefix, thing, maybe
        return
    if not isinstance(thing.cls, ClassRef) or not _is_module(machine, thing.cls):
        return
    execute.build(machine, thing)
    for name, value in list(thing.attrs.items()):
        machine.charge(len(value) if isinstance(value, list) else 1)
        items = (
            {f"{name}.{place}": item for place, item in enumerate(value)} if isinstance(value, list) else {name: value}
        )
        for below, item in items.items():
            if isinstance(item, Thing):
                yield from _leaves(machine, item, f"{prefix}{below}.", maybe, seen)


def _bias_starts_at_zero(machine: Machine, leaf: Thing) -> bool:
    """Whether this tree's class makes its bias of zeros: without a tensor it then does nothing."""
    if not isinstance(leaf.cls, ClassRef):
        return False
    made = [
        node.value
        for ref in machine.source.mro(leaf.cls)
        for node in ast.walk(ref.node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.bias"
    ]
    return any("zeros(" in ast.unparse(value) for value in made[:1])


def _is_module(machine: Machine, cls: ClassRef) -> bool:
    return any(
        ast.unparse(base).rpartition(".")[2] in ("Module", "PreTrainedModel")
        for ref in machine.source.mro(cls)
        for base in ref.node.bases
    )


def _leaf(thing: Thing) -> dict[str, tuple[int, ...] | None]:
    """A leaf's parameters: weight, and bias where it has one."""
    kind, args, kwargs = thing.class_name, thing.args, thing.kwargs

    def given(place: int, name: str, default: Any = None) -> Any:
        return args[place] if len(args) > place else kwargs.get(name, default)

    if kind in _NORMS:
        return {"weight": _shape(given(0, "hidden_size"))}
    if kind in _TABLES:
        return {"weight": _shape(given(0, "num_embeddings"), given(1, "embedding_dim"))}
    if kind == "QKVParallelLinear":
        size, heads = given(1, "head_size"), given(2, "total_num_heads")
        pairs = given(3, "total_num_kv_heads", heads)
        rows = size * (heads + 2 * pairs) if _whole(size, heads, pairs) else None
        weight, bias = _shape(rows, given(0, "hidden_size")), given(4, "bias", True)
    elif kind == "MergedColumnParallelLinear":
        outputs = given(1, "output_sizes")
        rows = sum(outputs) if isinstance(outputs, list) and _whole(*outputs) else None
        weight, bias = _shape(rows, given(0, "input_size")), given(2, "bias", True)
    else:
        first, second = ("in_features", "out_features") if kind == "Linear" else ("input_size", "output_size")
        weight, bias = _shape(given(1, second), given(0, first)), given(2, "bias", True)
    return {"weight": weight, "bias": weight[:1] if weight else None} if bias is True else {"weight": weight}


def _shape(*sizes: Any) -> tuple[int, ...] | None:
    return sizes if _whole(*sizes) else None


def _whole(*sizes: Any) -> bool:
    return all(type(size) is int for size in sizes)


def _loaded(
    machine: Machine, root: Thing, parameters: Mapping[str, Any], tensors: list[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Run the class's `load_weights` on names alone: what fills what, and what nothing takes."""
    loader = attributes.get_attribute(machine, root, "load_weights")
    if not isinstance(loader, Function):
        raise NotUnderstood(f"{root.class_name} has no load_weights to read")
    slots = {name: Thing(External("Parameter"), attrs={"name": name}) for name in parameters}
    tokens = {name: Thing(External("Tensor"), attrs={"name": name}) for name in tensors}
    filled: dict[str, list[str]] = {}
    taken: set[str] = set()

    def watch(_: Machine, call: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> Any:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "named_parameters":
            return list(slots.items())
        if isinstance(function, Builtin):
            return None
        given = _things([*args, *kwargs.values()])
        names = [thing.attrs["name"] for thing in given if thing in tokens.values()]
        for thing in given:
            if thing in slots.values():
                filled.setdefault(thing.attrs["name"], []).extend(names)
        taken.update(names)
        return UNKNOWN if names else None

    machine.on_call = watch
    machine.steps = 0
    execute.call(machine, loader, [list(tokens.items())], {})
    machine.on_call = None
    maps = re.compile(r"(?:^|\.)(d2t|t2d)$|rotary_emb\.inv_freq$")
    dropped = tuple(name for name in tensors if name not in taken and not maps.search(name))
    return {name: tuple(names) for name, names in filled.items()}, dropped


def _things(values: list[Any]) -> list[Thing]:
    found = [value for value in values if isinstance(value, Thing)]
    for value in values:
        if isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, Thing)]
    return found
