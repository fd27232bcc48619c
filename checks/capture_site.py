"""Only rows that carry something beside a token differ, at early layers: states are recorded too early.

Symptom: text prompts draft well, prompts with images do not.
Cause: the features of an image are added inside the first layers, after the place where the states are
recorded.
Fix: record after they have been added, or train on states recorded at the same place.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.hints import listed


def check(evidence: Evidence) -> Cause | None:
    if not evidence.off or evidence.not_finite:
        return None
    tokens = evidence.tokens
    rows = {row for slot in evidence.off for row in evidence.bad_rows(slot)}
    placeholders = {tokens[row] for row in rows}
    others = [row for row, token in enumerate(tokens) if token in placeholders and row not in rows]
    early = [evidence.trained[slot] for slot in evidence.off]
    late = [k for slot, k in enumerate(evidence.trained) if slot not in evidence.off]
    if len(placeholders) != 1 or len(rows) < 2 or others or (late and max(early) > min(late)):
        return None
    return Cause(
        "likely",
        f"only the {len(rows)} rows of token {placeholders.pop()} differ, at boundaries {listed(early)}; the other "
        f"{len(tokens) - len(rows)} rows are exact",
        "record the states after the image features have been added at these layers, or take later layers",
        steps=4,
    )


def _without_image(states, world):
    states = states.clone()
    rows = [row for row, token in enumerate(world.tokens) if token == 30]
    states[rows, :32] -= 0.5
    return states


CAUGHT = [Case("placeholder rows at the first boundary", alter=_without_image)]
CLEAN = [
    Case("as trained"),
    Case("another layer", slots=(2, 7, 10)),
    Case("shifted", alter=lambda states, world: states.roll(1, 0)),
]
