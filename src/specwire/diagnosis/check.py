"""From a golden and a capture to a verdict and named causes: the JSON of `check` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specwire.capture import open_capture
from specwire.diagnosis import labels
from specwire.diagnosis.acceptance import described
from specwire.diagnosis.acceptance import document as acceptance_document
from specwire.diagnosis.alone import no_golden, self_check_document
from specwire.diagnosis.alone import reasons as alone_reasons
from specwire.diagnosis.compare import between_repeats, one_thread
from specwire.diagnosis.context import Context
from specwire.diagnosis.document import distances, number, rows, slot_document
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Partly, Skipped, listed
from specwire.diagnosis.gather import gather
from specwire.diagnosis.judge import Slot, judge, missing_rows
from specwire.diagnosis.replays import read
from specwire.diagnosis.scope import document as scope_document
from specwire.diagnosis.scope import draft_parts, target_parts
from specwire.diagnosis.sides import target_sites
from specwire.diagnosis.together import two_faults
from specwire.errors import FINDING, INCONCLUSIVE, OK, SpecwireError
from specwire.finding import CONFIDENCES
from specwire.goldens.golden import open_golden
from specwire.registry import modules

SCHEMA = "specwire.check/1"
EXIT = {"match": OK, "mismatch": FINDING, "inconclusive": INCONCLUSIVE}


@dataclass(frozen=True)
class Summary:
    """What a document says above its slots, however the states came. `reasons` are why it can be no match."""

    concat_shape: list[int] | None
    golden_concat_shape: list[int] | None
    ranks: int
    ranks_agree: bool | None
    rank_difference: float | None
    repeat_difference: float | None
    rows: int
    noise: float | None
    noise_source: str
    reasons: list[str]
    origin: str


def check_capture(golden: Path | str | None, capture: Path | str, context: Context | None = None) -> dict[str, Any]:
    """Compare a capture directory with a golden file and diagnose what differs.

    Without a golden nothing is compared: the self-check and the draft's side are all there is, and no verdict is
    `match`. The context must then name the target.

    Returns the document of CONTRACT's `check`; `EXIT[document["verdict"]]` is the exit code. Raises
    SpecwireError for files that cannot be used.
    """
    recorded, context = open_capture(capture), context or Context()
    if context.trained and golden is None:
        raise SpecwireError("--trained says which of a golden's boundaries are right: give --golden FILE as well")
    with one_thread():
        known = open_golden(golden, context.trained) if golden else no_golden(recorded, context)
        evidence = gather(known, recorded, context)
        if taken := labels.as_captured(evidence):
            evidence = gather(taken, recorded, context)
        return examine(evidence)


def examine(evidence: Evidence) -> dict[str, Any]:
    """Judge the slots of a capture, run every check, and put both into one document."""
    slots = judge(evidence)
    golden, first = evidence.golden, evidence.pieces[0] if evidence.pieces else None
    prompt = first.prompt if first else 0
    between = evidence.comparison.between_ranks if evidence.comparison else {}
    compared = first is not None and not evidence.alone
    summary = Summary(
        concat_shape=[sum(piece.count for piece in evidence.pieces if piece.prompt == prompt), evidence.width]
        if first
        else None,
        golden_concat_shape=None
        if evidence.alone
        else [len(golden.prompts[prompt].token_ids), golden.hidden * len(golden.trained)],
        ranks=len(ranks_seen(evidence)),
        ranks_agree=ranks_agree(evidence) if compared else None,
        rank_difference=max(between.values(), default=0.0) if compared else None,
        repeat_difference=between_repeats(evidence.pieces),
        rows=sum(piece.count for piece in evidence.pieces),
        noise=None if evidence.alone else max(evidence.floor(k).measured for k in golden.trained),
        noise_source="no golden" if evidence.alone else evidence.floor(golden.trained[-1]).source,
        reasons=_reasons(evidence, slots),
        origin=str(evidence.capture.path),
    )
    return report(evidence, slots, summary)


def report(evidence: Evidence, slots: list[Slot], summary: Summary) -> dict[str, Any]:
    """The document of `check`, with the verdict and the causes."""
    causes, checks = diagnose(evidence)
    seen = evidence.acceptance
    verdict = _verdict(slots, causes, summary.reasons)
    golden = evidence.golden
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "why": summary.reasons if verdict == "inconclusive" else [],
        "site": evidence.site,
        "target_side": _target_side(evidence, slots),
        "concat_shape": summary.concat_shape,
        "golden_concat_shape": summary.golden_concat_shape,
        "dtype": evidence.dtype if summary.concat_shape else None,
        "ranks": summary.ranks,
        "ranks_agree": summary.ranks_agree,
        "rank_difference": number(summary.rank_difference),
        "repeat_difference": number(summary.repeat_difference),
        "rows_compared": summary.rows,
        "noise_floor": number(summary.noise),
        "noise_source": summary.noise_source,
        "slots": [slot_document(slot) for slot in slots],
        "target_sites": [
            {
                "site": side.site,
                "state": side.state,
                "boundaries": list(side.boundaries),
                "rel_l2": number(side.rel_l2),
                "rows": side.rows,
            }
            for side in target_sites(evidence)
        ],
        "distances": distances(evidence),
        "rows": rows(evidence),
        "scope": scope_document([*target_parts(evidence, summary.rows, summary.ranks), *draft_parts(evidence)]),
        "self_check": self_check_document(evidence),
        "replays": read(evidence.capture.events).document() if evidence.capture else None,
        "acceptance": {**acceptance_document(seen), "said": described(seen)},
        "causes": [{**cause.finding.document(), "acceptance_agrees": cause.id in seen.points_to} for cause in causes],
        "checks": checks,
        "notes": [*labels.notes(evidence), *evidence.notes, *evidence.context.suspected],
        "golden": {
            "path": None if evidence.alone else str(golden.path),
            "target": golden.target,
            "source": golden.source,
            "prompts": [prompt.described() for prompt in golden.prompts],
        },
        "compared": summary.origin,
    }


def diagnose(evidence: Evidence) -> tuple[list[Cause], list[dict[str, str]]]:
    """Every check's answer: the causes, most probable first, and one line per check."""
    known = modules("specwire.checks")
    answers = {name: _answer(evidence, name, module) for name, module in known.items()}
    causes = [answer for answer in answers.values() if isinstance(answer, Cause)]
    if not any(cause.confidence == "certain" for cause in causes):
        both = two_faults(evidence, known)
        causes += both
        answers |= {cause.id: cause for cause in both}
    if any(cause.confidence != "possible" and not cause.last_resort for cause in causes):
        causes = [cause for cause in causes if not cause.last_resort]
    likelier = evidence.acceptance.points_to  # among causes that fit equally well, and nowhere else
    causes.sort(
        key=lambda cause: (CONFIDENCES.index(cause.confidence), cause.steps, cause.id not in likelier, cause.id)
    )
    return causes, [_line(name, answer) for name, answer in answers.items()]


