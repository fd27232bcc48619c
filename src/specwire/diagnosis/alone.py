"""A capture without a golden: what can still be said of it, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwire.capture import Capture, told
from specwire.diagnosis.context import Context
from specwire.diagnosis.document import number
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.self_check import DOES_NOT, PROVES, Subject
from specwire.diagnosis.transcript import transcript
from specwire.errors import SpecwireError
from specwire.goldens.golden import Prompt
from specwire.goldens.none import NoGolden
from specwire.model_files import text_config


def no_golden(capture: Capture, context: Context) -> NoGolden:
    """What stands in for a golden; SpecwireError when the target's directory was not given."""
    if context.target is None:
        raise SpecwireError("give --golden FILE, or --target DIR for the self-check, which needs none")
    config = text_config(context.target)
    spoken = transcript(capture, capture.answers).spoken
    prompts = tuple(Prompt("", ids, ()) for ids in dict.fromkeys(one.asked for one in spoken) if ids)
    states = capture.at("draft-input") or capture.at("forward-end")
    return NoGolden(
        prompts,
        _slots(capture, context, config["hidden_size"]),
        config["num_hidden_layers"],
        config["hidden_size"],
        states[0].dtype if states else "",
        context.target_name or "",
    )


def _slots(capture: Capture, context: Context, hidden: int) -> tuple[int, ...]:
    """The boundaries that the draft's slots should hold by the engine's own word, by the tree's rule, or just so many
    as its `fc` takes."""
    said: Sequence[int] | None = told(capture.events)
    if said is None and context.rule and context.draft:
        said = context.rule(context.layer_ids)
    if said and min(said) >= 0:
        return tuple(said)
    return tuple(range(max(1, (context.fc_in or hidden) // hidden)))


def reasons(evidence: Evidence) -> list[str]:
    """Why there is no verdict without a golden, and what the self-check found."""
    try:
        found = evidence.self_check.end
    except NotSeen as error:
        said = f"the self-check could not look: {error}"
    else:
        said = {
            "holds": f"the self-check holds: {PROVES}",
            "fails": "the self-check fails, see stream-end",
            "cannot tell": f"the self-check cannot tell: {found.why}",
        }[found.state]
    return [f"no golden, so it is not shown {DOES_NOT}", said]


def self_check_document(evidence: Evidence) -> dict[str, Any]:
    """The self-check for the JSON; `state` is "holds", "fails", "cannot tell" or "skipped", and `holds` is no match."""
    try:
        found = evidence.self_check
    except NotSeen as error:
        return {"state": "skipped", "why": str(error), "by": None, "subjects": []}
    return {
        "state": found.state,
        "why": found.end.why,
        "by": found.by,
        "proves": PROVES if found.state == "holds" else None,
        "does_not_prove": DOES_NOT,
        "subjects": [_subject(one) for one in (found.end, *found.others)],
    }


def _subject(one: Subject) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state,
        "why": one.why,
        "rows": one.rows,
        "failed_rows": one.failed,
        "worst": number(one.worst),
        "bound": number(one.bound),
        "other_rows": number(one.apart),
        "way": one.way,
    }
