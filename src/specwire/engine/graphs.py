"""CUDA graphs off, in a release's own words: a forward that is replayed runs no Python, and so no tap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_CONFIG = '--cuda-graph-config={"decode":{"backend":"disabled"},"prefill":{"backend":"disabled"}}'
# What a release may have, oldest first. Decode, verification and both of the draft's graphs go by the first; prefill by
# it, or by one of its own (0.5.10 to 0.5.13 capture it by pieces unless told); the last wins over whatever was said of
# single phases (from 0.5.14 on).
_OFF = (
    ("--disable-cuda-graph", "--disable-cuda-graph"),
    ("--disable-piecewise-cuda-graph", "--disable-piecewise-cuda-graph"),
    ("--cuda-graph-config", _CONFIG),
)
# What would turn one on again, or hide Python in another way, and has no opposite to give after it.
_ON = (
    "--enable-piecewise-cuda-graph",
    "--enforce-piecewise-cuda-graph",
    "--enable-breakable-cuda-graph",
    "--debug-cuda-graph",
    "--enable-torch-compile",
)
# The capture of graphs also compiles kernels, before anybody watches. Without it the first prompt does, which for a large
# model can take longer than the 300 s after which the engine takes a forward for hung and ends itself, or the ten minutes
# that the other ranks wait for one in a collective.
_PATIENT = (("--watchdog-timeout", "--watchdog-timeout=3600"), ("--dist-timeout", "--dist-timeout=3600"))


@dataclass(frozen=True)
class Eager:
    """Engine arguments with which every forward runs as Python; `left_out` are those of the launch that forbid it."""

    arguments: tuple[str, ...]
    left_out: tuple[str, ...]


def eager(arguments: Sequence[str], options: Collection[str]) -> Eager:
    """The launch's arguments, and behind them what turns the graphs of a release with these `options` off.

    Before them, so that the launch's own wins, stands more patience for the first forward.
    """
    left_out = tuple(word for word in arguments if _written_out(word, options) in _ON)
    kept = tuple(word for word in arguments if word not in left_out)
    first = [wait for name, wait in _PATIENT if name in options]
    return Eager((*first, *kept, *(off for name, off in _OFF if name in options)), left_out)


def _written_out(word: str, options: Collection[str]) -> str:
    """The option that a word abbreviates, if it does."""
    name = word.partition("=")[0]
    if not name.startswith("--") or name in options:
        return name
    fits = {written for written in options if written.startswith(name)}
    return next(iter(fits)) if len(fits) == 1 else name
