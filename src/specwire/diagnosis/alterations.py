"""What may happen to a make-believe system's states on their way: `alter` functions for the checks' cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specwire.diagnosis.case_world import HIDDEN, TRAINED, World, states_of

if TYPE_CHECKING:
    import torch


def one_row(row: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, World], torch.Tensor]:
    """An `alter` that changes one row of each prompt."""

    def alter(states: torch.Tensor, world: World) -> torch.Tensor:
        states = states.clone()
        states[row] = change(states[row])
        return states

    return alter


def one_slot(
    slot: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor, World], torch.Tensor]:
    """An `alter` that changes one slot."""

    def alter(states: torch.Tensor, world: World) -> torch.Tensor:
        states = states.clone()
        states[:, slot * HIDDEN : (slot + 1) * HIDDEN] = change(states[:, slot * HIDDEN : (slot + 1) * HIDDEN])
        return states

    return alter


def mixed_from(position: int) -> Callable[[torch.Tensor, World], torch.Tensor]:
    """An `alter` that mixes a little of the row before into every row from a position on."""

    def alter(states: torch.Tensor, world: World) -> torch.Tensor:
        import torch

        later = (torch.arange(len(states)) >= position)[:, None]
        return states + 0.1 * later * states.roll(1, 0)

    return alter


def rotated(states: torch.Tensor, world: World) -> torch.Tensor:
    """The states in another orthonormal basis, the same in every slot."""
    import torch

    basis = torch.linalg.qr(
        torch.randn(HIDDEN, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ).Q
    turned: torch.Tensor = states.double().view(len(states), -1, HIDDEN) @ basis
    return turned.flatten(1).to(states.dtype)


def stranger(seed: int, share: float = 1.0) -> Callable[[torch.Tensor, World], torch.Tensor]:
    """An `alter` that puts another target's states in place of a share of these: 1 for a stranger, less for a
    relative."""

    def alter(states: torch.Tensor, world: World) -> torch.Tensor:
        import torch

        other = torch.cat([states_of(seed)[world.prompt][k] for k in TRAINED], dim=-1)
        return (1 - share) * states + share * other

    return alter
