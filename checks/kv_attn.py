"""The draft's attention does not see what it should.

Symptom: exact states and inputs, low acceptance; or the target's own output changes when speculation is on.
Cause: the draft reads or writes the wrong cache slots, another attention group, or a window that is not its
own.
Fix: give the draft its own cache and its own attention settings.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Cause, Evidence


def check(evidence: Evidence) -> Cause | None:
    run, errors = evidence.draft.layer_run, evidence.draft.layer_errors
    if run is None or not run.startswith("attention"):
        return None
    return Cause("certain", f"the draft's layer ran with {run}: so its output fits to {errors[run]:.1e}, "
                            "with all earlier tokens to "
                 f"{errors['as configured']:.1e}", "see that the draft's cache is written for the prompt and "
                     "read back from the same slots", steps=1)


CAUGHT = [Case("only itself", draft_run={"sees": "itself"})]
CLEAN = [Case("all before", draft_run={}), Case("another theta", draft_run={"theta": 500000.0})]
