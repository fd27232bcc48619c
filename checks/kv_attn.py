"""The draft's attention, or the target's, does not see what it should.

Symptom: exact states and inputs, low acceptance; or the target's own output changes when speculation is on.
Cause: the draft reads or writes the wrong cache slots, another attention group, or a window that is not its
own.
Fix: give the draft its own cache and its own attention settings.
"""

from specwire.diagnosis.alterations import mixed_from
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import off_from
from specwire.diagnosis.hints import static_cause


def check(evidence: Evidence) -> Cause | None:
    if found := static_cause(evidence, "kv-attn"):
        return found
    if evidence.sample and evidence.off and (first := off_from(evidence) or 0) > 1:
        return Cause(
            "likely",
            f"in every prompt the rows before position {first} are the golden's, and those from there on "
            f"are off (slots {list(evidence.off)}): the target attends to {first} tokens where the golden's saw "
            f"more, or the other way round",
            "compare the served target's sliding_window, layer_types and rope_scaling with those that the golden was "
            f"built with, and see whether {first} is the engine's chunk of a prefill",
            steps=2,
        )
    run = evidence.draft.layer.run
    if run.name is None or not run.name.startswith("attention"):
        return None
    return Cause(
        "certain",
        f"the draft's layer ran with {run.name}{run.where}: so its output fits to {run.error:.1e}, as configured to "
        f"{run.configured:.1e}",
        "give the draft's attention the window of its own config (--speculative-draft-window-size), and see that "
        "its cache is written for the prompt and read back from the same slots",
        steps=1,
    )


CAUGHT = [
    Case("the target's own window", alter=mixed_from(4)),
    Case("only itself", draft_run={"window": 1}),
    Case("a window of four", draft_run={"window": 4}),
    Case("its own window left out", draft_run={"window": None, "own_window": 4}),
    Case("another window than its own", draft_run={"window": 2, "own_window": 4}),
]
CLEAN = [
    Case("from the second row on", draft_run={}, alter=mixed_from(1)),
    Case("all before", draft_run={}),
    Case("its own window", draft_run={"own_window": 4}),
    Case("another theta", draft_run={"theta": 500000.0}),
    Case("a layer of another seed", draft_run={"layer": "random"}),
]
