from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from specwire.cli import _options as options
from specwire.errors import FINDING, INCONCLUSIVE, OK
from specwire.strip.words import Words

if TYPE_CHECKING:
    from specwire.strip.files import Planned
    from specwire.strip.plan import Piece, Plan


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@options.python_exe
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something would change.")
@click.option(
    "--env",
    "envs",
    multiple=True,
    metavar="PATTERN",
    help="Also take this environment variable for a debug switch, e.g. 'MY_DEBUG*'.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TEXT",
    help="Also take messages that begin like this for debug messages, e.g. '[DBG]'.",
)
@click.option(
    "--exclude",
    "excludes",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files or directories of this name, or with a slash this path, e.g. 'tests' or 'srt/debug_*'.",
)
@click.option("--force", is_flag=True, help="Also while a process runs from the tree.")
@options.wait
@options.as_json
@options.show_diff
@options.dry_run
@options.quiet
def command(
    paths: tuple[str, ...],
    python: str | None,
    check: bool,
    envs: tuple[str, ...],
    tags: tuple[str, ...],
    excludes: tuple[str, ...],
    force: bool,
    wait: float | None,
    as_json: bool,
    show_diff: bool,
    dry_run: bool,
    quiet: bool,
) -> int:
    """Take out debug code that people wrote by hand, and prove that nothing else changed.

    PATH is a file, a directory, or the word 'installed'. A statement goes only if it does nothing but report
    and nobody reads what it binds. What stays is listed with the reason, and is the same byte for byte.

    \b
    Example: specwire strip sglang/srt --diff | patch -p1
             specwire strip sglang/srt/models/llama_eagle3.py --check
    """
    from specwire.patching import guarded
    from specwire.strip.exclude import Excluded
    from specwire.strip.files import begun, plans, write

    places = [_place(path, python) for path in paths]
    judged = check or show_diff or dry_run
    if judged:
        guarded.refuse_begun(begun(places))
    else:
        guarded.put_right(begun(places), options.note)
    planned = plans(places, Words(envs, tags), Excluded(excludes))
    found = planned.plans
    changed = [plan for plan in found if plan.before != plan.after]
    if changed and not judged:
        write(found, force, wait or 0.0, options.noted(quiet))
    if as_json:
        options.emit(_document(planned, changed, judged))
    elif show_diff:
        _show_diff(changed)
        _print(planned, judged, lambda line: options.note(line, quiet) if not line.startswith("[OK]") else None)
    else:
        _print(planned, judged, options.say)
    options.note(_summary(planned, changed, judged), quiet)
    if check and changed:
        return FINDING
    return INCONCLUSIVE if planned.unread else OK


def _place(path: str, python: str | None) -> str:
    if path != "installed":
        return path
    from specwire.trees.tree import Tree

    return str(Tree.find(path, python).package)


def _show_diff(changed: list[Plan]) -> None:
    """Names are relative to the working directory; a file outside it takes `patch -p1 -d /`."""
    from specwire.trees.patch import unified

    sys.stdout.flush()
    for plan in changed:
        path = os.path.relpath(plan.name)
        path = os.path.abspath(plan.name).lstrip(os.sep) if path.startswith(os.pardir) else path
        sys.stdout.buffer.write(unified(plan.before, plan.after, f"a/{path}", f"b/{path}"))
    sys.stdout.buffer.flush()


def _print(planned: Planned, judged: bool, say: Callable[[str], None]) -> None:
    word = "would remove" if judged else "removed"
    for _, why in planned.unread:
        say(f"inconclusive: {why}")
    for plan in planned.plans:
        for piece in plan.gone:
            say(f"[OK] {plan.name}:{piece.line}: {word} {piece.kind}: {piece.text}")
        for piece in plan.left:
            if piece.kind != "tap":
                say(f"[LEFT] {plan.name}:{piece.line}: {piece.text} - {piece.why}")
        if taps := [str(piece.line) for piece in plan.left if piece.kind == "tap"]:
            say(f"[LEFT] {plan.name}: specwire's own lines ({', '.join(taps)}): `specwire remove` takes them out")


def _summary(planned: Planned, changed: list[Plan], judged: bool) -> str:
    found = planned.plans
    more = f", {options.counted(len(planned.unread), 'file')} not looked into" if planned.unread else ""
    more += f", {options.counted(len(planned.excluded), 'file')} excluded" if planned.excluded else ""
    gone = sum(len(plan.gone) for plan in found)
    left = sum(len(plan.left) for plan in found)
    if not found:
        return "no debug code found" + more
    statements, files = options.counted(gone, "statement"), options.counted(len(changed), "file")
    return f"{statements} {'would go' if judged else 'gone'} from {files}, {left} left with a reason{more}"


def _document(planned: Planned, changed: list[Plan], judged: bool) -> dict[str, Any]:
    found = planned.plans

    def entry(plan: Plan, piece: Piece) -> dict[str, Any]:
        shown = {
            "file": plan.name,
            "line": piece.line,
            "end_line": piece.end,
            "kind": piece.kind,
            "text": piece.text,
        }
        return shown | ({"why": piece.why} if piece.why else {})

    result = "nothing" if not changed else "would-remove" if judged else "removed"
    return {
        "schema": "specwire.strip/1",
        "result": result,
        "removed": [entry(plan, piece) for plan in found for piece in plan.gone],
        "left": [entry(plan, piece) for plan in found for piece in plan.left],
        "inconclusive": [{"file": name, "why": why} for name, why in planned.unread],
        "excluded": planned.excluded,
        "files": {plan.name: {"before": _sha256(plan.before), "after": _sha256(plan.after)} for plan in changed},
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
