"""What Python code may call: the commands as functions. `import specwire` offers all of it, and loads it at first use.

    import specwire

    tree = specwire.Tree.find("installed")
    print(specwire.status(tree).result)
    with open("taps.patch", "wb") as file:
        file.write(specwire.apply(tree, dry_run=True).diff())
    verdict = specwire.preflight_launch("target", "draft", "python -m sglang.launch_server --tp 8 ...", tree=tree)
    for finding in verdict.findings:
        print(finding.id, finding.confidence, finding.fix)

Paths are strings or Paths. Every function raises SpecwireError for what a command ends with 2 for, and then has
written nothing. `progress` hears what a long one does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.finding import Finding
from specwire.goldens.golden import Golden, open_golden
from specwire.patching import guarded, surgery
from specwire.patching.compiled import refuse_unchecked
from specwire.patching.outcome import Outcome
from specwire.patching.overlay import make_overlay
from specwire.probe import Site
from specwire.progress import Progress, silent
from specwire.trees.tree import Tree

AnyPath = str | Path

__all__ = [
    "Finding",
    "Golden",
    "Outcome",
    "Site",
    "SpecwireError",
    "Tree",
    "Verdict",
    "apply",
    "check_capture",
    "check_log",
    "open_golden",
    "preflight_launch",
    "remove",
    "status",
    "verify_tree",
]


@dataclass(frozen=True)
class Verdict:
    """`verdict`: match, mismatch or inconclusive; of a launch ok, fault or inconclusive.

    `findings`: what is wrong, the most probable first. `document`: what the command prints with --json.
    """

    verdict: str
    findings: tuple[Finding, ...]
    document: dict[str, Any]

    @classmethod
    def of(cls, document: dict[str, Any]) -> Verdict:
        fields = Finding.__dataclass_fields__
        findings = (Finding(**{name: cause[name] for name in fields}) for cause in document["causes"])
        return cls(document["verdict"], tuple(findings), document)


def status(tree: Tree | AnyPath) -> Outcome:
    """Which taps are in a tree, where, and whether a hand has been on them. Nothing is written."""
    with guarded.looked_at(_named(tree), None) as found:
        return surgery.status(found)


def apply(
    tree: Tree | AnyPath,
    probes: Sequence[str] = (),
    *,
    overlay: AnyPath | None = None,
    dry_run: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Insert taps: those of the `probes` named, else of all debug probes. With `overlay` a patched view is made there.

    While a process runs from the tree the outcome is `refused`, unless `force`.
    """
    look = guarded.looked_at(_named(tree), None)
    with look if dry_run else guarded.opened(_named(tree), None, progress, writes=overlay is None) as found:
        outcome = surgery.plan_apply(found, surgery.chosen(probes, ()), progress)
        if outcome.exit_code in (0, 3) and not dry_run:
            if overlay is not None:
                make_overlay(outcome, overlay, force)
            elif outcome.changes:
                refuse_unchecked(outcome.changes)
                outcome = guarded.write(outcome, progress, force)
    return outcome


def remove(
    tree: Tree | AnyPath,
    probes: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Take taps out again, all or those of the `probes` named, and prove that nothing else changed."""
    look = guarded.looked_at(_named(tree), None)
    with look if dry_run else guarded.opened(_named(tree), None, progress) as found:
        outcome = surgery.plan_remove(found, None if probes is None else list(probes), force)
        if outcome.changes and not dry_run:
            outcome = guarded.write(outcome, progress, force)
    return outcome


def preflight_launch(
    target: AnyPath,
    draft: AnyPath,
    launch: str,
    *,
    tree: Tree | AnyPath = "installed",
    golden: AnyPath | None = None,
    trained: Sequence[int] | None = None,
) -> Verdict:
    """Judge a launch command, as it is typed, by configs, headers and the tree's source. No GPU, no torch."""
    from specwire.preflight import preflight

    trees = [tree if isinstance(tree, Tree) else Tree.find(tree)]
    paths = Path(target), Path(draft)
    known = None if golden is None else Path(golden)
    return Verdict.of(preflight(*paths, trees, launch=launch, golden=known, trained=trained))


def check_capture(golden: AnyPath | None, capture: AnyPath, **context: Any) -> Verdict:
    """Compare a capture directory with a golden, and name the cause of what differs; without one, the self-check.

    `context`: what else is known, as `specwire.diagnosis.context.make_context` takes it: target, draft, launch, tree,
    trained, accept_length.
    """
    from specwire.diagnosis.check import check_capture
    from specwire.diagnosis.context import make_context

    return Verdict.of(check_capture(golden, capture, make_context(**context)))


def check_log(golden: AnyPath, log: AnyPath, **context: Any) -> Verdict:
    """The same from the lines that taps have printed, which hold five values of a row."""
    from specwire.diagnosis.context import make_context
    from specwire.diagnosis.log_check import check_log

    return Verdict.of(check_log(golden, log, make_context(**context)))


def verify_tree(
    tree: Tree | AnyPath,
    target: AnyPath,
    draft: AnyPath,
    golden: AnyPath | None = None,
    *,
    out: AnyPath,
    engine_arguments: Sequence[str] = (),
    ranks: int = 1,
    device: str = "auto",
    python: str | None = None,
    timeout: float | None = None,
    trained: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Verdict:
    """Boot the engine once on a patched view of the tree, compare, and prove that the tree is what it was.

    `out`: the directory for captures and the engine's log. `timeout`: seconds.
    """
    from specwire.verify import NEW_TOKENS, Job, probes_of, verify

    job = Job(
        tree=tree if isinstance(tree, Tree) else Tree.find(tree, python),
        target=Path(target),
        draft=Path(draft),
        golden=None if golden is None else Path(golden),
        ranks=ranks,
        device=device,
        python=python or sys.executable,
        engine_arguments=tuple(engine_arguments),
        probes=probes_of((), golden is not None),
        timeout=timeout,
        new_tokens=NEW_TOKENS if golden else 8,
    )
    return Verdict.of(verify(job, Path(out).absolute(), progress, trained=trained))


def _named(tree: Tree | AnyPath) -> str:
    return str(tree.root) if isinstance(tree, Tree) else str(tree)
