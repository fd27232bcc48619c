"""The states are not as wide as the draft's `fc` takes them.

Symptom: a shape error at start or at the first request; silence only where the width test skips `fc`.
Cause: a draft for a target of another hidden size, or made for another number of slots.
Fix: use the draft that was trained for this target.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.hints import static_cause
from specwire.diagnosis.shards import sharded


def check(evidence: Evidence) -> Cause | None:
    return _of_the_states(evidence) or _skipped(evidence) or _without_bias(evidence)


def _skipped(evidence: Evidence) -> Cause | None:
    """By the tap's word fc did not run, though the checkpoint has one: the width test takes the states for projected."""
    takes = evidence.context.fc_in
    if not takes or evidence.context.aux_off:
        return None
    try:
        skipped = evidence.rounds.unprojected
    except NotSeen:
        return None
    if not skipped:
        return None
    return Cause(
        "certain",
        f"fc did not run in {len(skipped)} forwards of the draft, first in {skipped[0].input}: the states are "
        f"{skipped[0].input.width} wide, as the embeddings are, and a width test takes them for projected; the checkpoint "
        f"has an fc that takes {takes}",
        "use a release whose draft runs fc by its config, not by widths; or train it on more than one layer",
        steps=1,
    )


def _without_bias(evidence: Evidence) -> Cause | None:
    try:
        run = evidence.draft.fc_run
    except NotSeen:
        return None
    if run != "without its bias":
        return None
    return Cause(
        "certain",
        "fc ran without the bias that the checkpoint has",
        'write "bias": true into the draft\'s config.json, or use a release that reads fc.bias',
        steps=1,
    )


def _of_the_states(evidence: Evidence) -> Cause | None:
    hidden, trained = evidence.golden.hidden, evidence.trained
    width, takes = evidence.width, evidence.context.fc_in
    if width and takes and takes != len(trained) * hidden:
        return Cause(
            "certain",
            f"fc takes {takes} columns, the golden's concat is {len(trained) * hidden} ({len(trained)} x {hidden}) "
            f"and {width} were captured",
            "use the draft that was trained for this target, and the golden that belongs to it",
            steps=0,
        )
    if evidence.slot_count == 1 < len(trained) and takes == len(trained) * hidden and evidence.context.aux_off:
        return Cause(
            "certain",
            f"the draft's config has use_aux_hidden_state false, so {width} columns reached it; fc takes {takes}",
            "write use_aux_hidden_state: true into the draft's eagle_config",
            steps=0,
        )
    if width and (found := static_cause(evidence, "fc-width")):
        return found
    if not width or evidence.slot_count or sharded(evidence):
        return None
    return Cause(
        "certain",
        f"the states are {width} wide, which is no multiple of the target's hidden size {hidden}; "
        f"{len(trained) * hidden} were trained",
        "use a draft and a golden that belong to this target: its hidden size differs from the golden's",
        steps=0,
    )


CAUGHT = [
    Case("a target of another hidden size", alter=lambda states, world: states[:, :-8]),
    Case("its bias left out", draft_run={"bias": "skipped"}),
    Case("fc for two slots", context={"draft": {}, "draft_weights": {"fc.weight": (32, 64)}}),
    Case(
        "states switched off in the draft's config",
        slots=("final_norm",),
        context={
            "draft": {"eagle_config": {"use_aux_hidden_state": False}},
            "draft_weights": {"fc.weight": (32, 96)},
        },
    ),
]
CLEAN = [
    Case("a projection that ran", draft_run={}),
    Case("fc with its bias", draft_run={"bias": "there"}),
    Case("as trained", context={"draft": {}, "draft_weights": {"fc.weight": (32, 96)}}),
    Case("a slot short", slots=(3, 7)),
]