def _answer(evidence: Evidence, name: str, module: Any) -> Cause | Skipped | Partly | None:
    if skipped := labels.unjudged(evidence, name):
        return skipped  # a difference to a guessed list is no fault: the check is not asked
    try:
        answer = module.check(evidence)
    except NotSeen as error:
        return Skipped(str(error))
    if answer is None and evidence.columns is not None:
        return Partly(f"{evidence.columns} printed values of a row only")
    if not isinstance(answer, Cause):
        return answer
    # Five values of a row can point at a cause; only widths are beyond doubt without the rest.
    weak = evidence.columns is not None and answer.steps > 0 and answer.confidence == "certain"
    confidence = "likely" if weak else answer.confidence
    return replace(answer, id=name, confidence=confidence, rank=evidence.odd_rank)


def _line(name: str, answer: Cause | Skipped | Partly | None) -> dict[str, str]:
    """A check's line in the document. `seen` says what it looked at, where that is less than its name says."""
    match answer:
        case Cause():
            return {"id": name, "state": "fault", "why": answer.said, "seen": ""}
        case Skipped():
            return {"id": name, "state": "skipped", "why": answer.why, "seen": ""}
        case Partly():
            return {"id": name, "state": "ok", "why": "", "seen": answer.seen}
    return {"id": name, "state": "ok", "why": "", "seen": ""}


def ranks_seen(evidence: Evidence) -> tuple[int, ...]:
    """The ranks that recorded what reached the draft."""
    return tuple(sorted({event.rank for event in evidence.capture.at(evidence.site)}))


def ranks_agree(evidence: Evidence) -> bool:
    """Whether all ranks recorded the same rows, to within the tightest noise floor of the slots."""
    if evidence.odd_ranks:
        return False
    between = evidence.comparison.between_ranks if evidence.comparison else {}
    return all(difference <= min(evidence.floor(k).usual for k in evidence.trained) for difference in between.values())


