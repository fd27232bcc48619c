"""Quantised checkpoints as they are published, made dense tensor by tensor by the operations of their own libraries.

A `Scheme` says which stored tensors make one dense tensor, and makes it, in the widest precision that is run: each other
one rounds that once, as the engine's weights are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specwire.errors import SpecwireError
from specwire.model_files import quantization_config

if TYPE_CHECKING:
    import torch

CAN = "fp8 in blocks (DeepSeek-V3), compressed-tensors (INT4 with group scales, FP8 per tensor and channel), mxfp4"


@dataclass(frozen=True)
class Dense:
    """One dense tensor: the stored ones that it is made of, and whether they are quantised."""

    name: str
    parts: tuple[str, ...]
    quantised: bool


class Scheme(Protocol):
    """`label`: what the golden says it was made dense from; empty where nothing was quantised."""

    label: str

    def dense(self, names: Mapping[str, Any]) -> dict[str, Dense]:
        """The dense tensors of a checkpoint that stores `names`, by name."""
        ...

    def make(self, dense: Dense, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """A dense tensor of `parts`; of a quantised one in `dtype`, of another as it was stored."""
        ...


def scheme_of(config: Mapping[str, Any], directory: Path) -> Scheme:
    """How this checkpoint becomes dense. Raises SpecwireError, before anything is read, for what cannot."""
    quantised = quantization_config(config)
    if quantised is None:
        return Plain()
    method = quantised.get("quant_method")
    if method == "fp8":
        return BlockFp8(quantised)
    if method == "compressed-tensors":
        return CompressedTensors(quantised, directory)
    if method == "mxfp4":
        return Mxfp4()
    raise SpecwireError(
        f"{directory}: quantised as {str(method)[:60]!r}, which cannot be made dense here. What can: {CAN}. "
        "Name an unquantised checkpoint of the same model, or make a golden of training data: specwire golden import"
    )


class Plain:
    """A checkpoint that is not quantised."""

    label = ""

    def dense(self, names: Mapping[str, Any]) -> dict[str, Dense]:
        return {name: Dense(name, (name,), False) for name in names}

    def make(self, dense: Dense, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        return parts[dense.name]


class BlockFp8(Plain):
    """FP8 weights with a scale for each block, as `weight_scale_inv` (or `scale`) beside `weight`."""

    _SCALES = ("_scale_inv", "_scale")

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        self.label = f"fp8, blocks {quantised.get('weight_block_size') or 'of whole tensors'}"

    def dense(self, names: Mapping[str, Any]) -> dict[str, Dense]:
        found, scales = {}, set()
        for name in names:
            for ending in self._SCALES:
                if f"{name}{ending}" in names:
                    found[name] = Dense(name, (name, f"{name}{ending}"), True)
                    scales.add(f"{name}{ending}")
        others = {name for name in names if name not in found and name not in scales and not _activation(name)}
        return found | {name: Dense(name, (name,), False) for name in others}

    def make(self, dense: Dense, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        if not dense.quantised:
            return parts[dense.name]
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        weight, scale = (parts[name] for name in dense.parts)
        scale = scale.float() if scale.is_floating_point() and scale.element_size() > 1 else scale
        return Fp8Dequantize(None).convert({"weight": [weight], "weight_scale_inv": [scale]})["weight"][0].to(dtype)


class CompressedTensors(Plain):
    """compressed-tensors: packed or narrow weights with scales, one group of settings for each kind of layer."""

    _PART = re.compile(r"(.*)\.(weight(?:_packed|_scale|_zero_point|_shape|_g_idx|_global_scale)?)")

    def __init__(self, quantised: Mapping[str, Any], directory: Path) -> None:
        try:
            from compressed_tensors.quantization import QuantizationConfig
        except ImportError as error:
            raise SpecwireError(
                f"{directory}: to make a compressed-tensors checkpoint dense, type: pip install 'specwire[golden]'"
            ) from error
        try:
            self._groups = list(QuantizationConfig.model_validate(dict(quantised)).config_groups.values())
        except Exception as error:
            raise SpecwireError(
                f"{directory}: compressed-tensors does not take its quantization_config: {error}"
            ) from error
        self._format = quantised.get("format")
        kinds = {f"{group.weights.type}{group.weights.num_bits}" for group in self._groups if group.weights}
        self.label = f"compressed-tensors {self._format}, {' and '.join(sorted(str(kind) for kind in kinds))}"

    def dense(self, names: Mapping[str, Any]) -> dict[str, Dense]:
        grouped: dict[str, list[str]] = {}
        plain = {}
        for name in names:
            match = self._PART.fullmatch(name)
            if match:
                grouped.setdefault(match[1], []).append(name)
            elif not _activation(name):
                plain[name] = Dense(name, (name,), False)
        made = {
            f"{module}.weight": Dense(f"{module}.weight", tuple(sorted(parts)), parts != [f"{module}.weight"])
            for module, parts in grouped.items()
        }
        return plain | made

    def make(self, dense: Dense, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        if not dense.quantised:
            return parts[dense.name]
        import torch
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.format import infer_module_format

        module = dense.name.removesuffix(".weight")
        state = {name.removeprefix(f"{module}."): part for name, part in parts.items()}
        scheme = self._scheme(module, state)
        kind = scheme.format or self._format or infer_module_format(torch.nn.Linear, scheme)
        state["weight_scale"] = state["weight_scale"].to(dtype)
        if _plain_fours(scheme.weights, state):
            return _of_fours(state["weight_packed"], state["weight_scale"])
        made = BaseCompressor.get_value_from_registry(getattr(kind, "value", kind)).decompress(state, scheme)
        return made["weight"].to(dtype)

    def _scheme(self, module: str, state: Mapping[str, torch.Tensor]) -> Any:
        """The group that names this module; else the one whose weights are as wide as the stored ones."""
        named = [
            group
            for group in self._groups
            if any(target.startswith("re:") and re.match(target[3:], module) for target in group.targets)
        ]
        if named:
            return named[0]
        packed = "weight_packed" in state
        fitting = [group for group in self._groups if group.weights and (group.weights.num_bits < 8) is packed]
        return (fitting or self._groups)[0]


class Mxfp4(Plain):
    """MXFP4 experts as GPT-OSS has them: `_blocks` of packed fours and `_scales`, all experts in one tensor."""

    label = "mxfp4"

    def dense(self, names: Mapping[str, Any]) -> dict[str, Dense]:
        found = {}
        for name in names:
            if name.endswith("_blocks") and f"{name[:-7]}_scales" in names:
                found[name[:-7]] = Dense(name[:-7], (name, f"{name[:-7]}_scales"), True)
            elif not (name.endswith("_scales") and f"{name[:-7]}_blocks" in names):
                found[name] = Dense(name, (name,), False)
        return found

    def make(self, dense: Dense, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        if not dense.quantised:
            return parts[dense.name]
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        blocks, scales = (parts[name] for name in dense.parts)
        return convert_moe_packed_tensors(blocks, scales, dtype=dtype)


def _plain_fours(weights: Any, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are packed fours with scales and nothing else, in rows that are packed without a rest."""
    if set(state) != {"weight_packed", "weight_scale", "weight_shape"} or not weights or not weights.symmetric:
        return False
    packed, scale = state["weight_packed"], state["weight_scale"]
    rows, columns = state["weight_shape"].tolist()
    return (
        (weights.num_bits, str(getattr(weights.type, "value", weights.type))) == (4, "int")
        and tuple(packed.shape) == (rows, columns // 8)
        and columns % 8 == 0
        and scale.dim() == 2
        and scale.shape[0] == rows
        and columns % scale.shape[1] == 0
    )


def _of_fours(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Packed fours [rows, columns / 8] times their groups' scales: what compressed-tensors gives, in a fraction of its time,
    by looking up the four fours of two bytes at once."""
    import torch

    places = packed.contiguous().view(torch.uint16).flatten().int()
    fours = _all_fours(scale.dtype, scale.device).index_select(0, places).view(*scale.shape, -1)
    return fours.mul_(scale[..., None]).flatten(1)


@cache
def _all_fours(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The four fours of each two bytes, [65536, 4]."""
    import torch

    pairs = torch.arange(1 << 16, device=device)
    return torch.stack([(pairs >> shift & 15) - 8 for shift in (0, 4, 8, 12)], dim=1).to(dtype)


def _activation(name: str) -> bool:
    """Scales of activations and caches: of no use for dense weights."""
    return name.endswith(("input_scale", "activation_scale", "k_scale", "v_scale", "output_scale", "input_zero_point"))
