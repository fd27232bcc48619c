"""Every row is that of the token before it or after it.

Symptom: low acceptance; the first rows look right when all prompts begin alike.
Cause: states and token ids are shifted against each other, in serving or in the training data.
Fix: pair state t with token t + 1, once: in the engine, or in the data, not in both.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause

SHIFTS = (1, -1, 2, -2)


def check(evidence: Evidence) -> Cause | None:
    if evidence.alignment and evidence.alignment.shift == 0 and evidence.site == "draft-input":
        return Cause(
            "certain",
            "the draft received the prompt's own token ids with these states, not the ids shifted left by one",
            "give the draft prompt[1:] and the next token, beside the states of prompt[0:]",
            steps=1,
        )
    if not evidence.off:
        return None
    for shift in SHIFTS:
        if all(evidence.fits(evidence.captured(slot), k, shift) for slot, k in enumerate(evidence.trained)):
            return Cause(
                "certain",
                f"row t of every slot is the golden's row t{shift:+d}, within the noise floor",
                f"shift the states by {shift:+d} token against the ids: state t belongs with token t + 1",
                steps=1,
            )
    return None


def _rolled(by):
    return lambda states, world: states.roll(by, dims=0)


CAUGHT = [
    Case("a row early", alter=_rolled(-1)),
    Case("two rows late", alter=_rolled(2), dtype="bfloat16"),
    Case("ids not shifted", id_shift=0),
]
CLEAN = [
    Case("as trained"),
    Case("reversed", alter=lambda states, world: states.flip(0)),
    Case("another layer", slots=(2, 6, 9)),
]
