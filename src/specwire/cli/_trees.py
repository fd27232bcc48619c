"""What `apply`, `remove` and `status` say, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from specwire.cli import _options as options
from specwire.surgery import Outcome
from specwire.transaction import Recovery, recover
from specwire.tree import Tree

DONE = "[DONE] All debug logging removed. Ready for production restart."


def opened(named: str, python: str | None, quiet: bool) -> Tree:
    """The tree, with anything that a killed specwire left half done first finished or undone."""
    tree = Tree.find(named, python)
    if done := recover(tree.package):
        options.note(_recovered(done), quiet)
    return tree


def finish(
    outcome: Outcome, write: Callable[[], None], *, as_json: bool, show_diff: bool, dry_run: bool, quiet: bool
) -> int:
    """Write unless told not to, print, and give the exit code."""
    if outcome.exit_code == 0 and not (dry_run or show_diff):
        write()
    if as_json:
        options.emit(outcome.document())
    elif show_diff:
        sys.stdout.write(outcome.diff())
    else:
        for line in _lines(outcome):
            print(line)
    if dry_run:
        options.note("dry run: nothing was written", quiet)
    return outcome.exit_code


def _lines(outcome: Outcome):
    for site in outcome.sites:
        mark = {"removed": "[OK]", "failed": "[FAILED]", "edited": "[EDITED]"}.get(site.state, f"[{site.state}]")
        place = f"{site.file}:{site.line}" if site.line else site.file
        yield f"{mark} {site.probe} {place} {site.qualname}".rstrip() + (f" - {site.why}" if site.why else "")
    if outcome.result == "removed" and all(site.state == "removed" for site in outcome.sites):
        yield DONE if _nothing_left(outcome) else "Other taps are still in; `specwire status` lists them."
    else:
        count = sum(site.state == outcome.result for site in outcome.sites)
        yield f"{outcome.result}: {count or len(outcome.sites)} sites, {len(outcome.changes)} files, SGLang {outcome.tree.version or 'of unknown version'}"
    if outcome.exit_code:
        yield "Nothing was written."


def _nothing_left(outcome: Outcome) -> bool:
    return any(change.after is None for change in outcome.changes)


def _recovered(done: Recovery) -> str:
    text = f"an earlier change that was cut off has been {done.outcome}: {len(done.files)} files"
    return text + (f"; edited since and left alone: {', '.join(done.left_alone)}" if done.left_alone else "")
