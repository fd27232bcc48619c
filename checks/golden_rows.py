"""The golden contradicts itself: rows that no model can have computed.

Symptom: a mismatch that no fault of the engine explains.
Cause: training data that was written wrongly: one layer saved twice, a row left empty, two prompts mixed up.
Fix: build the golden again, from the model or from sound data.
"""

from specwire.diagnosis.alterations import mixed_from
from specwire.diagnosis.case import Case
from specwire.diagnosis.embeddings import seen_embeddings
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.fits import another_text
from specwire.diagnosis.target_end import seen_end

FIX = "build the golden again (specwire golden build), and look at what wrote the data that this one was made of"


ANOTHER_TEXT = (
    "write the golden's token_ids as its states were computed from them (BOS, chat template, where a long text was cut), "
    "or compute the states of these ids anew"
)


def check(evidence: Evidence) -> Cause | None:
    """Only slots that are off, and hold no boundary: elsewhere the golden is good enough."""
    if not evidence.off:
        return _of_the_end(evidence)
    for slot in evidence.off:
        k = evidence.trained[slot]
        if evidence.found[slot] is None and not evidence.not_finite and (said := _said(evidence, k)):
            return Cause("certain", f"slot {slot}: {said}", FIX, steps=0)
    return _by_the_embeddings(evidence) or _by_the_rows(evidence)


def _by_the_embeddings(evidence: Evidence) -> Cause | None:
    """The golden's states are of other tokens than its ids say: boundary 0 is a token's own, whatever stands before."""
    found = seen_embeddings(evidence)
    if found is None or not found.another_text:
        return None
    prompt, position = found.wrong[0]
    token, other = evidence.golden.prompts[prompt].token_ids[position], found.other.get((prompt, position))
    return Cause(
        "certain" if found.other else "likely",
        f"the golden's boundary 0 is not that of its own token_ids in {len(found.wrong)} of {found.rows} rows, first at "
        f"prompt {prompt}, position {position}: it is not the embedding of token {token}"
        + (f" but of token {other}" if other is not None else ""),
        ANOTHER_TEXT,
        steps=1,
    )


def _by_the_rows(evidence: Evidence) -> Cause | None:
    """The same where the golden has no boundary 0."""
    if seen_embeddings(evidence) is not None or not (found := another_text(evidence)):
        return None
    (prompt, position), *_ = sorted(found.items())
    return Cause(
        "likely",
        f"the rows of {len(found)} of {len(evidence.golden.prompts)} prompts are the golden's up to a token and far off from "
        f"there on (prompt {prompt} from position {position} on): as far as the rows of other tokens are",
        ANOTHER_TEXT,
        steps=3,
    )


def _of_the_end(evidence: Evidence) -> Cause | None:
    end = seen_end(evidence)
    if end is None or end.way != "zeros":
        return None
    return Cause(
        "certain",
        f"every slot is exact, and the golden's last boundary, {evidence.golden.layers}, holds rows of zeros, which no "
        "layer's output is",
        FIX,
        steps=1,
    )


def _said(evidence: Evidence, k: int) -> str | None:
    rows, places, tokens = evidence.wanted(k), evidence.seen.places, evidence.tokens
    same = [other for other in evidence.seen.boundaries if other != k and evidence.wanted(other).equal(rows)]
    if same:
        return (
            f"the golden's boundary {k} is its boundary {same[0]}, byte for byte: one of them is not what it is called"
        )
    seen: dict[bytes, int] = {}
    for row, values in enumerate(rows if k else ()):
        where = "prompt {}, position {}".format(*places[row])
        if not values.any():
            return f"the golden's boundary {k} is zero at {where}, which no layer's output is"
        first = seen.setdefault(values.numpy().tobytes(), row)
        if tokens[first] != tokens[row]:
            at = "prompt {}, position {}".format(*places[first])
            return f"the golden's boundary {k} at {where} is that of another token, at {at}, byte for byte"
    return None


def _twin(golden):
    return {**golden, 7: golden[6]}


def _empty(golden):
    return {**golden, 7: golden[7] * (golden[7] != golden[7][2])}


def _mixed(golden):
    return {**golden, 7: golden[7].roll(1, 0).where(golden[7] != golden[7][0], golden[7])}


def _another_text_from(position):
    def change(golden):
        later = next(iter(golden.values())).clone()
        later[:] = 0
        later[position:] = 1
        return {k: rows.where(later == 0, rows.roll(3, 1) * 1.3) for k, rows in golden.items()}

    return change


def _empty_end(golden):
    return {**golden, 12: golden[12] * (golden[12] != golden[12][1])}


CAUGHT = [
    Case("a row of the last state, no slot, is empty", said={}, golden=_empty_end),
    Case("another text from the third token on", golden=_another_text_from(2)),
    Case("one boundary twice", golden=_twin),
    Case("an empty row", golden=_empty),
    Case("a row twice", golden=_mixed, dtype="bfloat16"),
]
CLEAN = [
    Case("as trained"),
    Case("rows near, from a position on", alter=mixed_from(3)),
    Case("another layer", slots=(2, 7, 10)),
    Case("the engine's rows twice", alter=lambda states, world: states[[0, *range(len(states) - 1)]]),
]
