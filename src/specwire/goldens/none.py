"""Stands in for a golden where there is none: what the target's config and the capture itself say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specwire.goldens.golden import Noise, Prompt


@dataclass(frozen=True)
class NoGolden:
    """Knows the prompts and the sizes, and no state. `trained` holds what the engine says that it captured: it is as
    long as the draft's slots should be many, and which layers the draft was trained on nobody said."""

    prompts: tuple[Prompt, ...]
    trained: tuple[int, ...]
    layers: int
    hidden: int
    dtype: str
    target: str
    source: str = "none"
    path: None = None
    boundaries: tuple[int, ...] = ()
    noise: Mapping[str, Mapping[int, Noise]] = field(default_factory=dict)
    assumed: None = None

    def has(self, what: str) -> bool:
        """No tensor is known."""
        return False
