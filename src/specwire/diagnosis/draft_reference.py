"""What an EAGLE-3 draft of the Llama kind should make of its inputs, computed from its checkpoint in plain
PyTorch.

Everything is computed in float64 from the checkpoint's own numbers, one projection at a time and a block of
its rows at a time, so that a large draft needs little memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specwire.diagnosis.finding import NotSeen
from specwire.model_files import draft_window, rope_theta
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    import torch

EMBEDS_NORM, STATES_NORM, INNER_NORM = "input_layernorm", "hidden_norm", "post_attention_layernorm"
AFTER_ATTENTION, AFTER_MLP = "the residual after attention", "the residual after the MLP"
LAYER = {
    f"{part}.weight"
    for part in (
        EMBEDS_NORM,
        STATES_NORM,
        INNER_NORM,
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    )
}
BLOCK_BYTES = 32 * 1024 * 1024


class NotCovered(NotSeen):
    """This draft is built in a way that the reference does not know: checks that need it are skipped."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the reference draft does not cover {what}")


class NotFinite(NotSeen):
    """A tensor of the checkpoint holds NaN or infinity: nothing can be computed with it, here or in the engine."""

    def __init__(self, file: TensorFile, name: str, row: int) -> None:
        super().__init__(f"{name} in the draft's {file.path.name} holds NaN or infinity, first in row {row}")


class Sees(Enum):
    """Which rows attention sees, of those that it should."""

    ALL = "all"
    COMMITTED = "the rows that were there before, and itself"  # none of those that were drafted since
    NOT_THE_NEWEST = "all but the newest"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to run the layer: rotary base (None: no rotation), how many tokens attention sees, the asking one
    included (None: all before), whether the state is normed before it is handed on (None: as configured), what is left
    out, and whether its two inputs have changed places; `fresh` if that is so in the rows alone that were drafted since."""

    name: str
    theta: float | None
    window: int | None = None
    normed: bool | None = None
    without: str = ""
    swapped: bool = False
    sees: Sees = Sees.ALL
    fresh: bool = False

    @property
    def inputs(self) -> tuple[str, bool]:
        """What is done to the layer's inputs."""
        return (self.without if self.without in (EMBEDS_NORM, STATES_NORM) else "", self.swapped)


@dataclass(frozen=True)
class Ask:
    """A row whose state is to be computed: its number in a table of rows, and those that attention sees, itself last.
    `fresh` of them, the last ones, were drafted since the target was last asked."""

    row: int
    sees: tuple[int, ...]
    fresh: int = 1

    def seen(self, way: Way) -> tuple[int, ...]:
        rows = self.sees
        if way.sees is Sees.COMMITTED:
            rows = (*rows[: len(rows) - self.fresh], rows[-1])
        elif way.sees is Sees.NOT_THE_NEWEST:
            rows = (*rows[:-2], rows[-1])
        return rows if way.window is None else rows[-way.window :]


