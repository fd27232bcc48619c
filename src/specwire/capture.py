"""Capture directories: what a run recorded, per rank and event, and which golden row each of its rows is.

Only headers and the small batch tensors are read here; the states stay on disk until they are compared.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specwire.answers import Answers, read_answers
from specwire.errors import SpecwireError
from specwire.regular import open_regular
from specwire.tensorfile import TensorFile, open_tensors

SCHEMA = "specwire.capture/1"
BATCH_LIMIT = 1 << 22
BLIND_LIMIT = 1 << 22  # bytes; a process writes each site and reason once
PREFILL = ("EXTEND", "MIXED")
_FILE = re.compile(r"(\d+)\.([a-z][a-z0-9-]*)(?:\.\d+-[0-9a-f]+)?\.safetensors")


@dataclass(frozen=True)
class Event:
    """One tap that fired once: `rows` states, each `width` wide, in `file` as tensor `hidden_states`."""

    rank: int
    sequence: int
    site: str
    file: TensorFile
    about: dict[str, Any]

    @property
    def mode(self) -> str:
        return str(self.about.get("mode") or "")

    @property
    def prefill(self) -> bool:
        return self.mode in PREFILL

    @property
    def replayed(self) -> bool:
        """Whether the forward ran as a captured graph; else as Python."""
        return self.about.get("graph") == "replay"

    @property
    def boundary(self) -> int | None:
        return self.about.get("boundary")

    @property
    def process(self) -> str:
        """The process that wrote it: number and, since numbers come again, a name made at its start."""
        return str(self.about.get("process") or self.about.get("pid"))

    @property
    def shard(self) -> int | None:
        """How many token ids came with the states, where these are of another number of rows."""
        return self.about.get("shard")

    @property
    def states(self) -> str:
        return "hidden_states" if "hidden_states" in self.file.tensors else "input"

    @property
    def rows(self) -> int:
        return self.file.entry(self.states).shape[0]

    @property
    def width(self) -> int:
        return self.file.entry(self.states).shape[1]

    @property
    def dtype(self) -> str:
        return self.file.entry(self.states).torch_name

    @cached_property
    def token_ids(self) -> array[int] | None:
        return self._integers("token_ids")

    @cached_property
    def positions(self) -> array[int] | None:
        return self._integers("positions")

    @cached_property
    def lengths(self) -> array[int] | None:
        """Rows of each request of a prefill; None if not recorded."""
        return self._integers("extend_seq_lens")

    @cached_property
    def prefixes(self) -> array[int] | None:
        """Tokens cached before each request's rows; None if not recorded."""
        return self._integers("extend_prefix_lens")

    @cached_property
    def requests(self) -> list[tuple[int, int, int | None]]:
        """The batch's requests: (first row, rows, tokens cached before them, None if not recorded)."""
        if self.shard is not None:
            return []  # which of its rows is which token's cannot be told
        lengths, prefixes = self.lengths, self.prefixes
        if lengths:
            known = prefixes if prefixes and len(prefixes) == len(lengths) else [None] * len(lengths)
            starts = [sum(lengths[:i]) for i in range(len(lengths))]
            return list(zip(starts, lengths, known, strict=True))
        if not self.positions:
            return [(0, self.rows, None)]
        breaks = [i for i, (a, b) in enumerate(zip(self.positions, self.positions[1:]), 1) if b != a + 1]
        return [(a, b - a, None) for a, b in zip([0, *breaks], [*breaks, len(self.positions)])]

    @property
    def slots(self) -> array[int]:
        """The engine's numbers for the batch's requests, used again when one has ended; empty if not recorded."""
        return self._integers("req_pool_indices") or array("q")

    @property
    def totals(self) -> array[int]:
        """How many tokens each request has in the engine's cache, as the forward was told; empty if not recorded."""
        return self._integers("seq_lens") or array("q")

    def _integers(self, name: str) -> array[int] | None:
        entry = self.file.tensors.get(name)
        if entry is None or len(entry.shape) != 1 or entry.dtype not in ("I64", "I32"):
            return None
        if entry.shape[0] > BATCH_LIMIT:
            raise SpecwireError(
                f"{name} of {self.file.path} has {entry.shape[0]:,} entries, more than the {BATCH_LIMIT:,} tokens that a "
                "batch may have"
            )
        return array("q", (int(value) for value in self.file.values(name, 0, entry.shape[0])))

    def __str__(self) -> str:
        return f"rank{self.rank}/{self.file.path.name}"


