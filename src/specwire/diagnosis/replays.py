"""Rows of forwards that were replayed as CUDA graphs beside the same rows of eager ones. Needs no golden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    """What was read after replays at one site: forwards and rows; of those compared with eager ones, the furthest row
    (relative L2) and how many are too far. `alone` forwards had none to be compared with."""

    forwards: int = 0
    rows: int = 0
    furthest: float | None = None
    off: int = 0
    example: str = ""
    alone: int = 0


@dataclass(frozen=True)
class Replays:
    """`sites` by name."""

    sites: dict[str, Beside] = field(default_factory=lambda: defaultdict(Beside))

    @property
    def replayed(self) -> int:
        """How many events were read after replays."""
        return sum(site.forwards for site in self.sites.values())

    @property
    def alone(self) -> dict[str, int]:
        """By site, the replayed forwards for which there is no eager one of the same tokens and positions."""
        return {name: site.alone for name, site in sorted(self.sites.items()) if site.alone}

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
        """For the JSON: by site, what was read and, where there was an eager run, compared."""
        return {
            "replayed": self.replayed,
            "without_eager": sum(self.alone.values()),
            "sites": [
                {
                    "site": name,
                    "forwards": one.forwards,
                    "rows": one.rows,
                    "rel_l2": None if one.furthest is None else number(one.furthest),
                    "off": one.off,
                    "without_eager": one.alone,
                }
                for name, one in sorted(self.sites.items())
            ],
        }


def described(replays: dict[str, Any] | None, eager: bool) -> list[str]:
    """Of the JSON, for the terminal: the rows of each site; with an `eager` run, how far they are from its rows."""
    if not replays or not replays["replayed"]:
        return []
    rows = ", ".join(f"{one['site']} {one['rows']}" for one in replays["sites"])
    lines = [f"{replays['replayed']} events were read after replays; rows: {rows}"]
    far = [one["rel_l2"] for one in replays["sites"] if one["rel_l2"] is not None]
    if eager and far:
        furthest = max(far)
        lines.append(f"relative L2 to the eager forwards: {f'up to {furthest:.1e}' if furthest else '0 in every row'}")
    if eager and replays["without_eager"]:
        lonely = ", ".join(f"{one['site']} {one['without_eager']}" for one in replays["sites"] if one["without_eager"])
        lines.append(f"without an eager forward of the same tokens: {lonely}")
    return lines


def read(events: Iterable[Event]) -> Replays:
    """What a run read after replays, by itself."""
    found = Replays()
    for event in events:
        if event.replayed:
            found.sites[event.site].forwards += 1
            found.sites[event.site].rows += event.rows
    return found


def beside(eager: Sequence[Event], replayed: Iterable[Event]) -> Replays:
    """Each replayed event with the eager one of the same rank, site, boundary, tokens and positions: the first of them
    with the first, and so on.

    Where a graph keeps the last row of each request and the eager forward keeps all (0.5.23's draft extend), each row
    is compared with the one of the eager forward that it is nearest to.
    """
    waiting: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, event in enumerate(eager):
        if not event.replayed:
            waiting[_key(event)].append(place)
    found = Replays()
    last: dict[int, int] = {}  # by rank, the eager event that was beside the latest replayed one
    for event in replayed:
        if not event.replayed:
            continue
        site, same = found.sites[event.site], waiting.get(_key(event))
        site.forwards += 1
        site.rows += event.rows
        if same:
            last[event.rank] = same.pop(0)
            _compare(site, eager[last[event.rank]], event)
        elif whole := _kept_whole(eager, last.get(event.rank), event):
            _compare(site, whole, event)
        else:
            site.alone += 1
    return found


def _kept_whole(eager: Sequence[Event], before: int | None, event: Event) -> Event | None:
    """What the eager forward beside the latest replayed event kept for the draft, where that is all of its rows."""
    if event.site != "concat-last" or before is None:
        return None
    of_rank = (each for each in eager[before + 1 :] if each.rank == event.rank)
    after = next(of_rank, None)
    fits = after is not None and (after.site, after.mode, after.width) == ("concat-full", event.mode, event.width)
    return after if fits else None


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
    given = replayed.file.rows(replayed.states).float()
    if len(wanted) == len(given):
        errors = relative(given, wanted)
    else:
        errors = [min(relative(row.expand_as(wanted), wanted)) for row in given]
    bound = MARGIN * ROUNDOFF.get(eager.dtype, 2.0**-4)
    far = [error for error in errors if not error <= bound]
    worst = [error if error == error else float("inf") for error in errors]
    site.furthest = max([site.furthest or 0.0, *worst])
    if far and not site.off:
        site.example = f"{replayed} beside {eager}"
    site.off += len(far)
