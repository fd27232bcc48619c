"""What `apply`, `remove` and `status` say, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from specwire import outgoing
from specwire.cli import _options as options
from specwire.errors import FAULT
from specwire.patching.outcome import Outcome
from specwire.probe import Site
from specwire.trees.tree import Tree

DONE = "[DONE] All debug logging removed. Ready for production restart."
_DONE_TO = ("applied", "removed")
_LINES_OF_A_DIFF, _DIFFS = 60, 10  # of a file that a hand has been on, and of how many; `--json` has all
_MARKS = {"removed": "[OK]", "failed": "[FAILED]", "edited": "[EDITED]"}


def show(
    outcome: Outcome, *, as_json: bool, show_diff: bool, dry_run: bool, quiet: bool, every_site: bool = True
) -> int:
    """Print what was or would be done; the exit code. Without `every_site`, sites that are well come as a sum."""
    if as_json:
        options.emit({**outcome.document(), "dry_run": dry_run or show_diff})
    elif show_diff and outcome.exit_code != FAULT:
        sys.stdout.flush()
        sys.stdout.buffer.write(outcome.diff())
        sys.stdout.buffer.flush()
    else:
        _print(outcome, dry_run, every_site)
    if dry_run or show_diff:
        options.note("nothing was written: this only shows what would be", quiet)
    return outcome.exit_code


def _print(outcome: Outcome, dry_run: bool, every_site: bool) -> None:
    refused = outcome.result == "refused"  # then no site is said to be done
    sites = [site for site in outcome.sites if not (refused and site.state in _DONE_TO)]
    absent = [site for site in sites if site.state == "absent"]
    shown = [site for site in sites if site.state != "absent"]
    if not shown:  # nothing but absent ones: then each is an answer
        absent, shown = [], absent
    if not every_site:
        well = [site for site in shown if site.state in ("applied", "already")]
        for line in _sums(well, dry_run):
            options.say(line)
        shown = [site for site in shown if site not in well]
    for site in shown:
        planned = dry_run and site.state in _DONE_TO
        mark = f"[would be {site.state}]" if planned else _MARKS.get(site.state, f"[{site.state}]")
        place = f"{site.file}:{site.line}" if site.line else site.file
        options.say(f"{mark} {site.probe} {place} {site.qualname}".rstrip() + (f" - {site.why}" if site.why else ""))
    if absent:
        files = options.counted(len({site.file for site in absent}), "file")
        one = f"{absent[0].probe} {absent[0].file} {absent[0].qualname} - {absent[0].why}"
        options.say(f"[absent] {options.counted(len(absent), 'site')} in {files} (--json names each), such as {one}")
    for diff in list(outcome.edits.values())[:_DIFFS]:
        print(outgoing.excerpt(diff.decode("utf-8", "backslashreplace"), _LINES_OF_A_DIFF), end="")
    if len(outcome.edits) > _DIFFS:
        options.say(
            f"and {options.counted(len(outcome.edits) - _DIFFS, 'file')} more that a hand has been on: {', '.join(list(outcome.edits)[_DIFFS:])}"
        )
    states = [site.state for site in outcome.sites]
    done = "applied" if outcome.incomplete else outcome.result
    count = states.count(done) or len(states)
    touched = len(outcome.changes) or len({site.file for site in outcome.sites if site.state in (done, "edited")})
    version = f"SGLang {outcome.tree.version or 'of unknown version'}"
    result = f"would be {outcome.result}" if dry_run and outcome.changes else outcome.result
    options.say(f"{result}: {options.counted(count, 'site')}, {options.counted(touched, 'file')}, {version}")
    if outcome.why:
        options.say(outcome.why)
    if outcome.exit_code == FAULT:
        options.say("Nothing was written.")


def _sums(sites: list[Site], dry_run: bool) -> Iterator[str]:
    """One line for each state and probe: how many sites, in how many files."""
    groups: dict[tuple[str, str], list[Site]] = {}
    for site in sites:
        groups.setdefault((site.state, site.probe), []).append(site)
    width = max((len(probe) for _, probe in groups), default=0)
    for (state, probe), group in groups.items():
        mark = f"[would be {state}]" if dry_run and state in _DONE_TO else f"[{state}]"
        files = options.counted(len({site.file for site in group}), "file")
        yield f"{mark} {probe:{width}}  {options.counted(len(group), 'site')} in {files}"


def finale(outcome: Outcome) -> None:
    """The last line of a removal: what is still in, or that nothing is, debug code by hand included."""
    if outcome.exit_code:
        return
    if not outcome.clean:
        print("Other taps are still in; `specwire status` lists them.")
    elif by_hand := _by_hand(outcome.tree):
        options.say(by_hand)
    else:
        print(DONE)


def _by_hand(tree: Tree) -> str:
    """What `gate` finds in a tree without taps, in one sentence; nothing when it is clean."""
    from specwire.gate.leftovers import scan

    report = scan([str(tree.package)], str(tree.root))
    found = [finding for finding in report.findings if finding.rule in ("leftover", "breakpoint")]
    if not found:
        return ""
    first = found[0]
    return (
        f"specwire's taps are out. Debug code that was written by hand is still in: "
        f"{options.counted(len(found), 'place')}, such as {first.file}:{first.line}: {first.message}. "
        "`specwire gate` lists them, `specwire strip` takes out what only reports."
    )
