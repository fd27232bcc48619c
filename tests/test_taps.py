"""What of ours is in one file, whatever formatters and hands have made of it, and the file without it."""

import ast

import pytest
from small_trees import DEBUG, DRAFT, TARGET, crlf, dedent

from specwire.patching import marks
from specwire.patching.insert import render
from specwire.patching.surgery import probes
from specwire.patching.taps import TappedFile, unchanged

NAME = "sglang/srt/models/target.py"


def tapped(original: bytes, names=(*DEBUG, "hidden-state-dump")) -> bytes:
    known = probes()
    return render(NAME, original, {name: known[name] for name in names}).data


def cleaned(data: bytes) -> tuple[bytes, str]:
    """The file without anything of ours, and the proof that holds."""
    file = TappedFile(data)
    assert not [each for each in file.found if each.stuck]
    after = file.without(file.found)
    proof, problem = unchanged(file, list(file.found), after, [])
    assert not problem, problem
    return after, proof


def line_of(data: bytes, probe: str) -> bytes:
    return next(line for line in data.splitlines(keepends=True) if f"# specwire:{probe}".encode() in line)


@pytest.mark.parametrize(
    "original", [TARGET, DRAFT, crlf(TARGET), crlf(DRAFT), b"\xef\xbb\xbf" + TARGET, TARGET.rstrip(b"\n")]
)
def test_intact(original):
    data = tapped(original)
    file = TappedFile(data)
    assert len(file.found) >= 4 and all(each.intact for each in file.found)
    assert cleaned(data) == (original, "original-hash")
    assert TappedFile(original).found == ()


def test_what_a_formatter_makes_of_it():
    # What black 26.10 and ruff 0.17 make of a tap, and isort of the import.
    data = dedent(
        """
        import torch
        from sglang.srt import (
            _specwire,  # specwire:import c4920c5a original=HASH
        )


        class Draft:
            def forward(self, hidden_states, embeds):
                if _specwire.on:
                    _specwire.draft_input(
                        self,
                        hidden_states,
                        embeds,
                    )  # specwire:draft-input 4be1b1a6
                if _specwire.on:
                    _specwire.fc_before(
                        self, hidden_states, embeds
                    )  # specwire:draft-fc 45845650
                return hidden_states
        """
    )
    file = TappedFile(data)
    assert [(each.probe, each.first, each.last, each.intact) for each in file.found] == [
        ("import", 2, 4, False),
        ("draft-input", 9, 14, False),
        ("draft-fc", 15, 18, False),
    ]
    assert [each.qualname for each in file.found] == ["", "Draft.forward", "Draft.forward"]
    after, proof = cleaned(data)
    assert proof == "syntax-tree"
    assert after == dedent(
        """
        import torch


        class Draft:
            def forward(self, hidden_states, embeds):
                return hidden_states
        """
    )


def test_formatter_on_the_other_side_of_the_import():
    data = (
        b"from sglang.srt import (\n    _specwire,\n)  # specwire:import c4920c5a original=" + b"0" * 64 + b"\nx = 1\n"
    )
    assert cleaned(data) == (b"x = 1\n", "syntax-tree")


EDITED = {
    "an argument less": (
        b"if _specwire.on: _specwire.captured(self)  # specwire:layer-capture 7cebb385\n",
        b"",
    ),
    "no mark left": (b"if _specwire.on: _specwire.captured(self)\n", b""),
    "switched on": (b"_specwire.on = True\n", b""),
    "unconditional": (b"_specwire.captured(self, x)  # specwire:layer-capture 7cebb385\n", b""),
    "one more condition": (b"if _specwire.on and self.rank == 0: _specwire.captured(self)\n", b""),
    "prints too": (b"if _specwire.on:\n    _specwire.captured(self)\n    print('here', self)\n", b""),
    "a comment alone": (b"# specwire:layer-capture 7cebb385\n", b""),
    "a comment on other code": (b"y = 2  # specwire:layer-capture 7cebb385\n", b"y = 2\n"),
    "a comment after a comment": (b"y = 2  # why  # specwire:layer-capture 7cebb385\n", b"y = 2  # why\n"),
    "commented out": (
        b"# if _specwire.on: _specwire.captured(self)  # specwire:layer-capture 7cebb385\n",
        b"",
    ),
    "a decorator": (b"@_specwire.timed('draft')\ndef f():\n    pass\n", b"def f():\n    pass\n"),
    "in a branch": (b"if x:\n    y = 1\n    _specwire.captured(x)\n", b"if x:\n    y = 1\n"),
    "an elif": (b"if x:\n    y = 1\nelif _specwire.on:\n    _specwire.captured(x)\n", b"if x:\n    y = 1\n"),
    "after a try": (
        b"try:\n    y = 1\nfinally:\n    y = 2\n    _specwire.captured(x)\n",
        b"try:\n    y = 1\nfinally:\n    y = 2\n",
    ),
}


@pytest.mark.parametrize("what", EDITED)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_edited(what, end):
    text, rest = (part.replace(b"\n", end) for part in EDITED[what])
    data = b"x = 1" + end + text + b"z = 3" + end
    found = TappedFile(data).found
    assert len(found) == 1 and not found[0].intact and found[0].why
    assert cleaned(data) == (b"x = 1" + end + rest + b"z = 3" + end, "syntax-tree")


