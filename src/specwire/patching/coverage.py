"""Which of a tree's targets and drafts the probes reach: a row for each loop, wrapper and reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch

from specwire.patching import collecting, surgery
from specwire.patching.insert import NotTapped, render
from specwire.patching.taps import TappedFile
from specwire.probe import Probe, Site, Unrecognised
from specwire.progress import Progress, silent
from specwire.sites import lineage, loops, streams, width_tests
from specwire.sites.source import UNREADABLE, Source, opened
from specwire.trees.tree import Tree


@dataclass(frozen=True)
class CoverageRow:
    """`name` in `file`: a capture `loop`, a `draft`, a `head` that is none, `elsewhere`, or the `processor`.

    `taps` counts what each probe inserts, `loops` the function's loops; `why` says what is not reached.
    """

    file: str
    name: str
    role: str
    family: str
    taps: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    loops: int = 0
    failed: bool = False

    @property
    def covered(self) -> bool:
        """Whether what this row stands for is tapped here."""
        wanted = {"loop": "layer-capture", "draft": "draft-input", "processor": "concat-full"}.get(self.role)
        return wanted in self.taps and not self.failed


@collecting.paused()
def coverage(tree: Tree, progress: Progress = silent) -> list[CoverageRow]:
    """Every row of the tree, in file order. Raises SpecwireError for a file that cannot be read."""
    known = {name: probe for name, probe in surgery.probes().items() if any(map(_of_a_model, probe.files))}
    patterns = {pattern for probe in known.values() for pattern in probe.files}
    rows: list[CoverageRow] = []
    for name in tree.python_files(f"{tree.package.name}/srt"):
        if any(fnmatch(name, pattern) for pattern in patterns):
            file = TappedFile(tree.read(name))
            data = file.without(file.found)
            progress(f"reading {name}")
            try:
                rows += _rows_of(opened(name, data, tree.read), known)
            except (NotTapped, *UNREADABLE) as error:
                why = error.why if isinstance(error, NotTapped) else f"not Python ({str(error)[:200]})"
                asked = [each for each, probe in known.items() if probe.takes(name, data)] or ["layer-capture"]
                rows.append(CoverageRow(name, "", "elsewhere", "not read", why=dict.fromkeys(asked, why), failed=True))
    return rows


def _of_a_model(pattern: str) -> bool:
    """Whether a probe's files are models, or what packs their states: workers and graph runners hold neither loop nor draft."""
    return pattern.startswith(("sglang/srt/models/", "sglang/srt/layers/"))


def _rows_of(source: Source, known: dict[str, Probe]) -> Iterator[CoverageRow]:
    """The rows of a file. Raises NotTapped, or one of UNREADABLE, for a file that cannot be read."""
    wanted = {each: probe for each, probe in known.items() if probe.takes(source.name, source.data)}
    if wanted:
        yield from _rows(source, render(source.name, source.data, wanted, source.read).sites)
    if "layer-capture" not in wanted and b"EntryClass" in source.data:
        for heir in lineage.heirs(source):
            yield CoverageRow(
                source.name, heir.qualname, "elsewhere", "no loop of its own", why={"layer-capture": heir.why}
            )


def _rows(source: Source, sites: tuple[Site, ...]) -> Iterator[CoverageRow]:
    families = dict(_families(source))
    loop_count = Counter(loop.function.qualname for loop in loops.capture_loops(source))
    for name in dict.fromkeys(site.qualname for site in sites):
        mine = [site for site in sites if site.qualname == name]
        about_states = any(site.probe.startswith("draft-") for site in mine)
        role, family = families.get(name) or (
            ("head", "one state") if about_states else ("elsewhere", "no loop of its own")
        )
        taps = Counter(site.probe for site in mine if site.state == "applied")
        why = {site.probe: site.why for site in mine if site.state != "applied"}
        failed = any(site.state == "failed" for site in mine)
        yield CoverageRow(source.name, name, role, family, dict(sorted(taps.items())), why, loop_count[name], failed)


def _families(source: Source) -> Iterator[tuple[str, tuple[str, str]]]:
    """(qualified name, (role, family)) of the loops, drafts and packings in the file."""
    if source.name.endswith("logits_processor.py"):
        for function in source.functions:
            yield function.qualname, ("processor", "packs what was captured")
        return
    for loop in loops.capture_loops(source):
        family = _family(loop) if isinstance(loop, loops.CaptureLoop) else "not recognised"
        yield loop.function.qualname, ("loop", family)
    for draft in width_tests.drafts(source):
        if isinstance(draft, width_tests.Draft):
            yield draft.function.qualname, ("draft", "width test, then fc")
        elif isinstance(draft, Unrecognised):
            yield draft.qualname, ("draft", "not recognised")


def _family(loop: loops.CaptureLoop) -> str:
    """Who captures, before or after the layer, by what; and how the stream is held."""
    said = {
        "layer": "layer, at its input",
        "loop": "loop, before the layer",
        "loop-after": "loop, after the layer",
    }
    inside = dict.fromkeys(f"{said[each.how]} ({each.means})" for each in loop.captures if each.how in said)
    after = any(each.how == "outside" and each.place.lines[0] > loop.place.lines[1] for each in loop.captures)
    held = streams.stream(loop)
    if isinstance(held, streams.Unreadable):
        stream = "streams that are no plain sum"
    else:
        stream = "sum" if "residual=" in held.rest else "handle" if held.rest else "one tensor"
    return " or ".join(inside) + (", end of stack" if after else "") + f"; {stream}"


def totals(rows: list[CoverageRow]) -> dict[str, int]:
    """Loops, drafts and what is covered of them, counted."""
    targets, eagle3 = (
        [row for row in rows if row.role == "loop"],
        [row for row in rows if row.role == "draft"],
    )
    return {
        "loops": sum(row.loops for row in targets),
        "loops_covered": sum(row.loops for row in targets if row.covered),
        "drafts": len(eagle3),
        "drafts_covered": sum(row.covered for row in eagle3),
        "elsewhere": sum(row.role == "elsewhere" for row in rows),
        "other_heads": sum(row.role == "head" for row in rows),
        "not_recognised": sum(row.failed for row in rows),
    }
