"""The house as docs/architecture.md draws it: imports point down, none goes round, and one name means one thing."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "specwire": ROOT / "src/specwire",
    "specwire.checks": ROOT / "checks",
    "specwire.codemods": ROOT / "codemods",
}
DRAWN = (ROOT / "docs/architecture.md").read_text("utf-8")
# Public classes whose name still stands for two things: this list only shrinks.
STILL_TWO = {
    "Change",
    "Checkpoint",
    "Evidence",
    "Facts",
    "Forward",
    "Function",
    "Piece",
    "Rows",
    "Source",
    "Text",
}


def _modules():
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text("utf-8"))
    return found


MODULES = _modules()


def _imported(node):
    """What a module imports at any depth, but for its types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield whole if whole in MODULES else child.module
        yield from _imported(child)


IMPORTS = {name: {each for each in _imported(tree) if each in MODULES} - {name} for name, tree in MODULES.items()}


def _room(module):
    return module.split(".")[1] if "." in module else "specwire"


def _floors():
    """The rooms by the line that they are drawn on, the top line first."""
    picture = DRAWN.split("```")[1]
    lines = [re.split(r"\s{2,}", line)[0] for line in picture.strip().splitlines()]
    return {room: number for number, line in enumerate(lines) for room in line.split(", ")}


def test_no_two_files_import_each_other():
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_room_is_drawn():
    assert {_room(name) for name in MODULES} - {"specwire"} == set(_floors())


def test_imports_point_down():
    floors = _floors()
    climbing = [
        f"{name} -> {other}"
        for name, others in IMPORTS.items()
        for other in others
        if "specwire" not in (_room(name), _room(other))
        if _room(name) != _room(other) and floors[_room(name)] >= floors[_room(other)]
    ]
    assert climbing == []


def _classes():
    found = defaultdict(list)
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def test_a_public_class_has_a_name_of_its_own():
    twice = {name: where for name, where in _classes().items() if len(where) > 1}
    assert twice.keys() == STILL_TWO, twice


def test_a_word_of_the_glossary_names_its_thing():
    """A class that is called as a word of the glossary is the one thing that the glossary says it is."""
    glossary = DRAWN.split("## Glossary")[1]
    words = {
        word for row in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE) for word in re.split(r", | k$| j$", row)
    }
    classes = _classes()
    assert len(words) > 15
    for word in words - {"word", "---"}:
        assert len(classes.get(word.title().replace(" ", ""), ())) <= 1, word
