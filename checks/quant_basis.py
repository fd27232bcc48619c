"""The target was quantised in a way that changes its states: a rotated basis, or plain rounding noise.

Symptom: the target serves well, acceptance collapses or is a little low.
Cause: weights rotated before quantisation (the states come out rotated), or a quantised target with a draft
for the full one.
Fix: rotate the states back for the draft, or use a draft that was trained with this target.
"""

from specwire.diagnosis.alterations import rotated, stranger
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import rotated_basis
from specwire.model_files import quantised_as


def check(evidence: Evidence) -> Cause | None:
    trained = evidence.trained
    if not evidence.off or any(evidence.found[slot] is not None for slot in evidence.off):
        return None
    if all(rotated_basis(evidence, slot) for slot in evidence.off):
        return Cause(
            "certain",
            f"slots {list(evidence.off)}: the rows have the golden's sizes and inner products within the noise "
            "floor, and other entries: the same states in a rotated basis",
            "rotate the states back before the draft, or use a draft trained in this basis",
            steps=2,
        )
    how = evidence.context.launch.get("quantization") or quantised_as(evidence.context.target or {})
    near = all(k == trained[slot] and distance < 0.5 for slot, (k, distance) in enumerate(evidence.nearest))
    if not how or not near:
        return None
    return Cause(
        "likely",
        f"the target is quantised ({how}); every slot is nearest to its own boundary, off by up to "
        f"{max(distance for _, distance in evidence.nearest):.2g}, beyond the golden's noise and without other "
        "pattern",
        "build the golden from the quantised target, and train the draft on its states if acceptance is too low",
        steps=4,
    )


CAUGHT = [
    Case("rotated", alter=rotated),
    Case("rounded weights", alter=stranger(seed=1, share=0.05), context={"launch": "--quantization fp8"}),
]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 6, 9)),
    Case("another model", alter=stranger(seed=1)),
]
