"""`sweep`: every point of a grid, each kept on disk as soon as it is measured, so that a stop costs one point."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specwire.bench.compare import compare, rate
from specwire.bench.grid import Grid, Point
from specwire.bench.points import Enough, Stand, Workload, measure
from specwire.bench.run import describe
from specwire.bench.statistics import quantile
from specwire.errors import FAULT, OK, SpecwireError
from specwire.outgoing import write_text
from specwire.progress import Progress, within
from specwire.regular import make_private, open_lock, read_json

SCHEMA = "specwire.sweep/1"
HOPELESS = 0.75  # a point whose best run is this far below the best point's mean is not going to win


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """The directory, for one sweep at a time. Raises SpecwireError while another one has it."""
    import fcntl  # not on Windows, where the commands that only read work

    make_private(out)
    with open_lock(out / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SpecwireError(
                f"{out}: another sweep is at work in it. Wait for it, or name another --out."
            ) from error
        yield


def sweep(
    stand: Stand,
    grid: Grid,
    workload: Workload,
    out: Path,
    provenance: Mapping[str, Any],
    *,
    stop_early: bool,
    retry_failed: bool,
    confirm: bool,
    say: Progress,
) -> dict[str, Any]:
    """The records of all points, measured now or found in `out`, and which is best.

    The best of many owes part of its lead to luck. So, to `confirm`, it and the baseline are measured once
    more at the end, and the verdict rests on that alone.

    Raises SpecwireError when `out` holds a sweep of other things than these.
    """
    _claim(out, _key(stand, workload, provenance))
    records: dict[str, dict[str, Any]] = {}
    took: list[float] = []

    def measured(point: Point, folder: Path, name: str, enough: Enough) -> dict[str, Any]:
        record = _kept(folder, retry_failed)
        if record is None:
            shutil.rmtree(folder, ignore_errors=True)
            begun = time.monotonic()
            record = measure(stand, point.setting, workload, folder, within(say, f"{name}: "), enough)
            record |= {"id": point.id, "where": dict(point.where), "seconds": round(time.monotonic() - begun, 1)}
            _write(folder / "point.json", record)
            took.append(record["seconds"])
        return record

    for number, point in enumerate(grid.points, 1):
        enough = _no_hope(records.values(), point) if stop_early else _never
        records[point.id] = measured(
            point, out / "points" / point.id, f"point {number}/{len(grid.points)} {point.setting.name}", enough
        )
        document = _document(grid, records, workload, provenance)
        _write(out / "sweep.json", document)
        say(_progress(number, len(grid.points), records[point.id], document, took))
    if confirm and document["best"]:
        by_id = {point.id: point for point in grid.points}
        again = [
            measured(by_id[each], out / "confirm" / each, f"once more: {by_id[each].setting.name}", _never)
            for each in (document["best"]["baseline"]["id"], document["best"]["id"])
        ]
        document = _document(grid, records, workload, provenance, again)
        _write(out / "sweep.json", document)
    return document


def exit_code(document: Mapping[str, Any]) -> int:
    """2 without a baseline or without one point that worked: nothing was compared then."""
    return OK if document["best"] else FAULT


def _never(runs: list[dict[str, Any]]) -> bool:
    return False


def _document(
    grid: Grid,
    records: Mapping[str, dict[str, Any]],
    workload: Workload,
    provenance: Mapping[str, Any],
    again: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    points = list(records.values())
    return {
        "schema": SCHEMA,
        "complete": len(points) == len(grid.points),
        "points": points,
        "left_out": grid.left_out,
        "best": best(points, again),
        "confirmation": list(again),
        "workload": describe(workload),
        "provenance": dict(provenance),
    }


def best(points: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
    """The fastest point by tokens per second at the first load, against the fastest baseline.

    Both measured `again` (baseline, then winner), the verdict is of those runs. None unless a baseline and
    a point with speculation both worked.
    """
    worked = [point for point in points if point["state"] == "ok" and point["loads"] and point["loads"][0]["runs"]]
    baselines = [point for point in worked if point["draft"] is None]
    others = [point for point in worked if point["draft"] is not None]
    if not baselines or not others:
        return None
    base, winner = max(baselines, key=_rate), max(others, key=_rate)
    confirmed = len(again) == 2 and all(record["state"] == "ok" for record in again)
    comparison = compare(again[1], again[0], 0) if confirmed else compare(winner, base, 0)
    worth_it = comparison["verdict"] == "faster"
    return {
        "id": winner["id"],
        "name": winner["name"],
        "where": winner["where"],
        "tokens_per_second": _rate(winner),
        "baseline": {"id": base["id"], "name": base["name"], "tokens_per_second": _rate(base)},
        "comparison": comparison,
        "confirmed": confirmed,
        "worth_it": worth_it,
        "launch": winner["launch"] if worth_it else base["launch"],
        "as_good": [
            point["name"]
            for point in others
            if point is not winner and _overlaps(winner, point) and compare(winner, point, 0)["verdict"] != "faster"
        ],
    }


def _overlaps(winner: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    """Whether the point's best run came up to the winner's worst: few runs make any interval wide."""
    ours, theirs = ([run["tokens_per_second"] or 0.0 for run in each["loads"][0]["runs"]] for each in (winner, point))
    return max(theirs) >= min(ours)


def _rate(point: Mapping[str, Any]) -> float:
    return rate(point["loads"][0]) or 0.0


def _no_hope(records: Iterable[Mapping[str, Any]], point: Point) -> Enough:
    """After each run: is even the point's best one far below what another point reaches on average?"""
    reached = [_rate(record) for record in records if record["state"] == "ok" and record["loads"]]
    target = max(reached, default=0.0) if point.setting.draft else 0.0

    def enough(runs: list[dict[str, Any]]) -> bool:
        return max(run["tokens_per_second"] or 0.0 for run in runs) < HOPELESS * target

    return enough


