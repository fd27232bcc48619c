"""A norm was applied that should not have been, or one was left out.

Symptom: low acceptance; rows have the same size everywhere, or sizes where training had none.
Cause: states taken after the final norm, a golden made from the last `hidden_states` of transformers, a norm
before `fc`.
Fix: hand on the states as they were in training, before the norm.
"""

from specwire.diagnosis.alterations import one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.case_world import states_of
from specwire.diagnosis.draft_reference import EMBEDS_NORM, INNER_NORM, STATES_NORM
from specwire.diagnosis.draft_side import BARE_HEAD
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.fits import is_final, normed
from specwire.diagnosis.hints import static_cause
from specwire.diagnosis.target_end import seen_end

SKIPPED = [
    f"without {name}{since}" for name in (EMBEDS_NORM, STATES_NORM, INNER_NORM) for since in ("", " in its newest rows")
]


def check(evidence: Evidence) -> Cause | None:
    if evidence.alone or not evidence.off:
        return (
            static_cause(evidence, "norm")
            or _before_fc(evidence)
            or _of_the_output(evidence)
            or _inside(evidence)
            or (None if evidence.alone else _of_the_golden_s_end(evidence))
        )
    fix = "hand on the states as training had them: before the norm, or with it if the golden is normed"
    for slot in evidence.off:
        k = evidence.trained[slot]
        if is_final(evidence, slot):
            return Cause(
                "certain",
                f"slot {slot} holds the states after the final norm, where boundary {k} was trained, before any norm",
                fix,
                steps=1,
            )
    fitted = [normed(evidence, slot) for slot in evidence.off]
    if None in fitted:
        return None
    return Cause(
        "certain",
        f"slots {list(evidence.off)}: {fitted[0]}, exact within the noise floor on rows that the weights were not "
        "fitted to",
        fix,
        steps=3,
    )


def _before_fc(evidence: Evidence) -> Cause | None:
    """The draft's own norms before `fc`, when its checkpoint was given and has some."""
    try:
        run = evidence.draft.fc_run
    except NotSeen:
        return None
    if run not in ("with the norms", "without the norms"):
        return None
    return Cause(
        "certain",
        f"fc ran {run} before it, which is not what the draft's config says",
        "set norm_before_fc or fc_norm in the draft's config.json as it was in training, and use a "
        "release that reads it",
        steps=1,
    )


def _of_the_output(evidence: Evidence) -> Cause | None:
    """The norm of the state that the draft hands to its own next step."""
    try:
        run = evidence.draft.layer.run
    except NotSeen:
        return None
    if run.name is None or not run.name.endswith("norm of its output"):
        return None
    return Cause(
        "certain",
        f"the draft's state for its next step came {run.name}{run.where}: so it fits to {run.error:.1e}, as "
        f"configured to {run.configured:.1e}",
        "set norm_output in the draft's config.json as it was in training, and use a release that reads it",
        steps=1,
    )


def _inside(evidence: Evidence) -> Cause | None:
    """A norm in the draft's layer that was skipped; or one before its head, seen in the tokens."""
    try:
        run = evidence.draft.layer.run
    except NotSeen:
        return None
    if run.name in SKIPPED:
        return Cause(
            "certain",
            f"the draft's layer ran {run.name}{run.where}: so its output fits to {run.error:.1e}, as configured to "
            f"{run.configured:.1e}",
            "apply every norm of the draft's layer, in each of its steps",
            steps=1,
        )
    try:
        head = evidence.draft.head
    except NotSeen:
        return None
    if head.name != BARE_HEAD:
        return None
    return Cause(
        "certain",
        f"{head.explained} drafted tokens are those that lm_head gives without the final norm, and not those that it "
        "gives with it",
        "put the draft's final norm before its head",
        steps=1,
    )


def _of_the_golden_s_end(evidence: Evidence) -> Cause | None:
    """What the draft was trained towards, where it is no slot."""
    end = seen_end(evidence)
    if end is None or end.way != "normed":
        return None
    return Cause(
        "certain",
        f"every slot is exact, and the golden's boundary {evidence.golden.layers} is the engine's final state, after the "
        f"norm, in all {end.rows} rows looked at: its data was saved after the norm",
        "save the stream after the last layer before the final norm (the last of transformers' hidden_states is normed), "
        "or call it final_norm: whoever norms it once more trains the draft towards other states",
        steps=2,
    )


def _normed(states, world):
    parts = states.view(len(states), -1, 32)
    return (parts / parts.square().mean(-1, keepdim=True).sqrt() * world["norm_weight"]).flatten(1)


def _end_after_the_norm(golden):
    weight = states_of(seed=0)[0]["norm_weight"]
    last = golden[12].float()
    normed = last / last.square().mean(-1, keepdim=True).sqrt() * weight
    return {**golden, 12: normed.to(golden[12].dtype)}


CAUGHT = [
    Case("the data's last state, no slot, was saved after the norm", said={}, golden=_end_after_the_norm),
    Case("the same, in bfloat16", said={"logprobs": False}, golden=_end_after_the_norm, dtype="bfloat16"),
    Case("last slot after the final norm", slots=(3, 7, "final_norm"), trained=(3, 7, 12)),
    Case("every slot normed", alter=_normed, dtype="bfloat16"),
    Case("the draft's norms before fc are skipped", draft_run={"norms": "skipped"}),
    Case("the draft's state is normed for its next step", draft_run={"output": "normed"}),
    Case("the draft's state is not normed for its next step", draft_run={"output": "bare"}),
    Case("a norm of the draft's layer is skipped", draft_run={"without": INNER_NORM}),
    Case("a norm of the draft's inputs is skipped", draft_run={"without": STATES_NORM}),
    Case("the head takes states that were not normed", draft_run={"head_of": "bare"}),
]
CLEAN = [
    Case("as trained"),
    Case("final states that are recorded before the norm", said={"normed": False}),
    Case("norms before fc", draft_run={"norms": "there"}),
    Case("another layer", slots=(2, 6, 9)),
    Case("final states alone", slots=("final_norm",)),
    Case("a slot of zeros", alter=one_slot(2, lambda states: 0 * states)),
]
