"""One walk over a directory: its Python files, and the names that tell of an unfinished change or a patch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

# Other people's code, history, and what tools keep for themselves.
_NEVER = frozenset("__pycache__ node_modules .git .hg .svn .tox .nox .eggs .hypothesis .cache".split())


class Files(NamedTuple):
    """Paths below a directory, in a stable order. `skipped` holds the directories that were not looked into."""

    python: list[str]
    others: list[str]
    skipped: list[str]


def walk(root: str, also: tuple[str, ...] = ()) -> Files:
    """All `.py` files below `root`, and with `also` the others that are hidden or whose names end in one of these.

    Virtual environments, version control's and tools' own directories are not looked into, nor links to
    directories, unless one leads out of `root` from within a Python package: what is there is imported with the
    rest. A `root` that is a file stands for itself.
    """
    found = Files([], [], [])
    if not os.path.isdir(root):
        if root.endswith(".py"):
            found.python.append(root)
        elif also:
            found.others.append(root)
        return found
    stack, inside = [root], [os.path.realpath(root)]
    while stack:
        folder = stack.pop()
        python, others, folders = [], [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py") and entry.is_file():
                    python.append(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    if name not in _NEVER and not (name[0] == "." and name.endswith("_cache")):
                        folders.append(entry.path)
                    elif name != "__pycache__":
                        found.skipped.append(entry.path)
                elif entry.is_symlink() and not entry.is_file():
                    if name not in _NEVER and (led := _leads_out(entry.path, inside)):
                        folders.append(entry.path)
                        inside.append(led)
                    elif name != "__pycache__":
                        found.skipped.append(entry.path)
                elif name == "pyvenv.cfg" and folder != root and _is_environment(folder):
                    found.skipped.append(folder)
                    break
                elif also and (name.endswith(also) or name[0] == "."):
                    others.append(entry.path)
            else:
                found.python.extend(python)
                found.others.extend(others)
                stack.extend(folders)
    found.python.sort()
    found.others.sort()
    found.skipped.sort()
    return found


def _leads_out(link: str, inside: list[str]) -> str:
    """The real directory that a link in a package leads to, when it is none that is looked into anyway, nor around one."""
    real = os.path.realpath(link)
    if not os.path.isdir(real) or not _in_package(link):
        return ""
    around = (os.path.commonpath((real, each)) in (real, each) for each in inside)
    return "" if any(around) else real


def _is_environment(folder: str) -> bool:
    """Whether a directory with a `pyvenv.cfg` is a virtual environment: in a package, it takes an interpreter too."""
    interpreter = any(os.path.isdir(os.path.join(folder, name)) for name in ("bin", "Scripts"))
    return interpreter or not _in_package(folder)


def _in_package(path: str) -> bool:
    return os.path.exists(os.path.join(package_root(path), "__init__.py"))


def package_root(path: str) -> str:
    """The directory of the outermost package around a file, found by its `__init__.py`; else the file's own.

    Packages without an `__init__.py` of their own may lie in between. A project's root ends the search.
    """
    folder = best = os.path.dirname(os.path.abspath(path))
    for parent in _upwards(folder):
        if os.path.exists(os.path.join(parent, "__init__.py")):
            best = parent
    return best


def _upwards(folder: str) -> Iterator[str]:
    while os.path.dirname(folder) != folder and os.path.basename(folder) not in (
        "site-packages",
        "dist-packages",
    ):
        yield folder
        if any(os.path.exists(os.path.join(folder, name)) for name in (".git", "pyproject.toml", "setup.py")):
            return
        folder = os.path.dirname(folder)
