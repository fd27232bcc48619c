"""The stream after the last layer, which the draft was trained with, is missing or is not quite it.

Symptom: a slot short, an index error at start, or slightly low acceptance with nearly the right next tokens.
Cause: the capture loop stops before the last layer's output, or an end-of-stack step comes before or after
it.
Fix: capture after the loop, before the final norm.
"""

from specwire.diagnosis.alterations import one_slot
from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.fits import is_final
from specwire.diagnosis.hints import listed
from specwire.diagnosis.target_end import seen_end

FIX = "capture after the layer loop, before the final norm: a loop over layers' inputs cannot give it"


def check(evidence: Evidence) -> Cause | None:
    return _by_the_head(evidence) if evidence.alone else _by_the_golden(evidence)


def _by_the_head(evidence: Evidence) -> Cause | None:
    """Without a golden: what is captured for the last boundary must give the returned logprobs, after the norm."""
    if evidence.golden.layers not in evidence.trained:
        raise NotSeen("no golden to compare with")
    found = evidence.self_check
    wrong = next((one for one in found.others if one.state == "fails" and "dump" not in one.name), None)
    if wrong is None or found.state != "holds":
        return None
    sound = next((one for one in found.others if one.state == "holds"), None)
    return Cause(
        "certain" if sound else "likely",
        f"{wrong.name} misses the returned {found.by} in {wrong.failed} of {wrong.rows} rows"
        + (f" by up to {wrong.worst:.2g}" if wrong.worst is not None else f": {wrong.why}")
        + f", where {(sound or found.end).name} gives them to {(sound or found.end).worst:.1g}",
        FIX,
        steps=1,
    )


def _by_the_golden(evidence: Evidence) -> Cause | None:
    last, trained, found = evidence.golden.layers, evidence.trained, evidence.found
    if last not in trained:
        return None if evidence.off else _of_the_golden_s_end(evidence)
    slot = trained.index(last)
    if found == tuple(k for k in trained if k != last):
        return Cause(
            "certain",
            f"the slots hold {listed(found)}: boundary {last}, after the last layer, was not captured",
            FIX,
            steps=1,
        )
    if evidence.off != (slot,) or len(found) != len(trained):
        return None
    if found[slot] == last - 1:
        return Cause(
            "certain",
            f"slot {slot} holds boundary {last - 1}, the last layer's input, where its output was trained; the "
            "others are exact",
            FIX,
            steps=1,
        )
    k, distance = evidence.nearest[slot]
    if found[slot] is not None or k < last - 1 or distance > 0.5 or is_final(evidence, slot):
        return None
    return Cause(
        "likely",
        f"slot {slot} is {distance:.2g} from boundary {k} and no boundary exactly, while the other slots are exact: "
        "a step at the end of the stack is missing, or comes too early",
        FIX,
        steps=3,
    )


def _of_the_golden_s_end(evidence: Evidence) -> Cause | None:
    """What the draft was trained towards, where it is no slot."""
    end, last = seen_end(evidence), evidence.golden.layers
    if end is None or end.way != "layer":
        return None
    return Cause(
        "certain",
        f"every slot is exact, and what the golden calls boundary {last}, after the last layer, is the engine's boundary "
        f"{end.boundary} in all {end.rows} rows looked at",
        f"save the output of layer {last - 1}, the last one, as the data's last state: it holds that of layer "
        f"{end.boundary - 1 if end.boundary else 'none, the embeddings'}",
        steps=2,
    )


CAUGHT = [
    Case(
        "the data's last state, no slot, is one layer early", said={}, golden=lambda golden: {**golden, 12: golden[11]}
    ),
    Case("a slot short", slots=(3, 7), trained=(3, 7, 12)),
    Case("the last layer's input", slots=(3, 7, 11), trained=(3, 7, 12), dtype="bfloat16"),
    Case(
        "a small step left out",
        trained=(3, 7, 12),
        slots=(3, 7, 12),
        alter=one_slot(2, lambda states: states * 1.02 + 0.01),
    ),
]
CLEAN = [
    Case("the data's last state is the last layer's", said={}, ranks=2),
    Case("as trained", slots=(3, 7, 12), trained=(3, 7, 12)),
    Case("not trained on it"),
    Case("normed", slots=(3, 7, "final_norm"), trained=(3, 7, 12)),
]
