"""SGLang's releases as tests use them: downloaded from the package registry, pinned by hash, unpacked once.

`python tests/releases.py VERSION...` downloads further releases and adds them to fixtures/releases.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "fixtures" / "releases.json"

# The same wheel everywhere, whatever Python and machine the tests run on: only its source is read.
_WHEEL_FOR = [
    "--only-binary=:all:",
    "--python-version=3.11",
    "--implementation=cp",
    "--platform=manylinux_2_34_x86_64",
]


def versions() -> list[str]:
    """Every release in the table, oldest first."""
    return sorted(_table(), key=_age)


def sample() -> list[str]:
    """The releases that CI runs: the first and the last of each generation, as the table marks them."""
    return [version for version in versions() if _table()[version].get("sample")]


def release_tree(version: str) -> Path:
    """A directory that holds this release's `sglang/` and metadata. Shared by all tests: never write to it.

    Raises KeyError for a release that the table lacks, RuntimeError when what the registry gives is not
    the pinned file.
    """
    place = cache() / version
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place.parent / f".{version}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                _unpack(_download(version, _table()[version]), place)
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
    wheel = _download(version, None)
    table = _table()
    row = {"wheel": wheel.name, "sha256": _sha256(wheel)}
    table[version] = {**table.get(version, {}), **row}
    ordered = {name: table[name] for name in sorted(table, key=_age)}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in ordered.items())
    TABLE.write_text("{\n" + rows + "\n}\n", "utf-8")
    _unpack(wheel, cache() / version)


def _table() -> dict[str, dict]:
    return json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}


def _age(version: str) -> tuple:
    """Sorts 0.5.2rc0 < 0.5.2 < 0.5.2.post1 < 0.5.10."""
    numbers, kind, count = re.match(r"([\d.]*\d)(?:\.?([a-z]+)(\d+))?", version).groups()
    return tuple(map(int, numbers.split("."))), {None: 1, "post": 2}.get(kind, 0), int(count or 0)


def _download(version: str, pinned: dict | None) -> Path:
    """The wheel, below the cache; it goes once it is unpacked."""
    folder = Path(tempfile.mkdtemp(prefix=f".{version}.", dir=_made(cache())))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", *_WHEEL_FOR]
    done = subprocess.run([*pip, f"--dest={folder}", f"sglang=={version}"], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        shutil.rmtree(folder)
        raise RuntimeError(f"sglang {version}: pip gave no wheel.\n{done.stderr}")
    if pinned and (wheels[0].name, _sha256(wheels[0])) != (pinned["wheel"], pinned["sha256"]):
        raise RuntimeError(f"sglang {version}: {wheels[0]} is not the file that {TABLE} pins ({pinned}).")
    return wheels[0]


def _unpack(wheel: Path, place: Path) -> None:
    folder = wheel.parent / "tree"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if not name.startswith("sglang.libs/")])
    wheel.unlink()
    if place.exists():
        shutil.rmtree(place)
    folder.rename(place)
    wheel.parent.rmdir()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _sha256(path: Path) -> str:
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


if __name__ == "__main__":
    for each in sys.argv[1:]:
        pin(each)
        print(each, _table()[each]["sha256"], flush=True)
