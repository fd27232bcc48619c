"""Everything that was looked at is right, and acceptance is low all the same.

Symptom: a low acceptance length with exact states.
Cause: too little training data, data unlike the workload, or sampling settings.
Fix: look at the data, the training and the workload; the wiring is not it.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, Skipped

LOW = 1.8


def check(evidence: Evidence) -> Cause | Skipped | None:
    length = evidence.context.accept_length
    if length is None:
        return Skipped("no acceptance length was given (--accept-length)")
    if length >= LOW or evidence.off or evidence.slot_count != len(evidence.trained):
        return None
    return Cause(
        "possible",
        f"acceptance length {length:g}, and all {len(evidence.seen.places)} rows looked at are the golden's in "
        "every slot",
        "look at the draft's side first (what was found there is listed before this), then at training data "
        "and workload",
        steps=9,
    )


CAUGHT = [Case("exact, and slow", context={"accept_length": 1.2})]
CLEAN = [
    Case("exact"),
    Case("exact, and good", context={"accept_length": 3.1}),
    Case("wrong, and slow", slots=(2, 6, 9), context={"accept_length": 1.2}),
]
