"""Every row is the golden's times one number.

Symptom: low acceptance, with states that point the right way.
Cause: a multiplier of the embedding or of the residual that one side applies and the other does not, or applies twice.
Fix: hand on the states as training had them, without the factor.
"""

from specwire.diagnosis.alterations import one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.not_finite:
        return None
    factors = [_factor(evidence, slot) for slot in evidence.off]
    if None in factors:
        return None
    said = ", ".join(dict.fromkeys(f"{one:.3g}" for one in factors))
    return Cause(
        "certain",
        f"slots {list(evidence.off)}: each row is the golden's times {said}, within the noise floor",
        "find the factor: an embedding or residual multiplier, or a scale of a quantised buffer, that training had "
        f"and serving has not, or the other way round (the hidden size is {evidence.golden.hidden}, its root "
        f"{evidence.golden.hidden**0.5:.4g})",
        steps=1,
    )


def _factor(evidence: Evidence, slot: int) -> float | None:
    """The one number that the slot's rows are the golden's times, on every rank, or on the one that is wrong alone; None
    when there is none."""
    k = evidence.trained[slot]
    if k not in evidence.seen.boundaries or len(evidence.seen.places) < 2:
        return None
    wanted, first = evidence.wanted(k).double(), evidence.captured(slot).double()
    factor = ((first * wanted).sum() / wanted.square().sum().clamp_min(1e-300)).item()
    if abs(factor) < 1e-9:
        return None
    ranks = evidence.seen.captured if evidence.odd_rank is None else (evidence.odd_rank,)
    every = (evidence.captured(slot, rank).double() / factor for rank in ranks)
    return factor if all(evidence.fits(states, k) for states in every) else None


def _on_the_second(rank, states, world):
    return one_slot(2, lambda rows: 1.05 * rows)(states, world) if rank else states


CAUGHT = [
    Case("half of it", alter=lambda states, world: states / 2),
    Case("times the hidden size's root, in bfloat16", alter=lambda states, world: states * 32**0.5, dtype="bfloat16"),
    Case("one slot on the second rank", ranks=2, per_rank=_on_the_second),
    Case("on both ranks", ranks=2, alter=lambda states, world: states * 3),
]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 7, 10)),
    Case("partial sums", ranks=2, per_rank=lambda rank, states, world: states * (0.3, 0.7)[rank]),
    Case("zeros", alter=lambda states, world: 0 * states),
]
