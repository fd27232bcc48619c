"""`bench`: settings measured one after the other on the same prompts, and compared with the first."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specwire import __version__
from specwire.bench.compare import comparisons
from specwire.bench.points import Setting, Stand, Workload, measure
from specwire.errors import FAULT, FINDING, INCONCLUSIVE, OK, SpecwireError
from specwire.outgoing import hide
from specwire.patching import surgery
from specwire.patching.overlay import make_overlay
from specwire.progress import Progress, within
from specwire.trees.identity import model_identity, tree_identity
from specwire.trees.tree import Tree

SCHEMA = "specwire.bench/1"
PROBE = "worker-profile"


def bench(
    stand: Stand | None,
    settings: Sequence[Setting],
    workload: Workload,
    boots: int,
    out: Path,
    say: Progress,
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """The points' records and what they come to. With several boots the settings take turns, and runs are pooled.

    `keep` gets the document after each point, so that a stop costs one.
    """
    points: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    for boot in range(boots):
        for number, setting in enumerate(settings):
            where = f"{setting.name}, boot {boot + 1} of {boots}: " if boots > 1 else f"{setting.name}: "
            folder = out / "points" / f"{number}-{_file_name(setting.name)}" / (f"boot{boot}" if boots > 1 else "")
            record = measure(stand, setting, workload, folder, within(say, where))
            points = _pooled(points, record, boot, number)
            document = {
                "complete": (boot + 1, number + 1) == (boots, len(settings)),
                "points": points,
                "comparisons": comparisons(points),
                "workload": describe(workload, boots),
            }
            keep(document)
    return document


def profiled_view(tree: Tree, where: Path, say: Progress) -> Path:
    """A view of the tree with the profiling taps in it; the tree itself is not written.

    Raises SpecwireError when a worker of the tree is not recognised.
    """
    outcome = surgery.plan_apply(tree, [PROBE], say)
    if outcome.exit_code:
        bad = next(site for site in outcome.sites if site.state in ("failed", "edited"))
        raise SpecwireError(
            f"{bad.file}:{bad.line}: {PROBE} in {bad.qualname or 'the file'}: {bad.why}. With --no-profile it is not needed."
        )
    return make_overlay(outcome, where)


def provenance(
    tree: Tree | None, target: Path | None, drafts: Sequence[Path], command: Sequence[str]
) -> dict[str, Any]:
    """What a result belongs to: hashes of tree and checkpoints, versions, the command that made it."""
    return {
        "specwire": __version__,
        "command": list(command),
        "tree": tree_identity(tree) if tree else None,
        "target": model_identity(target) if target else None,
        "drafts": [model_identity(draft) for draft in drafts],
        "machine": {"system": platform.platform(), "processors": _processors()},
    }


def describe(workload: Workload, boots: int = 1) -> dict[str, Any]:
    lengths = [len(prompt.content) for prompt in workload.prompts]
    return {
        "prompts": len(workload.prompts),
        "prompt_length": {"least": min(lengths), "most": max(lengths)},
        "in": "tokens" if isinstance(workload.prompts[0].content, tuple) else "characters",
        "new_tokens": workload.prompts[0].new_tokens,
        "loads": [{**asdict(load), "requests": count} for load, count in workload.loads],
        "warm_up": len(workload.warm_up),
        "repeats": workload.repeats,
        "boots": boots,
        "seed": workload.seed,
    }


def exit_code(document: dict[str, Any], required: float | None = None) -> int:
    """2 when a point failed; with a required speed-up 1 when one falls short of it and 3 when noise hides whether."""
    if any(point["state"] != "ok" for point in document["points"]):
        return FAULT
    if required is None:
        return OK
    found = [each["speedup"] for each in document["comparisons"]]
    if not found or any(each is None or each["low"] is None for each in found):
        return INCONCLUSIVE
    if any(each["high"] < required for each in found):
        return FINDING
    return OK if all(each["low"] >= required for each in found) else INCONCLUSIVE


def _pooled(points: list[dict[str, Any]], record: dict[str, Any], boot: int, number: int) -> list[dict[str, Any]]:
    if boot == 0:
        return [*points, record]
    before = points[number]
    if before["state"] == "ok" and record["state"] == "ok":
        for load, more in zip(before["loads"], record["loads"], strict=True):
            load["runs"] += more["runs"]
    elif before["state"] == "ok":
        points[number] = record
    return points


def _processors() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in hide(text))[:60]
