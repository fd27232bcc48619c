"""The parts of `check`'s JSON document that hold numbers: rounded, and None where JSON has no number."""

from __future__ import annotations

from math import isfinite
from typing import Any

from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.judge import Slot, Worst


def slot_document(slot: Slot) -> dict[str, Any]:
    return {
        "slot": slot.slot,
        "expected_boundary": slot.expected,
        "nearest_boundary": slot.nearest,
        "rel_l2": number(slot.rel_l2),
        "nearest_rel_l2": number(slot.nearest_rel_l2),
        "cosine": number(slot.cosine, 9),
        "hs_first5": numbers(slot.first5),
        "golden_first5": numbers(slot.golden5),
        "state": slot.state,
        "why": slot.why,
        "tolerance": number(slot.tolerance),
        "rows": slot.rows,
        "failed_rows": slot.failed_rows,
        "worst_row": _worst(slot.worst) if slot.worst else None,
    }


def _worst(row: Worst) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "prompt": row.prompt,
        "position": row.position,
        "token": row.token,
        "rel_l2": number(row.rel_l2),
        "bound": number(row.bound),
        "largest": [
            {
                "index": one.index,
                "captured": number(one.captured, 9),
                "golden": number(one.golden, 9),
                "difference": number(abs(one.captured - one.golden)),
            }
            for one in row.elements
        ],
    }


def distances(evidence: Evidence) -> dict[str, Any] | None:
    """The median row's distance of every slot to every boundary, for the heatmap."""
    if evidence.sample is None:
        return None
    medians = evidence.sample.distances.median(dim=-1).values.tolist()
    return {
        "boundaries": list(evidence.sample.boundaries),
        "slots": [numbers(row) for row in medians],
        "rows": len(evidence.sample.places),
    }


def rows(evidence: Evidence) -> dict[str, Any] | None:
    """Each sampled row's error at the trained boundary of every slot, for the page's bars."""
    if evidence.sample is None or evidence.columns is not None or evidence.slot_count != len(evidence.trained):
        return None
    known = [k for k in evidence.trained if k in evidence.sample.boundaries]
    if len(known) < len(evidence.trained):
        return None
    return {
        "places": [list(place) for place in evidence.sample.places],
        "errors": [numbers(evidence.errors(slot, k)) for slot, k in enumerate(evidence.trained)],
    }


def numbers(values: Any) -> list[float | None] | None:
    return None if values is None else [number(value) for value in values]


def number(value: float | None, digits: int = 6) -> float | None:
    """Rounded for people; JSON knows neither NaN nor infinity."""
    return float(f"{value:.{digits}g}") if value is not None and isfinite(value) else None
