"""The sections at the end: what failed, and what the results belong to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwire.bench.render import failure_words
from specwire.report.blocks import Block, Code, Heading, Table, Text

_OF_VERIFY = ("tree", "version", "target", "draft", "golden", "device")


def failures(documents: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    failed = [point for document in documents for point in document["points"] if point["state"] != "ok"]
    if failed:
        yield Heading("What failed")
        rows = [
            [each["name"], each["error"]["stage"], failure_words(each["error"]), each["error"]["log"] or "-"]
            for each in failed
        ]
        yield Table(["point", "at", "why", "log"], rows, frozenset(range(4)))


def warnings(documents: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    for point in (point for document in documents for point in document["points"]):
        yield from (Text(f"Note: {point['name']}: {warning}", "unsure") for warning in point["warnings"])


def provenance(documents: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Versions, hashes and commands of every result."""
    yield Heading("What this belongs to")
    rows = [
        row for document in documents for row in (_verify(document) if _is_verify(document) else _measured(document))
    ]
    yield Table(["of", "what", "which", "SHA-256"], rows, frozenset(range(4)))
    for document in documents:
        if not _is_verify(document):
            yield Code(shlex.join(document["provenance"]["command"]), f"{_kind(document)} again")
        if _kind(document) == "bench":
            launched = [point for point in document["points"] if point.get("launch")]
            yield from (Code(point["launch"], f"the server of {point['name']}") for point in launched)


def _verify(document: Mapping[str, Any]) -> list[list[str]]:
    run = document.get("run") or {}
    hashes = run.get("sha256") or {}
    return [["verify", name, str(run[name]), hashes.get(name, "")] for name in _OF_VERIFY if run.get(name)]


def _measured(document: Mapping[str, Any]) -> list[list[str]]:
    found, kind = document["provenance"], _kind(document)
    rows = [[kind, "specwire", found["specwire"], ""]]
    if tree := found["tree"]:
        rows.append([kind, f"SGLang {tree['version']}", tree["root"], tree["sha256"]])
    models = [("target", found["target"]), *(("draft", draft) for draft in found["drafts"])]
    rows += [[kind, name, model["path"], model["sha256"]] for name, model in models if model]
    machine = found["machine"]
    return [*rows, [kind, "machine", f"{machine['system']}, {machine['processors']} processors", ""]]


def _is_verify(document: Mapping[str, Any]) -> bool:
    return _kind(document) == "check"


def _kind(document: Mapping[str, Any]) -> str:
    return str(document["schema"]).removeprefix("specwire.").split("/")[0]
