"""What is installed is what is here: every package, every file that the code reads from one."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def test_every_package_is_installed():
    source = ROOT / "src"
    here = {".".join(file.parent.relative_to(source).parts) for file in source.rglob("__init__.py")}
    assert here | {"specwire.codemods", "specwire.checks"} == set(SETUP["packages"])


def test_every_file_that_is_no_module_is_installed_too():
    listed = {
        (ROOT / "src" / package.replace(".", "/")) / name
        for package, names in SETUP["package-data"].items()
        for name in names
    }
    data = {
        file for file in (ROOT / "src/specwire").rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert data <= listed
