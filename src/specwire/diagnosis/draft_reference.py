"""What an EAGLE-3 draft of the Llama kind should make of its inputs, computed from its checkpoint in plain
PyTorch.

Everything is computed in float64 from the checkpoint's own numbers, one projection at a time and a block of
its rows at a time, so that a large draft needs little memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specwire.diagnosis.finding import NotSeen
from specwire.model_files import draft_window, rope_theta
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    import torch

LAYER = {
    f"{part}.weight"
    for part in (
        "input_layernorm",
        "hidden_norm",
        "post_attention_layernorm",
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


@dataclass(frozen=True)
class Variant:
    """One way to run the layer: rotary base (None: no rotation), how many tokens attention sees, the asking one
    included (None: all before), and whether the state is normed before it is handed on (None: as configured)."""

    name: str
    theta: float | None
    window: int | None = None
    normed: bool | None = None


@dataclass(frozen=True)
class Reference:
    """A draft checkpoint and its config; every method takes and gives float64 [rows, width]."""

    tensors: Mapping[str, TensorFile]
    config: Mapping[str, Any]

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

    def last(
        self,
        embeds: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        theta: float | None,
        windows: Sequence[int | None],
    ) -> torch.Tensor:
        """The stream after the draft's one layer, before its final norm, at the last token of one prompt.

        Takes the prompt's rows; gives [len(windows), hidden]: one row for each number of tokens that attention
        sees, the last one included (None: all).
        """
        import torch

        self._check()
        own = self._own
        both = torch.cat(
            [
                self._norm(embeds, own("input_layernorm.weight")),
                self._norm(states, own("hidden_norm.weight")),
            ],
            dim=-1,
        )
        stream = states[-1:] + self._attention(both, positions, theta, windows)
        inner = self._norm(stream, own("post_attention_layernorm.weight"))
        gate = self._linear(inner, own("mlp.gate_proj.weight"))
        return stream + self._linear(
            torch.nn.functional.silu(gate) * self._linear(inner, own("mlp.up_proj.weight")),
            own("mlp.down_proj.weight"),
        )

    @property
    def norms_output(self) -> bool:
        """Whether the draft hands the norm of its stream to its next step, by its config."""
        return bool(self.config.get("norm_output"))

    def hidden_out(self, stream: torch.Tensor, normed: bool | None = None) -> torch.Tensor:
        """What the draft hands to its next step: the stream, or its norm. `normed` overrules the config."""
        normed = self.norms_output if normed is None else normed
        return self._norm(stream, "norm.weight") if normed else stream

    def choose(self, stream: torch.Tensor, token: int, slack: float) -> tuple[int, int] | None:
        """The token that the draft should say after the state `stream` [1, hidden] that it hands on, as the
        target's id and as its own.

        `token` itself, if its score comes within `slack` of the best in units of the scores' size; None
        without a head.
        """
        if not self.name("lm_head.weight"):
            return None
        normed = stream if self.norms_output else self._norm(stream, "norm.weight")
        scores = self._linear(normed, "lm_head.weight")[0]
        best = int(scores.argmax())
        near = (scores >= scores[best] - slack * scores.abs().max()).nonzero().flatten().tolist()
        own = next((one for one in near if self._mapped(one) == token), best)
        return self._mapped(own), own

    def _mapped(self, token: int) -> int:
        name = self.name("d2t")
        return token + int(self.tensors[name].values(name, token, 1)[0]) if name else token

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
        strange = [name for name in self._unknown() if name not in meant.values()]
        if strange:
            raise NotCovered(f"a layer with {strange[0]}")
        missing = sorted(ending for ending, name in meant.items() if not self.name(name))
        if missing or self.config.get("hidden_act", "silu") != "silu":
            raise NotCovered(f"a layer without {missing[0]}" if missing else f"activation {self.config['hidden_act']}")

    def _attention(
        self, inner: torch.Tensor, positions: torch.Tensor, theta: float | None, windows: Sequence[int | None]
    ) -> torch.Tensor:
        """The attention of the last row to all of them, once for each window: [len(windows), hidden]."""
        import torch

        heads, count = int(self.config["num_attention_heads"]), len(inner)
        size = int(self.config.get("head_dim") or self.config["hidden_size"] // heads)
        q, k, v = (
            self._linear(rows, self._own(f"self_attn.{part}_proj.weight")).view(len(rows), -1, size)
            for part, rows in (("q", inner[-1:]), ("k", inner), ("v", inner))
        )
        if theta is not None:
            q, k = _rotated(q, positions[-1:], theta), _rotated(k, positions, theta)
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("hd,khd->hk", q[0], k) * size**-0.5
        first = torch.tensor([0 if window is None else max(0, count - window) for window in windows])
        hidden = torch.arange(count) < first[:, None]
        weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(dim=-1)
        return self._linear(torch.einsum("whk,khd->whd", weights, v).flatten(1), self._own("self_attn.o_proj.weight"))

    def _norm(self, x: torch.Tensor, ending: str) -> torch.Tensor:
        return (
            x
            / (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()
            * self._rows(self._known(ending), [0], flat=True)
        )

    def _linear(self, x: torch.Tensor, ending: str) -> torch.Tensor:
        import torch

        name = self._known(ending)
        file = self.tensors[name]
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


def _rotated(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding over halves: channel i turns with channel i + size / 2."""
    import torch

    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * speed
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
