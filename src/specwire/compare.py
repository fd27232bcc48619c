"""Compares captured rows with golden rows: every row, every slot, every rank, in chunks.

Each file is read once. Squares are summed in float32 per row and in float64 over rows; a row whose squares leave
float32's range is done again in float64. Nothing larger than a chunk is held, except three numbers per row and slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwire.capture import Piece
from specwire.errors import SpecwireError
from specwire.golden import Golden

if TYPE_CHECKING:
    import torch

CHUNK = 768 * 1024  # elements of the concat: some 1.5 MB in bfloat16, which stays in a core's cache


@dataclass(frozen=True)
class Squares:
    """Per row and slot, in float64 [rows, slots]: |captured - golden|^2, |captured|^2, |golden|^2."""

    difference: torch.Tensor
    captured: torch.Tensor
    golden: torch.Tensor

    @property
    def errors(self) -> torch.Tensor:
        """Relative L2 of each row and slot; infinite where the golden row is zero and the captured one is not."""
        ratio = (self.difference / self.golden).sqrt()
        return ratio.masked_fill((self.difference == 0) & (self.golden == 0), 0.0)

    @property
    def finite(self) -> torch.Tensor:
        return self.captured.isfinite()

    def rel_l2(self, slot: int) -> float:
        return (self.difference[:, slot].sum() / self.golden[:, slot].sum()).sqrt().item()

    def cosine(self, slot: int) -> float:
        d, a, b = (part[:, slot].sum().item() for part in (self.difference, self.captured, self.golden))
        return max(-1.0, min(1.0, (a + b - d) / (2 * (a * b) ** 0.5))) if a > 0 and b > 0 else float("nan")


@dataclass(frozen=True)
class Comparison:
    """All rows that were compared. `squares` has one entry per rank whose bytes differ from the first rank's."""

    places: tuple[tuple[int, int], ...]
    rows: tuple[tuple[Piece, int], ...]
    squares: Mapping[int, Squares]
    between_ranks: Mapping[int, float]

    def of_rank(self, rank: int) -> Squares:
        return self.squares.get(rank) or next(iter(self.squares.values()))


def compare(pieces: Mapping[int, Sequence[Piece]], golden: Golden, slots: Sequence[int], hidden: int) -> Comparison:
    """Compare slot j of each rank's pieces with boundary `slots[j]` of the golden.

    `pieces` holds, per rank, the same places in the same order (see `matched_ranks`); the first rank leads.
    """
    import torch

    first, *others = pieces
    parts: dict[int, list[tuple[torch.Tensor, ...]]] = {first: []}
    between = dict.fromkeys(others, 0.0)
    done = 0
    for chunk in _chunks(pieces, len(slots) * hidden):
        wanted = _golden(golden, chunk[first], slots, hidden)
        lead = _states(chunk[first], len(slots), hidden)
        parts[first].append(_squares(lead, wanted))
        for rank in others:
            own = _states(chunk[rank], len(slots), hidden)
            same = _same_bytes(own, lead)
            if not same and rank not in parts:
                parts[rank] = [tuple(t for t in part) for part in parts[first][:-1]]
            if rank in parts:
                parts[rank].append(parts[first][-1] if same else _squares(own, wanted))
            if not same:
                between[rank] = max(between[rank], _distance(own, lead))
        done += chunk[first].count
    squares = {rank: Squares(*(torch.cat(column) for column in zip(*found, strict=True))) for rank, found in parts.items()}
    rows = tuple((piece, index) for piece in pieces[first] for index in range(piece.count))
    return Comparison(tuple((piece.prompt, piece.position + index) for piece, index in rows), rows, squares, between)


def matched_ranks(pieces: Sequence[Piece]) -> tuple[dict[int, list[Piece]], list[int]]:
    """Pieces by rank, ordered by place; and the ranks whose places are not those of the first."""
    by_rank: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_rank.setdefault(piece.event.rank, []).append(piece)
    for found in by_rank.values():
        found.sort(key=lambda piece: (piece.prompt, piece.position, piece.count, piece.event.sequence))
    ranks = sorted(by_rank)
    shape = {rank: [(p.prompt, p.position, p.count, p.event.width) for p in by_rank[rank]] for rank in ranks}
    odd = [rank for rank in ranks if shape[rank] != shape[ranks[0]]]
    return {rank: by_rank[rank] for rank in ranks if rank not in odd}, odd


def _chunks(pieces: Mapping[int, Sequence[Piece]], width: int) -> Iterator[dict[int, Piece]]:
    step = max(1, CHUNK // width)
    for together in zip(*pieces.values(), strict=True):
        for offset in range(0, together[0].count, step):
            yield {
                rank: Piece(p.event, p.row + offset, min(step, p.count - offset), p.prompt, p.position + offset)
                for rank, p in zip(pieces, together, strict=True)
            }


def _states(piece: Piece, slots: int, hidden: int) -> torch.Tensor:
    return piece.event.file.rows(piece.event.states, piece.row, piece.count).view(piece.count, slots, hidden)


def _golden(golden: Golden, piece: Piece, slots: Sequence[int], hidden: int) -> torch.Tensor:
    import torch

    prefix = golden.prompts[piece.prompt].prefix
    parts = [golden.file.rows(f"{prefix}boundary.{k}", piece.position, piece.count) for k in slots]
    wanted = torch.empty((piece.count, len(slots), hidden), dtype=parts[0].dtype)
    for slot, part in enumerate(parts):
        wanted[:, slot] = part
    return wanted


def _squares(states: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    b = wanted.float()
    bb = torch.linalg.vecdot(b, b)
    if _same_bytes(states, wanted):
        dd, aa = torch.zeros_like(bb), bb
    else:
        a = states.float()
        d = a - b
        dd, aa = torch.linalg.vecdot(d, d), torch.linalg.vecdot(a, a)
    if not (torch.isfinite(dd + aa + bb).all() and (bb > 1e-30).all()):
        a, b = states.double(), wanted.double()
        d = a - b
        dd, aa, bb = (torch.linalg.vecdot(x, x) for x in (d, a, b))
    if not torch.isfinite(bb).all():
        raise SpecwireError("the golden holds NaN or infinity in a boundary that is compared: build the golden again")
    return dd.double(), aa.double(), bb.double()


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size())
    if a.dtype != b.dtype or integers is None:
        return False
    return torch.equal(a.view(integers), b.view(integers))


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The worst row's relative L2 between two ranks; infinite when either is not finite."""
    x, y = a.double(), b.double()
    ratio = (x - y).norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-300)
    worst = ratio.max().item()
    return worst if worst == worst else float("inf")
