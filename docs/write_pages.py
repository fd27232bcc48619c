"""Writes the page of every cause and probe, docs/causes/ID.md and docs/probes/ID.md, and their index.

`python docs/write_pages.py` writes them; with `--check` it only says, by exit code 1, that one is not as it would be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specwire.explain import Page, pages

DOCS = Path(__file__).parent
FOLDERS = {"cause": "causes", "probe": "probes"}
PARTS = ("Symptom", "Cause", "Fix")


def markdown(page: Page) -> str:
    """One page: the summary, then each part of the docstring under its own heading."""
    lines = [f"# {page.id}", "", page.summary]
    for line in page.body.splitlines():
        part, colon, rest = line.partition(": ")
        lines += ["", f"**{part}**: {rest}"] if colon and part in PARTS else [line]
    return "\n".join(lines).rstrip() + "\n"


def index() -> str:
    """The list of all pages."""
    lines = ["# Causes and probes", "", "`specwire explain ID` prints the same.", ""]
    for kind, folder in FOLDERS.items():
        lines += [f"## {folder.capitalize()}", "", f"| {kind} | in one sentence |", "| --- | --- |"]
        lines += [f"| [{page.id}]({folder}/{page.id}.md) | {page.summary} |" for page in _of(kind)] + [""]
    return "\n".join(lines)


def written() -> dict[Path, str]:
    """Every file that this writes, with its text."""
    files = {DOCS / folder / f"{page.id}.md": markdown(page) for kind, folder in FOLDERS.items() for page in _of(kind)}
    return {DOCS / "index.md": index(), **files}


def stale() -> list[Path]:
    """Files that are missing, differ from what would be written, or belong to no page any more."""
    wanted = written()
    there = {file for folder in FOLDERS.values() for file in (DOCS / folder).glob("*.md")} | {DOCS / "index.md"}
    differs = [file for file, text in wanted.items() if not file.exists() or file.read_text("utf-8") != text]
    return sorted([*differs, *(there - wanted.keys())])


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        for file in stale():
            print(f"{file}: not as its docstring says; run python docs/write_pages.py", file=sys.stderr)
        return 1 if stale() else 0
    for file in stale():
        file.unlink(missing_ok=True)
    for file, text in written().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    return 0


def _of(kind: str) -> list[Page]:
    return [page for page in pages().values() if page.kind == kind]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
