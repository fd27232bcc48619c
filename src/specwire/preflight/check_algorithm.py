"""Is the speculative algorithm the draft's own, and does the launch load the draft at all?"""

from __future__ import annotations

from specwire.preflight.facts import Facts
from specwire.preflight.outcome import Check, fault, ok, skipped
from specwire.preflight.rule import EAGLE3


def check(facts: Facts) -> list[Check]:
    if facts.launch is None:
        return [skipped("algo-flag", "no launch was given, so its --speculative-algorithm is not known", needed=True)]
    kind, why = facts.kind, _said(facts)
    if facts.algorithm is None:
        return [skipped("algo-flag", "the launch's --speculative-algorithm is not known here", needed=True)]
    if not facts.algorithm:
        return [
            fault(
                "algo-flag",
                f"{facts.launch.source} has no --speculative-algorithm: the draft is not used at all",
                f"add --speculative-algorithm {kind or EAGLE3}",
            ),
        ]
    if kind is None:
        return [skipped("algo-flag", f"{why}: neither an EAGLE-3 draft nor an EAGLE head", needed=True)]
    if facts.algorithm != kind:
        return [_wrong(facts, kind, why)]
    if not facts.launch.gives("speculative-draft-model-path") and not facts.launch.open:
        return [
            fault(
                "algo-flag",
                f"{facts.launch.source} has no --speculative-draft-model-path: the engine would load "
                "the target as its own draft",
                f"add --speculative-draft-model-path {facts.draft_dir}",
            ),
        ]
    return [ok("algo-flag", f"--speculative-algorithm {facts.algorithm} fits: {why}")]


def _said(facts: Facts) -> str:
    """What shows the kind of draft: its architecture, and how many states fc takes."""
    said, width, columns = str(facts.draft["architectures"][0]), facts.draft_hidden_in, facts.fc_in
    if columns is None:
        return said
    said += f", fc takes {columns}"
    return said + (f" = {columns // width} x {width}" if width and columns % width == 0 else "")


def _asked(facts: Facts) -> str:
    """The algorithm as the launch has it, and what it stands for."""
    word = str(facts.launch.get("speculative-algorithm"))
    return word if word.upper() == facts.algorithm else f"{word} (an alias of {facts.algorithm})"


def _wrong(facts: Facts, kind: str, why: str) -> Check:
    if kind == EAGLE3:
        evidence = (
            f"the draft is EAGLE-3 ({why}), the launch says --speculative-algorithm {_asked(facts)}: the target "
            f"hands on its last state alone, {facts.hidden} wide instead of {facts.fc_in or facts.hidden * 3}"
        )
        if facts.hidden == facts.draft.get("hidden_size"):
            evidence += "; that is as wide as the embedding, so the draft leaves fc out without a word"
    else:
        evidence = f"the draft is an EAGLE head ({why}), the launch says --speculative-algorithm {_asked(facts)}"
    return fault("algo-flag", evidence, f"--speculative-algorithm {kind}")
