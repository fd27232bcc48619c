"""Python processes and where each would import SGLang from, read from /proc alone."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from specwire.regular import open_regular
from specwire.trees.tree import MARKER, PACKAGE

TITLE = "sglang::"
_IMPORTS = re.compile(rb"(?:^|[;\n])[ \t]*(?:import|from)[ \t]+sglang\b")
_SITE = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_EDITABLE = re.compile(r"""['"]sglang['"]\s*:\s*['"]([^'"]+)['"]""")
_CLUSTER = re.compile(r"-[bBdEhiIOPqsSuvVx]*([mcWX])(.*)", re.S)


@dataclass(frozen=True, eq=False)
class Process:
    """One process. What may not be read is empty, and `readable` is False then."""

    pid: int
    parent: int
    argv: tuple[str, ...]
    exe: str = field(default="")

    @property
    def command(self) -> str:
        return " ".join(self.argv)

    @property
    def titled(self) -> bool:
        """Whether it has been renamed as SGLang renames its workers: the command line is lost then."""
        return self.argv[0].startswith(TITLE)

    @property
    def is_python(self) -> bool:
        name = os.path.basename(self.exe or self.argv[0])
        return name.startswith(("python", "pypy")) or (not self.exe and self.titled)

    @cached_property
    def readable(self) -> bool:
        return (
            os.access(f"/proc/{self.pid}/environ", os.R_OK) and self.exe != "" and _can_read(f"/proc/{self.pid}/maps")
        )

    @cached_property
    def maps(self) -> frozenset[str]:
        """Paths of the files that it has mapped."""
        text = _read(f"/proc/{self.pid}/maps").decode("utf-8", "surrogateescape")
        return frozenset(line[at:] for line in text.splitlines() if (at := line.find("/")) >= 0)

    @cached_property
    def environ(self) -> dict[str, str]:
        text = _read(f"/proc/{self.pid}/environ").decode("utf-8", "surrogateescape")
        return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)

    @cached_property
    def cwd(self) -> str:
        return _link(f"/proc/{self.pid}/cwd")

    def open_files(self) -> set[str]:
        folder = f"/proc/{self.pid}/fd"
        try:
            return {_link(f"{folder}/{name}") for name in os.listdir(folder)}
        except OSError:
            return set()

    @cached_property
    def started(self) -> tuple[str, str]:
        """(`module`, `code` or `script`; what was named so) from the interpreter's own arguments."""
        rest = list(self.argv[1:])
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                return "script", word
            if word == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            if (cluster := _CLUSTER.fullmatch(word)) is not None:
                value = cluster[2] or (rest.pop(0) if rest else "")
                if cluster[1] in "mc":
                    return "module" if cluster[1] == "m" else "code", value
        return "script", ""

    def inside(self, path: str) -> str:
        """A path of the process's own, as we can open it: it may see another root than we do."""
        path = os.path.join(self.cwd or "/", path)
        through = f"/proc/{self.pid}/root{path}"
        return through if os.path.lexists(f"/proc/{self.pid}/root/.") else path

    @cached_property
    def uses_sglang(self) -> str:
        """What shows that it runs SGLang, whichever; empty when nothing does."""
        if self.titled:
            return f"it calls itself {self.argv[0]}"
        kind, value = self.started
        if kind == "module" and (value == PACKAGE or value.startswith(PACKAGE + ".")):
            return f"it was started as -m {value}"
        pairs = zip(self.argv, self.argv[1:], strict=False)
        if module := next((name for flag, name in pairs if flag == "-m" and name.startswith(PACKAGE + ".")), None):
            return f"it was started with -m {module}"
        if kind == "code" and _IMPORTS.search(value.encode("utf-8", "surrogateescape")):
            return "its command imports sglang"
        if kind == "script" and value and _IMPORTS.search(_read(self.inside(value), 1 << 20)):
            return f"its script {value} imports sglang"
        if loaded := next((path for path in sorted(self.maps) if "/sgl_kernel/" in path), None):
            return f"it has {loaded} loaded"
        return ""


