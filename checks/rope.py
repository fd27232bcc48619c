"""The draft's layer, or the target's, turns its positions with another rotary base than its config says, or with none.

Symptom: exact states; acceptance falls with position or beyond a length.
Cause: one table shared by target and draft, a theta read from the wrong place, a config that lost its own.
Fix: run the draft with the rotary settings it was trained with.
"""

from specwire.diagnosis.alterations import mixed_from
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import off_from
from specwire.diagnosis.hints import static_cause


def check(evidence: Evidence) -> Cause | None:
    if found := static_cause(evidence, "rope"):
        return found
    if evidence.sample and evidence.off and off_from(evidence) == 1:
        return Cause(
            "likely",
            f"in every prompt the row at position 0 is the golden's, and those after it are off (slots "
            f"{list(evidence.off)}, by about {max(evidence.nearest[slot][1] for slot in evidence.off):.2g}): the "
            "same tokens in the same layers, turned or attended to otherwise",
            "compare the served target's rope_theta, rope_scaling and attention settings with those that the golden "
            "was built with, and what the engine makes of them",
            steps=2,
        )
    run = evidence.draft.layer.run
    if run.name is None or not run.name.startswith(("rope", "without rotary")):
        return None
    return Cause(
        "certain",
        f"the draft's layer ran {run.name}{run.where}: so its output fits to {run.error:.1e}, as configured (theta "
        f"{evidence.draft.reference.theta:g}) to {run.configured:.1e}",
        "give the draft its own rotary table, with the theta of its config.json",
        steps=1,
    )


CAUGHT = [
    Case("the target's own", alter=mixed_from(1)),
    Case("the target's own, in bfloat16", alter=mixed_from(1), dtype="bfloat16"),
    Case("another theta", draft_run={"theta": 500000.0}),
    Case("no rotation", draft_run={"theta": None}),
]
CLEAN = [
    Case("from the fourth row on", draft_run={}, alter=mixed_from(3)),
    Case("from the first row on", draft_run={}, alter=mixed_from(0)),
    Case(
        "rows late, but for the first", draft_run={}, alter=lambda states, world: states[[0, *range(len(states) - 1)]]
    ),
    Case("as configured", draft_run={}),
    Case("other weights", draft_run={"fc": "random"}),
    Case("without the norm of its output", draft_run={"output": "bare"}),
]
