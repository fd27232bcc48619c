"""`gate`: what is left of instrumentation in a tree. Words first, a closer look only where one was found."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from specwire.errors import SpecwireError, said
from specwire.gate.scan import holding
from specwire.regular import read_source
from specwire.strip.exclude import Excluded
from specwire.strip.words import FORWARDS, LOGS, NEEDLES, Words
from specwire.trees.walk import Files, walk

RULES = {
    "tap": "a line that specwire put in",
    "tap-file": "the file that specwire's taps call",
    "leftover": "debug code that somebody wrote by hand",
    "breakpoint": "a stop in a debugger",
    "patch-remains": "a patch's reject or an editor's backup beside source files",
    "unfinished": "a specwire change that was cut off",
    "suppression": "a suppression without a reason",
    "pristine-changed": "a file that differs from the release's",
    "pristine-missing": "a file of the release that is not there",
    "pristine-extra": "a file that the release does not have",
}
# Whatever a transaction puts beside the files that it changes, in this version or another.
_UNFINISHED = r"\..*specwire-.*\.(?:new|old|json|draft|done)"
_REMAINS = (".rej", ".orig", ".bak", "~")
_ARCHIVES = (".zip", ".whl", ".egg", ".pyz", ".tar", ".gz", ".tgz")
_ALLOW = rb"#\s*specwire-allow:\s*([a-z-]+(?:\s*,\s*[a-z-]+)*)\s*(?:--\s*(\S.*))?$"
_OURS = b"specwire"


class Leftover(NamedTuple):
    """`file` is relative to the report's `base`; `line` is None for a whole file.

    `managed`: specwire put it there and can take it out. `reason`: why it is allowed, for those that are.
    """

    rule: str
    file: str
    line: int | None
    message: str
    managed: bool = False
    reason: str = ""


class Report(NamedTuple):
    base: str
    findings: tuple[Leftover, ...]
    allowed: tuple[Leftover, ...]
    unknown: tuple[str, ...]  # what a verdict would have needed and could not have
    files: int = 0
    skipped: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings and not self.unknown

    @property
    def exit_code(self) -> int:
        return 1 if self.findings else 3 if self.unknown else 0


def scan(
    paths: list[str],
    base: str,
    words: Words = Words(),
    allowed: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
) -> Report:
    """All findings below `paths`, named relative to `base`. `allowed`: "RULE PATTERN -- reason" texts.

    A file that cannot be read or parsed leaves the verdict on the others as it is, and is named as not known.
    """
    listed, left_out = _listed(paths, Excluded(excludes, base))
    files = Files(*(sum(parts, []) for parts in zip(*listed, strict=True)))
    found: list[Leftover] = []
    unknown = [why for path, mine in zip(paths, listed, strict=True) if (why := _unseen(path, mine, base, len(paths)))]
    for path in _suspects(files.python, base, words):
        found += _in_file(path, os.path.relpath(path, base), words, unknown)
    folders = {os.path.dirname(path) for path in files.python} if files.others else set()
    for path in files.others:
        found += _by_name(path, os.path.relpath(path, base), folders)
    found += [finding for path in paths for finding in _compiled(path, base)]
    found = [_allow(finding, allowed) for finding in found]
    found.sort(key=lambda finding: (finding.file, finding.line or 0, finding.rule, finding.message))
    return Report(
        base,
        tuple(finding for finding in found if not finding.reason),
        tuple(finding for finding in found if finding.reason),
        tuple(unknown),
        len(files.python),
        tuple(os.path.relpath(path, base) for path in files.skipped),
        tuple(os.path.relpath(path, base) for path in left_out),
    )


def _listed(paths: list[str], excluded: Excluded) -> tuple[list[Files], list[str]]:
    """What lies below each path, and all that is left out of it."""
    listed = [walk(path, _REMAINS) for path in paths]
    left_out = sorted(name for each in listed for name in (*each.python, *each.others) if name in excluded)
    if left_out:
        listed = [Files(*([name for name in names if name not in excluded] for names in each)) for each in listed]
    return listed, left_out


def _unseen(path: str, files: Files, base: str, count: int) -> str | None:
    """Why nothing can be said of a path of which nothing was looked at."""
    if count == 1 and path.endswith(_ARCHIVES) and os.path.isfile(path):  # of a commit's files some may be
        return f"{os.path.relpath(path, base)}: an archive, which is not looked into. Unpack it"
    if os.path.isdir(path) and not files.python and not files.others:
        return f"{os.path.relpath(path, base)}: holds no Python file, so nothing was looked at"
    return None


def _suspects(python: list[str], base: str, words: Words) -> list[str]:
    """The files that hold a word of ours, or show hidden states in a log where the engine's forwards are."""

    def look(data: bytes, held: tuple[bytes, ...]) -> bool:
        return _OURS in held or words.suspects(data, held)

    start = len(base) if os.path.isabs(base) else 0
    forwards = [path for path in python if FORWARDS.match(path, start)]
    found = holding(python, (_OURS, *NEEDLES, *words.literals()), look) + holding(forwards, LOGS, words.suspects)
    return list(dict.fromkeys(found))


