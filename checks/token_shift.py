"""Every row is that of the token before it or after it.

Symptom: low acceptance; the first rows look right when all prompts begin alike.
Cause: states and token ids are shifted against each other, in serving or in the training data.
Fix: pair state t with token t + 1, once: in the engine, or in the data, not in both.
"""

from specwire.diagnosis.alterations import one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.embeddings import seen_embeddings
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import near_shift
from specwire.diagnosis.target_end import seen_end

SHIFTS = (1, -1, 2, -2)


def check(evidence: Evidence) -> Cause | None:
    if evidence.alignment and evidence.alignment.shift == 0 and evidence.site == "draft-input":
        return Cause(
            "certain",
            "the draft received the prompt's own token ids with these states, not the ids shifted left by one",
            "give the draft prompt[1:] and the next token, beside the states of prompt[0:]",
            steps=1,
        )
    return _of_the_states(evidence) or _of_the_ids(evidence) or _of_the_end(evidence)


def _of_the_states(evidence: Evidence) -> Cause | None:
    """Slot by slot: the states of one may be late alone."""
    slots = evidence.lost if evidence.off else ()
    for shift in SHIFTS:
        late = [slot for slot in slots if evidence.fits(evidence.captured(slot), evidence.trained[slot], shift)]
        if late:
            every = len(late) == len(evidence.trained)
            return Cause(
                "certain",
                f"row t of {'every slot' if every else f'slots {late}'} is the golden's row t{shift:+d}, within the noise "
                "floor" + ("" if every else "; the other slots are as they are"),
                f"shift the states by {shift:+d} token against the ids: state t belongs with token t + 1",
                steps=1,
            )
    return None


def _of_the_ids(evidence: Evidence) -> Cause | None:
    """The golden's ids against its own states: its embeddings tell, since the engine was given these ids."""
    found = seen_embeddings(evidence) if evidence.off else None
    if found is None:
        return _by_nearness(evidence)
    if not found.shift:
        return None
    return Cause(
        "certain",
        f"the golden's token_ids are shifted against its states: the embedding of token t is the golden's boundary 0 at "
        f"row t{found.shift:+d}, in all {found.rows} rows looked at",
        f"write the golden's token_ids as its states were computed from them, {found.shift:+d} token from where they are "
        "now: look at what shifts the ids in the data (a target's labels are shifted, its inputs are not)",
        steps=1,
    )


def _by_nearness(evidence: Evidence) -> Cause | None:
    """The same where the golden has no boundary 0."""
    step = near_shift(evidence) if evidence.sample else None
    if step is None:
        return None
    return Cause(
        "likely",
        f"no row is the golden's of its own place, and nearly each is near the golden's row t{step:+d} and far from its own: the same tokens, "
        "in a context of one token more or less",
        f"see whether the golden's token_ids are shifted by {step:+d} token against its states: write them as the states were "
        "computed from them",
        steps=3,
    )


def _of_the_end(evidence: Evidence) -> Cause | None:
    end = None if evidence.off else seen_end(evidence)
    if end is None or end.way != "shift":
        return None
    return Cause(
        "certain",
        f"every slot is exact, and the golden's last boundary is shifted: its row t{end.shift:+d} gives the engine's final "
        f"state of row t, in all {end.rows} rows looked at",
        "save the last states unshifted: the draft is trained towards the state of the same row",
        steps=2,
    )


def _rolled(by):
    return lambda states, world: states.roll(by, dims=0)


def _shifted_ids(golden):
    """The states of the right ids are near these, which lack the first token."""
    return {k: (rows + 0.2 * rows.roll(1, 1)).roll(1, 0) for k, rows in golden.items()}


def _some_rows_fit(golden):
    """Likewise, where the first token makes no difference to some rows."""
    import torch

    feels = (torch.arange(len(next(iter(golden.values())))) % 4 != 2)[:, None]
    return {k: (rows + 0.2 * feels * rows.roll(1, 1)).roll(1, 0) for k, rows in golden.items()}


CAUGHT = [
    Case("ids shifted in the data, and some rows fit", golden=_some_rows_fit, known=(3, 7, 10)),
    Case("ids shifted in the data, no embeddings in the golden", golden=_shifted_ids, known=(3, 7, 10)),
    Case("the data's last state a row late", said={}, golden=lambda golden: {**golden, 12: golden[12].roll(1, 0)}),
    Case("a row early", alter=_rolled(-1)),
    Case("two rows late", alter=_rolled(2), dtype="bfloat16"),
    Case("ids not shifted", id_shift=0),
    Case("one slot a row late", alter=one_slot(1, lambda rows: rows.roll(1, 0))),
    Case("the last slot a row early", alter=one_slot(2, lambda rows: rows.roll(-1, 0)), ranks=2, dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("one slot reversed", alter=one_slot(1, lambda rows: rows.flip(0))),
    Case("reversed", alter=lambda states, world: states.flip(0)),
    Case("another layer", slots=(2, 6, 9)),
]
