"""The states are those of another model than the golden's.

Symptom: acceptance is low everywhere; every slot is off, and no layer, order or transform explains it.
Cause: another checkpoint is served: a different model, a fine-tune of the right one, or a wrong path.
Fix: serve the target that the draft was trained for, or train the draft for this one.
"""

from specwire.diagnosis.alterations import one_row, one_slot, stranger
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.sides import target_sites
from specwire.diagnosis.target_end import seen_end
from specwire.model_files import language_part


def check(evidence: Evidence) -> Cause | None:
    return _by_size(evidence) or _by_states(evidence) or _in_part(evidence) or _at_the_end(evidence)


def _by_size(evidence: Evidence) -> Cause | None:
    """Sizes that the golden records and that the served target's config has otherwise."""
    golden, config = evidence.golden, language_part(evidence.context.target or {})
    for what, key, want in (
        ("layers", "num_hidden_layers", golden.layers),
        ("hidden size", "hidden_size", golden.hidden),
    ):
        have = config.get(key)
        if type(have) is int and want and have != want:
            return Cause(
                "certain",
                f"the target served has {what} {have}, the golden was made with {want}",
                f"serve the target that the golden is of ({golden.target})",
                steps=0,
            )
    return None


def _by_states(evidence: Evidence) -> Cause | None:
    if evidence.slot_count != len(evidence.trained) or any(k is not None for k in evidence.found):
        return None
    away = [distance for _, distance in evidence.nearest]
    if not all(distance < float("inf") for distance in away) or evidence.any_row_known:
        return None
    related, whole = all(distance < 0.7 for distance in away), len(evidence.seen.boundaries) > evidence.golden.layers
    # The same embeddings and nothing else alike: hardly another target, rather something unknown done to its states.
    unsure = (related and not whole) or (not related and _embedding_state(evidence) == "exact")
    return _cause(
        evidence,
        not unsure,
        f"no slot holds any boundary of the golden: nearest are {[k for k, _ in evidence.nearest]} at relative L2 "
        f"{[float(f'{distance:.2g}') for distance in away]}"
        + (", near enough for a relative of the target" if related else ""),
        steps=6,
    )


def _in_part(evidence: Evidence) -> Cause | None:
    """Some slots or some rows are right: a target that is changed in its later layers, or at some tokens."""
    off = evidence.off
    if not off or evidence.not_finite or evidence.moved_rows or any(evidence.found[slot] is not None for slot in off):
        return None
    rows = {row for slot in off for row in evidence.bad_rows(slot)}
    if not rows:
        return None
    right = [slot for slot in range(evidence.slot_count) if slot not in off]
    away = [float(f"{max(evidence.errors(slot, evidence.trained[slot])):.2g}") for slot in off]
    return _cause(
        evidence,
        False,
        f"slots {list(off)} hold no boundary of the golden in {len(rows)} of {len(evidence.seen.places)} rows (relative L2 "
        f"up to {away})"
        + (f", slots {right} are exact" if right else "")
        + ("" if _other_config(evidence) else ": nothing known explains it"),
        steps=7,
    )


def _at_the_end(evidence: Evidence) -> Cause | None:
    """Every slot is exact and the final states are not: a target that is changed behind the last trained layer."""
    end = None if evidence.off or evidence.slot_count != len(evidence.trained) else seen_end(evidence)
    if end is None or end.way != "unknown":
        return None
    return _cause(
        evidence,
        True,
        f"every slot is exact, and the golden's boundary {evidence.golden.layers} gives the engine's final state in "
        f"{end.rows - end.failed} of {end.rows} rows alone (off by up to {end.worst:.2g} where {end.bound:.1g} is allowed): "
        f"the layers behind boundary {max(evidence.trained)} compute something else",
        steps=7,
    )


def _cause(evidence: Evidence, sure: bool, said: str, steps: int) -> Cause:
    """A last resort, unless the served target's config is known to be another."""
    other = _other_config(evidence)
    return Cause(
        "likely" if other or sure else "possible",
        said + _embeddings(evidence) + other,
        f"serve the target that the golden is of ({evidence.golden.target}), or build a golden and train a draft for the "
        "one served; if it is the same one, see that the golden's token_ids are all the tokens that its states were "
        "computed from (BOS, chat template)",
        steps=steps,
        last_resort=not other,
    )


def _other_config(evidence: Evidence) -> str:
    """That the served target's config is known to be another than the golden's; empty where it is not."""
    served, golden = evidence.context.target_name, evidence.golden.target
    hashes = [name.partition("sha256:")[2] for name in (served or "", golden)]
    other = all(hashes) and hashes[0] != hashes[1]
    return f"; the config served is {served}, the golden is of {golden}" if other else ""


def _embedding_state(evidence: Evidence) -> str | None:
    return next((side.state for side in target_sites(evidence) if side.site == "embedding-capture"), None)


def _embeddings(evidence: Evidence) -> str:
    said = {
        "exact": "; the embeddings, boundary 0, are exact",
        "differs": "; the embeddings, boundary 0, differ already",
    }
    return said.get(_embedding_state(evidence) or "", "")


def _otherwise_at_the_end(golden):
    return {**golden, 12: golden[12] + 0.1 * golden[12].roll(1, 1)}


CAUGHT = [
    Case("only the layers behind the last slot", said={}, golden=_otherwise_at_the_end),
    Case(
        "a target of another size",
        alter=stranger(seed=1),
        context={"target": {"num_hidden_layers": 24, "hidden_size": 32}},
    ),
    Case("another seed", alter=stranger(seed=1)),
    Case("later layers trained on", alter=one_slot(2, lambda states: states + 0.1 * states.roll(1, 1))),
    Case("one token's embedding", alter=one_row(3, lambda row: row.roll(1))),
    Case("a fine-tune", alter=stranger(seed=1, share=0.2), dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 7, 10)),
    Case("rows in another order", alter=lambda states, world: states.flip(0)),
]
