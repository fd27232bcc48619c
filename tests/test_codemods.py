"""What every probe obeys, run on the cases that each carries in its own file."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

from specwire import registry
from specwire.patching import marks
from specwire.patching.insert import render

PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}
RUNTIME = Path(__file__).parent.parent / "src" / "specwire" / "runtime" / "_specwire.py"
DOCS = {name: module.__doc__ for name, module in registry.modules("specwire.codemods").items()}
CASES = [
    pytest.param(name, textwrap.dedent(text.replace("\n+", "\n ")).lstrip("\n"), text, id=f"{name}-{number}")
    for name, probe in PROBES.items()
    for number, text in enumerate(probe.cases)
]


def split(text: str) -> tuple[str, list[str]]:
    """A case's source without its `+` lines, and those lines' calls, with how many source lines stand above each."""
    lines = text.strip("\n").splitlines()
    source, calls = [], []
    for line in lines:
        if line.lstrip().startswith("+"):
            calls.append((len(source), line.lstrip()[1:].strip()))
        else:
            source.append(line)
    return textwrap.dedent("\n".join(source)).strip() + "\n", calls


def inserted(data: bytes) -> list[tuple[int, str]]:
    calls, above = [], 0
    for line in data.decode().splitlines():
        if "# specwire:" not in line:
            above += 1
        elif "# specwire:import" not in line:
            calls.append((above, re.sub(r"  # specwire:.*", "", line).strip()))
    return [
        (above, call.removeprefix("if _specwire.on: _specwire.").removeprefix("@_specwire.")) for above, call in calls
    ]


def test_there_are_probes_and_each_carries_a_case():
    files = Path(__file__).parent.parent.joinpath("codemods").glob("[a-z]*.py")
    assert {path.stem.replace("_", "-") for path in files} == set(PROBES) and len(CASES) > len(PROBES)
    assert not [name for name, probe in PROBES.items() if not probe.cases]


@pytest.mark.parametrize("name, _, text", CASES)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_case(name, _, text, end):
    source, expected = split(text)
    original = source.replace("\n", end).encode()
    done = render("sglang/srt/models/case.py", original, {name: PROBES[name]})
    assert inserted(done.data) == expected
    assert marks.stripped(done.data) == original
    assert all(mark.intact for mark in marks.marks(done.data))
    if end == "\r\n":
        assert b"\n" not in done.data.replace(b"\r\n", b"")


@pytest.mark.parametrize("name, _, text", CASES)
def test_what_a_tap_calls_is_there(name, _, text):
    """Else the first tap that is switched on raises into the engine."""
    there = {node.name for node in ast.parse(RUNTIME.read_bytes()).body if isinstance(node, ast.FunctionDef)}
    public = {name for name in there if not name.startswith("_")}
    assert {call.partition("(")[0] for _, call in split(text)[1]} <= public


@pytest.mark.parametrize("name", PROBES)
def test_file_says_what_the_probe_does(name):
    first = DOCS[name].strip().splitlines()[0]
    assert first.endswith(".") and len(first) < 110
    assert PROBES[name].group in ("debug", "capture", "profile")
