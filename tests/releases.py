"""SGLang's releases as tests use them: downloaded from the package registry, pinned by hash, unpacked once.

`python tests/releases.py VERSION...` downloads further releases and adds them to fixtures/releases.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from specwire.trees import released

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "fixtures" / "releases.json"


def versions() -> list[str]:
    """Every release in the table, oldest first."""
    return sorted(_table(), key=_age)


def sample() -> list[str]:
    """The releases that CI runs: the first and the last of each generation, as the table marks them."""
    return [version for version in versions() if _table()[version].get("sample")]


def release_tree(version: str) -> Path:
    """A directory that holds this release's `sglang/` and metadata. Shared by all tests: never write to it.

    Raises KeyError for a release that the table lacks, SpecwireError when the registry has none, RuntimeError when what
    it gives is not the pinned file.
    """
    place = cache() / version
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place.parent / f".{version}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                _fetch(version, _table()[version], place)
    return place


def cache() -> Path:
    return Path(os.environ.get("SPECWIRE_CACHE") or ROOT / ".cache") / "releases"


def recorded(tree: Path) -> dict[str, str]:
    """sha256 (hex) by name of every file that the release's own RECORD lists a hash for."""
    import base64
    import csv

    (record,) = tree.glob("sglang-*.dist-info/RECORD")
    with open(record, newline="", encoding="utf-8") as lines:
        rows = [(name, digest.removeprefix("sha256=")) for name, digest, _ in csv.reader(lines) if digest]
    return {name: base64.urlsafe_b64decode(digest + "=").hex() for name, digest in rows}


def unpinned() -> list[str]:
    """Releases since the first in the table that the registry has and the table lacks."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "--pre", "sglang"], capture_output=True, text=True
    )
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
    known = versions()
    return [
        each for each in (found[1].split(", ") if found else ()) if each not in known and _age(each) > _age(known[0])
    ]


def pin(version: str) -> None:
    """Download a release and write its file name and hash into the table."""
    table = _table()
    row = _fetch(version, None, cache() / version)
    table[version] = {**table.get(version, {}), **row}
    ordered = {name: table[name] for name in sorted(table, key=_age)}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in ordered.items())
    TABLE.write_text("{\n" + rows + "\n}\n", "utf-8")


def _table() -> dict[str, dict]:
    return json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}


def _age(version: str) -> tuple:
    """Sorts 0.5.2rc0 < 0.5.2 < 0.5.2.post1 < 0.5.10."""
    numbers, kind, count = re.match(r"([\d.]*\d)(?:\.?([a-z]+)(\d+))?", version).groups()
    return tuple(map(int, numbers.split("."))), {None: 1, "post": 2}.get(kind, 0), int(count or 0)


def _fetch(version: str, pinned: dict | None, place: Path) -> dict[str, str]:
    """The release, fetched as a user's is, at `place`; its wheel's name and hash."""
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{version}.", dir=cache()) as folder:
        wheel = released.download(version, Path(folder))
        row = {"wheel": wheel.name, "sha256": _sha256(wheel)}
        if pinned and row != {name: pinned[name] for name in row}:
            raise RuntimeError(f"sglang {version}: {wheel} is not the file that {TABLE} pins ({pinned}).")
        released.unpack(wheel, Path(folder, "tree"))
        released.put(Path(folder, "tree"), place)
    return row


def _sha256(path: Path) -> str:
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


if __name__ == "__main__":
    for each in sys.argv[1:]:
        pin(each)
        print(each, _table()[each]["sha256"], flush=True)