def processes() -> dict[int, Process]:
    """Every process but this one, by id."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            argv = [part.decode("utf-8", "surrogateescape") for part in _read(f"/proc/{name}/cmdline").split(b"\0")]
            while argv and not argv[-1].strip():
                argv.pop()
            if argv:  # a kernel thread or a zombie has none
                found[int(name)] = Process(
                    int(name),
                    _parent(name),
                    tuple(argv),
                    _link(f"/proc/{name}/exe").removesuffix(" (deleted)"),
                )
    return found


def packages(process: Process, table: dict[int, Process]) -> Iterator[str]:
    """The `sglang` that the process would import, as a path that we can open; and what it is a view of."""
    for place in search_path(process, table):
        package = process.inside(os.path.join(place, PACKAGE))
        if os.path.isfile(f"{package}/__init__.py"):
            yield package
            while origin := _read(f"{package}/{MARKER}").decode("utf-8", "surrogateescape").strip():
                package = process.inside(os.path.join(origin, PACKAGE))
                yield package
            return


def search_path(process: Process, table: dict[int, Process]) -> list[str]:
    """Where the process looks for modules, in its order, as far as it can be told from outside.

    A worker that has been renamed has lost its arguments and its environment; it got both from its parent.
    """
    parent = table.get(process.parent)
    if not (process.titled and parent is not None and parent.is_python):
        parent = None
    environ = process.environ or (parent.environ if parent else {})
    first = [*(_first(parent) if parent else []), *_first(process)]
    first += [os.path.join(process.cwd, entry) for entry in environ.get("PYTHONPATH", "").split(":") if entry]
    sites = _sites(process, environ) + (_sites(parent, environ) if parent else [])
    return list(dict.fromkeys([*first, *(place for site in sites for place in (site, *_links_of(process, site)))]))


def _first(process: Process) -> list[str]:
    kind, value = process.started
    if kind == "script" and value and not process.titled:
        return [os.path.dirname(os.path.join(process.cwd, value))]
    return [process.cwd] if process.cwd else []


def _sites(process: Process, environ: dict[str, str]) -> list[str]:
    """Its site-packages: by what it has loaded from there, by its virtual environment, by its interpreter."""
    found = sorted({match[1] for path in process.maps if (match := _SITE.match(path))})
    prefixes = [environ["VIRTUAL_ENV"]] if "VIRTUAL_ENV" in environ and process.titled else []
    if not process.titled and (started := _executable(process, environ)):
        prefixes.append(os.path.dirname(os.path.dirname(started)))
    if "HOME" in environ:
        prefixes.append(os.path.join(environ["HOME"], ".local"))
    if process.exe and not any(os.path.isfile(process.inside(f"{prefix}/pyvenv.cfg")) for prefix in prefixes):
        prefixes.append(os.path.dirname(os.path.dirname(process.exe)))
    for prefix in prefixes:
        outer = process.inside("/").rstrip("/")
        for pattern in (
            "lib/python*/site-packages",
            "lib/python*/dist-packages",
            "lib/python3/dist-packages",
        ):
            found += [
                path.removeprefix(outer) for path in sorted(glob.glob(f"{glob.escape(outer + prefix)}/{pattern}"))
            ]
    return list(dict.fromkeys(found))


def _executable(process: Process, environ: dict[str, str]) -> str:
    """The path that it was started by: that of a virtual environment's link, which `exe` has followed."""
    name = process.argv[0]
    if "/" in name:
        return os.path.join(process.cwd, name)
    for folder in environ.get("PATH", "").split(":"):
        if os.path.isfile(process.inside(os.path.join(folder, name))):
            return os.path.join(process.cwd, folder, name)
    return ""


def _links_of(process: Process, site: str) -> Iterator[str]:
    """Directories that a site directory adds: lines of its .pth files, and what an editable SGLang names."""
    for path in sorted(glob.glob(f"{glob.escape(process.inside(site))}/*.pth")):
        for line in _read(path, 1 << 16).decode("utf-8", "replace").splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield os.path.join(site, line.strip())
    for path in sorted(glob.glob(f"{glob.escape(process.inside(site))}/__editable___sglang*_finder.py")):
        for package in _EDITABLE.findall(_read(path, 1 << 20).decode("utf-8", "replace")):
            yield os.path.dirname(package)


def _parent(pid: str) -> int:
    tail = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(tail[1]) if len(tail) > 1 else 0


def _read(path: str, limit: int = 1 << 26) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(limit)
    except (OSError, ValueError):
        return b""


def _can_read(path: str) -> bool:
    try:
        with open_regular(path):
            return True
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