def _progress(
    number: int, count: int, record: Mapping[str, Any], document: Mapping[str, Any], took: list[float]
) -> str:
    if record["state"] == "ok":
        told = f"{_rate(record):.1f} tok/s" + (", stopped early" if record["loads"][0]["stopped_early"] else "")
    else:
        told = f"FAILED at {record['error']['stage']}: {record['error']['why'][:160]}"
    found = document["best"]
    leader = f"; best so far {found['name']} at {found['tokens_per_second']:.1f}" if found else ""
    left = (count - number) * (quantile(took, 0.5) or 0.0)
    time_left = f"; about {_duration(left)} left" if left else ""
    return f"point {number}/{count} {record['name']}: {told}{leader}{time_left}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


# --- the directory ------------------------------------------------------------------------------------


def _key(stand: Stand, workload: Workload, provenance: Mapping[str, Any]) -> dict[str, str]:
    """What must be the same for points to belong together."""
    prompts = json.dumps([[prompt.content, prompt.new_tokens] for prompt in (*workload.prompts, *workload.warm_up)])
    return {
        "tree": provenance["tree"]["sha256"],
        "target": provenance["target"]["sha256"],
        "draft": provenance["drafts"][0]["sha256"],
        "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
        "loads": json.dumps(describe(workload)["loads"]),
        "repeats": str(workload.repeats),
        "ranks": str(stand.tp),
        "device": stand.device,
        "profiled": str(stand.profiled),
    }


def _claim(out: Path, key: Mapping[str, str]) -> None:
    file = out / "key.json"
    if not file.exists():
        _write(file, key)
        return
    before = read_json(file)
    if changed := [name for name in key if key[name] != before.get(name)]:
        raise SpecwireError(
            f"{out}: holds a sweep with another {', '.join(changed)}. Name another --out, or delete it to start anew."
        )


def _kept(folder: Path, retry_failed: bool) -> dict[str, Any] | None:
    """A point that was measured to its end before; a half written one counts as none."""
    try:
        record = read_json(folder / "point.json")
    except (OSError, ValueError):
        return None
    return None if retry_failed and record["state"] != "ok" else record


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, also when the machine goes down."""
    make_private(path.parent)
    write_text(path, json.dumps(value, indent=1, allow_nan=False), durable=True)