@dataclass(frozen=True)
class Rows:
    """A table of the draft's rows: `embeds` and `states` (after fc) [rows, hidden], `positions` [rows]."""

    embeds: torch.Tensor
    states: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class Reference:
    """A draft checkpoint and its config; every method takes and gives float64 [rows, width]."""

    tensors: Mapping[str, TensorFile]
    config: Mapping[str, Any]
    shared_head: tuple[str, TensorFile] | None = None  # the target's, where the draft was made to use it

    @property
    def eps(self) -> float:
        return float(self.config.get("rms_norm_eps", 1e-6))

    @property
    def theta(self) -> float:
        return rope_theta(self.config) or 10000.0

    def name(self, ending: str) -> str | None:
        """The checkpoint's name for a tensor, whatever stands before it."""
        return next((name for name in (ending, f"model.{ending}") if name in self.tensors), None)

    def fc(self, states: torch.Tensor, normed: bool | None = None, biased: bool = True) -> torch.Tensor:
        """The projection of the concat. `normed` overrules the config on the norms before it; `biased` False leaves
        out a bias that the checkpoint has."""
        import torch

        flags = {**self.config, **(self.config.get("eagle_config") or {})}
        before = bool(flags.get("norm_before_fc")) if normed is None else normed
        each = bool(flags.get("fc_norm") or flags.get("use_aux_norm")) if normed is None else normed
        if before and self.name("input_norm.weight"):
            states = self._norm(states, "input_norm.weight")
        if each and self.name("fc_norm.0.weight"):
            count = sum(1 for i in range(64) if self.name(f"fc_norm.{i}.weight"))
            states = torch.cat(
                [self._norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(states.chunk(count, dim=-1))],
                dim=-1,
            )
        found = self._linear(states, "fc.weight")
        if biased and (bias := self.name("fc.bias")):
            found = found + self._rows(bias, [0], flat=True)
        return found

    def has_norms(self) -> bool:
        return bool(self.name("input_norm.weight") or self.name("fc_norm.0.weight"))

    @property
    def window(self) -> int | None:
        """How many tokens the layer's attention sees by the config, the asking one included; None for all."""
        return draft_window(self.config)

    def layer(self, rows: Rows, asks: Sequence[Ask], ways: Sequence[Way]) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream after the draft's one layer, before its final norm, and the MLP's part of it: each
        [ways, asks, hidden]. Every weight is read once, for all of them together."""
        import torch

        self._check()
        kinds = list(dict.fromkeys([("", False), *(way.inputs for way in ways)]))
        count = len(rows.states)
        joined = torch.cat([self._inputs(rows, *kind) for kind in kinds])
        asking = torch.tensor([kind * count + ask.row for kind in range(len(kinds)) for ask in asks])
        q, k, v = (
            self._linear(each, self._own(f"self_attn.{part}_proj.weight")).view(len(each), -1, self._head_size)
            for part, each in (("q", joined[asking]), ("k", joined), ("v", joined))
        )
        turned: dict[float | None, tuple[torch.Tensor, torch.Tensor]] = {}
        attended = []
        for way in ways:
            kind = kinds.index(way.inputs)
            mine = slice(kind * len(asks), (kind + 1) * len(asks))
            if way.theta not in turned:
                everywhere = rows.positions.repeat(len(kinds))
                turned[way.theta] = _turned(q, everywhere[asking], way.theta), _turned(k, everywhere, way.theta)
            queries, keys = turned[way.theta]
            for query, ask in zip(queries[mine], asks, strict=True):
                old = set(ask.sees[: len(ask.sees) - ask.fresh]) if way.fresh else set()
                seen = [row + (0 if row in old else kind * count) for row in ask.seen(way)]
                attended.append(self._attention(query, keys, v, seen))
        branch = self._linear(torch.stack(attended), self._own("self_attn.o_proj.weight")).view(
            len(ways), len(asks), -1
        )
        own = rows.states[[ask.row for ask in asks]]
        stream = branch + torch.stack([0 * own if way.without == AFTER_ATTENTION else own for way in ways])
        normed = self._norm(stream, self._own(f"{INNER_NORM}.weight"))
        inner = torch.stack(
            [stream[i] if way.without == INNER_NORM else normed[i] for i, way in enumerate(ways)]
        ).flatten(0, 1)
        gate = torch.nn.functional.silu(self._linear(inner, self._own("mlp.gate_proj.weight")))
        up = self._linear(inner, self._own("mlp.up_proj.weight"))
        branch = self._linear(gate * up, self._own("mlp.down_proj.weight")).view(stream.shape)
        whole = [branch[i] if way.without == AFTER_MLP else stream[i] + branch[i] for i, way in enumerate(ways)]
        return torch.stack(whole), branch

    def _inputs(self, rows: Rows, without: str, swapped: bool) -> torch.Tensor:
        """What the layer's attention takes: [rows, 2 * hidden]."""
        import torch

        embeds = rows.embeds if without == EMBEDS_NORM else self._norm(rows.embeds, self._own(f"{EMBEDS_NORM}.weight"))
        states = rows.states if without == STATES_NORM else self._norm(rows.states, self._own(f"{STATES_NORM}.weight"))
        return torch.cat([states, embeds] if swapped else [embeds, states], dim=-1)

    @property
    def lacking(self) -> list[str]:
        """The layer's norms that the checkpoint does not hold: an engine has ones in their place."""
        norms = (EMBEDS_NORM, STATES_NORM, INNER_NORM)
        return [name for name in norms if not self.name(self._own(f"{name}.weight"))]

    @property
    def norms_output(self) -> bool:
        """Whether the draft hands the norm of its stream to its next step, by its config."""
        return bool(self.config.get("norm_output"))

    def hidden_out(self, stream: torch.Tensor, normed: bool | None = None) -> torch.Tensor:
        """What the draft hands to its next step: the stream, or its norm. `normed` overrules the config."""
        normed = self.norms_output if normed is None else normed
        return self._norm(stream, "norm.weight") if normed else stream

    def normed(self, stream: torch.Tensor) -> torch.Tensor:
        """The draft's final norm of a stream."""
        return self._norm(stream, "norm.weight")

    def head_input(self, handed: torch.Tensor) -> torch.Tensor:
        """What the head takes, from states that the draft hands on."""
        return handed if self.norms_output else self._norm(handed, "norm.weight")

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """The head's scores of normed states [rows, hidden]: [rows, the draft's own vocabulary]; NotSeen without one."""
        if self.name("lm_head.weight"):
            return self._linear(states, "lm_head.weight")
        if self.shared_head is None:
            raise NotSeen("the checkpoint has no lm_head, and the target's was not found")
        return self._linear(states, *self.shared_head)

    def scores_by(self, states: torch.Tensor, name: str, file: TensorFile) -> torch.Tensor | None:
        """The scores of normed states by another head; None by one of another width, or that is quantised."""
        entry = file.entry(name)
        fits = entry.shape[1:] == states.shape[1:] and entry.dtype in ("F16", "BF16", "F32", "F64")
        return self._linear(states, name, file) if fits else None

    @cached_property
    def mapped(self) -> torch.Tensor | None:
        """The target's id of each of the draft's own tokens [own vocabulary]; None where they are the same."""
        import torch

        name = self.name("d2t")
        if name is None:
            return None
        offsets = self.tensors[name].rows(name).flatten().long()
        return offsets + torch.arange(len(offsets))

    def embeddings(self, tokens: list[int]) -> torch.Tensor | None:
        """The rows of the draft's own table; None when it has none for these tokens and shares another."""
        table = self.name("embed_tokens.weight")
        if table is None or max(tokens) >= self.tensors[table].entry(table).shape[0]:
            return None
        return self._rows(table, tokens)

    def _own(self, ending: str) -> str:
        """The name of one of the layer's tensors, with what stands before it.

        Also under a module's name that nothing here knows, if only one tensor can be meant: the engine may know
        it, or may have left that tensor out.
        """
        if name := self._named(ending):
            return name
        module = "." + ".".join(ending.split(".")[-2:])
        alike = [name for name in self._unknown() if name.endswith(module)]
        return alike[0] if len(alike) == 1 else f"midlayer.{ending}"

    def _named(self, ending: str) -> str | None:
        return self.name(f"midlayer.{ending}") or self.name(f"layers.0.{ending}")

    def _unknown(self) -> list[str]:
        """The layer's tensors whose names are not among those of LAYER."""
        prefix = (self._named("hidden_norm.weight") or "").removesuffix("hidden_norm.weight")
        return [
            name
            for name in self.tensors
            if prefix and name.startswith(prefix) and name.removeprefix(prefix) not in LAYER
        ]

    def _check(self) -> None:
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if self.config.get("num_hidden_layers", 1) != 1:
            raise NotCovered(f"a draft of {self.config['num_hidden_layers']} layers")
        if kind != "default":
            raise NotCovered(f"rotary embedding of type {kind}")
        if self.config.get("quantization_config"):
            raise NotCovered("a quantised draft")
        if float(self.config.get("partial_rotary_factor") or 1) != 1:
            raise NotCovered("a rotary embedding of a part of each head")
        meant = {ending: self._own(ending) for ending in LAYER}
        norms = {f"{name}.weight" for name in (EMBEDS_NORM, STATES_NORM, INNER_NORM)}
        strange = [name for name in self._unknown() if name not in meant.values()]
        if strange:
            raise NotCovered(f"a layer with {strange[0]}")
        missing = sorted(ending for ending, name in meant.items() if ending not in norms and not self.name(name))
        if missing or self.config.get("hidden_act", "silu") != "silu":
            raise NotCovered(f"a layer without {missing[0]}" if missing else f"activation {self.config['hidden_act']}")

    @property
    def _heads(self) -> int:
        return int(self.config["num_attention_heads"])

    @property
    def _head_size(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self._heads)

    def _attention(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Sequence[int]
    ) -> torch.Tensor:
        """The attention of one row, [heads, size], to those that it sees: [heads * size]."""
        import torch

        each = self._heads // keys.shape[1]
        k, v = (x[list(seen)].repeat_interleave(each, dim=1) for x in (keys, values))
        weights = (torch.einsum("hd,khd->hk", query, k) * self._head_size**-0.5).softmax(dim=-1)
        return torch.einsum("hk,khd->hd", weights, v).flatten()

    def _norm(self, x: torch.Tensor, ending: str) -> torch.Tensor:
        unit = x / (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()
        name = self.name(ending)
        return unit * self._rows(name, [0], flat=True) if name else unit

    def _linear(self, x: torch.Tensor, ending: str, file: TensorFile | None = None) -> torch.Tensor:
        """`x` times a matrix of the checkpoint, or of another file."""
        import torch

        name = self._known(ending) if file is None else ending
        file = file or self.tensors[name]
        entry = file.entry(name)
        if len(entry.shape) != 2 or entry.shape[1] != x.shape[-1]:
            raise NotCovered(f"{name} is {list(entry.shape)} for inputs {x.shape[-1]} wide")
        step = max(1, BLOCK_BYTES // (8 * entry.shape[1]))
        blocks = (range(first, min(first + step, entry.shape[0])) for first in range(0, entry.shape[0], step))
        parts = [x @ _finite(file, name, block, file.rows(name, block.start, len(block))).T for block in blocks]
        return torch.cat(parts, dim=-1)

    def _known(self, ending: str) -> str:
        if name := self.name(ending):
            return name
        raise NotCovered(f"a draft without {ending}")

    def _rows(self, name: str, indices: list[int], flat: bool = False) -> torch.Tensor:
        file = self.tensors[name]
        if flat:
            return _finite(file, name, range(file.entry(name).shape[0]), file.rows(name))
        return _finite(file, name, indices, file.pick(name, indices))


def _finite(file: TensorFile, name: str, numbers: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
    """These rows of a tensor, in float64; NotFinite when one of them holds something else."""
    rows = rows.double()
    good = rows.isfinite().reshape(len(rows), -1).all(dim=1)
    if not good.all():
        raise NotFinite(file, name, numbers[int((~good).nonzero()[0])])
    return rows


def _turned(x: torch.Tensor, positions: torch.Tensor, theta: float | None) -> torch.Tensor:
    """Rotary embedding over halves: channel i turns with channel i + size / 2. Without a base, none."""
    import torch

    if theta is None:
        return x
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * speed
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
