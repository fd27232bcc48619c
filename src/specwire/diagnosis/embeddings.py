"""The golden's embeddings beside the engine's: whether its states are of its own token ids.

Boundary 0 depends on the token alone, so that a text other than the golden's ids shows in the very row where it
begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specwire.diagnosis.distance import relative
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.target_end import Rows, rows_at

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.evidence import Evidence

SHIFTS = (1, -1, 2, -2)


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """`wrong` are (prompt, position) of rows whose embedding is not their token's, of `rows`. `shift`: each golden row
    that far on is the engine's, 0 where none is. `other` has the tokens that wrong rows are of, where known.
    `one_token`: all wrong rows are of one token, and wrong wherever it stands."""

    rows: int
    wrong: tuple[tuple[int, int], ...]
    shift: int
    other: dict[tuple[int, int], int]
    one_token: bool

    @property
    def another_text(self) -> bool:
        """Whether some rows are right and the others of tokens that the golden's ids do not say."""
        return bool(self.wrong) and not self.shift and len(self.wrong) < self.rows and not self.one_token


def embeddings(evidence: Evidence) -> Embeddings:
    """Compare boundary 0; NotSeen when the golden does not hold it, or nothing of it was captured."""
    golden = evidence.golden
    if evidence.columns is not None or not golden.has("boundary.0"):
        raise NotSeen("the golden does not hold boundary 0")
    made = rows_at(evidence, "embedding-capture")
    bound = evidence.floor(0).usual
    ids = [golden.prompts[prompt].token_ids[position] for prompt, position in made.places]
    wanted = evidence.whole.rows("boundary.0", made.places).double()
    wrong = [row for row, error in enumerate(relative(wanted, made.first)) if not error <= bound]
    shift = next((step for step in SHIFTS if _fits(evidence, made, step, bound)), 0) if wrong else 0
    table = {token: made.first[row] for row, token in enumerate(ids)}
    return Embeddings(
        rows=len(ids),
        wrong=tuple(made.places[row] for row in wrong),
        shift=shift,
        other={made.places[row]: token for row in wrong if (token := _named(wanted[row], table, bound)) is not None},
        one_token=_one_token(ids, set(wrong)),
    )


def _one_token(ids: list[int], wrong: set[int]) -> bool:
    """Whether it is one token that is wrong, and that everywhere: then its embedding is another, not the text."""
    tokens = {ids[row] for row in wrong}
    return len(tokens) == 1 and all(row in wrong for row, token in enumerate(ids) if token in tokens)


def _fits(evidence: Evidence, made: Rows, step: int, bound: float) -> bool:
    """Whether the golden's rows `step` further on are the engine's, where there is one."""
    golden = evidence.golden
    kept = [
        row
        for row, (prompt, position) in enumerate(made.places)
        if 0 <= position + step < len(golden.prompts[prompt].token_ids)
    ]
    if 2 * len(kept) < len(made.places):
        return False
    moved = evidence.whole.rows(
        "boundary.0", [(made.places[row][0], made.places[row][1] + step) for row in kept]
    ).double()
    return max(relative(moved, made.first[kept])) <= bound


def _named(row: torch.Tensor, table: dict[int, torch.Tensor], bound: float) -> int | None:
    """The token among those of the run whose embedding a golden row is."""
    import torch

    tokens, rows = list(table), torch.stack(list(table.values()))
    errors = relative(row.expand_as(rows), rows)
    best = min(range(len(tokens)), key=errors.__getitem__)
    return tokens[best] if errors[best] <= bound else None


def seen_embeddings(evidence: Evidence) -> Embeddings | None:
    """The same, None where it cannot be seen."""
    try:
        return evidence.embeddings
    except NotSeen:
        return None