@dataclass(frozen=True)
class Capture:
    """A capture directory: its events by rank, in the order in which they were written."""

    path: Path
    events: tuple[Event, ...]
    blind: tuple[dict[str, Any], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({event.rank for event in self.events}))

    @property
    def world_size(self) -> int:
        return max((int(event.about.get("world_size") or 1) for event in self.events), default=0)

    @cached_property
    def answers(self) -> Answers | None:
        """What the engine answered in this run, if `specwire run` kept it."""
        return read_answers(self.path)

    def at(self, site: str, *, prefill: bool = True, rank: int | None = None) -> list[Event]:
        return [
            event
            for event in self.events
            if event.site == site and (event.prefill or not prefill) and rank in (None, event.rank)
        ]


def told(events: Iterable[Event]) -> list[int] | None:
    """The boundaries that the engine itself says it captures, by the first of these events that has its word; None
    without one."""
    return next((event.about["captured"] for event in events if event.about.get("captured")), None)


def open_capture(path: Path | str) -> Capture:
    """Read the headers of all events.

    Raises SpecwireError when there are none, when a file is no capture, and when several processes wrote as one rank:
    their rows are not one run's.
    """
    path = Path(path)
    if not path.is_dir():
        raise SpecwireError(
            f"no capture directory at {path}: run with EAGLE3_CAPTURE_DIR={path}, or specwire run --out"
        )
    events: list[Event] = []
    blind: list[dict[str, Any]] = []
    for folder in sorted(path.glob("rank*")):
        rank = folder.name.removeprefix("rank")
        if not rank.isdigit() or not folder.is_dir():
            continue
        for file in sorted(folder.glob("*.safetensors")):
            if found := _FILE.fullmatch(file.name):
                events.append(_event(file, int(rank), int(found[1]), found[2]))
        blind += _blind(folder / "blind.jsonl", int(rank))
        blind += (_unfinished(file, int(rank)) for file in sorted(folder.glob("*.part")))
    if not events and not blind:
        raise SpecwireError(
            f"nothing was captured in {path}: no rank*/NNNNNN.SITE.safetensors there. "
            "Was the engine patched (specwire status) and EAGLE3_DEBUG=1 set with EAGLE3_CAPTURE_DIR?"
        )
    _refuse_mixed(path, events)
    events.sort(key=lambda event: (event.rank, event.sequence))
    return Capture(path, tuple(events), tuple(blind))


def _refuse_mixed(path: Path, events: Iterable[Event]) -> None:
    written: dict[int, Counter[str]] = {}
    for event in events:
        written.setdefault(event.rank, Counter())[event.process] += 1
    for rank, processes in sorted(written.items()):
        if len(processes) > 1:
            each = ", ".join(f"{name} ({count} files)" for name, count in sorted(processes.items())[:4])
            raise SpecwireError(
                f"{path}/rank{rank} was written by {len(processes)} processes: {each}. Two servers, replicas of one "
                "(--dp-size) or a restart shared the directory, and their rows are not one run's: give each an "
                "EAGLE3_CAPTURE_DIR of its own, or move the files of all but one elsewhere (the process is in each name)"
            )


def _unfinished(path: Path, rank: int) -> dict[str, Any]:
    site = path.name.split(".")[1] if path.name.count(".") > 1 else path.name
    return {"rank": rank, "site": site, "reason": "unfinished", "detail": f"{path.name} was never written to its end"}


def _event(path: Path, rank: int, sequence: int, site: str) -> Event:
    file = open_tensors(path)
    try:
        about = json.loads(file.metadata.get("specwire", ""))
        if about["schema"] != SCHEMA:
            raise ValueError(f"schema {str(about['schema'])[:40]!r}")
        _expect(about)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecwireError(f"{path} is no event of a capture ({error}): its metadata must hold {SCHEMA}") from error
    event = Event(rank, sequence, site, file, about)
    if len(file.entry(event.states).shape) != 2:
        raise SpecwireError(
            f"{event.states} of {path} must be [rows, width], not {list(file.entry(event.states).shape)}"
        )
    return event


def _expect(about: dict[str, Any]) -> None:
    """ValueError for a fact of a kind that no tap writes."""
    kinds = {
        "world_size": int,
        "boundary": int,
        "mode": str,
        "note": str,
        "captured": list,
        "captured_now": list,
        "graph": str,
        "graph_rows": int,
        "fc_ran": bool,
        "process": str,
        "shard": int,
    }
    for name, kind in kinds.items():
        value = about.get(name)
        if value is None:
            continue
        if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 10**6):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    for name in ("captured", "captured_now"):
        if not all(type(k) is int for k in about.get(name) or ()):
            raise ValueError(f"{name} is no list of numbers")


def _blind(path: Path, rank: int) -> list[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            lines = file.read(BLIND_LIMIT).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {error.strerror or error}") from error
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            facts = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError, MemoryError):
            continue  # the last line of a killed process may be cut
        found.append({"rank": rank, **{name: value[:200] for name, value in facts if isinstance(value, str)}})
    return found
