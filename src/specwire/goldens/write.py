"""Writes golden files: the same input gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError, remedy, said
from specwire.goldens.golden import SCHEMA, Noise, PromptText
from specwire.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class States:
    """What a reference computed for one prompt; every tensor is [n, hidden]."""

    token_ids: Sequence[int]
    boundaries: Mapping[int, torch.Tensor]
    final_norm: torch.Tensor | None = None
    residuals: Mapping[int, torch.Tensor] = field(default_factory=dict)
    words: PromptText | None = None


def write_golden(
    path: Path | str,
    prompts: Sequence[States],
    *,
    trained: Sequence[int],
    layers: int,
    dtype: str,
    target: str,
    source: str,
    noise: Mapping[str, Mapping[int, Noise]] | None = None,
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write a golden file; the same input gives the same bytes. Replaces `path` in one step."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for number, states in enumerate(prompts):
        prefix = f"prompt.{number}." if number else ""
        tensors[prefix + "token_ids"] = torch.tensor(list(states.token_ids), dtype=torch.int64)
        tensors |= {f"{prefix}boundary.{k}": states.boundaries[k] for k in sorted(states.boundaries)}
        if states.final_norm is not None:
            tensors[prefix + "final_norm"] = states.final_norm
        tensors |= {f"{prefix}residual.{k}": states.residuals[k] for k in sorted(states.residuals)}
    metadata = {
        "schema": SCHEMA,
        "trained_boundaries": json.dumps(list(trained)),
        "num_layers": str(layers),
        "hidden_size": str(next(iter(prompts[0].boundaries.values())).shape[1]),
        "dtype": dtype,
        "target": target,
        "source": source,
        **(extra or {}),
    }
    if any(states.words for states in prompts):
        metadata["prompts"] = json.dumps([_words(states.words) for states in prompts])
    if noise:
        metadata["noise"] = json.dumps(
            {
                name: {str(k): [one.median, one.worst, one.stray] for k, one in sorted(table.items())}
                for name, table in sorted(noise.items())
            }
        )
    try:
        write_tensors(path, tensors, metadata)
    except OSError as error:
        raise SpecwireError(f"cannot write {path}: {said(error)}. {remedy(error)}") from error


def _words(words: PromptText | None) -> dict[str, Any] | None:
    if words is None:
        return None
    return {"text": words.text, "template": words.template, "template_arguments": dict(words.arguments)}
