"""Transforms that checks try on a slot; their parameters are fitted on some rows and tested on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specwire.diagnosis.distance import angle, relative

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.evidence import Evidence

# Two tokens' rows at one boundary differ by more than this, in relative L2; the same token's in two contexts by less.
FAR = 0.5
# A row is rather another's when it is nearer to that one than this share of the way to its own; of most rows.
NEARER, SHARE = 0.6, 0.8


def is_final(evidence: Evidence, slot: int) -> bool:
    """Whether a slot holds the states after the final norm."""
    known = evidence.golden.has("final_norm")
    return known and evidence.holds(slot, evidence.wanted("final_norm"), evidence.whole.layers)


def part_of_stream(evidence: Evidence, slot: int, k: int) -> tuple[bool, str] | None:
    """Which part of boundary `k` a slot holds, and whether that is exact; None when it is not one.

    A golden with `residual.K` tells exactly; without, a slot that points along what the last layer added, and
    is smaller than the stream, only looks like it.
    """
    states, stream = evidence.captured(slot), evidence.wanted(k)
    if evidence.golden.has(f"residual.{k}"):
        residual = evidence.wanted(f"residual.{k}")
        if evidence.fits(states + residual, k):
            return True, "captured + residual is the golden's row, exactly: the residual was left out"
        if evidence.holds(slot, residual, k):
            return True, "captured is the golden's residual, without the layer's branch"
        return None
    if k - 1 not in evidence.seen.boundaries:
        return None
    before = evidence.wanted(k - 1)
    small = bool((states.norm(dim=-1) < 0.9 * stream.norm(dim=-1)).all())
    nearer = angle(stream - states, before) > angle(stream, before) + 0.005
    if small and nearer and angle(states, stream - before) > 0.4:
        return False, "captured points along what the layer before added, and is smaller than the stream"
    return None


def sum_over_ranks(evidence: Evidence, slot: int, k: int) -> tuple[bool, str] | None:
    """How the ranks' rows of a slot add up to the golden's, and whether exactly; None when they do not."""
    total, others = evidence.summed(slot), len(evidence.ranks) - 1
    if evidence.fits(total, k, slack=2):
        return True, "their sum is the golden's row"
    if evidence.golden.has(f"residual.{k}"):
        once = total - others * evidence.wanted(f"residual.{k}").double()
        if evidence.fits(once, k, slack=2 * others + 1):
            return True, "their sum, with the residual counted once, is the golden's row"
        return None
    if k - 1 not in evidence.seen.boundaries:
        return None
    residual, before = (total - evidence.wanted(k)) / others, evidence.wanted(k - 1)
    if angle(residual, before) > angle(evidence.wanted(k), before) + 0.005:
        return False, "their sum exceeds the golden's row by what looks like the residual, per further rank"
    return None


def normed(evidence: Evidence, slot: int) -> str | None:
    """How a norm lies between a slot and its trained boundary; None when none does."""
    k = evidence.trained[slot]
    states, wanted, bound = evidence.captured(slot), evidence.wanted(k), 2 * evidence.floor(k).usual
    if normed_rows(wanted, states, bound):
        return "each row is the golden's, normed and times one weight per channel"
    if normed_rows(states, wanted, bound):
        return "each golden row is the captured one, normed and times one weight per channel"
    return None


def normed_rows(before: torch.Tensor, after: torch.Tensor, bound: float) -> bool:
    """Whether `after` is `before` with each row normed and each channel weighted; both are [rows, hidden], of 8 rows
    at least.

    The weights are fitted to every other row and tested on the rest, so that noise cannot fit itself.
    """
    if len(before) < 8 or not (before.isfinite().all() and after.isfinite().all()):
        return False
    if not (before.any(dim=-1).all() and after.any(dim=-1).all()):
        return False  # a norm with weights of zero would make any row one of zeros
    x, y = before.double(), after.double()
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-300)
    weight = (x[::2] * y[::2]).sum(dim=0) / x[::2].square().sum(dim=0).clamp_min(1e-300)
    return max(relative(x[1::2] * weight, y[1::2])) <= bound


def rotated_basis(evidence: Evidence, slot: int) -> bool:
    """Whether a slot's rows have the golden's sizes and inner products, and entries that are far from its
    own."""
    k = evidence.trained[slot]
    x, y, bound = evidence.captured(slot).double(), evidence.wanted(k).double(), evidence.floor(k).usual
    if len(x) < 4 or not x.isfinite().all() or min(relative(x, y)) < 0.3:
        return False
    size = y.norm(dim=-1)
    difference = (x @ x.T - y @ y.T) / (size[:, None] * size[None, :]).clamp_min(1e-300)
    return float(difference.abs().max()) <= bound


def off_from(evidence: Evidence) -> int | None:
    """The position from which on rows are off, though near, when it is one for all prompts and slots; None otherwise.

    What a row sees of the rows before it, and how far away, differs then; what each token is by itself does not.
    """
    places = evidence.seen.places
    bad = {slot: set(evidence.bad_rows(slot)) for slot in evidence.off}
    if not bad or not all(bad.values()) or evidence.not_finite or another_text(evidence):
        return None
    first = min(places[row][1] for rows in bad.values() for row in rows)
    expected = {row for row, (_, position) in enumerate(places) if position >= first}
    near = all(k == evidence.trained[slot] and away < 0.5 for slot in bad for k, away in [evidence.nearest[slot]])
    prompts = {places[row][0] for row in expected}
    if not first or not near or any(rows != expected for rows in bad.values()) or len(prompts) < min(first, 2):
        return None
    return first


def another_text(evidence: Evidence) -> Mapping[int, int] | None:
    """The position in each prompt from which on the golden's rows are those of another text; None when they are not.

    From there on every row is off, and the first is as far off as a row of another token is. Rows that only saw
    something else lie near, and a target with other weights has no right row at all.
    """
    places, found = evidence.seen.places, {}
    if not evidence.off or evidence.not_finite or any(evidence.found[slot] is not None for slot in evidence.off):
        return None
    if any(_elsewhere(evidence, slot, row) for slot in evidence.off for row in evidence.bad_rows(slot)):
        return None
    for prompt in {prompt for prompt, _ in places}:
        rows = sorted((position, row) for row, (one, position) in enumerate(places) if one == prompt)
        off = [any(row in evidence.bad_rows(slot) for slot in evidence.off) for _, row in rows]
        if not any(off):
            continue
        first = off.index(True)
        if not all(off[first:]) or not all(_far(evidence, slot, rows[first][1]) for slot in evidence.off):
            return None
        found[prompt] = rows[first][0]
    right = any(found.get(prompt, position + 1) > position for prompt, position in places)
    return found if found and right else None


def near_shift(evidence: Evidence) -> int | None:
    """The step by which the golden's rows seem to be shifted, where no row fits: the states of the same tokens, each in a
    context that is a token longer or shorter. None where the nearest rows do not say so.

    Looked at in the shallowest slot, where a row is its token's more than its context's.
    """
    if not evidence.off or evidence.not_finite or len(evidence.lost) < len(evidence.trained):
        return None
    slot = min(evidence.lost, key=evidence.trained.__getitem__)
    k = evidence.trained[slot]
    own, states = evidence.errors(slot, k), evidence.captured(slot)
    for step in (1, -1):
        moved = relative(states, evidence.wanted(k, step))
        rows = [row for row, error in enumerate(moved) if error == error]  # NaN: a row that leaves its prompt
        nearer = [row for row in rows if moved[row] < NEARER * own[row] and moved[row] < FAR < own[row]]
        if len(rows) >= 4 and len(nearer) >= SHARE * len(rows) and _none_known_but(evidence, step):
            return step
    return None


def _none_known_but(evidence: Evidence, step: int) -> bool:
    """Whether no row is the golden's of another place than `step` on, where the nearest may fit within the floor."""
    places = evidence.seen.places
    return all(
        there is None or places[there] == (places[row][0], places[row][1] + step)
        for slot in evidence.nearest_rows
        for row, there in enumerate(slot)
    )


def _elsewhere(evidence: Evidence, slot: int, row: int) -> bool:
    """Whether a row is the golden's of another place, or zero."""
    return evidence.nearest_rows[slot][row] is not None or not evidence.captured(slot)[row].any()


def _far(evidence: Evidence, slot: int, row: int) -> bool:
    return evidence.errors(slot, evidence.trained[slot])[row] > FAR


def repeated_rows(evidence: Evidence) -> list[tuple[int, int]]:
    """(row, earlier row): sampled rows that hold the very bytes of the same position in an earlier prompt.

    Rows of the same token are left out, and rows of zeros.
    """
    places, tokens = evidence.seen.places, evidence.tokens
    slots = [evidence.captured(slot) for slot in evidence.off]
    return [
        (row, earlier)
        for row in range(len(places))
        for earlier in range(row)
        if places[row][1] == places[earlier][1]
        and tokens[row] != tokens[earlier]
        and all(states[row].equal(states[earlier]) and states[row].any() for states in slots)
    ]
