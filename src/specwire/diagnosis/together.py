"""Two faults at once: other layers than the trained ones, and something done to their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType

from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.labels import LAYERS
from specwire.goldens.golden import Golden

# What names a thing done to rows of the right layers.
ROWS = (
    "token-shift", "row-select", "dtype", "norm", "missing-residual", "rank-partial", "rank-shard", "scale", "column-order",
    "quant-basis", "stale-capture",
)  # fmt: skip
NEARER = 0.5  # of the distance to the trained boundary: then the nearest may be the one that was taken


def two_faults(evidence: Evidence, checks: Mapping[str, ModuleType]) -> list[Cause]:
    """Both faults, when the rows are those of other layers with one known thing done to them; else nothing.

    For when no check explains the rows as those of the trained layers.
    """
    if not isinstance(evidence.golden, Golden) or evidence.sample is None or evidence.columns is not None:
        return []  # five values of a row are too few to tell two things apart
    if not evidence.off or evidence.not_finite:
        return []
    if evidence.golden.assumed is not None:
        return []  # other layers than what?
    for taken in _taken(evidence):
        if not set(taken) <= set(evidence.seen.boundaries):
            continue
        moved = replace(evidence, golden=replace(evidence.golden, trained=taken), comparison=None)
        done = [cause for name in ROWS if (cause := _cause(checks, name, moved)) and cause.confidence == "certain"]
        if not done:
            continue
        first = min(done, key=lambda cause: cause.steps)
        undone = replace(evidence, undone=taken)
        layers = [cause for name in LAYERS if (cause := _cause(checks, name, undone))]
        if layers:
            other = min(layers, key=lambda cause: cause.steps)
            return [replace(other, besides=first.id), replace(first, of=taken, steps=first.steps + 1)]
    return []


def _taken(evidence: Evidence) -> Iterator[tuple[int, ...]]:
    """Which layers may have been taken: what the target said that it captures, and the nearest ones."""
    trained = evidence.trained
    said = tuple(evidence.told or ())
    if len(said) == len(trained) and said != trained:
        yield said
    nearest = tuple(k for k, _ in evidence.nearest)
    clear = all(
        k == wanted or away < NEARER * sorted(evidence.errors(slot, wanted))[len(evidence.seen.places) // 2]
        for slot, (wanted, (k, away)) in enumerate(zip(trained, evidence.nearest, strict=True))
        if wanted in evidence.seen.boundaries
    )
    if nearest not in (said, trained) and clear:
        yield nearest


def _cause(checks: Mapping[str, ModuleType], name: str, evidence: Evidence) -> Cause | None:
    try:
        answer = checks[name].check(evidence)
    except NotSeen:
        return None
    return replace(answer, id=name) if isinstance(answer, Cause) and not answer.last_resort else None
