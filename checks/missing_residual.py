"""A slot holds one part of the stream: a branch without the residual, or the residual without the branch.

Symptom: low acceptance; the states are too small, and the more so the deeper the layer.
Cause: the model file records `hidden_states` where the stream is `hidden_states + residual`.
Fix: record the sum of both.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_reference import AFTER_ATTENTION, AFTER_MLP
from specwire.diagnosis.draft_side import BRANCH_HEAD
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.fits import part_of_stream

LEFT_OUT = [f"without {part}" for part in (AFTER_ATTENTION, AFTER_MLP)]


def check(evidence: Evidence) -> Cause | None:
    return _of_the_draft(evidence) or _of_the_target(evidence)


def _of_the_draft(evidence: Evidence) -> Cause | None:
    """The residual of the draft's own layer, seen in its states; or that of its last norm, seen in its tokens."""
    try:
        run = evidence.draft.layer.run
    except NotSeen:
        return None
    if run.name in LEFT_OUT:
        return Cause(
            "certain",
            f"the draft's layer ran {run.name}{run.where}: so its output fits to {run.error:.1e}, as configured to "
            f"{run.configured:.1e}",
            "add the residual in the draft's layer as its training did",
            steps=1,
        )
    try:
        head = evidence.draft.head
    except NotSeen:
        return None
    if head.name != BRANCH_HEAD:
        return None
    return Cause(
        "certain",
        f"{head.explained} drafted tokens are those that lm_head gives for the norm of the MLP's branch alone, without "
        "the residual in the last norm",
        "give the draft's last norm the residual as well",
        steps=1,
    )


def _of_the_target(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.several:
        return None
    slots = [slot for slot in evidence.off if evidence.found[slot] is None]
    parts = [part_of_stream(evidence, slot, evidence.trained[slot]) for slot in slots]
    if not parts or None in parts or len(slots) < len(evidence.off):
        return None
    return Cause(
        "certain" if all(exact for exact, _ in parts) else "likely",
        f"slots {slots}: " + parts[0][1],
        "record hidden_states + residual where the target collects its inner states",
        steps=1,
    )


CAUGHT = [
    Case("branch alone", slots=("branch.3", "branch.7", "branch.10")),
    Case(
        "branch alone, golden without residuals",
        slots=("branch.3", "branch.7", "branch.10"),
        residuals=False,
    ),
    Case("residual alone", slots=("residual.3", "residual.7", "residual.10"), dtype="bfloat16"),
    Case("left out in the draft, after attention", draft_run={"without": AFTER_ATTENTION}),
    Case("left out in the draft, after the MLP", draft_run={"without": AFTER_MLP}),
    Case("left out in the draft, in its last norm", draft_run={"head_of": "branch"}),
]
CLEAN = [
    Case("as trained"),
    Case("half the states", alter=lambda states, world: states / 2),
    Case("the layer before", slots=(2, 6, 9)),
    Case("the draft's own, with all residuals", draft_run={}),
]
