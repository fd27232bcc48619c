"""A release named like a requirement, `sglang==0.5.9`: its wheel fetched by pip once, unpacked into the user's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.interpreter import own_module

REQUIREMENT = re.compile(r"\s*sglang\s*==\s*(\d[0-9A-Za-z.!+-]*)\s*")
# The same wheel whatever Python and machine asks: only its source is read.
_WHEEL = (
    "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_34_x86_64",
)  # fmt: skip
_SIZE_LIMIT = 4 << 30  # bytes, unpacked; the largest release so far has 0.3 GB


def cache() -> Path:
    """Where fetched releases are kept: below SPECWIRE_CACHE, else XDG_CACHE_HOME, else the home directory's .cache."""
    if own := os.environ.get("SPECWIRE_CACHE"):
        return Path(own) / "releases"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "specwire" / "releases"


def released(version: str, say: Callable[[str], None]) -> Path:
    """The directory that holds this release's `sglang`: from the cache, else fetched and unpacked there.

    `say` hears of a download before it begins. Raises SpecwireError when pip gives no such wheel, or the disk no room.
    """
    place = cache() / version
    if (place / "sglang").is_dir():
        return place
    import tempfile  # slow to import, for what is mostly there already

    say(f"fetching sglang {version} with pip, to be kept in {place}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{version}.") as folder:
            unpacked = Path(folder) / "tree"
            unpack(download(version, Path(folder)), unpacked)
            put(unpacked, place)
    except OSError as error:
        raise SpecwireError(f"{place}: sglang {version} cannot be kept there ({error.strerror or error}).") from error
    return place


def download(version: str, folder: Path) -> Path:
    """The release's wheel, fetched into the folder."""
    pip = ["pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = own_module(*pip, *_WHEEL, f"--dest={folder}", f"sglang=={version}")
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SpecwireError(
            f"sglang=={version}: pip gives no wheel ({why}). Name a release that the package index has, "
            "or a directory that holds one."
        )
    return wheels[0]


def unpack(wheel: Path, place: Path) -> None:
    """Its files, without the libraries that come with it."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as packed:
            wanted = [each for each in packed.infolist() if not each.filename.startswith("sglang.libs/")]
            if sum(each.file_size for each in wanted) > _SIZE_LIMIT:
                raise SpecwireError(f"{wheel.name}: more than {_SIZE_LIMIT >> 30} GB unpacked: no SGLang release")
            packed.extractall(place, wanted)
    except zipfile.BadZipFile as error:
        raise SpecwireError(f"{wheel.name}: no wheel ({error})") from error


def put(unpacked: Path, place: Path) -> None:
    """Into the cache in one step; another run that was first has put the same there."""
    try:
        unpacked.rename(place)
    except OSError:
        if not (place / "sglang").is_dir():
            raise
