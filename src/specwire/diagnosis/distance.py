"""How far rows are from those that they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def relative(states: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    """Relative L2 of each row, summed in float64."""
    a, b = states.double(), wanted.double()
    errors: list[float] = ((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-300)).tolist()
    return errors


def angle(states: torch.Tensor, wanted: torch.Tensor) -> float:
    """The median row's cosine."""
    import torch

    return torch.nn.functional.cosine_similarity(states.double(), wanted.double(), dim=-1).median().item()
