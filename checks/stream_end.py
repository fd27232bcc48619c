"""The states at the end of the forward are not those that the returned tokens were made from.

Symptom: what was captured looks sound, and `lm_head` of it does not give the logprobs that the engine returned.
Cause: rows in another order, states read before a reduce or another last step, or another target than the one named.
Fix: name the target that was served; then look at where the states are read.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, Skipped


def check(evidence: Evidence) -> Cause | Skipped | None:
    found = evidence.self_check
    end = found.end
    if end.state == "cannot tell":
        return Skipped(end.why)
    if end.state == "holds":
        return None
    far = "" if end.worst is None else f", by up to {end.worst:.2g} where rounding allows {end.bound:.1g}"
    unsure = "" if found.sure else " (if the server sampled, tokens need not be the likeliest ones)"
    return Cause(
        "possible" if not found.sure else "certain" if "another row" in end.why else "likely",
        f"lm_head(norm(last state)) misses the returned {found.by} in {end.failed} of {end.rows} rows{far}: "
        f"{end.why}{unsure}",
        "see that --target is the directory that was served; if it is, the states are read from other rows than "
        "the head reads, or before a last step of the forward",
        steps=8,
        last_resort=not evidence.alone,
    )


CAUGHT = [
    Case("rows in another order", said={"end": lambda states: states.roll(1, 0)}),
    Case("a part of the states", said={"end": lambda states: 0.5 * states}),
    Case("another head", said={"head": "random"}),
    Case("another head, tokens alone", said={"head": "random", "logprobs": False}),
]
CLEAN = [
    Case("its own head", said={}),
    Case("bfloat16", said={}, dtype="bfloat16"),
    Case("before the norm", said={"normed": False}),
    Case("tokens alone", said={"logprobs": False}),
    Case("another layer", said={}, slots=(2, 6, 9)),
]