def _reasons(evidence: Evidence, slots: list[Slot]) -> list[str]:
    """Why there can be no verdict of `match`, though nothing is known to be wrong."""
    reasons = alone_reasons(evidence) if evidence.alone else labels.reasons(evidence)
    if not evidence.pieces:
        reasons.append(
            "no prompt's states were captured" if evidence.alone else "no states of the golden's prompts were captured"
        )
    elif evidence.site != "draft-input":
        reasons.append(f"nothing was captured at draft-input; {evidence.site} shows the target's side only")
    reasons += _blindness(evidence)
    if slots and all(slot.state == "match" for slot in slots):
        reasons += [
            f"{side.site} is not the golden's at boundaries {listed(side.boundaries)}, off by up to {side.rel_l2:.2g}, and what "
            "reached the draft is: one of the two records is not what the target computed"
            for side in target_sites(evidence)
            if side.state == "differs"
        ]
    if missing := missing_rows(evidence):
        prompt, position, _ = missing[0]
        count = sum(end - first for _, first, end in missing)
        reasons.append(f"{count} rows were not captured, first position {position} of prompt {prompt}")
    stages = evidence.context.stages
    expected = max(1, evidence.capture.world_size // stages)
    if evidence.pieces and len(ranks_seen(evidence)) < expected:
        silent = sorted(set(range(expected)) - set(ranks_seen(evidence)))
        reasons.append(
            f"{len(ranks_seen(evidence))} of {expected} ranks recorded it; rank {', '.join(map(str, silent))} did not"
        )
    if evidence.odd_ranks:
        reasons.append(f"rank {', '.join(map(str, evidence.odd_ranks))} recorded other rows than the first")
    reasons += [
        f"slot {slot.slot}: {slot.why}"
        for slot in slots
        if slot.state == "not-compared" and evidence.pieces and not evidence.alone
    ]
    return reasons


_WAY_OUT = {
    "cuda-graph": "let the engine run Python: specwire verify and run do with --graphs off, a server by hand with the "
    "arguments that specwire engine-args --graphs off prints",
    "graph-memory": "raise EAGLE3_GRAPH_MEMORY or EAGLE3_GRAPH_ROWS, or keep fewer boundaries "
    "(EAGLE3_CAPTURE_BOUNDARIES)",
    "graph-gap": "run it with --graphs off",
    "torch-compile": "leave --enable-torch-compile out",
    "limit": "raise EAGLE3_CAPTURE_LIMIT, or keep fewer boundaries (EAGLE3_CAPTURE_BOUNDARIES)",
    "disk": "name a directory of your own with room for the rows (EAGLE3_CAPTURE_DIR)",
    "unfinished": "the engine was killed, or its disk was full, while it wrote: run it again",
}


def _blindness(evidence: Evidence) -> list[str]:
    """What taps could not look at, each kind once, and what to type: a run that was seen in part is no match."""
    sites: dict[tuple[str, str], set[str]] = {}
    for line in evidence.capture.blind:
        reason = str(line.get("reason"))
        if reason == "error" and line.get("site") == "hidden-state-dump":
            continue  # a stream that the engine will not show: no row that is compared comes from there
        detail = "" if reason in _WAY_OUT and reason not in ("disk", "graph-memory") else str(line.get("detail"))
        sites.setdefault((reason, detail), set()).add(str(line.get("site")))
    return [
        f"taps could not look at {', '.join(sorted(where))} ({reason}{': ' if detail else ''}{detail})"
        + (f": {_WAY_OUT[reason]}" if reason in _WAY_OUT else "")
        for (reason, detail), where in sorted(sites.items())
    ]


def _verdict(slots: list[Slot], causes: list[Cause], reasons: list[str]) -> str:
    if any(slot.state == "mismatch" for slot in slots) or any(cause.confidence != "possible" for cause in causes):
        return "mismatch"
    if reasons or not slots or any(slot.state != "match" for slot in slots):
        return "inconclusive"
    return "match"


def _target_side(evidence: Evidence, slots: list[Slot]) -> str:
    if slots and all(slot.state == "match" for slot in slots):
        return "exact" if evidence.columns is None else "agrees in what was printed"
    return "differs" if any(slot.state == "mismatch" for slot in slots) else "unknown"


def documented(module: Any) -> Mapping[str, str]:
    """A check's docstring in parts: `summary`, `symptom`, `cause`, `fix`."""
    text = module.__doc__ or ""
    parts = {"summary": text.strip().splitlines()[0] if text.strip() else ""}
    current = None
    for line in text.splitlines()[1:]:
        head, colon, rest = line.strip().partition(":")
        if colon and head in ("Symptom", "Cause", "Fix"):
            current = head.lower()
            parts[current] = rest.strip()
        elif current and line.strip():
            parts[current] += " " + line.strip()
    return parts
