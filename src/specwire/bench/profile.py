"""Reads what the profiling taps wrote, and says where the time of a cycle goes.

A cycle is one turn of the speculative worker: draft, verify with the target, draft extend. Stages are
counted without the stages inside them, so their parts add up to the cycle. A server without speculation
has cycles too: each is one forward of the target.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specwire.bench.statistics import mean, quantile, rounded, spread
from specwire.errors import SpecwireError, said, shortened
from specwire.regular import open_regular

SCHEMA = "specwire.profile/1"
LINE_LIMIT = 1 << 20
LINE_COUNT = 1_000_000  # hours of cycles
TOKENS_PER_CYCLE = 4096  # of one request
STAGES = ("draft", "target", "verify", "draft-extend", "other")
WORDS = {
    "draft": "draft",
    "target": "target's forward",
    "verify": "rest of verify",
    "draft-extend": "draft extend",
    "other": "rest of the cycle",
}


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """One line of a profile: `begin` in seconds of the monotonic clock, all else as long as it says."""

    kind: str
    mode: str
    begin: float
    milliseconds: float
    gap: float | None
    batch: int | None
    parts: dict[str, tuple[float, int]]
    accepted: tuple[int, ...]
    graph: bool | None
    failed: bool


@dataclass(frozen=True)
class RankProfile:
    """What one process recorded, in order; `lost` cycles it could not record."""

    rank: int
    about: dict[str, Any]
    cycles: list[CycleTimes]
    lost: int
    stopped: bool
    unreadable: int = field(default=0)


def read_profile(folder: Path) -> list[RankProfile]:
    """Every process's profile in the directory, by rank.

    Raises SpecwireError when there is none, or a file that is no profile. A last line cut short, as a
    killed server leaves it, is left out and counted as unreadable.
    """
    files = sorted(folder.glob("rank*.jsonl"))
    if not files:
        raise SpecwireError(
            f"no profile in {folder}: looked for rank*.jsonl. Was worker-profile applied to the tree "
            "that ran, with EAGLE3_PROFILE naming this directory, and did the server get a request?"
        )
    return sorted((_read(file) for file in files), key=lambda each: (each.rank, each.about["pid"]))


def summarise(
    profiles: Sequence[RankProfile], since: float | None = None, until: float | None = None
) -> dict[str, Any]:
    """Decode and prefill, each by stage, of the cycles that began in the window (monotonic seconds).

    Times and acceptance are the first rank's: all ranks of a group go through a cycle together. How far
    apart they are stands under `by_rank`.
    """
    windows = [(profile, [cycle for cycle in profile.cycles if _within(cycle, since, until)]) for profile in profiles]
    first = next((cycles for _, cycles in windows if cycles), [])
    return {
        "schema": "specwire.profile-summary/1",
        "clock": profiles[0].about.get("clock"),
        "device": profiles[0].about.get("device"),
        "ranks": len(profiles),
        "lost": sum(profile.lost for profile in profiles),
        "unreadable": sum(profile.unreadable for profile in profiles),
        "stopped_early": any(profile.stopped for profile in profiles),
        "decode": _phase([cycle for cycle in first if cycle.mode == "DECODE"]),
        "prefill": _phase([cycle for cycle in first if cycle.mode not in ("DECODE", "IDLE")]),
        "by_rank": [
            {
                "rank": profile.rank,
                "pid": profile.about["pid"],
                "cycles": len(cycles),
                "decode_p50_ms": rounded(
                    quantile([each.milliseconds for each in cycles if each.mode == "DECODE"], 0.5)
                ),
            }
            for profile, cycles in windows
        ],
    }


def decoding(cycles: Sequence[CycleTimes], begin: float, end: float) -> float:
    """Milliseconds between two times of the monotonic clock that decode cycles took, and the waits before them.

    A cycle that was still under way at the `end` counts as far as it had come: a scheduler that overlaps
    starts one more before a request's last token is out.
    """
    return sum(
        max(
            0.0,
            1000
            * (min(end, each.begin + each.milliseconds / 1000) - max(begin, each.begin - (each.gap or 0.0) / 1000)),
        )
        for each in cycles
        if each.mode == "DECODE"
    )


def acceptance(lengths: Iterable[int] | Mapping[int, int]) -> dict[str, Any] | None:
    """From tokens per request and cycle, bonus token counted, or how often each number of them came: their mean, and how
    often each position held.

    `by_position[i]` is the share of cycles in which draft token i+1, and so all before it, was accepted.
    """
    histogram = Counter(lengths)
    cycles = sum(histogram.values())
    if not cycles:
        return None
    longest = max(histogram)
    return {
        "cycles": cycles,
        "length": rounded(sum(length * count for length, count in histogram.items()) / cycles),
        "by_position": [
            rounded(sum(count for length, count in histogram.items() if length > position) / cycles)
            for position in range(1, longest)
        ],
        "histogram": {str(length): histogram[length] for length in sorted(histogram)},
    }


def _phase(cycles: list[CycleTimes]) -> dict[str, Any] | None:
    whole = [cycle for cycle in cycles if not cycle.failed]
    if not whole:
        return None
    total = sum(cycle.milliseconds for cycle in whole)
    named = sum(milliseconds for cycle in whole for milliseconds, _ in cycle.parts.values())
    known = [cycle.graph for cycle in whole if cycle.graph is not None]
    return {
        "cycles": len(whole),
        "failed": len(cycles) - len(whole),
        "kind": whole[0].kind,
        "total_ms": rounded(total),
        "cycle_ms": spread([cycle.milliseconds for cycle in whole]),
        "between_ms": spread([cycle.gap for cycle in whole if cycle.gap is not None]),
        "batch": rounded(mean([cycle.batch for cycle in whole if cycle.batch is not None])),
        "graph_share": rounded(sum(known) / len(known)) if known else None,
        "stages": [_stage(stage, whole, total) for stage in _stages(whole)],
        "accounted": rounded(named / total) if total else None,
        "acceptance": acceptance(length for cycle in whole for length in cycle.accepted),
    }


def _stages(cycles: list[CycleTimes]) -> list[str]:
    seen = {stage for cycle in cycles for stage in cycle.parts}
    return [*(stage for stage in STAGES if stage in seen), *sorted(seen - set(STAGES))]


def _stage(stage: str, cycles: list[CycleTimes], total: float) -> dict[str, Any]:
    had = [cycle.parts[stage] for cycle in cycles if stage in cycle.parts]
    times = [milliseconds for milliseconds, _ in had]
    return {
        "stage": stage,
        "calls": sum(calls for _, calls in had),
        "total_ms": rounded(sum(times)),
        "share": rounded(sum(times) / total) if total else None,
        **{f"{name}_ms": value for name, value in spread(times).items()},
    }


def _within(cycle: CycleTimes, since: float | None, until: float | None) -> bool:
    return (since is None or cycle.begin >= since) and (until is None or cycle.begin <= until)


def _read(file: Path) -> RankProfile:
    lines = _lines(file)
    try:
        about = _about(json.loads(next(lines, b"")))
    except _UNREADABLE as error:
        raise SpecwireError(
            f"{file}:1: not the head of a profile ({str(error)[:200]}); expected schema {SCHEMA}."
        ) from error
    cycles: list[CycleTimes] = []
    lost, stopped, cut = 0, False, None
    for number, line in enumerate(lines, 2):
        if cut is not None:
            raise cut
        if number > LINE_COUNT:
            raise SpecwireError(f"{file} has more than {LINE_COUNT:,} lines: cut it, or record a shorter time.")
        try:
            record = json.loads(line)
            if record["kind"] == "stopped":
                stopped = True
            else:
                lost = max(lost, _count(record.get("lost", 0)))
                cycles.append(_cycle(record))
        except _UNREADABLE as error:  # a killed server's last line may be cut
            cut = SpecwireError(f"{file}:{number}: not a cycle ({shortened(error)}). Record the profile again.")
    return RankProfile(about["rank"], about, cycles, lost, stopped, int(cut is not None))


_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError)


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with open_regular(file) as lines:
            while line := lines.readline(LINE_LIMIT):
                if len(line) == LINE_LIMIT:
                    raise SpecwireError(f"{file} has a line of more than {LINE_LIMIT:,} bytes: it is no profile.")
                yield line
    except OSError as error:
        raise SpecwireError(f"cannot read {file}: {said(error)}") from error


def _about(head: Mapping[str, Any]) -> dict[str, Any]:
    if head["schema"] != SCHEMA:
        raise ValueError(f"schema {shortened(head['schema'])}")
    return {
        "rank": _count(head["rank"]),
        "pid": _count(head["pid"]),
        "clock": _word(head.get("clock")),
        "device": _word(head.get("device")),
    }


def _cycle(record: Mapping[str, Any]) -> CycleTimes:
    return CycleTimes(
        kind=_word(record["kind"]) or "unknown",
        mode=_word(record["mode"]) or "unknown",
        begin=_seconds(record["t"]),
        milliseconds=_seconds(record["ms"]),
        gap=None if record["gap_ms"] is None else _seconds(record["gap_ms"]),
        batch=None if record["batch"] is None else _count(record["batch"]),
        parts={
            sys.intern(stage): (_seconds(milliseconds), _count(calls))
            for stage, (milliseconds, calls) in record["parts"].items()
        },
        accepted=tuple(_count(tokens, TOKENS_PER_CYCLE) for tokens in record["accepted"]),
        graph=None if record.get("graph") is None else record["graph"] is True,
        failed=record.get("failed") is True,
    )


def _word(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and len(value) <= 200):
        raise ValueError(f"{shortened(value)} is no name")
    return sys.intern(value) if value else None


def _seconds(value: Any) -> float:
    """A time, of whatever unit. Clocks of two devices may disagree by a little, so one may be negative."""
    if type(value) not in (int, float) or not abs(value) < 1e15:  # NaN is below nothing
        raise ValueError(f"{shortened(value)} is no time")
    return float(value)


def _count(value: Any, limit: int = 1 << 40) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{shortened(value)} is no count")
    return value
