"""The target was told which layers to capture, and captured none.

Symptom: acceptance length 1.00, or a crash where a tuple was expected; the setter ran without a word.
Cause: the model's class sets a flag that nothing on its path reads.
Fix: use a release, or a model class, that collects the states for this architecture.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import listed, told_in_vain


def check(evidence: Evidence) -> Cause | None:
    told = told_in_vain(evidence)
    narrow = len(evidence.trained) > 1 and evidence.slot_count == 1
    flag = (evidence.context.algorithm or "").upper()
    if not (told or (narrow and flag == "EAGLE3")) or flag in ("EAGLE", "NEXTN"):
        return None
    if not told and (evidence.context.aux_off or evidence.found[0] in range(evidence.golden.layers)):
        return None  # it was never told, or an inner state did come: faults with names of their own
    return Cause(
        "certain",
        (f"set to capture {listed(told)}, the target captured none" if told else "the engine ran EAGLE3")
        + (
            f"; the draft received states {evidence.width} wide where {len(evidence.trained)} x "
            f"{evidence.golden.hidden} were trained"
            if narrow
            else ""
        ),
        "this model class does not collect inner states although it takes the setting: use a release in which it does",
        steps=0,
    )


CAUGHT = [
    Case(
        "EAGLE3, and final states reach the draft",
        slots=("final_norm",),
        context={"launch": "--speculative-algorithm EAGLE3"},
    ),
    Case(
        "set, and none captured",
        slots=("final_norm",),
        forward_end={"note": "captured: 0", "captured": [3, 7, 10]},
    ),
]
CLEAN = [
    Case("one inner state", slots=(7,), context={"launch": "--speculative-algorithm EAGLE3"}),
    Case(
        "switched off in the draft's config",
        slots=("final_norm",),
        context={
            "launch": "--speculative-algorithm EAGLE3",
            "draft": {"eagle_config": {"use_aux_hidden_state": False}},
        },
    ),
    Case("as trained", forward_end={"note": "captured: 3", "captured": [3, 7, 10]}),
    Case("never set", slots=("final_norm",), forward_end={"note": "captured: 0", "captured": []}),
]
