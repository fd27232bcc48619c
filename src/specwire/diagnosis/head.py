"""The target's own final norm and head, from its checkpoint: what the engine should make of its last states.

Sums are in the precision of the states that are given: float64 for states of float32, float32 for narrower ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specwire.diagnosis.finding import NotSeen
from specwire.errors import SpecwireError
from specwire.model_files import text_config
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.context import Context

BLOCK_BYTES = 32 * 1024 * 1024
PLAIN = ("F16", "BF16", "F32", "F64")
# Families whose logits are scaled by a number of their own after the head.
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "dim_model_base", "output_multiplier_scale")


@dataclass(frozen=True)
class Head:
    """The names of the two tensors in the target's checkpoint."""

    tensors: Mapping[str, TensorFile]
    config: Mapping[str, Any]
    weight: str
    norm: str | None

    def normed(self, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """The states after the final norm, for each way to apply its weight; empty without a known norm."""
        if self.norm is None:
            return {}
        weight = self.tensors[self.norm].rows(self.norm).to(states.dtype)
        eps = float(self.config["rms_norm_eps"])
        unit = states / (states.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return {"after the final norm": unit * weight, "after the final norm, by 1 + weight": unit * (1 + weight)}

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        cap = self.config.get("final_logit_softcapping")
        return logits if not isinstance(cap, (int, float)) or not cap else cap * (logits / cap).tanh()

    @property
    def count(self) -> int:
        """How many tokens there are: an engine pads the vocabulary, and cuts the padding off again."""
        size: int = self.config["vocab_size"]
        return min(self.tensors[self.weight].entry(self.weight).shape[0], size)

    def rows(self, tokens: list[int]) -> torch.Tensor:
        """The head's rows for these tokens, [tokens, hidden], as they are stored."""
        return self.tensors[self.weight].pick(self.weight, tokens)

    def totals(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Per row of `states`, over the whole vocabulary: log of the summed exponentials, and the greatest logit. The
        head is read a block of rows at a time."""
        import torch

        file = self.tensors[self.weight]
        step = max(1, BLOCK_BYTES // (8 * states.shape[1]))
        total = best = torch.full((len(states),), float("-inf"), dtype=torch.float64)
        for first in range(0, self.count, step):
            block = file.rows(self.weight, first, min(step, self.count - first)).to(states.dtype)
            logits = self.capped(states @ block.T).double()
            total = torch.logaddexp(total, logits.logsumexp(dim=-1))
            best = torch.maximum(best, logits.max(dim=-1).values)
        return total, best


def head_of(context: Context) -> Head:
    """The target's head; NotSeen when its directory was not given, or the head is not one that is known here."""
    tensors = context.target_tensors
    if not tensors or context.target is None:
        raise NotSeen("the target's directory was not given (--target), or holds no safetensors")
    try:
        config = text_config(context.target)
    except SpecwireError as error:
        raise NotSeen(str(error)) from error
    if scale := next((key for key in SCALES if config.get(key) not in (None, 1, 1.0)), None):
        raise NotSeen(f"the target scales its logits by {scale}, which is not covered here")
    hidden = config["hidden_size"]
    weight = _named(tensors, ("lm_head.weight",), 2) or _named(tensors, ("embed_tokens.weight",), 2)
    if weight is None or tensors[weight].entry(weight).shape[1] != hidden:
        raise NotSeen(f"the target's checkpoint has no one lm_head.weight, or embedding, that is {hidden} wide")
    if tensors[weight].entry(weight).dtype not in PLAIN or weight.removesuffix("weight") + "bias" in tensors:
        raise NotSeen(f"{weight} is quantised or has a bias, which is not covered here")
    eps = config.get("rms_norm_eps")
    norm = _named(tensors, ("model.norm.weight", "norm.weight"), 1) if isinstance(eps, float) else None
    if norm is not None and (
        tensors[norm].entry(norm).shape != (hidden,) or tensors[norm].entry(norm).dtype not in PLAIN
    ):
        norm = None
    return Head(tensors, config, weight, norm)


def _named(tensors: Mapping[str, TensorFile], endings: tuple[str, ...], dimensions: int) -> str | None:
    """The one tensor with such a name that belongs to no layer and to no tower of images or sound."""
    for ending in endings:
        found = [
            name
            for name, file in tensors.items()
            if (name == ending or name.endswith("." + ending))
            and not any(part in name for part in ("layers.", "visual", "vision", "audio", "mtp"))
            and len(file.entry(name).shape) == dimensions
        ]
        if len(found) == 1:
            return found[0]
    return None
