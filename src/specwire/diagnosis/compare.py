"""Compares captured rows with golden rows: every row, every slot, every rank, in chunks.

Each file is read once, into buffers that are used again and again: fresh memory for each chunk would cost
more than the arithmetic. Squares are summed in float32 per row and in float64 over rows; rows whose squares
leave float32's range are done again in float64. Nothing larger than a chunk is held, except three numbers per
row and slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwire.diagnosis.align import Piece
from specwire.errors import SpecwireError
from specwire.goldens.golden import Golden

if TYPE_CHECKING:
    import torch

CHUNK = 256 * 1024  # elements of one slot: 1 MB in float32, which stays in a core's cache


@dataclass(frozen=True)
class Squares:
    """Per row and slot, in float64 [rows, slots]: |captured - golden|^2, |captured|^2, |golden|^2."""

    difference: torch.Tensor
    captured: torch.Tensor
    golden: torch.Tensor

    @property
    def errors(self) -> torch.Tensor:
        """Relative L2 of each row and slot; infinite where the golden row is zero and the captured one is
        not."""
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
    """All rows that were compared, in the order of `pieces`. `squares` has one entry per rank whose bytes
    differ from the first rank's."""

    pieces: tuple[Piece, ...]
    squares: Mapping[int, Squares]
    between_ranks: Mapping[int, float]

    def place(self, row: int) -> tuple[int, int]:
        """(prompt, position) of a row."""
        piece, index = locate(self.pieces, row)
        return piece.prompt, piece.position + index

    def of_rank(self, rank: int) -> Squares:
        return self.squares.get(rank) or next(iter(self.squares.values()))


def compare(pieces: Mapping[int, Sequence[Piece]], golden: Golden, slots: Sequence[int], hidden: int) -> Comparison:
    """Compare slot j of each rank's pieces with boundary `slots[j]` of the golden.

    `pieces` holds, per rank, the same places in the same order (see `matched_ranks`); the first rank leads.
    """
    import torch

    first, *others = pieces
    parts: dict[int, list[torch.Tensor]] = {first: []}
    between = dict.fromkeys(others, 0.0)
    work = _Work(golden, slots, hidden)
    for chunk in _chunks(pieces, hidden):
        lead = work.states(first, chunk[first])
        parts[first].append(work.squares(lead, chunk[first]))
        for rank in others:
            own = work.states(rank, chunk[rank])
            same = _same_bytes(own, lead)
            if not same and rank not in parts:
                parts[rank] = list(parts[first][:-1])
            if rank in parts:
                parts[rank].append(parts[first][-1] if same else work.squares(own, chunk[first]))
            if not same:
                between[rank] = max(between[rank], _distance(own, lead))
    squares = {rank: Squares(*torch.cat(found, dim=1)) for rank, found in parts.items()}
    return Comparison(tuple(pieces[first]), squares, between)


def locate(pieces: Sequence[Piece], row: int) -> tuple[Piece, int]:
    """The piece that holds a row, counted over all pieces, and the row's number within it."""
    for piece in pieces:
        if row < piece.count:
            return piece, row
        row -= piece.count
    raise IndexError(f"row {row} beyond the last piece")


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


def between_repeats(pieces: Sequence[Piece]) -> float | None:
    """The worst row's relative L2 between captures of the very same rows, as when a prompt ran twice; None
    without any."""
    first: dict[tuple[int, int, int], Piece] = {}
    worst = None
    for piece in pieces:
        before = first.setdefault((piece.prompt, piece.position, piece.count), piece)
        if before is piece or piece.event.width != before.event.width:
            continue
        step = max(1, CHUNK // piece.event.width)
        for offset in range(0, piece.count, step):
            count = min(step, piece.count - offset)
            a, b = (one.event.file.rows(one.event.states, one.row + offset, count) for one in (piece, before))
            worst = max(worst or 0.0, 0.0 if _same_bytes(a, b) else _distance(a, b))
    return worst


def _chunks(pieces: Mapping[int, Sequence[Piece]], hidden: int) -> Iterator[dict[int, Piece]]:
    step = max(1, CHUNK // hidden)
    for together in zip(*pieces.values(), strict=True):
        for offset in range(0, together[0].count, step):
            yield {
                rank: Piece(p.event, p.row + offset, min(step, p.count - offset), p.prompt, p.position + offset)
                for rank, p in zip(pieces, together, strict=True)
            }


class _Work:
    """The buffers of one comparison: per rank for the bytes read, and three of float32 for the arithmetic."""

    def __init__(self, golden: Golden, slots: Sequence[int], hidden: int) -> None:
        import torch

        self.golden, self.slots, self.hidden = golden, slots, hidden
        self.rows = max(1, CHUNK // hidden)
        self.golden_bytes = bytearray(8 * self.rows * hidden)
        self.rank_bytes: dict[int, bytearray] = {}
        self.a, self.b, self.d = (torch.empty((self.rows, hidden)) for _ in range(3))

    def states(self, rank: int, piece: Piece) -> torch.Tensor:
        """The captured rows, [rows, slots, hidden]; overwritten by the next call for the same rank."""
        event = piece.event
        buffer = self.rank_bytes.setdefault(rank, bytearray(event.file.entry(event.states).row_bytes * self.rows))
        return event.file.rows(event.states, piece.row, piece.count, buffer).view(
            piece.count, len(self.slots), self.hidden
        )

    def squares(self, states: torch.Tensor, piece: Piece) -> torch.Tensor:
        """[3, rows, slots] in float64: |captured - golden|^2, |captured|^2, |golden|^2."""
        import torch

        found = torch.empty((3, piece.count, len(self.slots)), dtype=torch.float64)
        prefix = self.golden.prompts[piece.prompt].prefix
        for slot, k in enumerate(self.slots):
            wanted = self.golden.file.rows(f"{prefix}boundary.{k}", piece.position, piece.count, self.golden_bytes)
            found[:, :, slot] = self._slot(states[:, slot], wanted)
        return found

    def _slot(self, states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        import torch

        count = len(wanted)
        b = self.b[:count].copy_(wanted)
        sizes = [torch.linalg.vector_norm(b, dim=-1)]
        if _same_bytes(states, wanted):
            sizes = [torch.zeros(count), *sizes, *sizes]
        else:
            a = self.a[:count].copy_(states)
            d = torch.sub(a, b, out=self.d[:count])
            sizes = [torch.linalg.vector_norm(d, dim=-1), torch.linalg.vector_norm(a, dim=-1), *sizes]
        squares = torch.stack(sizes).double().square()
        if squares.sum().isfinite() and squares[2].min() > 1e-30:
            return squares
        a, b = states.double(), wanted.double()
        squares = torch.stack([x.square().sum(dim=-1) for x in (a - b, a, b)])
        if not squares[2].isfinite().all():
            raise SpecwireError(
                "the golden holds NaN or infinity in a boundary that is compared: build the golden again"
            )
        return squares


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size())
    if a.dtype != b.dtype or integers is None:
        return False
    return torch.equal(a.view(integers), b.view(integers))


@contextmanager
def one_thread() -> Iterator[None]:
    """One core for torch: chunks are small, and threads waiting for each other cost more than they bring."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The worst row's relative L2 between two ranks; infinite when either is not finite."""
    x, y = a.double(), b.double()
    ratio = (x - y).norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-300)
    worst = ratio.max().item()
    return worst if worst == worst else float("inf")