def _in_file(path: str, file: str, words: Words, unknown: list[str]) -> list[Leftover]:
    from specwire.patching import marks

    try:
        data = read_source(path)
    except OSError as error:
        unknown.append(f"{file}: cannot be read ({said(error)}). Make it readable, or leave it out with --exclude")
        return []
    if marks.RUNTIME_MARK in data[: data.find(b"\n") + 1]:
        return [Leftover("tap-file", file, 1, "what specwire's taps call: `specwire remove` takes it out", True)]
    found = _taps(data, file)
    if words.suspects(data):
        found += _by_hand(data, path, file, words, unknown)
    return _suppressed(found, data, file) if b"specwire-allow" in data else found


def _taps(data: bytes, file: str) -> list[Leftover]:
    """Marked lines, and whatever else uses the taps' own name: a formatter or a hand may have been on a line."""
    from specwire.patching.taps import TappedFile

    return [
        Leftover(
            "tap",
            file,
            each.first,
            f"{each.probe} tap{'' if each.intact else ', edited'}: `specwire remove` takes it out",
            True,
        )
        for each in TappedFile(data).found
    ]


def _by_hand(data: bytes, path: str, file: str, words: Words, unknown: list[str]) -> list[Leftover]:
    """What `strip` would take or would have something to say about."""
    from specwire.strip.plan import plan
    from specwire.strip.select import ALLOWED

    try:
        made = plan(data, path, words)
    except SpecwireError as error:
        unknown.append(f"{file}: holds debug words, and could not be looked into: {error}")
        return []
    found = []
    for piece in (*made.gone, *made.left):
        if piece.kind == "tap" or piece.kind.startswith("unused"):
            continue
        rule = "breakpoint" if piece.kind in ("breakpoint", "debugger") else "leftover"
        what = piece.text if rule == "breakpoint" else f"hand-written {piece.kind}: {piece.text}"
        if piece.why != ALLOWED:  # what the comment on it is worth, `_suppressed` says
            what += f" (by hand: {piece.why})" if piece.why else " (`specwire strip` takes it out)"
        found.append(Leftover(rule, file, piece.line, what))
    return found


def _by_name(path: str, file: str, folders: set[str]) -> list[Leftover]:
    name = os.path.basename(path)
    if re.fullmatch(_UNFINISHED, name):
        return [
            Leftover(
                "unfinished",
                file,
                None,
                "left by a change that was cut off: `specwire status` finishes or undoes it",
                True,
            )
        ]
    if not name.endswith(_REMAINS):
        return []
    if os.path.dirname(path) in folders or name.rpartition(".")[0].endswith(".py") or name.endswith(".py~"):
        what = (
            "hunks that a patch could not place" if name.endswith(".rej") else "a copy that a patch or an editor left"
        )
        return [Leftover("patch-remains", file, None, f"{what}: look at it, then delete it")]
    return []


def _compiled(path: str, base: str) -> list[Leftover]:
    """The tap file's compiled form, which outlives the file itself."""
    found = []
    for part in ("", "srt", os.path.join("sglang", "srt"), os.path.join("python", "sglang", "srt")):
        cache = os.path.join(path, part, "__pycache__")
        names = os.listdir(cache) if os.path.isdir(cache) else []
        if not os.path.exists(os.path.join(path, part, "_specwire.py")):
            found += [
                Leftover(
                    "tap-file",
                    os.path.relpath(os.path.join(cache, name), base),
                    None,
                    "compiled from a tap file that is gone: delete it",
                    True,
                )
                for name in sorted(names)
                if name.startswith("_specwire.")
            ]
    return found


def _suppressed(found: list[Leftover], data: bytes, file: str) -> list[Leftover]:
    """`# specwire-allow: RULE -- reason` counts for its own line, and on a line of its own for the next one."""
    lines = data.splitlines()
    comments = _comment_lines(data)
    given: dict[tuple[int, str], str] = {}
    extra = []
    for number, line in enumerate(lines, 1):
        note = re.search(_ALLOW, line)
        if note is None or (comments is not None and number not in comments):
            continue
        reason = (note[2] or b"").decode("utf-8", "replace").strip()
        if not reason:
            extra.append(
                Leftover("suppression", file, number, "gives no reason: write `# specwire-allow: RULE -- reason`")
            )
        alone = line.lstrip().startswith(b"#")
        for rule in note[1].decode().replace(" ", "").split(","):
            if rule not in RULES:
                extra.append(Leftover("suppression", file, number, f"names no rule: {rule}. Rules: {', '.join(RULES)}"))
            given[number + 1 if alone else number, rule] = reason
    return [finding._replace(reason=given.get((finding.line or 0, finding.rule), "")) for finding in found] + extra


def _allow(finding: Leftover, allowed: tuple[str, ...]) -> Leftover:
    from fnmatch import fnmatchcase

    for text in allowed:
        what, _, reason = text.partition(" -- ")
        rule, _, pattern = what.strip().partition(" ")
        if rule not in RULES or not pattern.strip() or not reason.strip():
            raise SpecwireError(
                f"--allow {text!r}: wants 'RULE PATTERN -- reason', with one of these rules: {', '.join(RULES)}"
            )
        if rule == finding.rule and fnmatchcase(finding.file, pattern.strip()):
            return finding._replace(reason=reason.strip())
    return finding


def _comment_lines(data: bytes) -> set[int] | None:
    """Lines that end in a comment; None when the tokenizer gives up, and any line may."""
    import io
    import tokenize

    try:
        tokens = tokenize.tokenize(io.BytesIO(data).readline)
        return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
