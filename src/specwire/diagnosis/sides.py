"""How far along the way the states are right: at the target's own taps, at the concat, and where the draft
reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specwire.capture import Event
from specwire.diagnosis.align import Piece, align
from specwire.diagnosis.distance import relative
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.noise import floor

SITES = ("embedding-capture", "hidden-state-dump", "layer-capture", "concat-full")
ROWS = 16


@dataclass(frozen=True)
class Side:
    """One site of the target: whether the rows looked at are the golden's, and the furthest of them."""

    site: str
    state: str
    boundaries: tuple[int, ...]
    rel_l2: float
    rows: int


def target_sites(evidence: Evidence) -> list[Side]:
    """The target's sites that recorded prefills of the golden's prompts, in the order of the forward."""
    found = []
    for site in SITES if evidence.pieces and evidence.capture and evidence.site == "draft-input" else ():
        if side := _side(evidence, site):
            found.append(side)
    return found


def _side(evidence: Evidence, site: str) -> Side | None:
    errors: dict[int, list[float]] = {}
    good = True
    for event, pieces in _aligned(evidence, site):
        for slot, k in enumerate(_boundaries(evidence, event)):
            if k not in evidence.golden.boundaries or len(errors.get(k, ())) >= ROWS:
                continue
            for piece in pieces:
                errors.setdefault(k, []).extend(_errors(evidence, piece, slot, k))
    for k, found in errors.items():
        good = good and floor(evidence.golden, evidence.dtype, k).allows(found)
    if not errors:
        return None
    every = [error for found in errors.values() for error in found]
    return Side(site, "exact" if good else "differs", tuple(sorted(errors)), max(every), len(every))


def _aligned(evidence: Evidence, site: str) -> list[tuple[Event, Sequence[Piece]]]:
    hidden, slots = evidence.golden.hidden, len(evidence.trained)
    width = hidden * slots if site == "concat-full" else hidden
    capture = evidence.capture
    recorded = capture.at(site, rank=capture.ranks[0]) if capture else []
    events = [event for event in recorded if event.width == width]
    return [(event, align([event], evidence.golden).pieces) for event in events]


def _boundaries(evidence: Evidence, event: Event) -> Sequence[int]:
    if event.site == "concat-full":
        return evidence.trained
    return () if event.boundary is None else (event.boundary,)


def _errors(evidence: Evidence, piece: Piece, slot: int, boundary: int) -> list[float]:
    count, hidden = min(piece.count, ROWS), evidence.golden.hidden
    states = piece.event.file.rows(piece.event.states, piece.row, count)[:, slot * hidden : (slot + 1) * hidden]
    wanted = evidence.whole.rows(f"boundary.{boundary}", [(piece.prompt, piece.position + i) for i in range(count)])
    return relative(states, wanted)
