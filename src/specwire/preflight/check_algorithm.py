"""Is the speculative algorithm the draft's own, and does the launch load the draft at all?"""

from __future__ import annotations

from specwire.preflight.facts import Facts
from specwire.preflight.rule import EAGLE3
from specwire.preflight.verdicts import Check, fault, ok, skipped


def check(facts: Facts) -> list[Check]:
    if facts.launch is None:
        return [
            skipped(
                "algo-flag", "no launch was given, so its --speculative-algorithm is not known", needed=True
            )
        ]
    kind, why = _kind(facts)
    if not facts.algorithm:
        return [
            fault("algo-flag", f"{facts.launch.source} has no --speculative-algorithm: the draft is not used at all",
                  f"add --speculative-algorithm {kind or EAGLE3}"),
        ]  # fmt: skip
    if kind is None:
        return [skipped("algo-flag", f"what kind of draft this is stays unclear: {why}", needed=True)]
    if facts.algorithm != kind:
        return [_wrong(facts, kind, why)]
    if not facts.launch.get("speculative-draft-model-path"):
        return [
            fault("algo-flag", f"{facts.launch.source} has no --speculative-draft-model-path: the engine would load "
                  "the target as its own draft", f"add --speculative-draft-model-path {facts.draft_dir}"),
        ]  # fmt: skip
    return [ok("algo-flag", f"--speculative-algorithm {facts.algorithm} fits: {why}")]


def _kind(facts: Facts) -> tuple[str | None, str]:
    """EAGLE3 or EAGLE, and what shows it: the architecture's name, else how many states `fc` takes."""
    name = facts.draft["architectures"][0]
    columns = facts.fc[1] if facts.fc and len(facts.fc) == 2 else None
    width = facts.draft_hidden_in
    said = f"{name}" + (f", fc takes {columns}" if columns else "")
    if columns and width and columns % width == 0:
        said += f" = {columns // width} x {width}"
    if "eagle3" in name.lower() or facts.weights.find("d2t"):
        return EAGLE3, said
    if columns and width and columns == 2 * width:
        return "EAGLE", f"{said} (an embedding and one state)"
    if columns and width and columns % width == 0 and columns // width >= 3:
        return EAGLE3, said
    return None, said


def _wrong(facts: Facts, kind: str, why: str) -> Check:
    if kind == EAGLE3:
        columns = facts.fc[1] if facts.fc else facts.hidden * 3
        evidence = (
            f"the draft is EAGLE-3 ({why}), the launch says --speculative-algorithm {facts.algorithm}: the target "
            f"hands on its last state alone, {facts.hidden} wide instead of {columns}"
        )
        if facts.hidden == facts.draft.get("hidden_size"):
            evidence += "; that is as wide as the embedding, so the draft leaves fc out without a word"
    else:
        evidence = (
            f"the draft is an EAGLE head ({why}), the launch says --speculative-algorithm {facts.algorithm}"
        )
    return fault("algo-flag", evidence, f"--speculative-algorithm {kind}")
