"""`gate --pristine`: every file of the installed package against the hashes in its release's RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from specwire.errors import INCONCLUSIVE, SpecwireError, said
from specwire.gate.leftovers import Leftover
from specwire.patching import marks
from specwire.regular import read_bytes, read_text
from specwire.trees.tree import PACKAGE, Tree

# Where EAGLE-3 passes through the engine, and what such a file speaks of.
PASSED = tuple(
    f"{PACKAGE}/srt/{name}"
    for name in ("models/", "speculative/", "model_executor/", "layers/logits_proc", "server_args")
)
WORDS = (b"to_capture", b"eagle", b"EAGLE", b"aux_hidden")


class NoRecord(SpecwireError):
    """There is nothing to compare with. Ends a command with 3: neither clean nor not."""

    exit_code = INCONCLUSIVE


def differences(tree: Tree, record: str | None = None) -> list[Leftover]:
    """Findings for each file of `tree` that differs from the release, is missing or is extra, in file order.

    `record`: a RECORD file or a wheel to compare with, in place of the one that was installed with the tree.
    Compiled files are left out. Raises NoRecord when there is no list of hashes for this tree.
    """
    named, expected = _expected(tree, record)
    found = []
    for file, wanted in sorted(expected.items()):
        path = tree.path(file)
        if not path.is_file():
            found.append(Leftover("pristine-missing", file, None, f"is in {named} and not here"))
        elif wanted and (finding := _compared(path, file, wanted, named)):
            found.append(finding)
    for file in _present(tree):
        if file not in expected:
            found.append(Leftover("pristine-extra", file, None, f"is not in {named}", file == marks.RUNTIME))
    return sorted(found, key=lambda finding: finding.file)


def release_name(tree: Tree) -> str:
    """What a sentence calls the tree: its release, unless a file that EAGLE-3 passes through is not the release's.

    Taps are no change. A tree without a list of hashes, as a checkout is, is called by the version that it says.
    """
    if not tree.version:
        return "this tree"
    changed = _changed(tree)
    if not changed:
        return f"SGLang {tree.version}"
    more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
    return f"this tree (it differs from SGLang {tree.version} in {', '.join(changed[:2])}{more})"


def _changed(tree: Tree) -> list[str]:
    try:
        named, expected = _expected(tree, None)
    except SpecwireError:
        return []
    files = [name for name in tree.python_files(f"{PACKAGE}/srt") if name.startswith(PASSED)]
    return [name for name in files if _is_changed(tree, name, expected.get(name), named)]


def _is_changed(tree: Tree, name: str, wanted: str | None, named: str) -> bool:
    try:
        data = read_bytes(tree.path(name))
        if not any(word in data for word in WORDS):
            return False
        finding = _compared(tree.path(name), name, wanted, named) if wanted else None
    except (OSError, SpecwireError):
        return False
    return not wanted or bool(finding and not finding.managed)


def _compared(path: Path, file: str, wanted: str, named: str) -> Leftover | None:
    algorithm, _, digest = wanted.partition("=")
    data = read_bytes(path)
    if _hash(algorithm, data, file) == digest:
        return None
    if marks.LITERAL in data and _hash(algorithm, marks.stripped(data), file) == digest:
        return Leftover("pristine-changed", file, None, f"differs from {named} by specwire's taps alone", True)
    return Leftover("pristine-changed", file, None, f"differs from {named} ({algorithm} is not {digest})")


def _hash(algorithm: str, data: bytes, file: str) -> str:
    try:
        digest = hashlib.new(algorithm, data).digest()
    except ValueError:
        raise SpecwireError(
            f"{file}: RECORD holds a hash of an unknown kind ({algorithm}). Give a wheel with --record."
        ) from None
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _expected(tree: Tree, record: str | None) -> tuple[str, dict[str, str]]:
    """(what the hashes are from, file -> `algorithm=hash`) for the files of the package."""
    if record is None:
        places = sorted(tree.root.glob(f"{PACKAGE}-*.dist-info"))
        record_file = next((place / "RECORD" for place in places if (place / "RECORD").is_file()), None)
        if record_file is None:
            raise NoRecord(
                f"{tree.root}: no release to compare with. Looked for {PACKAGE}-*.dist-info/RECORD beside the package, as pip "
                "leaves it; a checkout has none. Give the release's wheel or RECORD with --record."
            )
        entries = _read(read_text(record_file))
        named = record_file.parent.name.removesuffix(".dist-info")
    elif zipfile.is_zipfile(record):
        named, text = _from_wheel(record)
        entries = _read(text)
    else:
        try:
            entries = _read(read_text(record))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecwireError(
                f"{record}: not a RECORD file or a wheel ({said(error)}). Name one of the release's."
            ) from error
        parent = Path(os.path.abspath(record)).parent.name
        named = parent.removesuffix(".dist-info") if parent.endswith(".dist-info") else os.path.basename(record)
    release = named.removeprefix(PACKAGE + "-")
    if release != named and tree.version and release != tree.version:
        raise SpecwireError(
            f"{tree.package}: says it is {tree.version}, and {record or named} is of {release}. Compare it with its own release."
        )
    files = {name: wanted for name, wanted in entries if name.startswith(PACKAGE + "/") and not _is_compiled(name)}
    if not any(files.values()):
        raise (NoRecord if record is None else SpecwireError)(
            f"{record or tree.root}: {named}'s RECORD lists no file of {PACKAGE}/ with a hash, as after an editable install. "
            "Give the release's wheel with --record."
        )
    return named, files


def _from_wheel(path: str) -> tuple[str, str]:
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.startswith(PACKAGE + "-") and name.endswith(".dist-info/RECORD"):
                return name.partition(".dist-info/")[0], wheel.read(name).decode("utf-8")
    raise SpecwireError(f"{path}: not a wheel of {PACKAGE}: no {PACKAGE}-*.dist-info/RECORD in it.")


def _read(text: str) -> list[tuple[str, str]]:
    return [(row[0], row[1] if len(row) > 1 else "") for row in csv.reader(io.StringIO(text)) if row]


def _present(tree: Tree) -> Iterator[str]:
    for folder, folders, files in os.walk(tree.package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links]):
            file = Path(os.path.relpath(os.path.join(folder, name), tree.root)).as_posix()
            if not _is_compiled(file):
                yield file


def _is_compiled(name: str) -> bool:
    return name.endswith((".pyc", ".pyo")) or "/__pycache__/" in name
