"""Capture directories: what a run recorded, per rank and event, and which golden row each of its rows is.

Only headers and the small batch tensors are read here; the states stay on disk until they are compared.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.golden import Golden
from specwire.tensorfile import TensorFile, open_tensors

SCHEMA = "specwire.capture/1"
PREFILL = ("EXTEND", "MIXED")
DRAFT_SITES = ("draft-input", "draft-fc")
_FILE = re.compile(r"(\d+)\.([a-z][a-z0-9-]*)\.safetensors")


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
    def boundary(self) -> int | None:
        return self.about.get("boundary")

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
    def token_ids(self) -> array | None:
        return self._integers("token_ids")

    @cached_property
    def positions(self) -> array | None:
        return self._integers("positions")

    @cached_property
    def requests(self) -> list[tuple[int, int, int | None]]:
        """The requests of the batch as (first row, rows, tokens cached before them or None if not recorded).
        """
        lengths, prefixes = self._integers("extend_seq_lens"), self._integers("extend_prefix_lens")
        if lengths:
            known = prefixes if prefixes and len(prefixes) == len(lengths) else [None] * len(lengths)
            starts = [sum(lengths[:i]) for i in range(len(lengths))]
            return list(zip(starts, lengths, known, strict=True))
        if not self.positions:
            return [(0, self.rows, None)]
        breaks = [i for i, (a, b) in enumerate(zip(self.positions, self.positions[1:]), 1) if b != a + 1]
        return [(a, b - a, None) for a, b in zip([0, *breaks], [*breaks, len(self.positions)])]

    def _integers(self, name: str) -> array | None:
        entry = self.file.tensors.get(name)
        if entry is None or len(entry.shape) != 1 or entry.dtype not in ("I64", "I32"):
            return None
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

    def at(self, site: str, *, prefill: bool = True, rank: int | None = None) -> list[Event]:
        return [
            event
            for event in self.events
            if event.site == site and (event.prefill or not prefill) and rank in (None, event.rank)
        ]


@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one event that are neighbouring rows of one golden prompt."""

    event: Event
    row: int
    count: int
    prompt: int
    position: int


@dataclass(frozen=True)
class Alignment:
    """Pieces that were recognised, and a sentence for each request that was not, or whose positions are not
    its rows'."""

    pieces: tuple[Piece, ...]
    strange: tuple[str, ...]
    odd_positions: tuple[str, ...]
    shift: int


