"""What of a run was compared, part by part: a `match` is a match of so much, and of no more.

Here alone the parts get their sentences and their JSON. The draft's own parts come from `DraftSide.scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specwire.diagnosis.finding import NotSeen

if TYPE_CHECKING:
    from specwire.diagnosis.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a run: how many of its `unit` were compared, `seen`, of how many that there should be.

    `of` is None where the run does not say how many there were. `why` says what was missing, where less than all
    was seen.
    """

    name: str
    unit: str
    seen: int
    of: int | None
    why: str = ""

    @property
    def whole(self) -> bool:
        return self.seen > 0 and self.seen == self.of


def target_parts(evidence: Evidence, rows: int, ranks: int) -> tuple[Part, ...]:
    """The target's side: rows of the golden's prompts in every slot, and the ranks that they were compared on."""
    every = sum(len(prompt.token_ids) for prompt in evidence.golden.prompts) if evidence.capture else None
    if every is not None and rows:  # the same row of a prompt that ran twice counts once
        rows = len({(p.prompt, p.position + i) for p in evidence.pieces for i in range(p.count)})
    world = max(1, evidence.capture.world_size // evidence.context.stages) if evidence.capture else None
    of_log = "" if evidence.columns is None else f"a log shows {evidence.columns} values of a slot's first row"
    return (
        Part(name="prefill", unit="rows", seen=rows, of=every, why=of_log),
        Part(name="ranks", unit="ranks", seen=ranks if rows else 0, of=world),
        _end(evidence),
    )


def _end(evidence: Evidence) -> Part:
    """The golden's last boundary, against the final states, or as a slot of its own."""
    if evidence.golden.layers in evidence.trained and not evidence.alone:
        return Part(name="last boundary", unit="slot", seen=1, of=1)
    try:
        end = evidence.end
    except NotSeen as error:
        return Part(name="last boundary", unit="rows", seen=0, of=None, why=str(error))
    return Part(name="last boundary", unit="rows", seen=end.rows, of=end.of)


def draft_parts(evidence: Evidence) -> tuple[Part, ...]:
    """The draft's own side, or one part that says why nothing of it was looked at."""
    try:
        return evidence.draft.scope
    except NotSeen as error:
        return (Part(name="draft", unit="prefills", seen=0, of=None, why=str(error)),)


def document(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The parts for the JSON."""
    return [
        {"part": part.name, "unit": part.unit, "seen": part.seen, "of": part.of, "whole": part.whole, "why": part.why}
        for part in parts
    ]


def described(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The lines for the terminal, from the JSON: the parts that were looked at, and each that was not, with its why."""
    seen = [f"{part['part']} {_counted(part)}" for part in parts if part["seen"]]
    lines = [", ".join(seen) or "nothing"]
    return lines + [f"not {part['part']}: {part['why']}" for part in parts if not part["seen"] and part["why"]]


def _counted(part: dict[str, Any]) -> str:
    of = "" if part["of"] is None else f"/{part['of']}"
    unit = "" if part["unit"] == part["part"] else f" {part['unit']}"
    return f"{part['seen']}{of}{unit}" + (f" ({part['why']})" if part["why"] else "")
