"""The self-check, which needs no golden: `lm_head(norm(last state))` must give the logprobs that the engine returned.

It ties the recorded rows to the answer: these states, in this order, are the ones that made these tokens. It says
nothing about whether the slots are those that the draft was trained on: only a golden does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specwire.capture import Event
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.head import Head
from specwire.diagnosis.noise import ROUNDOFF
from specwire.diagnosis.transcript import Forward, Row, Transcript

if TYPE_CHECKING:
    import torch

PROVES = "the recorded rows are, each in its place, the states that the returned tokens were made from"
DOES_NOT = (
    "whether the slots hold the layers that the draft was trained on: only a golden tells (specwire golden build)"
)
ROWS, FEW = 48, 6  # rows looked at, and those that tell in which way the states reach the head
MARGIN = 4.0
AS_RECORDED = "as recorded"
APART = 4.0  # rows put in each other's place must be so many bounds off, or the check could not have failed


@dataclass(frozen=True)
class Subject:
    """One place that recorded last states. `worst` and `bound` are in units of logits: of the row that comes nearest
    to its bound, or is furthest beyond it. `apart` is the median error when rows are put in each other's place.

    `state` is "holds", "fails", or "cannot tell": no row was recorded, or other rows would have done as well.
    """

    name: str
    state: str
    why: str
    rows: int = 0
    failed: int = 0
    worst: float | None = None
    bound: float | None = None
    apart: float | None = None
    way: str = ""


@dataclass(frozen=True)
class SelfCheck:
    """`by` is what was compared: "logprobs" or "tokens". `sure` is False where it is not known that the tokens were
    the likeliest ones: a server that samples may say others."""

    end: Subject
    others: tuple[Subject, ...]
    by: str
    sure: bool

    @property
    def state(self) -> str:
        return self.end.state


@dataclass(frozen=True)
class _Reading:
    """A row and what was said after it. `logprob` None: only the token is known."""

    state: torch.Tensor
    token: int
    logprob: float | None
    row: Row


def self_check(transcript: Transcript, head: Head, layers: int, slot: int | None) -> SelfCheck:
    """Check the end of the forward, and wherever else boundary `layers`, the last one, was recorded.

    `slot` is the draft's slot that holds that boundary by the engine's word, None when there is none.
    Raises NotSeen when no forward-end was recorded, or no token after one of its rows is known.
    """
    if not transcript.forwards:
        raise NotSeen("no forward-end was captured: nothing recorded the states that the head reads")
    hidden = head.config["hidden_size"]
    places = {
        f"boundary {layers} at {site}": _beside(transcript, (site, layers), 0, hidden)
        for site in ("hidden-state-dump", "layer-capture")
    }
    if slot is not None:
        places[f"slot {slot} of draft-input"] = _beside(transcript, ("draft-input", None), slot * hidden, hidden)
    ends = _readings(
        [(forward, forward.end) for forward in transcript.forwards if forward.end.width == hidden], 0, hidden
    )
    if not ends:
        raise NotSeen("no token is known that the target said after a recorded forward-end")
    if beyond := [one.token for one in ends if not 0 <= one.token < head.count]:
        raise NotSeen(f"token {beyond[0]} was said, and the head of --target has {head.count} rows")
    dtype = transcript.forwards[0].end.dtype
    others = tuple(_judge(name, head, found, dtype, normed=False) for name, found in places.items() if found)
    by = "logprobs" if any(one.logprob is not None for one in ends) else "tokens"
    sure = all(one.row.spoken.answer is not None or one.row.spoken.again for one in ends)
    return SelfCheck(_judge("forward-end", head, ends, dtype, normed=True), others, by, sure)


def _beside(transcript: Transcript, key: tuple[str, int | None], column: int, hidden: int) -> list[_Reading]:
    found = [(forward, forward.beside[key]) for forward in transcript.forwards if key in forward.beside]
    return _readings([pair for pair in found if pair[1].width >= column + hidden], column, hidden)


def _readings(events: Sequence[tuple[Forward, Event]], column: int, hidden: int) -> list[_Reading]:
    """Rows with the token that followed, at most `ROWS`, spread out. A prompt's own tokens tell something only with
    a logprob."""
    found = []
    for forward, event in events:
        for row in forward.rows:
            token, logprob = row.spoken.tokens.get(row.place + 1), _returned(row)
            if token is not None and (logprob is not None or row.place + 1 >= row.spoken.prompt):
                found.append((event, row, token, logprob))
    chosen = found if len(found) <= ROWS else [found[i * len(found) // ROWS] for i in range(ROWS)]
    return [
        _Reading(event.file.rows(event.states, row.row, 1)[0, column : column + hidden], token, logprob, row)
        for event, row, token, logprob in chosen
    ]


def _returned(row: Row) -> float | None:
    """The logprob that the engine returned for the token after the row."""
    logprobs = row.spoken.answer.logprobs if row.spoken.answer else None
    return logprobs[row.place + 1] if logprobs and row.place + 1 < len(logprobs) else None


def _judge(name: str, head: Head, found: list[_Reading], dtype: str, normed: bool) -> Subject:
    """`normed`: whether the states may have been through the final norm already."""
    import torch

    states = torch.stack([one.state for one in found])
    states = states.double() if dtype == "float32" else states.float()
    if not states.isfinite().all():
        return Subject(name, "fails", "a state holds NaN or infinity", len(found), len(found))
    ways = {AS_RECORDED: states} if normed else {}
    ways |= head.normed(states)
    if not ways:
        return Subject(name, "cannot tell", "the target's checkpoint has no final norm that is known here", len(found))
    step = max(1, len(found) // FEW)
    few = _errors(head, {way: made[::step] for way, made in ways.items()}, found[::step], dtype)
    misses = {way: float((errors / bounds).diagonal().median()) for way, (errors, bounds) in few.items()}
    way = next((way for way, miss in misses.items() if miss <= 1), min(misses, key=misses.__getitem__))
    errors, bounds = _errors(head, {way: ways[way]}, found, dtype)[way]
    if bool((errors > bounds).diagonal().any()):  # then rows may have changed places, and few of them tell no way
        tried = _errors(head, ways, found, dtype)
        way = max(tried, key=lambda each: int((tried[each][0] <= tried[each][1]).any(dim=0).sum()))
        errors, bounds = tried[way]
    own, allowed = errors.diagonal(), bounds.diagonal()
    worst = int((own / allowed).argmax())
    failed = [row for row in range(len(found)) if not own[row] <= allowed[row]]
    apart = _apart(errors, found)
    seen = Subject(
        name, "holds", "", len(found), worst=float(own[worst]), bound=float(allowed[worst]), apart=apart, way=way
    )
    if failed:
        return replace(seen, state="fails", why=_why(errors, bounds, failed, found), failed=len(failed))
    if apart is None or not apart > APART * float(allowed.median()):
        return replace(
            seen, state="cannot tell", why="rows in each other's place would fit as well: give longer prompts"
        )
    return seen


def _errors(
    head: Head, ways: dict[str, torch.Tensor], found: list[_Reading], dtype: str
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each way [i, j] twice, in logits: how far state i is from giving what was said after row j, and what
    rounding may cost. The head is read once for all ways.

    Where a logprob was returned it is the difference to that; else how far the token is below the likeliest one.
    """
    import torch

    together = torch.cat(list(ways.values()))
    rows = head.rows([one.token for one in found]).to(together.dtype)
    totals, bests = (torch.tensor_split(each, len(ways)) for each in head.totals(together))
    said = torch.tensor([float("nan") if one.logprob is None else one.logprob for one in found], dtype=torch.float64)
    made = {}
    # The engine rounds each logit, and sums each dot product in float32 at best. States that went through the norm
    # here were rounded there, twice; their roundings add up as a random walk does.
    own = ROUNDOFF.get(dtype, 2.0**-8)
    for (way, states), total, best in zip(ways.items(), totals, bests, strict=True):
        logits = head.capped(states @ rows.T).double()
        errors = torch.where(said.isnan(), best[:, None] - logits, (logits - total[:, None] - said).abs())
        spread = (states.square() @ rows.square().T).sqrt().max(dim=1).values.double()[:, None]
        steps = ROUNDOFF["float32"] * states.shape[1] ** 0.5 + (0 if way == AS_RECORDED else own)
        made[way] = errors, own * (logits.abs() + best.abs()[:, None]) + 2 * MARGIN * steps * spread
    return made


def _apart(errors: torch.Tensor, found: list[_Reading]) -> float | None:
    """The median error of a state with what was said after another row, where that was another token."""
    import torch

    tokens = torch.tensor([one.token for one in found])
    other = errors[tokens[:, None] != tokens[None]]
    return float(other.median()) if len(other) else None


def _why(errors: torch.Tensor, bounds: torch.Tensor, failed: list[int], found: list[_Reading]) -> str:
    """What fits instead: the states of other rows, or nothing that was recorded."""
    fits = errors <= bounds
    others = {j: next((i for i in fits[:, j].nonzero().flatten().tolist() if i != j), None) for j in failed}
    moved = {j: i for j, i in others.items() if i is not None}
    if 2 * len(moved) <= len(failed):
        return "no recorded row gives it"
    row, there = next(iter(moved.items()))
    place, other = found[row].row, found[there].row
    of = "of the same request" if place.spoken is other.spoken else "of another request"
    return (
        f"for {len(moved)} of {len(failed)} of them another row does: what was said after token {place.place} comes from "
        f"the row of token {other.place} {of}"
    )