def open_capture(path: Path | str) -> Capture:
    """Read the headers of all events; SpecwireError when the directory holds none, or a file is no capture.
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
    if not events and not blind:
        raise SpecwireError(
            f"nothing was captured in {path}: no rank*/NNNNNN.SITE.safetensors there. "
            "Was the engine patched (specwire status) and EAGLE3_DEBUG=1 set with EAGLE3_CAPTURE_DIR?"
        )
    events.sort(key=lambda event: (event.rank, event.sequence))
    return Capture(path, tuple(events), tuple(blind))


def _event(path: Path, rank: int, sequence: int, site: str) -> Event:
    file = open_tensors(path)
    try:
        about = json.loads(file.metadata.get("specwire", ""))
        if about["schema"] != SCHEMA:
            raise ValueError(f"schema {str(about['schema'])[:40]!r}")
        _expect(about)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecwireError(
            f"{path} is no event of a capture ({error}): its metadata must hold {SCHEMA}"
        ) from error
    event = Event(rank, sequence, site, file, about)
    if len(file.entry(event.states).shape) != 2:
        raise SpecwireError(
            f"{event.states} of {path} must be [rows, width], not {list(file.entry(event.states).shape)}"
        )
    return event


def _expect(about: dict[str, Any]) -> None:
    """ValueError for a fact of a kind that no tap writes."""
    kinds = {"world_size": int, "boundary": int, "mode": str, "note": str, "captured": list, "fc_ran": bool}
    for name, kind in kinds.items():
        value = about.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and not 0 <= value < 10**6)):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    if not all(type(k) is int for k in about.get("captured") or ()):
        raise ValueError("captured is no list of numbers")


def _blind(path: Path, rank: int) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append({"rank": rank, **json.loads(line)})
        except (ValueError, TypeError):
            continue  # the last line of a killed process may be cut
    return found


def align(events: Sequence[Event], golden: Golden) -> Alignment:
    """Find each event's rows in the golden's prompts, by token ids and positions.

    A draft gets its ids shifted left by one. When all of a run's ids fit unshifted only, that is a finding of
    its own, and `shift` is 0.
    """
    shift = 0 if events and events[0].site not in DRAFT_SITES else 1
    found = _align(events, golden, shift)
    if shift and not found.pieces:
        unshifted = _align(events, golden, 0)
        if unshifted.pieces:
            return unshifted
    return found


def _align(events: Sequence[Event], golden: Golden, shift: int) -> Alignment:
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    pieces: list[Piece] = []
    strange: list[str] = []
    odd: list[str] = []
    for event in events:
        for first, rows, prefix in event.requests:
            piece = _place(event, first, rows, prefix, prompts, shift)
            if not isinstance(piece, Piece):
                strange.append(f"{event}, rows {first}..{first + rows}: {piece}")
                continue
            pieces.append(piece)
            positions = _part(event.positions, first, rows)
            if positions and positions != array("q", range(piece.position, piece.position + rows)):
                odd.append(
                    f"{event}: prompt {piece.prompt} has positions {list(positions[:4])}... for its tokens "
                    f"{piece.position} on"
                )
    return Alignment(tuple(pieces), tuple(strange), tuple(odd), shift)


def _place(
    event: Event, first: int, rows: int, prefix: int | None, prompts: Sequence[array], shift: int
) -> Piece | str:
    if first < 0 or rows <= 0 or first + rows > event.rows:
        return f"only {event.rows} rows of states were recorded"
    positions, ids = _part(event.positions, first, rows), _part(event.token_ids, first, rows)
    if ids is None:
        start = positions[0] if positions else prefix or 0
        fits = [p for p, prompt in enumerate(prompts) if start == 0 and len(prompt) == rows]
        return (
            Piece(event, first, rows, fits[0], 0)
            if len(fits) == 1
            else "no token ids recorded, and its length fits no one prompt"
        )
    # Where a request begins is known from its cached prefix; its positions should say the same, and are not
    # trusted to.
    starts = [prefix] if prefix is not None else []
    starts += [positions[0]] if positions and positions[0] not in starts else []
    for start in starts or [0]:
        fits = [p for p, prompt in enumerate(prompts) if _fits(ids, prompt, start, shift)]
        if len({tuple(prompts[p][: start + rows]) for p in fits}) > 1:
            return f"its token ids fit {len(fits)} golden prompts"
        if fits:
            return Piece(event, first, rows, fits[0], start)
    return "its token ids are those of no golden prompt"


def _part(values: array | None, first: int, rows: int) -> array | None:
    return values[first : first + rows] if values and len(values) >= first + rows else None


def _fits(ids: array, prompt: array, start: int, shift: int) -> bool:
    # The draft's last id is the token that was sampled next, or the next chunk's first: not the prompt's to
    # say.
    sure = len(ids) - shift
    if start < 0 or start + len(ids) > len(prompt):
        return False
    if sure and ids[0] != prompt[start + shift]:
        return False
    return ids[:sure] == prompt[start + shift : start + shift + sure]


def knows(golden: Golden, event: Event) -> bool:
    """Whether the event's token ids, taken whole, are those of a golden prompt from its start on; shifted or
    not."""
    ids = event.token_ids
    prompts = [array("q", prompt.token_ids) for prompt in golden.prompts]
    return (
        bool(ids)
        and len(ids) > 1
        and any(_fits(ids, prompt, 0, shift) for prompt in prompts for shift in (0, 1))
    )


def gaps(pieces: Sequence[Piece], prompt: int, length: int) -> Iterator[tuple[int, int]]:
    """The stretches of a prompt, as (first, end), that no piece covers."""
    reached = 0
    for piece in sorted(
        (piece for piece in pieces if piece.prompt == prompt), key=lambda piece: piece.position
    ):
        if piece.position > reached:
            yield reached, piece.position
        reached = max(reached, piece.position + piece.count)
    if reached < length:
        yield reached, length
