"""Sentences that several checks share: which layer ids to write, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specwire.capture import told
from specwire.diagnosis.finding import Cause, listed

__all__ = ["asked_for", "layer_ids_fix", "listed", "static_cause", "told_in_vain", "usual_defaults"]

if TYPE_CHECKING:
    from specwire.diagnosis.draft_handed import Odd
    from specwire.diagnosis.evidence import Evidence


def usual_defaults(evidence: Evidence) -> list[list[int]]:
    """Boundaries that an engine takes without layer ids: by the tree's own rule if it is known, else the
    usual ones."""
    layers = evidence.golden.layers
    if evidence.context.rule and (own := evidence.context.rule(None)):
        return [list(own)]
    return [[2, layers // 2, layers - 3], [1, layers // 2 - 1, layers - 4]]


def asked_for(evidence: Evidence, captured: Sequence[int | None]) -> bool | None:
    """Whether the draft's config asks for the boundaries that were captured; None when the config was not
    given."""
    context, ids = evidence.context, evidence.context.layer_ids
    if context.draft is None:
        return None
    if ids is None:
        return False
    usual = [ids, [k + 1 for k in ids]]
    if context.rule is None:
        return list(captured) in usual
    meant = context.rule(ids)
    if meant == context.rule(None):  # what it takes without ids: asked for only if the ids say so as well
        return list(captured) in usual
    return list(captured) == list(meant or ())


def layer_ids_fix(evidence: Evidence, captured: Sequence[int]) -> str:
    """Which `eagle_aux_hidden_state_layer_ids` give the trained boundaries here, and who would read the old
    ones right."""
    context, trained = evidence.context, list(evidence.trained)
    release = context.release
    key = "eagle_config.eagle_aux_hidden_state_layer_ids in the draft's config.json"
    ids = context.layer_ids
    if context.aux_off:
        key = f'{key}, with "use_aux_hidden_state": true beside them'
    write = context.ids_for(trained)
    if write is not None and write == ids:
        return (
            f"the draft's config already gives {listed(ids)}, which {release}'s source turns into {listed(trained)}: look "
            f"at what was changed between the layer loop and the draft, or whether another config was served"
        )
    if write is None and None not in trained and sorted(captured) == sorted(trained) == list(captured):
        order = [trained.index(k) for k in captured]
        return (
            f"no order of the ids gives {listed(trained)}: {release} collects layers in ascending order. Put the column "
            f"blocks of fc.weight in the order {listed(order)} (and per-slot norms with them)"
        )
    if write is None and context.rule is None and ids is not None and len(ids) == len(captured):
        # Not asked of the source: inferred from what it did with the ids that it was given.
        shifts = {k - given for k, given in zip(captured, ids)}
        write = [k - min(shifts) for k in trained] if len(shifts) == 1 else None
    if write is None and context.rule is not None and None not in trained:
        return (
            f"no layer ids make {release} capture {listed(trained)} for this target: serve it with a release whose rule gives "
            "them (specwire preflight with one --tree for each release shows which), or train the draft on boundaries that this "
            f"one captures, as {listed(captured)}"
        )
    if write is None:
        if len(captured) != len(trained):
            return f"set {key} so that {release} captures {listed(trained)}"
        return (
            f"set {key} so that {release} captures {listed(trained)}: it captured {listed(captured)}, so "
            "change the ids by "
            f"{', '.join(f'{wanted - k:+d}' for wanted, k in zip(trained, captured))} (specwire preflight "
            "shows what a tree makes of a config)"
        )
    why = _elsewhere(ids, captured, trained, release)
    return f"write {listed(write)} as {key}: {release} turns them into boundaries {listed(trained)}{why}"


def _elsewhere(ids: Sequence[int] | None, captured: Sequence[int], trained: Sequence[int], release: str) -> str:
    if ids is None or len(ids) != len(trained):
        return ""
    if list(captured) == list(ids) and [k + 1 for k in ids] == list(trained):
        return (
            f"; it took {listed(ids)} as boundaries, while releases that take an id as the output of a layer "
            "add one and would "
            f"have captured {listed(trained)}, as SGLang 0.5.5 to 0.5.10 (0.5.9 among them) do for DeepSeek"
        )
    if [k + 1 for k in ids] == list(captured) and list(ids) == list(trained):
        return (
            "; it takes an id as the output of a layer and adds one, while releases that take ids as "
            "boundaries, as SGLang from "
            f"0.5.13 on does for DeepSeek unless the first id is 1, would have captured {listed(trained)}"
        )
    return ""


def told_in_vain(evidence: Evidence) -> Sequence[int] | None:
    """The layers that a target was set to capture in a forward that captured none; None when there was no
    such forward."""
    ends = evidence.capture.at("forward-end") if evidence.capture else []
    none = [event for event in ends if str(event.about.get("note") or "").startswith("captured: 0")]
    return told(none)


def moved_rows(evidence: Evidence) -> list[Odd]:
    """Rows handed to the draft that are other rows than those made for it, or zero: after a verification and in its own
    steps, and without a golden, which would have more to say of them, in prefills too."""
    from specwire.diagnosis.draft_handed import How

    return [one for one in odd_rows(evidence) if one.how in (How.ZERO, How.ROW, How.OTHER)]


def odd_rows(evidence: Evidence) -> list[Odd]:
    """Rows handed to the draft that are not those made for it, of those forwards that no golden can judge."""
    from specwire.diagnosis.draft_rounds import EXTEND, PREFILL, STEP

    odd = evidence.handed.odd
    return [*(odd[PREFILL] if evidence.alone else ()), *odd[EXTEND], *odd[STEP]]


def static_cause(evidence: Evidence, name: str) -> Cause | None:
    """What the draft's own files and the tree's source already say about a fault, without a run."""
    found = evidence.context.static.get(name)
    return Cause(found.confidence, found.why, found.fix, steps=2) if found else None
