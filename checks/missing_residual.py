"""A slot holds one part of the stream: a layer's branch without the residual, or the residual without the branch.

Symptom: low acceptance; the states are too small, and the more so the deeper the layer.
Cause: the model file records `hidden_states` where the stream is `hidden_states + residual`.
Fix: record the sum of both.
"""

from specwire.case import Case
from specwire.evidence import Cause, Evidence, angle


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or len(evidence.seen.captured) > 1 or evidence.slot_count != len(evidence.trained):
        return None
    slots = [slot for slot in evidence.off if evidence.found[slot] is None]
    parts = [_part(evidence, slot, evidence.trained[slot]) for slot in slots]
    if not parts or None in parts or len(slots) < len(evidence.off):
        return None
    return Cause(
        "certain" if all(exact for exact, _ in parts) else "likely",
        f"slots {slots}: " + parts[0][1], "record hidden_states + residual where the target collects its inner states", steps=1,
    )


def _part(evidence: Evidence, slot: int, k: int) -> tuple[bool, str] | None:
    states, stream = evidence.captured(slot), evidence.wanted(k)
    if evidence.golden.has(f"residual.{k}"):
        residual = evidence.wanted(f"residual.{k}")
        if evidence.fits(states + residual, k):
            return True, "captured + residual is the golden's row, within the noise floor: the residual was left out"
        return (True, "captured is the golden's residual, without the layer's branch") if evidence.holds(slot, residual, k) else None
    if k - 1 not in evidence.seen.boundaries:
        return None
    before = evidence.wanted(k - 1)
    rest = stream - states
    small = bool((states.norm(dim=-1) < 0.9 * stream.norm(dim=-1)).all())
    if small and angle(states, stream - before) > 0.4 and angle(rest, before) > angle(stream, before) + 0.005:
        return False, "captured points along what the layer before added, and is smaller than the stream: the residual seems to be left out"
    return None


CAUGHT = [
    Case("branch alone", slots=("branch.3", "branch.7", "branch.10")),
    Case("branch alone, golden without residuals", slots=("branch.3", "branch.7", "branch.10"), residuals=False),
    Case("residual alone", slots=("residual.3", "residual.7", "residual.10"), dtype="bfloat16"),
]
CLEAN = [Case("as trained"), Case("half the states", alter=lambda states, world: states / 2), Case("the layer before", slots=(2, 6, 9))]
