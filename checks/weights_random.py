"""The draft computes with weights that are not its checkpoint's.

Symptom: acceptance 1.00 with exact states and no error; a warning about unmatched keys in the log, at best.
Cause: tensors whose names the loader does not know keep their random start; or another checkpoint was loaded.
Fix: export the draft under the names that this release loads.
"""

from math import isfinite

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Skipped
from specwire.diagnosis.hints import static_cause

FIX = "compare the checkpoint's tensor names with those the engine loads, and its path with the one you mean"


def check(evidence: Evidence) -> Cause | Skipped | None:
    if found := static_cause(evidence, "weights-random"):
        return found
    draft = evidence.draft
    if _projected(evidence) and draft.fc_run is None:
        if not isfinite(draft.fc_errors["as configured"]):
            return Skipped("the draft's states are not finite")
        return Cause(
            "certain",
            "the output of fc is not what the checkpoint's fc.weight makes of its input: off by "
            f"{draft.fc_errors['as configured']:.2g}",
            FIX,
            steps=2,
        )
    run = draft.layer.run
    if run.name is not None or not run.everywhere:
        return None
    if not isfinite(run.error):
        return Skipped("the draft's states are not finite")
    return Cause(
        "likely",
        f"the draft's layer does not give what the checkpoint's weights make of its inputs: {run.nearest} is nearest, "
        f"off by {run.error:.2g}",
        f"{FIX}; if they agree, compare the layer with the trained one: the order of its two inputs, its norms' "
        "eps, its rotary settings",
        steps=3,
    )


def _projected(evidence: Evidence) -> bool:
    """Whether there is a run of fc to look at: a draft of one slot, or of none, has none."""
    try:
        return bool(evidence.draft.fc_errors)
    except NotSeen:
        return False


CAUGHT = [
    Case("fc of another seed", draft_run={"fc": "random"}),
    Case("a layer of another seed", draft_run={"layer": "random"}),
    Case("names that the loader does not know", draft_run={"layer": "random", "names": "unknown"}),
]
CLEAN = [
    Case("its own", draft_run={}),
    Case("names that only this loader knows", draft_run={"names": "unknown"}),
    Case("another theta", draft_run={"theta": 500000.0}),
    Case("a window", draft_run={"window": 3}),
]
