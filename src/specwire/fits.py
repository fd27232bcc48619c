"""Transforms whose parameters have to be fitted before they can be tested: on some rows, then tested on others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specwire.evidence import relative

if TYPE_CHECKING:
    import torch


def norm_weight(before: torch.Tensor, after: torch.Tensor, bound: float) -> bool:
    """Whether `after` is `before` with each row normed and each channel weighted; both are [rows, hidden].

    The weights are fitted to every other row and tested on the rest, so that noise cannot fit itself.
    """
    if len(before) < 8 or not (before.isfinite().all() and after.isfinite().all()):
        return False
    x, y = before.double(), after.double()
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-300)
    weight = (x[::2] * y[::2]).sum(dim=0) / x[::2].square().sum(dim=0).clamp_min(1e-300)
    return max(relative(x[1::2] * weight, y[1::2])) <= bound


def same_angles(states: torch.Tensor, wanted: torch.Tensor, bound: float) -> bool:
    """Whether the rows of both have the same sizes and inner products: equal up to a rotation of the basis."""
    if len(states) < 4 or not states.isfinite().all():
        return False
    x, y = states.double(), wanted.double()
    size = y.norm(dim=-1)
    difference = (x @ x.T - y @ y.T) / (size[:, None] * size[None, :]).clamp_min(1e-300)
    return difference.abs().max().item() <= bound
