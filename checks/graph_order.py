"""CUDA graphs were captured before the layers were set, so that replays hand on other boundaries than eager forwards do.

Symptom: right in every eager run, low acceptance as soon as graphs replay.
Cause: a release that captures its graphs with the default boundaries and reads the draft's ids afterwards.
Fix: start with `--disable-cuda-graph`, or use a release that sets the ids first.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen
from specwire.diagnosis.hints import listed


def check(evidence: Evidence) -> Cause | None:
    replayed = [event for event in evidence.capture.events if event.replayed] if evidence.capture else []
    if not replayed:
        raise NotSeen("no forward was recorded that ran as a CUDA graph")
    odd = [event for event in replayed if event.about.get("captured_now") is not None]
    if not odd:
        return None
    was, now = odd[0].about.get("captured"), odd[0].about["captured_now"]
    return Cause(
        "certain",
        f"{odd[0]} was replayed from a graph that was captured while the target kept "
        f"{listed(was) if was else 'no boundaries'}; by now it is set to {listed(now)}, which only eager forwards "
        f"follow ({len(odd)} of {len(replayed)} replayed events)",
        "--disable-cuda-graph, or a release that sets the layers to capture before it captures graphs",
        steps=0,
    )


CAUGHT = [
    Case(
        "defaults when the graph was captured",
        slots=(2, 6, 9),
        forward_end={"graph": "replay", "captured": [2, 6, 9], "captured_now": [3, 7, 10]},
    ),
    Case("nothing was set yet", forward_end={"graph": "replay", "captured": None, "captured_now": [3, 7, 10]}),
]
CLEAN = [
    Case("set before", forward_end={"graph": "replay", "captured": [3, 7, 10]}),
    Case("other layers, set before", slots=(2, 6, 9), forward_end={"graph": "replay", "captured": [2, 6, 9]}),
]
