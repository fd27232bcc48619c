"""States hold NaN or infinity.

Symptom: acceptance length 1, or every drafted token accepted; text of one repeated symbol.
Cause: an overflow (float16 served where bfloat16 was trained), a kernel without its arguments, a buffer never
filled, a weight of the draft that is NaN.
Fix: find the first layer that is not finite; serve in the dtype of the checkpoint; export the draft again.
"""

from specwire.diagnosis.alterations import one_row
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Partly

LATER = 2000  # events beside those that are compared


def check(evidence: Evidence) -> Cause | Partly | None:
    if not (bad := evidence.not_finite):
        return _on_the_draft_s_side(evidence) or _later(evidence)
    rank, row, slot = bad[0]
    prompt, position = evidence.seen.places[row]
    half = ", bfloat16 rather than float16" if evidence.dtype == "float16" else ""
    return Cause(
        "certain",
        f"{len({(rank, row) for rank, row, _ in bad})} sampled rows hold NaN or infinity ({evidence.dtype}), in "
        f"slots {sorted({slot for *_, slot in bad})}; first: rank {rank}, slot {slot}, prompt {prompt}, position "
        f"{position}",
        f"serve in the checkpoint's dtype{half}; hidden-state-dump shows which boundary is the first that is not "
        "finite",
        steps=0,
    )


def _later(evidence: Evidence) -> Cause | Partly | None:
    """The target's states in what came after the prefills that are compared: verifications, and other prompts."""
    if evidence.capture is None:
        return None
    compared = {id(piece.event) for pieces in evidence.by_rank.values() for piece in pieces}
    events = [
        event
        for site in ("layer-capture", "forward-end", "draft-input")
        for event in evidence.capture.at(site, prefill=False)
        if id(event) not in compared
    ]
    for event in events[:LATER]:
        if not event.file.rows(event.states).isfinite().all():
            return Cause(
                "likely",
                f"the rows that are compared are finite; {event} ({event.site}, {event.mode or 'no mode'}) holds NaN or "
                f"infinity ({event.dtype})",
                "find the first site of that step that is not finite (hidden-state-dump, and the steps before it)",
                steps=1,
            )
    return Partly(f"the first {LATER} of {len(events)} later events only") if len(events) > LATER else None


def _on_the_draft_s_side(evidence: Evidence) -> Cause | None:
    try:
        found = evidence.draft.not_finite
    except NotSeen:
        return None
    if found is None:
        return None
    saved, what = found
    seen = f"the states that reach the draft are finite; {what}"
    if saved:
        fix = "export the draft again; if the trained checkpoint holds it too, take an earlier one"
        return Cause("certain", seen, fix, steps=0)
    fix = "see that every weight was loaded (one that was not holds anything), and serve in the checkpoint's dtype"
    return Cause("likely", seen, fix, steps=2)


CAUGHT = [
    Case("NaN in a weight of the draft's layer", draft_run={"nan": "midlayer.mlp.up_proj.weight"}),
    Case("NaN in fc", draft_run={"nan": "fc.weight"}),
    Case("NaN in the draft's head", draft_run={"nan": "lm_head.weight"}),
    Case("NaN in a norm", draft_run={"nan": "midlayer.hidden_norm.weight"}),
    Case("NaN that the draft makes of sound weights", draft_run={"nan": "its layer"}),
    Case("one NaN", alter=one_row(2, lambda row: row * float("nan"))),
    Case("overflow in float16", alter=lambda states, world: (states * 1e5).half()),
    Case("on one rank only", ranks=2, per_rank=lambda rank, states, world: states / (1 - rank)),
]
CLEAN = [
    Case("as trained"),
    Case("a sound draft", draft_run={}),
    Case("large but finite", alter=lambda states, world: states * 1e5),
]
