"""The states are those of another model than the golden's.

Symptom: acceptance is low everywhere; every slot is off, and no layer, order or transform explains it.
Cause: another checkpoint is served: a different model, a fine-tune of the right one, or a wrong path.
Fix: serve the target that the draft was trained for, or train the draft for this one.
"""

from specwire.diagnosis.alterations import stranger
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Cause, Evidence


def check(evidence: Evidence) -> Cause | None:
    return _by_size(evidence) or _by_states(evidence)


def _by_size(evidence: Evidence) -> Cause | None:
    """Sizes that the golden records and that the served target's config has otherwise."""
    golden, config = evidence.golden, evidence.context.target or {}
    nested = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), {})
    for what, key, want in (
        ("layers", "num_hidden_layers", golden.layers), ("hidden size", "hidden_size", golden.hidden)
    ):
        have = {**config, **nested}.get(key)
        if type(have) is int and want and have != want:
            return Cause(
                "certain", f"the target served has {what} {have}, the golden was made with {want}",
                f"serve the target that the golden is of ({golden.target})", steps=0,
            )
    return None


def _by_states(evidence: Evidence) -> Cause | None:
    served, golden = evidence.context.target_name, evidence.golden
    hashes = [name.partition("sha256:")[2] for name in (served or "", golden.target)]
    other = all(hashes) and hashes[0] != hashes[1]
    if evidence.slot_count != len(evidence.trained) or any(k is not None for k in evidence.found):
        return None
    away = [distance for _, distance in evidence.nearest]
    if not all(distance < float("inf") for distance in away) or evidence.any_row_known:
        return None
    related, whole = all(distance < 0.7 for distance in away), len(evidence.seen.boundaries) > golden.layers
    return Cause(
        "certain" if other else "possible" if related and not whole else "likely",
        f"no slot holds any boundary of the golden: nearest are {[k for k, _ in evidence.nearest]} at "
        "relative L2 "
        f"{[float(f'{distance:.2g}') for distance in away]}"
        + (", near enough for a relative of the target" if related else "")
        + (f"; the config served is {served}, the golden is of {golden.target}" if other else ""),
        f"serve the target that the golden is of ({golden.target}), or build a golden and train a draft for "
        "the one served",
        steps=6, last_resort=not other,
    )


CAUGHT = [
    Case(
        "a target of another size", alter=stranger(seed=1),
        context={"target": {"num_hidden_layers": 24, "hidden_size": 32}},
    ),
    Case("another seed", alter=stranger(seed=1)),
    Case("a fine-tune", alter=stranger(seed=1, share=0.2), dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 7, 10)),
    Case("rows in another order", alter=lambda states, world: states.flip(0)),
]
