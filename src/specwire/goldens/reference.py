"""The part that three things play: a golden file, printed values of one, and nothing but what target and engine say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from specwire.goldens.golden import Noise, Prompt


class GoldenLike(Protocol):
    """What a capture or a log is held against. Only a `Golden` has whole rows; None stands for what nobody said.

    `hidden`: the width of one boundary's row. `trained`: the boundary of each slot.
    """

    @property
    def path(self) -> Path | None: ...
    @property
    def prompts(self) -> tuple[Prompt, ...]: ...
    @property
    def trained(self) -> tuple[int | None, ...]: ...
    @property
    def assumed(self) -> tuple[int, ...] | None: ...
    @property
    def boundaries(self) -> tuple[int, ...]: ...
    @property
    def layers(self) -> int | None: ...
    @property
    def hidden(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def noise(self) -> Mapping[str, Mapping[int, Noise]]: ...
    @property
    def target(self) -> str: ...
    @property
    def source(self) -> str: ...

    def has(self, what: str) -> bool:
        """Whether every prompt has the tensor `what`, such as `boundary.3`."""
