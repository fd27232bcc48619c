"""States that the target made twice: when it verified a token, and in a prefill of the same tokens. No golden holds
them, and they are the states that the draft goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwire.diagnosis.distance import relative
from specwire.diagnosis.draft_layer import far
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.noise import floor
from specwire.diagnosis.transcript import Forward, Row, Transcript

if TYPE_CHECKING:
    from specwire.diagnosis.evidence import Evidence

ROWS = 64
# Both are computed, so each may be a floor away from the truth; a norm may weigh a row's error up a little.
BOTH, NORMED = 2.0, 2.0
END = "the final state"


@dataclass(frozen=True)
class Off:
    """Rows of one part of the states that differ: `failed` of those compared, the first of them, and the worst."""

    part: str
    failed: int
    first: tuple[Forward, Row]
    worst: float
    bound: float


@dataclass(frozen=True)
class Twice:
    """How many rows were compared, and what of them differs, slot by slot and at the end."""

    rows: int
    off: tuple[Off, ...]


def said_again(evidence: Evidence) -> Twice:
    """Compare every token that was verified and is in a prefill, after the same tokens; NotSeen without any, and where
    the two need not be alike."""
    launch = evidence.context.launch
    if launch.gives("kv_cache_dtype") and launch.get("kv_cache_dtype") != "auto":
        raise NotSeen("with kv_cache_dtype a verification reads rounded states, and a prefill need not")
    pairs = _pairs(evidence.transcript)
    if not pairs:
        raise NotSeen("no token that was verified was computed in a prefill as well")
    found = []
    for slot, boundary in enumerate(evidence.trained if evidence.slot_count == len(evidence.trained) else ()):
        columns = slice(slot * evidence.golden.hidden, (slot + 1) * evidence.golden.hidden)
        found.append(_off(evidence, f"slot {slot}", "concat-full", columns, boundary, BOTH, pairs))
    end = _off(evidence, END, "forward-end", slice(None), evidence.golden.layers, BOTH * NORMED, pairs)
    return Twice(len(pairs), tuple(one for one in (*found, end) if one is not None))


def _pairs(transcript: Transcript) -> list[tuple[tuple[Forward, Row], tuple[Forward, Row]]]:
    """(when it was verified, in a prefill): rows of the same token after the same tokens."""
    verified = [(forward, row) for forward in transcript.forwards if not forward.end.prefill for row in forward.rows]
    if not verified:
        return []
    wanted = {_key(row): (forward, row) for forward, row in verified[:ROWS]}
    lengths = {len(key) for key in wanted}
    found = {}
    for forward in transcript.forwards:
        if not forward.end.prefill:
            continue
        # Neither a chunk, nor what goes on from a cache: the prefill began with the request's first token.
        whole = {id(row.spoken) for row in forward.rows if row.place == 0}
        for row in forward.rows:
            if id(row.spoken) in whole and row.place + 1 in lengths and (key := _key(row)) in wanted:
                found.setdefault(key, (forward, row))
    return [(wanted[key], other) for key, other in found.items()]


def _key(row: Row) -> tuple[int, ...]:
    """The row's token and all before it; empty when one of them is not known."""
    tokens = row.spoken.tokens
    places = range(row.place + 1)
    return tuple(tokens[place] for place in places) if all(place in tokens for place in places) else ()


def _off(
    evidence: Evidence,
    part: str,
    site: str,
    columns: slice,
    boundary: int,
    slack: float,
    pairs: list[tuple[tuple[Forward, Row], tuple[Forward, Row]]],
) -> Off | None:
    bounds = floor(evidence.golden, evidence.dtype, boundary)
    errors, places = [], []
    for one, other in pairs:
        events = [
            forward.end if site == "forward-end" else forward.beside.get((site, None)) for forward, _ in (one, other)
        ]
        if None in events or events[0].width != events[1].width:
            continue
        mine, wanted = (
            event.file.rows(event.states, row.row, 1)[:, columns] for event, (_, row) in zip(events, (one, other))
        )
        errors += [far(error) / slack for error in relative(mine, wanted)]
        places.append(one)
    if not errors or bounds.allows(errors):
        return None
    failed = [number for number, error in enumerate(errors) if not error <= bounds.usual]
    return Off(part, len(failed), places[failed[0]], slack * max(errors), slack * bounds.usual)
