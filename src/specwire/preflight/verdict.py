"""The whole preflight as one function: facts, checks, verdict, and the drift table over several trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.finding import CONFIDENCES
from specwire.preflight import (
    check_algorithm,
    check_boundaries,
    check_serving,
    check_target,
    check_vocabulary,
    check_weights,
    check_widths,
)
from specwire.preflight.facts import Facts, Recorded, gather, golden_words
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import Given, Launch, in_file, of_process, typed
from specwire.preflight.option_source import read_options
from specwire.preflight.outcome import Check, fault, ok, skipped
from specwire.preflight.rule import draft_rule, graph_order
from specwire.trees.tree import Tree

SCHEMA = "specwire.preflight/1"
# In the order in which they explain a bad draft: the first fault of equal confidence is the first cause.
CHECKS = (
    check_algorithm.check,
    check_target.check,
    check_boundaries.check,
    check_widths.check,
    check_vocabulary.check,
    check_weights.check,
    check_serving.check,
)


def preflight(
    target: Path,
    draft: Path,
    trees: Sequence[Tree],
    *,
    launch: str | Given | None = None,
    launch_from: Path | None = None,
    pid: int | None = None,
    golden: Path | None = None,
    trained: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Judge a target, a draft and a launch against the first of `trees`; all of them go into the drift table.

    `trained` overrules the golden's boundaries. Returns the document of the contract (`verdict` ok, fault or
    inconclusive), with `trees`: what each tree would capture. Several trees are all to match, and need no
    launch. Raises SpecwireError for bad input.
    """
    source = Source(trees[0])
    try:
        return _judged(source, target, draft, trees, _recorded(golden, trained), _given(launch, launch_from, pid))
    except (RecursionError, MemoryError) as error:  # outside of the rule reader, which says where
        what = "is nested too deeply to be read" if isinstance(error, RecursionError) else "is larger than fits here"
        raise SpecwireError(f"something of the tree's source, the configs or the launch {what}.") from error


def _judged(
    source: Source, target: Path, draft: Path, trees: Sequence[Tree], recorded: Recorded | None, given: Given | None
) -> dict[str, Any]:
    facts = gather(source, target, draft, _read(source, given), recorded)
    checks = [found for check in CHECKS for found in check(facts)]
    rows = [_row(facts), *(_served_by(facts, tree, given) for tree in trees[1:])]
    if len(trees) > 1:
        checks = [_without_launch(check) for check in checks] + [_all_match(rows)]
    return {
        "schema": SCHEMA,
        "verdict": verdict(checks),
        "tree": str(source.tree.package),
        "version": source.tree.version,
        "algorithm": facts.algorithm,
        "layer_ids": facts.plumbing.layer_ids,
        "captured_boundaries": None if facts.captured is None else list(facts.captured),
        "trained_boundaries": None if facts.trained is None else list(facts.trained),
        "trained_assumed": facts.assumed,
        "concat_width": facts.concat_width,
        "fc_in": facts.fc_in,
        "rule": {"text": facts.rule.text, "where": facts.rule.where, "ids_where": facts.plumbing.where},
        "causes": causes(checks),
        "checks": [{"id": check.id, "state": check.state, "why": check.why} for check in checks],
        "notes": [{"id": note.id, "text": note.text} for note in check_serving.notes(facts)],
        "trees": rows,
    }


def verdict(checks: list[Check]) -> str:
    """fault if anything is wrong; inconclusive if something that a verdict needs was skipped; else ok."""
    if any(check.state == "fault" for check in checks):
        return "fault"
    if not checks or any(check.state == "skipped" and check.needed for check in checks):
        return "inconclusive"
    return "ok"


def _without_launch(check: Check) -> Check:
    """The drift table is about trees: a launch that was not given is no hole in it."""
    return replace(check, needed=check.needed and check.id != "algo-flag")


def _all_match(rows: list[dict[str, Any]]) -> Check:
    wrong = [row["version"] or row["tree"] for row in rows if row["matches"] is False]
    unknown = [row["version"] or row["tree"] for row in rows if row["matches"] is None]
    if wrong:
        return fault(
            "release-drift",
            f"{', '.join(wrong)} would not start, or not hand on what the draft was trained on",
            "write for each release the ids of the table's last column; what stands below the table says more",
        )
    if unknown:
        return skipped("release-drift", f"whether {', '.join(unknown)} would match is not known", needed=True)
    return ok("release-drift", f"all {len(rows)} trees capture what the draft was trained on")


def causes(checks: list[Check]) -> list[dict[str, str]]:
    """The faults, surest first, in the order of the checks otherwise, and suspicions."""
    faults = [check for check in checks if check.confidence]
    surest_first = sorted(faults, key=lambda check: CONFIDENCES.index(check.confidence))
    return [check.finding.document() for check in surest_first]


def _served_by(facts: Facts, tree: Tree, given: Given | None) -> dict[str, Any]:
    """The row of another tree, for the same target, draft and launch: what it cannot be asked is unknown there alone."""
    try:
        source = Source(tree)
        rule, plumbing = draft_rule(source, facts.target_config, facts.draft)
        return _row(replace(facts, source=source, rule=rule, plumbing=plumbing, launch=_read(source, given)))
    except SpecwireError as error:
        unknown = dict.fromkeys(("layer_ids", "captured_boundaries", "matches", "where", "graph_order", "ids_to_write"))
        return {"tree": tree.named, "version": tree.version, **unknown, "rule": "", "problem": str(error)}


def _row(facts: Facts) -> dict[str, Any]:
    """What a tree would capture for this draft's config, and whether that is what it was trained on."""
    tree, rule, plumbing = facts.source.tree, facts.rule, facts.plumbing
    refused = "; ".join(refusal.why for refusal in facts.refusals)
    matches = None
    if facts.trained is not None and rule.understood and not plumbing.problem:
        same = rule.captured == facts.trained and rule.problem is None
        matches = True if same else None if facts.assumed else False
    handed, said = graph_order(rule, plumbing) or (facts.trained, None)
    if matches and facts.graphs and handed != facts.trained:
        matches = None if facts.assumed else False
    if refused:
        matches = False
    return {
        "tree": tree.named,
        "version": tree.version,
        "layer_ids": plumbing.layer_ids,
        "captured_boundaries": None if rule.captured is None else list(rule.captured),
        "matches": matches,
        "rule": rule.text,
        "where": rule.where,
        "problem": plumbing.problem or rule.problem or (f"would not start so: {refused}" if refused else None),
        "graph_order": said if handed != facts.trained and facts.graphs is not False else None,
        "ids_to_write": rule.ids_for(facts.trained) if facts.trained and not facts.assumed else None,
    }


def _recorded(golden: Path | None, trained: Sequence[int] | None) -> Recorded | None:
    if golden is None and trained is None:
        return None
    words = golden_words(golden) if golden else Recorded()
    return words if trained is None else replace(words, trained=tuple(trained), assumed=False, relabelled=None)


def _given(launch: str | Given | None, path: Path | None, pid: int | None) -> Given | None:
    if launch is not None:
        return typed(launch) if isinstance(launch, str) else launch
    return in_file(path) if path is not None else of_process(pid) if pid is not None else None


def _read(source: Source, given: Given | None) -> Launch | None:
    return given.read(read_options(source)) if given else None
