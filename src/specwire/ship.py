"""`ship`: may this go to production? Every step of the cleanup, looked at once more, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwire import __version__
from specwire.errors import FINDING, INCONCLUSIVE, OK, SpecwireError, said
from specwire.outgoing import know_document
from specwire.regular import read_json
from specwire.trees.identity import model_identity, newest_change, tree_identity
from specwire.trees.tree import Tree

SCHEMA = "specwire.ship/1"
_WEIGHTS = ("*.json", "*.safetensors", "*.bin")


@dataclass(frozen=True)
class Shipment:
    """What is to go out, and the papers for it. `launch` is the command line; `verified` a result of verify."""

    tree: Tree
    target: Path
    draft: Path
    verified: Path
    launch: str | None = None
    launch_file: Path | None = None
    golden: Path | None = None
    record: str | None = None


@dataclass(frozen=True)
class Step:
    """One thing that has to be so: `ok`, `missing`, or `unknown` when it could not be told."""

    id: str
    state: str
    why: str


def ship(shipment: Shipment, say: Callable[[str], None]) -> dict[str, Any]:
    """The document: every step with its state, and `signed_off` when all are ok.

    Raises SpecwireError for papers that cannot be read at all.
    """
    document, time = read_verified(shipment.verified)
    steps = []
    for look in (
        _stopped,
        _clean,
        _pristine,
        lambda each: _preflight(each, document),
        lambda each: _verified(each, document, time),
    ):
        for step in look(shipment):
            say(f"{step.id}: {step.state}")
            steps.append(step)
    open_steps = sorted((step for step in steps if step.state != "ok"), key=lambda step: step.state != "missing")
    return {
        "schema": SCHEMA,
        "signed_off": not open_steps,
        "missing": vars(open_steps[0]) if open_steps else None,
        "steps": [vars(step) for step in steps],
        "specwire": __version__,
        "tree": tree_identity(shipment.tree),
        "target": model_identity(shipment.target),
        "draft": model_identity(shipment.draft),
        "verified": str(shipment.verified),
    }


def exit_code(document: Mapping[str, Any]) -> int:
    if document["signed_off"]:
        return OK
    return FINDING if document["missing"]["state"] == "missing" else INCONCLUSIVE


def read_verified(place: Path) -> tuple[dict[str, Any], float]:
    """A result of verify, from its file or its --out directory, and when it was written.

    Raises SpecwireError for anything else, `check`'s result included: it does not say what ran.
    """
    file = place / "verify.json" if place.is_dir() else place
    try:
        document, time = read_json(file), file.stat().st_mtime
    except (OSError, ValueError) as error:
        raise SpecwireError(
            f"{file}: no result of verify that can be read ({said(error)}). Run `specwire verify ... --out DIR` and name DIR."
        ) from error
    know_document(document)
    if (
        not isinstance(document, dict)
        or document.get("schema") != "specwire.check/1"
        or not isinstance(document.get("run"), dict)
    ):
        raise SpecwireError(f"{file}: no result of verify. Run `specwire verify ... --out DIR` and name DIR.")
    return document, time


def _stopped(shipment: Shipment) -> Iterator[Step]:
    from specwire.trees.live import look

    if not Path("/proc/self").exists():
        yield Step(
            "server-stopped",
            "unknown",
            "this system has no /proc: whether a server runs from the tree cannot be told",
        )
        return
    running, unreadable = look(shipment.tree.root)
    if running:
        named = "; ".join(f"pid {each.pid} ({each.evidence})" for each in running[:5])
        yield Step(
            "server-stopped", "missing", f"{len(running)} processes run from the tree: {named}. Stop the server."
        )
    elif unreadable:
        yield Step(
            "server-stopped",
            "unknown",
            f"processes of another user cannot be looked into: pid {', '.join(map(str, unreadable[:5]))}",
        )
    else:
        yield Step("server-stopped", "ok", "no process runs from the tree")


def _clean(shipment: Shipment) -> Iterator[Step]:
    from specwire.gate.leftovers import scan

    report = scan([str(shipment.tree.package)], str(shipment.tree.root))
    if report.findings:
        first = report.findings[0]
        where = f"{first.file}:{first.line}" if first.line else first.file
        ours = "specwire remove" if first.managed else "specwire strip"
        yield Step(
            "tree-clean",
            "missing",
            f"{len(report.findings)} findings, the first {first.rule} at {where}: {first.message}. Take it out with `{ours}`.",
        )
    elif report.unknown:
        yield Step("tree-clean", "unknown", report.unknown[0])
    else:
        yield Step("tree-clean", "ok", f"no instrumentation in {report.files} files")


def _pristine(shipment: Shipment) -> Iterator[Step]:
    from specwire.gate.pristine import NoRecord, differences

    try:
        found = differences(shipment.tree, shipment.record)
    except NoRecord as error:
        yield Step("tree-pristine", "unknown", str(error))
        return
    if found:
        yield Step(
            "tree-pristine",
            "missing",
            f"{len(found)} files are not the release's, the first {found[0].file}: {found[0].message}",
        )
    else:
        yield Step("tree-pristine", "ok", f"every file is that of SGLang {shipment.tree.version}")


def _preflight(shipment: Shipment, verified: Mapping[str, Any]) -> Iterator[Step]:
    from specwire.preflight import preflight

    golden = shipment.golden or _existing(verified["run"].get("golden"))
    document = preflight(
        shipment.target, shipment.draft, [shipment.tree],
        launch=shipment.launch, launch_from=shipment.launch_file, golden=golden,
    )  # fmt: skip
    if document["verdict"] == "ok":
        yield Step("preflight", "ok", f"boundaries {document['captured_boundaries']} reach the draft")
    elif document["verdict"] == "fault":
        cause = document["causes"][0]
        yield Step(
            "preflight", "missing", f"{cause['id']} ({cause['confidence']}): {cause['evidence']}. {cause['fix']}"
        )
    else:
        skipped = next((each for each in document["checks"] if each["state"] == "skipped"), None)
        yield Step(
            "preflight", "unknown", f"no verdict: {skipped['id']}: {skipped['why']}" if skipped else "no verdict"
        )


def _verified(shipment: Shipment, document: Mapping[str, Any], time: float) -> Iterator[Step]:
    verdict = document["verdict"]
    if verdict != "match":
        state = "missing" if verdict == "mismatch" else "unknown"
        yield Step("verified", state, f"the last verify says {verdict}. Mend the wiring, and verify again.")
    elif document.get("tree_restored") is not True:
        yield Step("verified", "missing", "the last verify did not leave the tree as it was")
    else:
        yield Step(
            "verified",
            "ok",
            f"the draft gets what it was trained on, on {document['ranks']} rank" + "s" * (document["ranks"] > 1),
        )
    yield _same(shipment, document["run"])
    yield _newer(shipment, time)


def _same(shipment: Shipment, run: Mapping[str, Any]) -> Step:
    """Whether tree, target and draft are, by their bytes, the ones that were verified."""
    hashes = run.get("sha256")
    if not isinstance(hashes, dict):
        return Step("verified-these", "unknown", "the last verify recorded no hashes: verify again with this specwire")
    now = {
        "tree": tree_identity(shipment.tree)["sha256"],
        "target": model_identity(shipment.target)["sha256"],
        "draft": model_identity(shipment.draft)["sha256"],
    }
    if changed := [name for name, digest in now.items() if hashes.get(name) != digest]:
        return Step(
            "verified-these",
            "missing",
            f"the last verify was of another {' and '.join(changed)} ({', '.join(str(run.get(name)) for name in changed)}). Verify these.",
        )
    return Step("verified-these", "ok", "tree, target and draft are the ones that were verified, by their hashes")


def _newer(shipment: Shipment, time: float) -> Step:
    places = {
        "tree": (shipment.tree.package, ("*.py",)),
        "target": (shipment.target, _WEIGHTS),
        "draft": (shipment.draft, _WEIGHTS),
    }
    for name, (place, patterns) in places.items():
        changed, where = newest_change(place, *patterns)
        if changed > time:
            return Step(
                "verified-since", "missing", f"the {name} changed after the last verify: {where}. Verify again."
            )
    return Step("verified-since", "ok", "nothing changed after the last verify")


def _existing(path: Any) -> Path | None:
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None
