"""Rows of forwards that were replayed as CUDA graphs beside the same rows of eager ones. Needs no golden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specwire.capture import Event
from specwire.diagnosis.distance import relative
from specwire.diagnosis.document import number
from specwire.diagnosis.noise import ROUNDOFF

# One model computed twice, in batches of other shapes, on kernels that add up in another order.
MARGIN = 64


@dataclass
class Beside:
    """What was compared at one site: forwards and rows, the furthest row (relative L2), how many are too far."""

    forwards: int = 0
    rows: int = 0
    furthest: float = 0.0
    off: int = 0
    example: str = ""


@dataclass(frozen=True)
class Replays:
    """`sites` by name; `alone`: replayed forwards for which there is no eager one of the same tokens and positions."""

    sites: dict[str, Beside] = field(default_factory=lambda: defaultdict(Beside))
    replayed: int = 0
    alone: int = 0

    @property
    def off(self) -> list[str]:
        """A sentence for each site at which replays are not what eager forwards were."""
        return [
            f"at {name} {site.off} of {site.rows} replayed rows are not those of the eager forward (relative L2 up to "
            f"{site.furthest:.1e}; first {site.example})"
            for name, site in sorted(self.sites.items())
            if site.off
        ]

    def document(self) -> dict[str, Any]:
        """For the JSON: by site, what was compared."""
        return {
            "replayed": self.replayed,
            "without_eager": self.alone,
            "sites": [
                {
                    "site": name,
                    "forwards": one.forwards,
                    "rows": one.rows,
                    "rel_l2": number(one.furthest),
                    "off": one.off,
                }
                for name, one in sorted(self.sites.items())
            ],
        }


def beside(eager: Iterable[Event], replayed: Iterable[Event]) -> Replays:
    """Each replayed event with the eager one of the same rank, site, boundary, tokens and positions: the first of them
    with the first, and so on."""
    waiting: defaultdict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in eager:
        if not event.replayed:
            waiting[_key(event)].append(event)
    found: dict[str, Beside] = defaultdict(Beside)
    count = alone = 0
    for event in replayed:
        if not event.replayed:
            continue
        count += 1
        same = waiting.get(_key(event))
        if not same:
            alone += 1
            continue
        _compare(found[event.site], same.pop(0), event)
    return Replays(dict(found), count, alone)


def _key(event: Event) -> tuple[Any, ...]:
    ids, positions = event.token_ids, event.positions
    return (
        event.rank,
        event.site,
        event.boundary,
        event.mode,
        event.rows,
        event.width,
        None if ids is None else ids.tobytes(),
        None if positions is None else positions.tobytes(),
    )


def _compare(site: Beside, eager: Event, replayed: Event) -> None:
    wanted = eager.file.rows(eager.states).float()
    errors = relative(replayed.file.rows(replayed.states).float(), wanted)
    bound = MARGIN * ROUNDOFF.get(eager.dtype, 2.0**-4)
    far = [error for error in errors if not error <= bound]
    site.forwards += 1
    site.rows += len(errors)
    site.furthest = max([site.furthest, *(error if error == error else float("inf") for error in errors)])
    if far and not site.off:
        site.example = f"{replayed} beside {eager}"
    site.off += len(far)
