"""The bytes of one dtype were read as another's, or the states were rounded to a narrower one.

Symptom: absurd norms with the right bits, or a steady error as large as a narrow dtype's rounding.
Cause: sender and receiver, target and draft, or checkpoint and launch arguments name different dtypes.
Fix: one dtype for both models and for every buffer between them.
"""

from dataclasses import replace

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_layer import AS_CONFIGURED
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.hints import static_cause

EIGHT = ("float8_e4m3fn", "float8_e5m2")
NARROWER = {"float32": ("bfloat16", "float16"), "bfloat16": EIGHT, "float16": EIGHT}


def check(evidence: Evidence) -> Cause | None:
    if found := _in_the_states(evidence):
        return found
    static = static_cause(evidence, "dtype")
    if static is None or not _nothing_lost(evidence):
        return static
    return replace(
        static,
        confidence="possible",
        evidence=f"{static.evidence}; nothing did in what was captured, which other prompts may",
    )


def _nothing_lost(evidence: Evidence) -> bool:
    """Whether the states are exact, and the draft made of them what its weights make."""
    try:
        return not evidence.off and bool(evidence.seen.places) and evidence.draft.layer_run == AS_CONFIGURED
    except NotSeen:
        return False


def _in_the_states(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.dtype not in NARROWER or evidence.not_finite:
        return None
    import torch

    own = getattr(torch, evidence.dtype)
    other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}.get(own)
    slots = [(evidence.captured(slot).to(own), evidence.trained[slot]) for slot in evidence.off]
    if other and all(evidence.fits(states.view(other).float(), k) for states, k in slots):
        return Cause(
            "certain",
            f"the bytes are the golden's rows when they are read as {str(other)[6:]}; they were recorded as "
            f"{evidence.dtype}",
            f"use one dtype on both sides of the buffer: {str(other)[6:]} was written, {evidence.dtype} read",
            steps=1,
        )
    near = all(k == wanted and away < 0.2 for wanted, (k, away) in zip(evidence.trained, evidence.nearest))
    for name in NARROWER[evidence.dtype] if near else ():
        if all(states.to(getattr(torch, name)).to(own).equal(states) for states, _ in slots):
            return Cause(
                "certain",
                f"slots {list(evidence.off)}: every value is one that {name} can hold, and the golden's to within "
                "its rounding",
                f"keep the states in {evidence.golden.dtype}: something rounds them to {name} on their way to the "
                "draft",
                steps=1,
            )
    return None


def _as_half(states, world):
    import torch

    return states.to(torch.bfloat16).view(torch.float16)


def _as_eight_bits(states, world):
    import torch

    return states.to(torch.float8_e5m2).float()


CAUGHT = [
    Case("bfloat16 read as float16", dtype="bfloat16", alter=_as_half),
    Case("rounded to bfloat16", alter=lambda states, world: states.bfloat16().float()),
    Case("rounded to eight bits", dtype="bfloat16", alter=_as_eight_bits),
]
CLEAN = [Case("as trained", dtype="bfloat16"), Case("another layer", slots=(2, 6, 9), dtype="bfloat16")]
