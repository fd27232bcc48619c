"""Puts taps into one file: whole lines, each proven removable before anything is written."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from specwire.errors import SpecwireError
from specwire.patching import marks
from specwire.patching.taps import TappedFile
from specwire.probe import Absent, Probe, Site, Tap, Unrecognised
from specwire.sites.bindings import unreadable
from specwire.sites.source import Source, opened, sha256
from specwire.syntax import last_line


@dataclass(frozen=True)
class Rendered:
    """A file with its taps: equal to the original when no probe had a site in it."""

    data: bytes
    sites: tuple[Site, ...]


class NotTapped(SpecwireError):
    """A file that taps cannot be put into: where in it, and why. The others are none the worse for it."""

    def __init__(self, name: str, why: str, line: int = 0) -> None:
        super().__init__(f"{name}{f':{line}' if line else ''}: {why}. Nothing was written.")
        self.why = why
        self.line = line


def nothing_else(name: str) -> None:
    """Reads no other file: where only one is at hand."""


def render(
    name: str,
    original: bytes,
    probes: Mapping[str, Probe],
    read: Callable[[str], bytes | None] = nothing_else,
) -> Rendered:
    """`original` with every tap that `probes` place in it; `read` gives other files of the tree, by name.

    Raises NotTapped when the file does not parse, uses the taps' own name, or when deleting the
    inserted lines would not give back the original byte for byte.
    """
    if marks.NAME in original:
        raise NotTapped(name, "uses the name _specwire, which the taps need for themselves")
    source = opened(name, original, read)
    try:
        assert source.syntax is not None
        found = [(probe, result) for probe, recipe in probes.items() for result in recipe.find(source)]
    except (SyntaxError, ValueError) as error:
        raise NotTapped(name, f"not Python ({error})", getattr(error, "lineno", None) or 1) from error
    except cst.ParserSyntaxError as error:
        raise NotTapped(name, f"a function that LibCST cannot read ({error.message})") from error
    except (RecursionError, MemoryError) as error:
        raise NotTapped(name, "nested too deeply to be read") from error
    taps = [(probe, result) for probe, result in found if isinstance(result, Tap)]
    others = [_other(probe, name, result) for probe, result in found if not isinstance(result, Tap)]
    if not taps:
        return Rendered(original, tuple(others))
    for probe, tap in taps:
        _check_names(source, probe, tap)
    data = _with_lines(source, taps)
    _prove(name, original, data, len(taps))
    return Rendered(data, (*_located(name, data, taps), *others))


def failed(error: NotTapped, name: str, probes: Iterable[str]) -> list[Site]:
    """The sites of a file that no tap goes into."""
    return [Site(probe, name, "", error.line, "failed", error.why) for probe in probes]


def _other(probe: str, name: str, result: Absent | Unrecognised) -> Site:
    return Site(probe, name, result.qualname, 0, "absent" if isinstance(result, Absent) else "failed", result.why)


def _check_names(source: Source, probe: str, tap: Tap) -> None:
    """A tap may only read what is surely bound there: an unbound name would raise into the engine."""
    if tap.where == "above":
        return
    for argument in cst.ensure_type(cst.parse_expression(tap.code), cst.Call).args:
        for used in unreadable(tap.place, tap.where, argument.value) - source.imported - set(dir(builtins)):
            why = f"{probe} in {tap.place.function.qualname} would read {used}, which may not be bound there"
            raise NotTapped(source.name, why, tap.place.lines[0])


@dataclass(frozen=True)
class _Line:
    """A line to insert before the file's line `at` (counted from 0); `rank` orders those of one gap."""

    at: int
    rank: tuple[int, int]
    text: bytes


def _with_lines(source: Source, taps: Sequence[tuple[str, Tap]]) -> bytes:
    lines = [_tap_line(source, probe, tap) for probe, tap in taps]
    first, last = _first_import(source)
    code = marks.marked(marks.IMPORT_CODE, marks.IMPORT, sha256(source.data))
    lines.append(_line(source, first, last, (0, 0), code))
    out: list[bytes] = []
    done = 0
    for line in sorted(lines, key=lambda each: (each.at, each.rank)):
        out += source.lines[done : line.at]
        out.append(line.text)
        done = line.at
    return b"".join([*out, *source.lines[done:]])


def _tap_line(source: Source, probe: str, tap: Tap) -> _Line:
    first, last = tap.place.lines
    if tap.where == "above":
        return _line(source, first, first - 1, (1, 0), marks.marked(f"@_specwire.{tap.code}", probe))
    code = marks.marked(f"if _specwire.on: _specwire.{tap.code}", probe)
    if tap.where == "before":
        return _line(source, first, first - 1, (1, 0), code)
    # After the end of a loop's body comes what belongs in it, then what comes after the loop.
    return _line(source, first, last, (0, -len(_indentation(source, first))), code)


def _line(source: Source, first: int, at: int, rank: tuple[int, int], code: str) -> _Line:
    """`code` as a line of its own after line `at`, indented and ended as line `first` is."""
    after = source.lines[max(at, 1) - 1]
    end = after[len(after.rstrip(b"\r\n")) :]
    if not end:
        raise NotTapped(source.name, "its last line has no end, and a tap would stand after it")
    return _Line(at, rank, _indentation(source, first) + code.encode() + end)


def _indentation(source: Source, line: int) -> bytes:
    text = source.lines[line - 1]
    return text[: len(text) - len(text.lstrip(b" \t"))]


def _first_import(source: Source) -> tuple[int, int]:
    """Lines of the first import but those from `__future__`: behind it an import is never out of place."""
    for node in source.syntax.body:
        if isinstance(node, ast.Import) or isinstance(node, ast.ImportFrom) and node.module != "__future__":
            return node.lineno, last_line(node)
    raise NotTapped(source.name, "imports nothing at its top level, so it is no engine module")


def _prove(name: str, original: bytes, data: bytes, taps: int) -> None:
    """The promise, kept before anything is written: whole lines, and without them nothing has changed."""
    if marks.stripped(data) != original:
        raise NotTapped(name, "without the inserted lines it would not be the same (a lone CR?)")
    file = TappedFile(data)
    if file.module is None:
        raise NotTapped(
            name, "would no longer be Python (a form feed before an indentation, or a byte of no encoding?)"
        )
    if len(file.found) != taps + 1 or not all(each.intact for each in file.found):
        raise NotTapped(name, f"{taps + 1} statements were to be inserted, {len(file.found)} were")


def _located(name: str, data: bytes, taps: Sequence[tuple[str, Tap]]) -> list[Site]:
    """Where each tap has come to stand. Taps of one probe come in file order, and so do their lines."""
    lines: dict[tuple[str, str], list[int]] = {}
    for mark in marks.marks(data):
        call = mark.code.split("_specwire.", 2)[-1]
        lines.setdefault((mark.probe, call), []).append(mark.line)
    return [
        Site(probe, name, tap.place.function.qualname, lines[probe, tap.code].pop(0), "applied") for probe, tap in taps
    ]