STUCK = {
    "result used": b"hidden = _specwire.captured(hidden)\n",
    "part of an expression": b"hidden = hidden + _specwire.zero\n",
    "a condition": b"if x and _specwire.on:\n    print(x)\n",
    "an else": b"if _specwire.on:\n    _specwire.captured(x)\nelse:\n    x = 2\n",
    "binds below": b"if _specwire.on:\n    _specwire.captured(x)\n    x = 2\n",
    "binds under one more test": b"if _specwire.on:\n    _specwire.captured(x)\n    if x:\n        y = 2\n",
    "an else under one more test": b"if _specwire.on:\n    if x:\n        print(x)\n    else:\n        y = 1\n",
    "a test below that binds": b"if _specwire.on:\n    if (y := x):\n        print(y)\n",
    "binds in an argument": b"_specwire.captured(y := 2)\n",
    "shares a line": b"y = 1; _specwire.captured(x)\n",
    "shares a line behind": b"_specwire.captured(x); y = 1\n",
    "body on the line of another if": b"if x: _specwire.captured(x)\n",
    "imports more": b"from sglang.srt import _specwire, other\n",
    "imported by another name": b"from sglang.srt import _specwire as tap\n",
    "imported from": b"from sglang.srt._specwire import on\n",
    "imported as a package": b"import sglang.srt._specwire\n",
    "a with": b"with _specwire.span('x'):\n    y = 1\n",
    "a loop": b"for y in _specwire.all:\n    print(y)\n",
    "an exception": b"try:\n    y = 1\nexcept _specwire.Error:\n    pass\n",
    "an argument's name": b"def f(_specwire):\n    return _specwire\n",
}


@pytest.mark.parametrize("what", STUCK)
def test_stuck(what):
    """What cannot be shown to do nothing is named and left."""
    found = TappedFile(b"x = 1\n" + STUCK[what] + b"z = 3\n").found
    assert len(found) == 1 and found[0].stuck and not found[0].cuts


def test_body_left_empty():
    data = dedent(
        """
        def f(x):
            if x:
                TAP
            return x
        """
    ).replace(b"TAP", marks.marked("if _specwire.on: _specwire.captured(x)", "layer-capture").encode())
    file = TappedFile(data)
    after = file.without(file.found)
    proof, problem = unchanged(file, list(file.found), after, [])
    assert not proof and "line 3" in problem and "put one back" in problem


def test_marks_in_strings_are_text():
    tap = marks.marked("if _specwire.on: _specwire.captured(x)", "layer-capture").encode()
    data = (
        b'"""Doc\n' + tap + b"\n" + b"# specwire:draft-fc\n" + b'"""\nx = f"""\n' + tap + b'\n"""\ny = "# specwire:x"\n'
    )
    assert len(marks.marks(data)) == 4
    assert TappedFile(data).found == ()
    real = data + tap + b"\n"
    assert [each.first for each in TappedFile(real).found] == [9]
    assert cleaned(real) == (data, "syntax-tree")


def test_older_taps():
    """Another text, another probe, another name for the tap file: the checksum says that it is ours."""
    lines = [
        marks.marked("if _sw.on: _sw.seen(x)", "seen-states"),
        marks.marked("_sw_report(x)", "old-probe"),
        marks.marked("@_sw.timed('x')", "old-timer"),
    ]
    imported = marks.marked("import _sw", "import", "a" * 64)
    data = "\n".join(["import os", imported, *lines, "def f(): ...", ""]).encode()
    found = TappedFile(data + b"# specwire\n_specwire = 0\n").found
    assert [each.probe for each in found if each.intact] == [
        "import",
        "seen-states",
        "old-probe",
        "old-timer",
    ]
    data = data.replace(b"def f", b"# specwire is here\ndef f")
    assert cleaned(data) == (b"import os\n# specwire is here\ndef f(): ...\n", "syntax-tree")


def test_duplicated_and_moved():
    data = tapped(TARGET)
    tap = line_of(data, "layer-capture")
    twice = data.replace(tap, tap + tap)
    assert cleaned(twice) == (TARGET, "original-hash")
    moved = data.replace(tap, b"").replace(b"        residual = None\n", tap[4:] + b"        residual = None\n")
    assert all(each.intact for each in TappedFile(moved).found)
    assert cleaned(moved) == (TARGET, "original-hash")
    copied = (
        data
        + b"\n\ndef again(self, aux_hidden_states, i, input_ids, positions, forward_batch):\n    pass\n"
        + tap.lstrip().join([b"    ", b""])
    )
    after, proof = cleaned(copied)
    assert proof == "syntax-tree" and after.startswith(TARGET)


def test_else_hung_on_a_tap():
    data = tapped(TARGET)
    tap = line_of(data, "layer-capture")
    indent = tap[: len(tap) - len(tap.lstrip())]
    hung = data.replace(tap, tap + indent + b"else: pass\n")
    found = [each for each in TappedFile(hung).found if not each.intact]
    assert [each.probe for each in found] == ["layer-capture"] and "else" in found[0].stuck


def test_broken_file_is_cleaned_by_its_hash_alone():
    data = tapped(TARGET)
    tap = line_of(data, "layer-capture")
    broken = data.replace(tap, tap.replace(b"captured(", b"captured(("))
    with pytest.raises(SyntaxError):
        ast.parse(broken)
    assert cleaned(broken) == (TARGET, "original-hash")
    file = TappedFile(broken + b"x = (\n")
    proof, problem = unchanged(file, list(file.found), file.without(file.found), [])
    assert not proof and "no valid Python" in problem


def test_other_encodings():
    original = (
        b"# -*- coding: latin-1 -*-\nimport torch\nname = '\xe9\xe8'  # caf\xe9\n" + TARGET.split(b"import torch\n")[1]
    )
    data = tapped(original)
    assert cleaned(data) == (original, "original-hash")
    edited = data.replace(b"'\xe9\xe8'", b"'\xe9'").replace(
        b"if _specwire.on: _specwire.captured(", b"_specwire.captured("
    )
    after, proof = cleaned(edited)
    assert proof == "syntax-tree" and after == original.replace(b"'\xe9\xe8'", b"'\xe9'")
