"""The draft gets one hidden size of final states instead of the concat: the engine runs EAGLE, not EAGLE3.

Symptom: acceptance length exactly 1.00, or close to it, and no error.
Cause: `--speculative-algorithm EAGLE` with an EAGLE-3 draft; the width test then skips `fc` in silence.
Fix: start the engine with `--speculative-algorithm EAGLE3`.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import is_final
from specwire.diagnosis.hints import told_in_vain


def check(evidence: Evidence) -> Cause | None:
    slots, hidden = len(evidence.trained), evidence.golden.hidden
    flag = (evidence.context.algorithm or "").upper()
    if slots == 1 or evidence.slot_count != 1 or flag == "EAGLE3" or told_in_vain(evidence):
        return None
    if evidence.context.aux_off and flag not in ("EAGLE", "NEXTN"):
        return None  # the draft's own config asks for the final states
    final = evidence.sample is not None and is_final(evidence, 0)
    if evidence.sample and set(evidence.found) & set(evidence.trained) and not flag:
        return None  # one of the slots, alone: slot-count
    what = "the final states after the norm" if final else "not the final states of this golden"
    what = "of one hidden size only" if evidence.alone else what
    return Cause(
        "certain" if final or flag in ("EAGLE", "NEXTN") else "likely",
        f"the draft received states {evidence.width} wide where {slots * hidden} ({slots} x {hidden}) were "
        f"trained; they are {what}" + (f"; the engine was started with --speculative-algorithm {flag}" if flag else ""),
        "start the engine with --speculative-algorithm EAGLE3: only then does the target collect its inner states",
        steps=0,
    )


CAUGHT = [
    Case("final states reach the draft", slots=("final_norm",)),
    Case(
        "the launch line says so",
        slots=("final_norm",),
        ranks=2,
        context={"launch": "--speculative-algorithm EAGLE --tp 2"},
    ),
]
CLEAN = [Case("as trained"), Case("one slot short", slots=(3, 7)), Case("one trained slot alone", slots=(3,))]
