"""A sweep's grid, from TOML: which settings to measure, and which combinations are left out and why."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from specwire.bench.points import Setting
from specwire.errors import SpecwireError, said, shortened
from specwire.outgoing import know_words
from specwire.regular import read_text

EXAMPLE = """\
steps = [1, 2, 3, 5]
topk = [1, 4]
draft_tokens = [4, 8]          # may be left out: then what steps and topk come to

[env]                          # every combination; "" leaves a variable as it is
NCCL_PROTO = ["", "LL"]
NCCL_ALGO = ["", "Ring"]

[arguments]                    # the engine's own, the same way
"--attention-backend" = ["fa3", "triton"]
"""
POINT_LIMIT = 10_000  # a week of boots, at a minute each
NUMBER_LIMIT = 100_000
TEXT_LIMIT = 4096
_KEYS = {"steps", "topk", "draft_tokens", "env", "arguments"}


@dataclass(frozen=True)
class Point:
    """One setting with its coordinates in the grid; the baseline has none for speculation."""

    setting: Setting
    where: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The same for the same setting, whatever else is in the grid."""
        setting = self.setting
        told = json.dumps([setting.draft is not None, setting.arguments, setting.env], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Grid:
    points: list[Point]
    left_out: list[dict[str, Any]] = field(default_factory=list)


def read_grid(path: Path, draft: Path, arguments: Sequence[str], env: Mapping[str, str]) -> Grid:
    """One baseline for each environment and extra argument, then every point of the grid.

    Raises SpecwireError for a file that is no grid: what is wrong, where, and an example.
    """
    try:
        grid = tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise SpecwireError(
            f"{path}: no TOML that can be read ({said(error)[:200]}). An example:\n{EXAMPLE}"
        ) from error
    if unknown := sorted(set(grid) - _KEYS):
        raise SpecwireError(
            f"{path}: {shortened(unknown[0])} means nothing here. There are: {', '.join(sorted(_KEYS))}. An example:\n{EXAMPLE}"
        )
    steps, topk = _numbers(path, grid, "steps", [3], 1), _numbers(path, grid, "topk", [1], 1)
    tokens: list[int | None] = [*_numbers(path, grid, "draft_tokens", [], 2)] or [None]
    around = {key: _choices(path, grid, key) for key in ("env", "arguments")}
    tables = [len(values) for table in around.values() for values in table.values()]
    if (count := prod([len(steps), len(topk), len(tokens), *tables])) > POINT_LIMIT:  # counted before one is made
        raise SpecwireError(
            f"{path}: {shortened(count)} combinations, each of which boots a server: no more than {POINT_LIMIT:,} are "
            "taken. Leave out values that need not be combined."
        )
    know_words(f"{name}={value}" for key in around.values() for name, values in key.items() for value in values)
    surroundings = [
        (dict(one), dict(other)) for one in _combinations(around["env"]) for other in _combinations(around["arguments"])
    ]
    points, left_out = [], []
    for settings, flags in surroundings:
        points.append(_point(None, None, settings, flags, arguments, env))
    for (settings, flags), (steps_, topk_, tokens_) in itertools.product(
        surroundings, itertools.product(steps, topk, tokens)
    ):
        chosen = {"steps": steps_, "topk": topk_, "draft_tokens": tokens_ or _most_tokens(steps_, topk_)}
        if why := _senseless(**chosen):
            left_out.append({"where": chosen, "why": why})
        else:
            points.append(_point(chosen, draft, settings, flags, arguments, env))
    unique = {point.id: point for point in points}
    seen = {json.dumps(each, sort_keys=True): each for each in left_out}
    return Grid(list(unique.values()), list(seen.values()))


def _point(
    chosen: Mapping[str, int] | None,
    draft: Path | None,
    settings: Mapping[str, str],
    flags: Mapping[str, str],
    arguments: Sequence[str],
    env: Mapping[str, str],
) -> Point:
    where = {**(chosen or {}), **settings, **flags}
    extra = [f"{flag}={value}" if value != "true" else flag for flag, value in flags.items() if value]
    if chosen:
        extra = [
            f"--speculative-num-steps={chosen['steps']}",
            f"--speculative-eagle-topk={chosen['topk']}",
            f"--speculative-num-draft-tokens={chosen['draft_tokens']}",
            *extra,
        ]
    name = " ".join(
        [
            *(["baseline"] if not chosen else []),
            *(f"{key.lstrip('-')}={value}" for key, value in where.items() if value != ""),
        ]
    )
    return Point(
        Setting(name, draft, (*arguments, *extra), {**env, **{key: value for key, value in settings.items() if value}}),
        where,
    )


def _senseless(steps: int, topk: int, draft_tokens: int) -> str | None:
    """Why the engine would not run this combination as written; None when it would."""
    if topk == 1 and draft_tokens != steps + 1:
        return f"with topk 1 the tree is a chain: {steps} steps make {steps + 1} draft tokens"
    if draft_tokens > _tree_size(steps, topk):
        return f"{steps} steps of {topk} branches make a tree of {_tree_size(steps, topk)} tokens at most"
    return None


def _tree_size(steps: int, topk: int) -> int:
    return 1 + topk + (steps - 1) * topk**2


def _most_tokens(steps: int, topk: int) -> int:
    return min(_tree_size(steps, topk), 64)


def _numbers(path: Path, grid: Mapping[str, Any], key: str, default: list[int], least: int) -> list[int]:
    values = grid.get(key, default)
    values = values if isinstance(values, list) else [values]
    if not all(type(value) is int and least <= value <= NUMBER_LIMIT for value in values):
        raise SpecwireError(
            f"{path}: {key} = {shortened(values)}: wanted a list of whole numbers from {least} to {NUMBER_LIMIT:,}."
        )
    return values


def _choices(path: Path, grid: Mapping[str, Any], key: str) -> dict[str, list[str]]:
    """The values of each name in the table `key`, as text."""
    table = grid.get(key, {})
    if not isinstance(table, dict):
        raise SpecwireError(f"{path}: [{key}] wants a list of values for each name. An example:\n{EXAMPLE}")
    listed = {name: values if isinstance(values, list) else [values] for name, values in table.items()}
    for name, values in listed.items():
        if not all(map(_short, values)):
            raise SpecwireError(
                f"{path}: [{key}] {shortened(name)} wants a list of short texts and numbers. An example:\n{EXAMPLE}"
            )
    return {name: [_text(value) for value in values] for name, values in listed.items()}


def _combinations(table: Mapping[str, list[str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    return itertools.product(*([(name, value) for value in values] for name, values in table.items()))


def _short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LIMIT and "\0" not in value
    return isinstance(value, (int, float)) and abs(value) < 1e15


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
