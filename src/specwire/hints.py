"""Sentences that several checks share: which layer ids to write, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specwire.evidence import Evidence


def listed(boundaries: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if k is None else str(k) for k in boundaries) + "]"


def layer_ids_fix(evidence: Evidence, captured: Sequence[int]) -> str:
    """Which `eagle_aux_hidden_state_layer_ids` give the trained boundaries here, and who would read the old ones right."""
    context, trained = evidence.context, list(evidence.trained)
    release = f"SGLang {context.version}" if context.version else "this release"
    key = "eagle_aux_hidden_state_layer_ids in the draft's config.json"
    ids = context.layer_ids
    write = context.ids_for(trained)
    if write is None and ids is not None and len(ids) == len(captured):
        # Not asked of the source: inferred from what it did with the ids that it was given.
        shifts = {k - given for k, given in zip(captured, ids)}
        write = [k - min(shifts) for k in trained] if len(shifts) == 1 else None
    if write is None:
        return (
            f"set {key} so that {release} captures {listed(trained)}: it captured {listed(captured)}, so move each id by "
            f"{trained[0] - captured[0]:+d} (specwire preflight shows what a tree makes of a config)"
        )
    return f"write {listed(write)} as {key}: {release} turns them into boundaries {listed(trained)}.{_elsewhere(ids, captured, trained, release)}"


def _elsewhere(ids: Sequence[int] | None, captured: Sequence[int], trained: Sequence[int], release: str) -> str:
    if ids is None or len(ids) != len(trained):
        return ""
    if list(captured) == list(ids) and [k + 1 for k in ids] == list(trained):
        return (
            f" {release} takes {listed(ids)} as boundaries; releases that take an id as the output of a layer add one and would "
            f"have captured {listed(trained)}, as SGLang 0.5.5 to 0.5.10 (0.5.9 among them) do for DeepSeek"
        )
    if [k + 1 for k in ids] == list(captured) and list(ids) == list(trained):
        return (
            f" {release} takes an id as the output of a layer and adds one; releases that take ids as boundaries, as SGLang from "
            f"0.5.13 on does for DeepSeek unless the first id is 1, would have captured {listed(trained)}"
        )
    return ""
