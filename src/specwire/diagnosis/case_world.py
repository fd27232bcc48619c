"""The make-believe target of the checks' own cases: its states for a few prompts.

They behave as a transformer's do: every layer adds a little to the stream, a token's embedding is the same wherever
it stands, and later boundaries lie near their neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LAYERS, HIDDEN, VOCABULARY = 12, 32, 64
PROMPTS = (
    (20, 21, 22, 23, 24, 25, 26, 27),
    (30, 21, 31, 23, 30),
    (40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 20),
)
TRAINED = (3, 7, 10)
NOISE = {"float32": 3e-7, "bfloat16": 2.5e-3}
SEQUENCE = 10  # between the numbers of two prompts' events; the draft's input comes after the forward's end


@dataclass(frozen=True)
class World:
    """A target's states for one prompt; a name such as "final_norm" or "branch.3" gives another tensor."""

    prompt: int
    states: Mapping[int | str, torch.Tensor]

    @property
    def tokens(self) -> Sequence[int]:
        return PROMPTS[self.prompt]

    def joined(self, *names: int | str) -> torch.Tensor:
        """Several tensors side by side."""
        import torch

        return torch.cat([self.states[name] for name in names], dim=-1)

    def earlier(self, prompt: int, like: torch.Tensor) -> torch.Tensor:
        """The trained concat of another prompt, as the engine computed it then."""
        import torch

        return torch.cat([heard(prompt, NOISE["float32"])[k] for k in TRAINED], dim=-1).to(like.dtype)

    def __getitem__(self, what: int | str) -> torch.Tensor:
        return self.states[what]


@functools.cache
def heard(prompt: int, level: float) -> dict[int | str, torch.Tensor]:
    """A prompt's states as an engine computes them: as noisy as the golden says that its precision is."""
    import torch

    random = torch.Generator().manual_seed(prompt)
    return {
        what: state + level * state.square().mean(-1, keepdim=True).sqrt() * torch.randn(state.shape, generator=random)
        for what, state in states_of(seed=0)[prompt].items()
    }


@functools.cache
def states_of(seed: int) -> tuple[dict[int | str, torch.Tensor], ...]:
    import torch

    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    table, weight = normal(VOCABULARY, HIDDEN), 1 + 0.5 * normal(HIDDEN)
    found = []
    for ids in PROMPTS:
        stream = table[torch.tensor(ids)]
        states: dict[int | str, torch.Tensor] = {0: stream}
        for k in range(1, LAYERS + 1):
            residual = stream + 0.25 * normal(*stream.shape)
            branch = 0.25 * normal(*stream.shape)
            stream = residual + branch
            states |= {k: stream, f"residual.{k}": residual, f"branch.{k}": branch}
        states["final_norm"] = stream / stream.square().mean(-1, keepdim=True).sqrt() * weight
        states["norm_weight"] = weight
        found.append(states)
    return tuple(found)
