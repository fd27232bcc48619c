"""The draft's layer turns its positions with another rotary base than its config says, or with none.

Symptom: exact states; acceptance falls with position or beyond a length.
Cause: one table shared by target and draft, a theta read from the wrong place, a config that lost its own.
Fix: run the draft with the rotary settings it was trained with.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Cause, Evidence
from specwire.diagnosis.hints import static_cause


def check(evidence: Evidence) -> Cause | None:
    if found := static_cause(evidence, "rope"):
        return found
    run, errors = evidence.draft.layer_run, evidence.draft.layer_errors
    if run is None or not run.startswith(("rope", "without rotary")):
        return None
    return Cause("certain", f"the draft's layer ran {run}: so its output fits to {errors[run]:.1e}, as "
                            "configured (theta "
                 f"{evidence.draft.reference.theta:g}) to {errors['as configured']:.1e}",
                 "give the draft its own rotary table, with the theta of its config.json", steps=1)


CAUGHT = [
    Case("another theta", draft_run={"theta": 500000.0}),
    Case("no rotation", draft_run={"theta": None}),
]
CLEAN = [
    Case("as configured", draft_run={}),
    Case("other weights", draft_run={"fc": "random"}),
    Case("without the norm of its output", draft_run={"output": "bare"}),
]
