"""The slots hold the boundaries that an engine takes when it knows no layer ids.

Symptom: acceptance is low, and changing the ids in the draft's config changes nothing.
Cause: the ids were not found where the engine looks (`eagle_config` in the draft's config.json), or were
overwritten.
Fix: write the ids where this release reads them.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import asked_for, layer_ids_fix, listed, usual_defaults


def check(evidence: Evidence) -> Cause | None:
    found, trained, ids = evidence.found, evidence.trained, evidence.context.layer_ids
    asked = asked_for(evidence, found)
    if None in found or found == trained or list(found) not in usual_defaults(evidence) or asked:
        return None
    known = asked is False
    config = f"asks for {listed(ids)}" if ids else "names no layer ids" if known else "was not given"
    return Cause(
        "certain" if known else "possible",
        f"slots hold {listed(found)}, what an engine takes for {evidence.golden.layers} layers by default; "
        f"{listed(trained)} were trained; the draft's config {config}",
        layer_ids_fix(evidence, found),
        steps=1 if known else 2,
    )


CAUGHT = [
    Case(
        "no ids in the config",
        slots=(2, 6, 9),
        trained=(3, 6, 11),
        context={"draft": {"eagle_config": {}}},
    ),
    Case(
        "ids that are not read",
        slots=(2, 6, 9),
        context={"draft": {"eagle_aux_hidden_state_layer_ids": [4, 8, 11]}},
    ),
    Case(
        "ids that make no difference",
        slots=(2, 6, 9),
        context={"draft": {"eagle_aux_hidden_state_layer_ids": [3, 7, 10]}, "rule": lambda ids: [2, 6, 9]},
    ),
]
CLEAN = [
    Case("as trained"),
    Case("defaults that were trained", slots=(2, 6, 9), trained=(2, 6, 9)),
    Case(
        "the config asked for them",
        slots=(2, 6, 9),
        context={"draft": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}},
    ),
]
