"""`strip` takes debug code that people wrote by hand and nothing else; what stays has a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner
from small_trees import snapshot

from specwire.cli.gate import command as gate_command
from specwire.cli.strip import command
from specwire.errors import SpecwireError
from specwire.strip.plan import plan
from specwire.strip.prove import prove
from specwire.strip.text import Text
from specwire.strip.words import Words
from specwire.trees.transaction import begun_around
from specwire.trees.tree import MARKER

TAKEN = {
    "environ.get": ('if os.environ.get("EAGLE3_DEBUG"):\n    print("x", x.shape, file=sys.stderr)\n', ""),
    "getenv": ('if os.getenv("EAGLE3_DEBUG", "0") == "1":\n    print(x.norm().item())\n', ""),
    "in environ": ('if "EAGLE3_DEBUG" in os.environ:\n    print(x)\n', ""),
    "environ subscript": ('if os.environ["EAGLE3_DEBUG"] != "0":\n    print(x)\n', ""),
    "int": ('if int(os.environ.get("EAGLE3_DEBUG", 0)) > 0:\n    print(x)\n', ""),
    "bool of int": ('if bool(int(os.getenv("EAGLE3_DEBUG", "0"))):\n    print(x)\n', ""),
    "lower in a tuple": ('if os.environ.get("EAGLE3_DEBUG", "").lower() in ("1", "true", "yes"):\n    print(x)\n', ""),
    "is not None": ('if os.environ.get("EAGLE3_DEBUG") is not None:\n    print(x)\n', ""),
    "and": ('if os.environ.get("EAGLE3_DEBUG") == "1" and x.is_cuda and self.layer_id in (2, 30):\n    print(x)\n', ""),
    "nested and, or": (
        'if (os.getenv("EAGLE3_DEBUG") or "EAGLE3_DUMP" in os.environ) and (a or b):\n    print(x)\n', ""),
    "walrus": ('if (level := os.getenv("EAGLE3_DEBUG")):\n    print(level, x)\n', ""),
    "engine's helper": ('if get_bool_env_var("SGLANG_EAGLE3_DEBUG"):\n    logger.info("x %s", x.shape)\n', ""),
    "nested guards": (
        'if os.getenv("EAGLE3_DEBUG"):\n    if x is not None:\n        for i, h in enumerate(aux):\n'
        '            print(i, h.float().norm().item())\n    else:\n        print("none")\n', ""),
    "both branches report": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x)\nelse:\n    pass\n', ""),
    "dump": (
        'if os.getenv("EAGLE3_DEBUG"):\n    os.makedirs("/tmp/d", exist_ok=True)\n'
        '    path = f"/tmp/d/{os.getpid()}.pt"\n    torch.save(x.detach().cpu(), path)\n', ""),
    "file": (
        'if os.getenv("EAGLE3_DEBUG"):\n    with open("/tmp/log", "a") as log:\n        log.write(f"{x.shape}\\n")\n', ""),
    "try around a dump": (
        'if os.getenv("EAGLE3_DEBUG"):\n    try:\n        torch.save(x, "/tmp/x.pt")\n'
        '    except Exception as e:\n        print(e)\n', ""),
    "tagged print": ('print(f"[EAGLE3-DEBUG] {x.shape}", file=sys.stderr, flush=True)\n', ""),
    "tagged logger": ('logger.warning("[EAGLE3-DEBUG] %s", x.shape)\n', ""),
    "tagged write": ('sys.stderr.write(f"[EAGLE3 DEBUG] {x.shape}\\n")\n', ""),
    "tagged over many lines": ('print(\n    "[EAGLE3-DEBUG]",\n    x.shape,  # shape\n)\n', ""),
    "tagged in a plain if": ('if self.layer_id == 0:\n    print("[EAGLE3-DEBUG] first")\n', ""),
    "tagged in a loop": ('for i in range(3):\n    print(f"[EAGLE3-DEBUG] {x[i]}")\n', ""),
    "one-time, hasattr": (
        'if not hasattr(self, "_debug_done"):\n    print(x.shape, file=sys.stderr)\n    self._debug_done = True\n', ""),
    "one-time, getattr": (
        'if not getattr(self, "_debug_done", False):\n    self._debug_done = True\n    print(x)\n', ""),
    "one-time, setattr": ('if not hasattr(self, "_debug_done"):\n    print(x)\n    setattr(self, "_debug_done", True)\n', ""),
    "one-time, any name": ('if not hasattr(self, "_hs_once"):\n    print("[EAGLE3-DEBUG]", x)\n    self._hs_once = 1\n', ""),
    "counter": ('if getattr(self, "_debug_n", 0) < 3:\n    print(x)\n    self._debug_n = getattr(self, "_debug_n", 0) + 1\n', ""),
    "breakpoint": ("breakpoint()\n", ""),
    "pdb": ("import pdb; pdb.set_trace()\n", ""),
    "breakpoint in an if": ("if x.isnan().any():\n    breakpoint()\n", ""),
    "else of a switch that is off": ('if not os.getenv("EAGLE3_DEBUG"):\n    pass\nelse:\n    print(x)\n', ""),
    "elif": ('if a:\n    y = 1\nelif os.getenv("EAGLE3_DEBUG"):\n    print(x)\n', "if a:\n    y = 1\n"),
    "else": ('if a:\n    y = 1\nelse:\n    print("[EAGLE3-DEBUG] no")\n', "if a:\n    y = 1\n"),
    "short-circuit": ('os.getenv("EAGLE3_DEBUG") and print(x)\n', ""),
    "conditional expression": ('print(x) if os.getenv("EAGLE3_DEBUG") else None\n', ""),
    "one-line suite": ('if os.getenv("EAGLE3_DEBUG"): print(x); print(x.shape)\n', ""),
    "two on a line": ('print("[EAGLE3-DEBUG] a"); print("[EAGLE3-DEBUG] b");  # both\n', ""),
    "loop variable used again": (
        'if os.getenv("EAGLE3_DEBUG"):\n    for i in range(2):\n        print(i)\nfor i in range(9):\n    y += i\n',
        "for i in range(9):\n    y += i\n"),
}  # fmt: skip

HEADER = "import os, sys, torch, logging, collections\nlogger = logging.getLogger()\ndef forward(self, x, aux, a, b, y, hidden_states, spec_info):\n    z = x\n"
FOOTER = "    return z, y, hidden_states, os, sys, torch, logger, collections\n"


def inside(body: str) -> bytes:
    """`body` in the middle of a function."""
    return (HEADER + "".join(f"    {line}\n" for line in body.splitlines()) + FOOTER).encode()


@pytest.mark.parametrize("before, after", TAKEN.values(), ids=TAKEN)
def test_taken(before, after):
    found = plan(inside(before), "x.py")
    assert found.after.decode() == inside(after).decode(), found.left
    assert not found.left


LEFT = {
    "functional line inside": (
        'if os.getenv("EAGLE3_DEBUG"):\n    hidden_states = spec_info.hidden_states\n', "binds hidden_states"),
    "call that does more": ('if os.getenv("EAGLE3_DEBUG"):\n    self.reset(x)\n', "calls self.reset()"),
    "in place": ('if os.getenv("EAGLE3_DEBUG"):\n    x.add_(1)\n', "calls x.add_()"),
    "argument that does more": ('if os.getenv("EAGLE3_DEBUG"):\n    print(next(aux))\n', "calls next()"),
    "queue": ('if os.getenv("EAGLE3_DEBUG"):\n    print(aux.get())\n', "calls aux.get()"),
    "random numbers": ('if os.getenv("EAGLE3_DEBUG"):\n    print(torch.rand(3))\n', "calls torch.rand()"),
    "collective": ('if os.getenv("EAGLE3_DEBUG"):\n    torch.distributed.all_reduce(x)\n', "all_reduce"),
    "return": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x)\n    return None\n', "comes next"),
    "raise": ('if os.getenv("EAGLE3_DEBUG"):\n    raise ValueError(x)\n', "comes next"),
    "assert": ('if os.getenv("EAGLE3_DEBUG"):\n    assert x.isfinite().all()\n', "stops the program"),
    "functional else": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x)\nelse:\n    y = self.step(x)\n', "calls self.step()"),
    "switch off": ('if not os.getenv("EAGLE3_DEBUG"):\n    logger.info("serving")\n', "switch is off"),
    "compared with zero": ('if os.getenv("EAGLE3_DEBUG", "0") == "0":\n    print("serving")\n', "switch is off"),
    "or something else": ('if a or os.getenv("EAGLE3_DEBUG"):\n    print("loading")\n', "nothing says"),
    "item of somebody's": ('if os.getenv("EAGLE3_DEBUG"):\n    aux[0] = x\n', "changes what aux holds"),
    "public attribute": ('if os.getenv("EAGLE3_DEBUG"):\n    self.last = x\n', "others may read"),
    "attribute of another": ('if os.getenv("EAGLE3_DEBUG"):\n    self.config.x = 1\n', "sets an attribute of self.config"),
    "prints to a file": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x, file=aux)\n', "writes to aux"),
    "somebody's handle": ('if os.getenv("EAGLE3_DEBUG"):\n    aux.write("x")\n', "calls aux.write()"),
    "shared line": ('z = 2; print("[EAGLE3-DEBUG] x")\n', "shares its line"),
    "shared line, other way": ('print("[EAGLE3-DEBUG] x"); z = 2\n', "shares its line"),
    "only statement of a function": ('def g():\n    print("[EAGLE3-DEBUG] x")\ng()\n', "has to stay"),
    "only statement of a loop": ('for h in aux:\n    print("[EAGLE3-DEBUG]", h)\n', "has to stay"),
    "condition that does more": ('if self.take(x):\n    print("[EAGLE3-DEBUG] x")\n', "has to stay"),
    "own mark": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x)  # specwire:draft-fc 00000000\n', "specwire remove"),
    "elif before an else": (
        'if a:\n    y = 1\nelif os.getenv("EAGLE3_DEBUG"):\n    print(x)\nelse:\n    y = self.step(x)\n', "calls self.step()"),
    "lock": ('if os.getenv("EAGLE3_DEBUG"):\n    with self.lock:\n        print(x)\n', "enters self.lock"),
    "read in a nested function": (
        'if os.getenv("EAGLE3_DEBUG"):\n    z = x.shape\nf = lambda: z\n', "binds z"),
    "locals": ('if os.getenv("EAGLE3_DEBUG"):\n    q = 1\nself.run(**locals())\n', "calls locals()"),
    "functional line in a plain if": (
        'if a:\n    q = spec_info.hidden_states\n    print("[EAGLE3-DEBUG]")\nelse:\n    self.step()\n', ""),
    "unread line in a mixed guard": (
        'if os.getenv("EAGLE3_DEBUG"):\n    q = spec_info.hidden_states\n    self.step()\n', "calls self.step()"),
    "reporting else": (
        'if os.getenv("EAGLE3_DEBUG"):\n    print(x)\nelse:\n    logger.info("serving")\n', "nothing says"),
    "printing else": ('if os.getenv("EAGLE3_DEBUG"):\n    print(x)\nelse:\n    sys.stdout.write("on")\n', "nothing says"),
    "break": ('for h in aux:\n    if os.getenv("EAGLE3_DEBUG"):\n        print(h)\n        break\n', "comes next"),
    "continue": ('for h in aux:\n    if os.getenv("EAGLE3_DEBUG"):\n        continue\n    y += h\n', "comes next"),
    "global": ('if os.getenv("EAGLE3_DEBUG"):\n    global LEVEL\n    LEVEL = 3\ny = LEVEL\n', "LEVEL"),
}  # fmt: skip


@pytest.mark.parametrize("body, reason", LEFT.values(), ids=LEFT)
def test_left_with_a_reason(body, reason):
    before = inside(body)
    found = plan(before, "x.py")
    functional = [line for line in before.splitlines() if b"print" not in line and b"makedirs" not in line]
    assert [line for line in found.after.splitlines() if line in functional] == functional
    assert not reason or any(reason in piece.why for piece in found.left), found.left
    compile(found.after, "x.py", "exec")


LEFTOVERS = sorted(Path(__file__).parents[1].joinpath("fixtures/leftovers").glob("*.py"))


@pytest.mark.parametrize("path", LEFTOVERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_leftovers(path, ends):
    """The samples say themselves which of their lines go, and what has to stay for which reason."""
    lines = [line + ends for line in path.read_bytes().splitlines()]
    found = plan(b"".join(lines), path.name)
    assert found.after == b"".join(line for line in lines if not line.rstrip().endswith(b"# goes"))
    stays = {
        number: line.decode().partition("# stays: ")[2].strip()
        for number, line in enumerate(lines, 1)
        if b"# stays: " in line
    }
    left = {piece.line: piece.why for piece in found.left if not piece.kind.startswith("unused")}
    assert left.keys() == stays.keys() and all(stays[line] in left[line] for line in stays)


def test_there_are_leftovers():
    assert len(LEFTOVERS) >= 3


def test_the_accident_that_must_not_happen():
    """A functional line right above, right below and inside debug blocks; blank lines as they were."""
    before = dedent("""\
        import os
        import sys


        class Draft:
            def forward(self, forward_batch):
                if os.environ.get("EAGLE3_DEBUG"):
                    print("[EAGLE3-DEBUG] in", file=sys.stderr)
                hidden_states = forward_batch.spec_info.hidden_states
                if os.environ.get("EAGLE3_DEBUG"):
                    print("[EAGLE3-DEBUG]", hidden_states.shape, file=sys.stderr)

                if not hasattr(self, "_debug_done"):
                    print("[EAGLE3-DEBUG] once", file=sys.stderr)
                    hidden_states = forward_batch.spec_info.hidden_states
                    self._debug_done = True
                return self.fc(hidden_states)
        """)
    found = plan(before.encode(), "x.py")
    lines = before.splitlines(keepends=True)
    # The mixed block keeps its functional line and what guards it; its print goes.
    assert found.after.decode() == "".join(
        line for number, line in enumerate(lines, 1) if number not in {1, 2, 7, 8, 10, 11, 14}
    )
    assert [(piece.line, "hidden_states" in piece.why) for piece in found.left if piece.line == 13] == [(13, True)]


def test_what_only_debug_code_used_goes_too():
    before = dedent('''\
        """Module."""
        import json
        import os
        import sys
        import time as _time

        DEBUG = os.environ.get("EAGLE3_DEBUG", "0") == "1"
        _DUMP_DIR = "/tmp/dump"
        _eagle3_debug_count = 0
        LIMIT = 3


        def _first(t):
            return t.flatten()[:5].tolist()


        def _debug_on():
            return os.getenv("EAGLE3_DEBUG") == "1"


        def _say(message):
            if not DEBUG:
                return
            print(f"[EAGLE3-DEBUG] {_time.time()} {message}", file=sys.stderr, flush=True)


        class Model:
            _debug_done = False

            def __init__(self):
                self.layers = json.loads("[]")
                self._debug_step = 0

            def forward(self, x):
                global _eagle3_debug_count
                _say(f"x {_first(x)}")
                if _debug_on() and self._debug_step < LIMIT:
                    self._debug_step += 1
                    _eagle3_debug_count += 1
                    print(_DUMP_DIR, _eagle3_debug_count)
                if not self._debug_done:
                    self._debug_done = True
                    print("once", file=sys.stderr)
                return x
        ''')
    after = dedent('''\
        """Module."""
        import json

        LIMIT = 3






        class Model:

            def __init__(self):
                self.layers = json.loads("[]")

            def forward(self, x):
                return x
        ''')
    found = plan(before.encode(), "x.py")
    assert [line for line in found.after.decode().splitlines() if line] == [line for line in after.splitlines() if line]
    assert [(piece.line, piece.kind) for piece in found.left] == [(10, "unused")]  # LIMIT: a public name


STAYS = {
    "import used elsewhere": ("import sys\nprint('[EAGLE3-DEBUG]', file=sys.stderr)\nsys.exit\n", 1),
    "lambda": ("say = lambda x: print('[EAGLE3-DEBUG]', x)\n", 1),
    "one of two imports": ("import os, sys\nprint('[EAGLE3-DEBUG]', file=sys.stderr)\nos.sep\n", 1),
    "own package": ("from .x import y\nprint('[EAGLE3-DEBUG]', y)\n", 1),
    "loud import": ("import triton\nprint('[EAGLE3-DEBUG]', triton)\n", 1),
    "exported": ("import sys\n__all__ = ['sys']\nprint('[EAGLE3-DEBUG]', sys)\n", 1),
    "annotation in quotes": (
        "import types\ndef f(x: 'types.X'): return x\nprint('[EAGLE3-DEBUG]', types)\n",
        1,
    ),
    "constant made by a call": ("_X = make()\nprint('[EAGLE3-DEBUG]', _X)\n", 1),
    "public constant": ("X = 1\nprint('[EAGLE3-DEBUG]', X)\n", 1),
    "local value": ("def f(x):\n    n = x.norm()\n    print('[EAGLE3-DEBUG]', n)\n    return x\n", 2),
}


@pytest.mark.parametrize("text, line", STAYS.values(), ids=STAYS)
def test_what_is_not_shown_to_be_unused_stays(text, line):
    found = plan(text.encode(), "x.py")
    assert text.splitlines()[line - 1] in found.after.decode().splitlines()
    assert "EAGLE3" not in found.after.decode() or found.left[0].kind == "trace"


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no BOM", "BOM"])
@pytest.mark.parametrize("last", [True, False], ids=["newline at the end", "none"])
def test_bytes_of_what_stays(ends, bom, last):
    lines = [
        'print("[EAGLE3-DEBUG]")',
        "",
        "x = 1  ",
        "\tif_ = 2".strip(),
        'print("[EAGLE3-DEBUG] ü")',
        "",
        "y = 'é'",
    ]
    text = ends.join(lines) + (ends if last else "")
    kept = ends.join(line for line in lines if "DEBUG" not in line) + (ends if last else "")
    assert plan(bom + text.encode(), "x.py").after == bom + kept.encode()


def test_declared_encoding():
    text = "# -*- coding: cp1252 -*-\nx = 'é'; z = 1\nif x: print('[EAGLE3-DEBUG] ü')\ny = 'ß'\n"
    assert plan(text.encode("cp1252"), "x.py").after == text.replace("if x: print('[EAGLE3-DEBUG] ü')\n", "").encode(
        "cp1252"
    )


def test_a_comment_must_not_become_the_encoding():
    text = b"# one\nprint('[EAGLE3-DEBUG]')\n# coding: latin-1\n"
    with pytest.raises(SpecwireError, match="encoding"):
        plan(text, "x.py")


@pytest.mark.parametrize("text", [b"", b"# [EAGLE3-DEBUG]\n", b"# specwire:\n", b"\n\n# EAGLE3_DEBUG: remove me\n"])
def test_a_file_without_a_statement(text):
    assert plan(text, "f.py", Words()).after in (text, text.partition(b"# E")[0])


@pytest.mark.parametrize(
    "guard",
    [
        "    rows = out\n    if not hasattr(f, '_debug_done'):\n        print('[EAGLE3-DEBUG]')\n        rows += [1]\n        f._debug_done = True\n",
        "    if out._debug_n < 3:\n        print('[EAGLE3-DEBUG]')\n        out._debug_n += 1\n",
    ],
    ids=["a list grows", "a counter of the class"],
)
def test_a_guard_that_stays_is_found_without_the_report_that_went(tmp_path, guard):
    """`gate` is not clean over what `strip` has left."""
    file = tmp_path / "f.py"
    slots = "class A:\n    __slots__ = ('_debug_n',)\n\n\n"
    file.write_text(f"{slots}def f(out):\n{guard}    return out\n")
    CliRunner().invoke(command, [str(file)], standalone_mode=False)
    assert "EAGLE3" not in file.read_text() and "    if " in file.read_text()
    assert CliRunner().invoke(gate_command, [str(file)], standalone_mode=False).return_value == 1


def test_a_string_must_not_become_the_docstring():
    text = b"def f():\n    print('[EAGLE3-DEBUG]')\n    'not a docstring'\n    return 1\n"
    found = plan(text, "x.py")
    assert found.after == text and "docstring" in found.left[0].why


def test_what_a_comment_allows_stays():
    text = b"breakpoint()  # specwire-allow: breakpoint -- wanted\n# specwire-allow: leftover -- wanted\nprint('[EAGLE3-DEBUG]')\n"
    found = plan(text, "x.py")
    assert found.after == text and [piece.why for piece in found.left] == ["is allowed by the comment on it"] * 2


def test_specwires_own_lines_are_left_and_named(tree):
    file = tree / "sglang" / "srt" / "models" / "llama.py"
    file.write_text(
        "x = 1\nif _specwire.on: _specwire.draft_fc(x)  # specwire:draft-fc 00000000\nprint('[EAGLE3-DEBUG]')\n"
    )
    result = run([str(file)])
    assert "specwire's own lines (2): `specwire remove`" in result.stdout
    assert file.read_text().count("\n") == 2 and "# specwire:draft-fc" in file.read_text()


def test_own_words():
    text = b'if os.getenv("MY_DEBUG_LEVEL"):\n    print(1)\nprint("[dbg] x")\n'
    assert plan(text, "x.py").after == text
    assert plan(text, "x.py", Words(("MY_DEBUG*",), ("[dbg]",))).after == b""


def run(arguments):
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_a_tag_by_its_name():
    text = b"import sys\n_TAG = '[EAGLE3-DEBUG]'\ndef f(x):\n    print(f'{_TAG} {x}', file=sys.stderr)\n    return x\n"
    assert plan(text, "x.py").after == b"def f(x):\n    return x\n"


FLAGS = {
    "global": "_debug_done = False\ndef f(x):\n    global _debug_done\n    if not _debug_done:\n        print(x)\n        _debug_done = True\n    return x\n",
    "function's": "def f(x):\n    if not hasattr(f, '_debug_done'):\n        print(x)\n        f._debug_done = True\n    return x\n",
    "class's": "class M:\n    _debug_done = False\n    def f(self, x):\n        if not M._debug_done:\n            M._debug_done = True\n            print(x)\n        return x\n",
    "type's": "class M:\n    def f(self, x):\n        if not hasattr(type(self), '_debug_done'):\n            print(x)\n            type(self)._debug_done = True\n        return x\n",
    "counter": "import os\n_debug_n = 0\ndef f(x):\n    global _debug_n\n    if os.getenv('EAGLE3_DEBUG') and _debug_n < 3:\n        _debug_n += 1\n        print(x)\n    return x\n",
    "self's switch": "import os\nclass M:\n    def __init__(self):\n        self.n = 1\n        self._debug = os.getenv('EAGLE3_DEBUG') == '1'\n    def f(self, x):\n        if self._debug:\n            print(x)\n        return x\n",
    "cached switch": "import os, functools\n@functools.lru_cache\ndef _debug():\n    return os.getenv('EAGLE3_DEBUG') == '1'\ndef f(x):\n    if _debug():\n        print(x)\n    return x, os, functools\n",
}


@pytest.mark.parametrize("text", FLAGS.values(), ids=FLAGS)
def test_flags_and_switches_of_all_kinds(text):
    found = plan(text.encode(), "x.py")
    assert "debug" not in found.after.decode().lower() and not found.left
    assert [
        line for line in text.splitlines() if line in ("    return x", "        return x", "        self.n = 1")
    ] == [
        line
        for line in found.after.decode().splitlines()
        if line in ("    return x", "        return x", "        self.n = 1")
    ]


@pytest.fixture
def package(tmp_path):
    """A package of two modules, of which the second one reads what the first one's debug code binds."""
    folder = tmp_path / "engine"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model.py").write_text(
        "import os\nDEBUG = os.getenv('EAGLE3_DEBUG')\nclass M:\n    def f(self, x):\n        if DEBUG:\n"
        "            self._debug_hs = x\n            print(x)\n        return x\n"
    )
    return folder


def test_a_reader_in_another_file_is_seen(package):
    (package / "sub" / "reader.py").write_text("from engine.model import DEBUG\n\ndef g(m): return m._debug_hs\n")
    result = run([str(package / "model.py"), "--json"])
    left = json.loads(result.stdout)["left"]
    assert any("reader.py:3 reads" in piece["why"] for piece in left), left
    assert "self._debug_hs = x" in (package / "model.py").read_text()


def test_an_import_from_another_file_is_seen(package):
    (package / "sub" / "reader.py").write_text("from engine.model import DEBUG\n")
    left = json.loads(run([str(package / "model.py"), "--json"]).stdout)["left"]
    assert [(piece["line"], "reader.py:1 reads" in piece["why"]) for piece in left] == [(2, True)]
    assert (package / "model.py").read_text().startswith("import os\nDEBUG = os.getenv('EAGLE3_DEBUG')\nclass M")


def test_the_same_snippet_in_two_files_goes_from_both(package):
    once = "class M{}:\n    def f(self):\n        if not hasattr(self, '_debug_done'):\n            print(1)\n            self._debug_done = True\n        return 1\n"
    for name in "ab":
        (package / f"{name}.py").write_text(once.format(name))
    assert run([str(package), "--check"]).return_value == 1
    assert run([str(package)]).return_value == 0
    assert run([str(package), "--check"]).return_value == 0
    assert "debug" not in (package / "a.py").read_text() + (package / "b.py").read_text()


@pytest.fixture
def tree(tmp_path):
    """An SGLang tree with one file that has debug code in it."""
    models = tmp_path / "tree" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models.parents[1] / "__init__.py").write_text("import time\n")
    (models / "llama.py").write_text("x = 1\nprint('[EAGLE3-DEBUG]')\n")
    return models.parents[2]


def test_a_process_that_runs_from_the_tree_is_in_the_way(tree):
    file = tree / "sglang" / "srt" / "models" / "llama.py"
    script = "import sglang; print('up', flush=True); sglang.time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], cwd=tree, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout.readline() == b"up\n"
            refused = run([str(file)])
            assert isinstance(refused.exception, SpecwireError) and str(server.pid) in str(refused.exception)
            assert "EAGLE3" in file.read_text()
            assert run([str(tree), "--check"]).return_value == 1
            assert run([str(tree), "--force"]).return_value == 0
            assert file.read_text() == "x = 1\n"
        finally:
            server.kill()


def test_a_view_is_stripped_and_what_it_is_a_view_of_is_not(tree, tmp_path):
    file = tree / "sglang" / "srt" / "models" / "llama.py"
    view = tmp_path / "view" / "sglang"
    (view / "srt" / "models").mkdir(parents=True)
    (view / "__init__.py").symlink_to(tree / "sglang" / "__init__.py")
    (view / MARKER).write_text(f"{tree}\n")
    (view / "srt" / "models" / "llama.py").symlink_to(file)
    assert run([str(view)]).return_value == 0
    assert (view / "srt" / "models" / "llama.py").read_text() == "x = 1\n"
    assert "EAGLE3" in file.read_text()


def test_modes_and_exit_codes(package):
    path = package / "model.py"
    before = path.read_bytes()
    for mode in ("--check", "--diff", "--dry-run"):
        result = run([str(path), mode])
        assert result.return_value == (1 if mode == "--check" else 0), result.output
        assert path.read_bytes() == before
    document = json.loads(run([str(path), "--json"]).stdout)
    assert document["schema"] == "specwire.strip/1" and document["result"] == "removed"
    assert path.read_text() == "class M:\n    def f(self, x):\n        return x\n"
    assert json.loads(run([str(path), "--json"]).stdout)["result"] == "nothing"
    assert not [name.name for name in package.iterdir() if name.name.startswith(".")]


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_patch_takes_the_diff(tmp_path, monkeypatch, ends):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mödel.py"
    text = ends.join(
        [
            "x = 1",
            "",
            'print("[EAGLE3-DEBUG]")',
            "",
            "y = 2",
            *["z = 3"] * 9,
            'print("[EAGLE3-DEBUG]")',
            "w = 5",
        ]
    )
    path.write_bytes(text.encode() + f"# EAGLE3_DEBUG: remove me{ends}".encode())
    result = run([path.name, "--diff"])
    assert "[LEFT] mödel.py:16: w = 5# EAGLE3_DEBUG" in result.stderr and "[LEFT]" not in result.stdout
    path.write_bytes(text.encode())
    patch = run([path.name, "--diff"]).stdout_bytes
    subprocess.run(["patch", "-p1", "--binary"], input=patch, check=True, capture_output=True)
    assert path.read_bytes() == text.replace(f'print("[EAGLE3-DEBUG]"){ends}', "").encode()


DEEP = (
    "import os\ndef f(a):\n    if os.environ.get('EAGLE3_DEBUG'):\n        print('[EAGLE3-DEBUG]', a)\n    x = "
    + "+".join(["a"] * 900)
    + "\n    return x\n"
)
ODD = {
    "no Python": b"if os.getenv('EAGLE3_DEBUG'):\nprint(1\n",
    "too deep for us": DEEP.encode(),
    "too deep for the parser": b"x = " + b"-" * 100_000 + b"1\nDEBUG = os.getenv('EAGLE3_DEBUG')\n",
    "too large": b"print('[EAGLE3-DEBUG]')\n" + b"#" * (9 << 20),
    "a zero": b"print('[EAGLE3-DEBUG]')\nx = '\0'\n",
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_one_odd_file_is_named_and_keeps_no_other_back(package, data):
    (package / "odd.py").write_bytes(data)
    assert run([str(package), "--check"]).return_value == 1
    result = run([str(package), "--json"])
    document = json.loads(result.stdout)
    assert result.return_value == 3 and [Path(each["file"]).name for each in document["inconclusive"]] == ["odd.py"]
    assert len(document["inconclusive"][0]["why"]) < 600
    assert document["result"] == "removed" and "print" not in (package / "model.py").read_text()
    assert (package / "odd.py").read_bytes() == data
    result = run([str(package)])
    assert result.return_value == 3 and "inconclusive: " in result.stdout and "1 file not looked into" in result.stderr


@pytest.mark.parametrize("pattern", ["odd.py", "sub", "engine/sub/*", "./engine/sub", "*/sub/odd.py", "od?.py"])
def test_what_is_excluded_is_not_looked_at(package, pattern, monkeypatch):
    monkeypatch.chdir(package.parent)
    (package / "sub" / "odd.py").write_bytes(ODD["no Python"])
    result = run(["engine", "--exclude", pattern, "--json"])
    document = json.loads(result.stdout)
    assert result.return_value == 0 and document["result"] == "removed" and not document["inconclusive"]
    assert document["excluded"] == [os.path.join("engine", "sub", "odd.py")]


@pytest.mark.parametrize("pattern", ["odd", "engine/odd.py", "sub/*", "model"])
def test_what_is_not_excluded_is_looked_at(package, pattern, monkeypatch):
    monkeypatch.chdir(package.parent)
    (package / "sub" / "odd.py").write_bytes(ODD["no Python"])
    assert run(["engine", "--exclude", pattern]).return_value == 3


def test_clean_files_are_not_parsed(package):
    (package / "broken.py").write_text("this is not Python\n")
    assert run([str(package)]).return_value == 0


HARMS = {
    "import that asks": (
        "try:\n    import numpy as np\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
        "def f(x):\n    print('[EAGLE3-DEBUG]', np.asarray(x))\n    return HAS\n",
        "    import numpy as np",
    ),
    "import that asks, suppressed": (
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import numpy as np\n    HAS = True\n"
        "def f(x):\n    print('[EAGLE3-DEBUG]', np.asarray(x))\n    return HAS\n",
        "    import numpy as np",
    ),
    "second of two before a string": (
        "def f():\n    print('[EAGLE3-DEBUG] a')\n    print('[EAGLE3-DEBUG] b')\n    'text'\n    return 1\n",
        "    print('[EAGLE3-DEBUG] b')",
    ),
    "unused import before a string": (
        "import json\nprint('[EAGLE3-DEBUG]', json.dumps(1))\n'text'\nx = 1\n",
        "print('[EAGLE3-DEBUG]', json.dumps(1))",
    ),
    "directory made once": (
        "import os\nclass A:\n    def f(self, x):\n        if not hasattr(self, '_debug_done'):\n            print(x)\n"
        "            os.makedirs(self.cache_dir, exist_ok=True)\n            self._debug_done = True\n        return x\n",
        "            os.makedirs(self.cache_dir, exist_ok=True)",
    ),
    "attribute set once": (
        "class A:\n    def f(self, x):\n        if not hasattr(self, '_debug_done'):\n            print(x)\n"
        "            self._buf_k = x\n            self._debug_done = True\n        return x\n",
        "            self._buf_k = x",
    ),
    "switch that is on by default": (
        "import os, torch\ndef f(x):\n    if os.getenv('EAGLE3_DEBUG', '1') == '1':\n        torch.save(x, '/data/x.pt')\n    return x\n",
        "        torch.save(x, '/data/x.pt')",
    ),
    "switch that unset is on": (
        "import os, torch\nD = os.environ.get('EAGLE3_DEBUG')\ndef f(x):\n    if D != '0':\n        torch.save(x, '/data/x.pt')\n    return x\n",
        "        torch.save(x, '/data/x.pt')",
    ),
    "pattern": (
        "import os\ndef f(v):\n    ns = A\n    if os.getenv('EAGLE3_DEBUG'):\n        ns = B\n    match v:\n"
        "        case ns.X:\n            return 1\n    return 2\n",
        "        ns = B",
    ),
    "attribute by a made-up name": (
        "import os\nclass A:\n    def f(self, x):\n        if os.getenv('EAGLE3_DEBUG'):\n            self._buf_k = x\n"
        "        return [getattr(self, f'_buf_{n}', 0) for n in 'kv']\n",
        "            self._buf_k = x",
    ),
    "global by a made-up name": (
        "import os\n_EAGLE3_DEBUG = os.getenv('EAGLE3_DEBUG')\ndef f(x):\n    if _EAGLE3_DEBUG:\n        print(x)\n"
        "    return globals()['_EAGLE3' + '_DEBUG']\n",
        "_EAGLE3_DEBUG = os.getenv('EAGLE3_DEBUG')",
    ),
    "file moved": (
        "def f(tmp, to):\n    print('[EAGLE3-DEBUG]', tmp.replace(to))\n    return to\n",
        "    print('[EAGLE3-DEBUG]', tmp.replace(to))",
    ),
    "thread waited for": (
        "def f(t):\n    print('[EAGLE3-DEBUG]', t.join(2))\n    return 1\n",
        "    print('[EAGLE3-DEBUG]', t.join(2))",
    ),
    "module converted": (
        "def f(self, x):\n    print('[EAGLE3-DEBUG]', self.head.half())\n    return self.head(x)\n",
        "    print('[EAGLE3-DEBUG]', self.head.half())",
    ),
    "a sentence, no tag": (
        "def f(x):\n    logger.error('EAGLE debug flag is unsupported: %s', x)\n    print('EAGLE dumping graphs to', x)\n    return x\n",
        "    print('EAGLE dumping graphs to', x)",
    ),
}


@pytest.mark.parametrize("text, line", HARMS.values(), ids=HARMS)
def test_what_would_be_missed_stays(text, line):
    assert line in plan(text.encode(), "x.py").after.decode().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "if os.getenv('EAGLE3_DEBUG', '1') == '1':\n    print(x)\n",
        "if os.environ.get('EAGLE3_DEBUG') != '0':\n    print(x)\n",
        "if not hasattr(self, '_debug_done'):\n    norm = x.norm()\n    print(norm)\n    torch.cuda.synchronize()\n    self._debug_done = 1\n",
        "if not hasattr(self, '_debug_done'):\n    print(x)\n    torch.save(x, '/tmp/x.pt')\n    self._debug_done = 1\n",
        "print('eagle3 debug:', x)\n",
        "print('EAGLE3 DEBUG shapes', x.shape)\n",
        "print(f'eagle debug {x}')\n",
    ],
)
def test_debug_code_that_runs_by_default_goes(text):
    lines = "import os, torch\nclass A:\n    def f(self, x):\n{}        return x, os, torch\n"
    body = "".join(f"        {line}\n" for line in text.splitlines())
    assert plan(lines.format(body).encode(), "x.py").after.decode() == lines.format("")


def test_a_name_that_a_star_passes_on_is_seen(package):
    """One module takes all names of the other, and a third one takes its name from there."""
    (package / "model.py").write_text("import json\nprint('[EAGLE3-DEBUG]', json.dumps(1))\nx = 1\n")
    (package / "all.py").write_text("from engine.model import *\n")
    (package / "sub" / "reader.py").write_text("from engine.all import json\n")
    left = json.loads(run([str(package / "model.py"), "--json"]).stdout)["left"]
    assert [(piece["line"], "reader.py:1 reads" in piece["why"]) for piece in left] == [(1, True)]


def test_a_file_that_is_no_source_is_refused(tmp_path):
    (tmp_path / "sglang.zip").write_bytes(b"PK")
    result = CliRunner().invoke(command, [str(tmp_path / "sglang.zip")], standalone_mode=False)
    assert isinstance(result.exception, SpecwireError) and "no Python source" in str(result.exception)


KILLED = """
import os, sys
import specwire.trees.transaction as transaction
from specwire.cli import main
swap, left = transaction._swap, [1]
def until(entry):
    if not left:
        os.kill(os.getpid(), 9)
    left.pop()
    swap(entry)
transaction._swap = until
main(["strip", sys.argv[1]])
"""


@pytest.fixture
def cut_off(tmp_path):
    """Two packages side by side; a run over both was killed when one of three files was changed. (folder, before)"""
    folder = tmp_path / "work"
    for name in ("sglang/srt/x.py", "other/a.py", "other/b.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x = 1\nprint('[EAGLE3-DEBUG]')\n")
    for name in ("sglang", "other"):
        (folder / name / "__init__.py").write_text("")
    before = snapshot(folder)
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], capture_output=True, timeout=60)
    assert done.returncode == -9 and snapshot(folder) != before
    return folder, before


@pytest.mark.parametrize("part", ["", "other", "other/a.py", "sglang"])
def test_what_was_cut_off_is_put_right_by_the_next_run(cut_off, part):
    """Wherever in it that run is made: it starts from the old state, and nothing is lost."""
    folder, before = cut_off
    check = CliRunner().invoke(command, [str(folder / part), "--check"], standalone_mode=False)
    assert "was cut off" in str(check.exception) and check.exception.exit_code == 2
    result = run([str(folder / part)])
    assert "undone: 3 files" in result.stderr, result.stderr
    now = snapshot(folder)
    assert now.keys() == before.keys()
    changed = {name for name in now if now[name] != before[name]}
    assert changed == {name for name in before if name.startswith(part) and name.endswith(("x.py", "a.py", "b.py"))}


def test_what_was_cut_off_is_put_right_by_status(cut_off):
    folder, before = cut_off
    done = subprocess.run(
        [sys.executable, "-c", "from specwire.cli import main; main()", "status", str(folder)], capture_output=True
    )
    assert done.returncode == 0 and b"undone: 3 files" in done.stderr and snapshot(folder) == before


def test_what_another_user_has_begun_above_is_not_ours(cut_off, monkeypatch):
    """A journal in a directory such as /tmp may be anybody's."""
    folder, _ = cut_off
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert begun_around(folder / "other") == []


def test_one_at_a_time_with_apply(cut_off):
    folder, _ = cut_off
    run([str(folder), "--quiet"])
    (folder / "other" / "a.py").write_text("x = 1\nprint('[EAGLE3-DEBUG]')\n")
    (folder / "sglang" / "srt" / "x.py").write_text("x = 1\nprint('[EAGLE3-DEBUG]')\n")
    hold = "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(folder / "sglang")], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        result = CliRunner().invoke(command, [str(folder)], standalone_mode=False)
        other.kill()
    assert "another specwire is at work" in str(result.exception)


CONSUMING = {
    "an iterator": ("it = iter(aux)\nprint('[EAGLE3-DEBUG]', list(it))\ny = list(it)\n", "walks over it"),
    "a starred one": ("it = (v for v in range(3))\nprint('[EAGLE3-DEBUG]', *it)\ny = list(it)\n", "walks over it"),
    "one in a loop": ("it = zip(a, b)\nfor v in it:\n    print('[EAGLE3-DEBUG]', v)\ny = list(it)\n", "has to stay"),
    "one that came as it is": ("def g(rows):\n    print('[EAGLE3-DEBUG]', sum(rows))\n    return sum(rows)\ng(a)\n", "walks over"),
    "defaultdict": (
        "seen = collections.defaultdict(list)\nprint('[EAGLE3-DEBUG]', seen['r1'])\ny = len(seen)\n", "may add it"),
    "an alias": (
        "_debug_rows = y\nif not hasattr(self, '_debug_done'):\n    print('[EAGLE3-DEBUG] rows')\n    _debug_rows += [1]\n"
        "    self._debug_done = True\n", "in place"),
    "a module": ("self.fc = a()\nprint('[EAGLE3-DEBUG]', self.fc.to('cpu'))\n", "converts a module"),
    "a final norm": ("print('[EAGLE3-DEBUG]', self.norm(x, y))\n", "calls self.norm()"),
    "a question": ("print('[EAGLE3-DEBUG]', aux.is_done_and_pop())\n", "is_done_and_pop"),
    "an answered error": (
        "try:\n    print('[EAGLE3-DEBUG]', aux['x'])\n    y = 1\nexcept KeyError:\n    y = 2\n", "may a"),
    "an answered division": (
        "try:\n    print('[EAGLE3-DEBUG]', a / b)\n    y = 1\nexcept ZeroDivisionError:\n    y = 2\n", "may raise ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("body, reason", CONSUMING.values(), ids=CONSUMING)
def test_a_read_that_changes_what_is_read_is_no_look(body, reason):
    before = inside(body)
    found = plan(before, "x.py")
    shown = [line for line in body.splitlines() if "rows')" not in line]
    assert all(f"    {line}" in found.after.decode().splitlines() for line in shown)
    assert any(reason in piece.why for piece in found.left), found.left


LOOKING = [
    "print('[EAGLE3-DEBUG]', [tuple(h.shape) for h in aux], len(aux))",
    "print('[EAGLE3-DEBUG]', list(hidden_states.shape), hidden_states[0, :5].float().tolist())",
    "print('[EAGLE3-DEBUG]', x.float().norm().item(), x[0, :5].to('cpu').tolist())",
    "print('[EAGLE3-DEBUG]', spec_info.forward_mode.is_decode(), self.layer_id in self.layers_to_capture)",
    "print('[EAGLE3-DEBUG]', sum(p.numel() for p in self.parameters()))",
]


@pytest.mark.parametrize("line", LOOKING)
def test_what_only_looks_at_tensors_goes(line):
    assert plan(inside(line + "\n"), "x.py").after == inside("")


FIELDS = {
    "dataclass": "@dataclass\nclass S:\n    rows: int\n    _debug_done: bool = False\n",
    "NamedTuple": "class S(NamedTuple):\n    rows: int\n    _debug_done: bool = False\n",
    "Enum": "class S(IntEnum):\n    ROWS = 1\n    _debug_done = 2\n",
    "pydantic": "class S(BaseModel):\n    rows: int\n    _debug_done: bool = False\n",
    "metaclass": "class S(metaclass=Meta):\n    _debug_done = False\n",
}


@pytest.mark.parametrize("text", FIELDS.values(), ids=FIELDS)
def test_a_field_of_a_class_that_is_more_than_its_attributes_stays(text):
    step = "def step(s):\n    if not s._debug_done:\n        print('[EAGLE3-DEBUG]', s.rows)\n        s._debug_done = True\n    return s.rows\n"
    found = plan((text + step).encode(), "x.py")
    assert text in found.after.decode() and "print" not in found.after.decode()
    assert any("belongs to the class S" in piece.why for piece in found.left), found.left


@pytest.mark.parametrize(
    "reader", ["m = M()\nvars(m)\n", "m = M()\nm.__dict__\n", "json.dumps(M(), default=vars)\n", "dir(M())\n"]
)
def test_who_reads_all_attributes_reads_a_flag(reader, package):
    flag = "class M:\n    def f(self):\n        if not hasattr(self, '_debug_done'):\n            print('[EAGLE3-DEBUG]')\n            self._debug_done = 1\n        return 1\n"
    (package / "model.py").write_text(flag)
    assert "_debug_done" not in plan(flag.encode(), "x.py").after.decode()
    assert "_debug_done" in plan((flag + reader).encode(), "x.py").after.decode()
    (package / "sub" / "reader.py").write_text("from engine.model import M\n" + reader)
    run([str(package / "model.py")])
    assert "self._debug_done = 1" in (package / "model.py").read_text()


@pytest.mark.parametrize("body", ["return self.rows", "return self.rows.pop()"])
def test_a_question_is_what_its_body_says(body, package):
    """Whether a method of the package only looks is read where it is defined."""
    (package / "sub" / "batch.py").write_text(f"class B:\n    def is_quite_done(self):\n        {body}\n")
    (package / "model.py").write_text("def f(b):\n    print('[EAGLE3-DEBUG]', b.is_quite_done())\n    return b\n")
    run([str(package / "model.py")])
    assert ("print" in (package / "model.py").read_text()) is ("pop" in body)


def test_a_class_attribute_that_another_file_reads_stays(package):
    (package / "model.py").write_text("import os\nclass M:\n    _debug = os.getenv('EAGLE3_DEBUG')\n    x = 1\n")
    (package / "sub" / "reader.py").write_text("from engine.model import M\n\nprint(M._debug)\n")
    left = json.loads(run([str(package / "model.py"), "--json"]).stdout)["left"]
    assert [(piece["line"], "reader.py:3 reads" in piece["why"]) for piece in left] == [(3, True)]


REACHED = {
    "constant that is off": "EAGLE3_DEBUG = False\ndef f(x):\n    if EAGLE3_DEBUG:\n        print('fc out', x)\n    return x\n",
    "constant that is on": "EAGLE3_DEBUG = True\ndef f(x):\n    if EAGLE3_DEBUG:\n        print('fc out', x)\n    return x\n",
    "constant in a class": "class M:\n    y = 1\n    EAGLE3_DEBUG = 0\n    def f(self, x):\n        if self.EAGLE3_DEBUG:\n            print(x)\n        return x\n",
    "lower case": "eagle3_debug = False\ndef f(x):\n    if eagle3_debug:\n        print(x)\n    return x\n",
    "plain DEBUG": "DEBUG = False\ndef f(hidden_states):\n    if DEBUG:\n        print('x', hidden_states.shape)\n    return 1\n",
    "[DEBUG]": "def f(hidden_states):\n    print(f'[DEBUG] after fc: {hidden_states.shape}')\n    return 1\n",
    "DEBUG:": "def f(hidden_states):\n    print('DEBUG: after fc', hidden_states.shape)\n    return 1\n",
    "E3": "def f(x):\n    print(f'[E3-SCALE] {x.norm().item()}', flush=True)\n    print('E3-VERIFY', x.shape)\n    return x\n",
    "DIAG": "class M:\n    def f(self, x):\n        if not hasattr(self, '_diag_ct'):\n            self._diag_ct = 0\n            print('[DIAG]', x.shape)\n        return x\n",
    "[EAGLE3] in a log": "def f(x):\n    logger.debug('[EAGLE3] %s', x.shape)\n    return x\n",
    "icecream": "from icecream import ic\ndef f(x):\n    ic(x)\n    return x\n",
    "comment above": "def f(x):\n    # [EAGLE3_DEBUG] what was accepted,\n    # by chain\n    print('[EAGLE3_DEBUG]', x)\n    return x\n",
    "debug only": "def f(x):\n    # debug only, remove before production\n    print('[EAGLE3_DEBUG]', x)\n    return x\n",
}  # fmt: skip


@pytest.mark.parametrize("text", REACHED.values(), ids=REACHED)
def test_what_people_leave_is_found_and_goes(text):
    found = plan(text.encode(), "x.py")
    assert Words().suspects(text.encode())
    words = ("debug", "print(", "DIAG", "[E", "ic(", "_diag", "#")
    assert not any(word in found.after.decode().lower() for word in words) and not found.left, found.left
    assert found.after.decode().count("return") == 1


NAMED = {
    "print of the states": ("def forward(self, hidden_states):\n    print('x', hidden_states[0, :5])\n    return 1\n", 2),
    "log of the states": ("def forward(self, hidden_states):\n    logger.info('x %s', hidden_states.shape)\n    return 1\n", 2),
    "log of their values": ("def g(hidden_states):\n    logger.info(\n        'x %s',\n        hidden_states.norm(),\n    )\n    return 1\n", 2),
    "dump of the states": ("def forward(self, hidden_states):\n    torch.save(hidden_states, '/data/x.pt')\n    return 1\n", 2),
    "dump to /tmp": ("import torch\ndef forward(self, x):\n    torch.save(x, '/tmp/x.pt')\n    return 1\n", 3),
    "dump by its name": ("import torch\ndef g(x):\n    torch.save(x, '/data/eagle3_debug_fc.pt')\n", 3),
    "dumped once": ("import torch\ndef g(self, x):\n    if not hasattr(self, '_dumped'):\n        self._dumped = True\n        torch.save(x, '/tmp/x.pt')\n    return x\n", 3),
    "once by a helper": ("class M:\n    def f(self, x):\n        if not self._debug_saved:\n            self._save(x)\n            self._debug_saved = True\n        return x\n    def _save(self, x):\n        torch.save(x, '/data/x.pt')\n", 3),
    "timing with": ("def f(self, x):\n    with _eagle3_debug_timer('fc'):\n        x = self.fc(x)\n    return x\n", 2),
    "decorator": ("@debug_eagle3\ndef f(x):\n    return x\n", 1),
    "field": ("@dataclass\nclass S:\n    rows: int\n    _debug_x: Optional[tuple] = None\n", 4),
    "comment": ("x = 1\n# EAGLE3_DEBUG: remove me\ny = 2\n", 2),
    "comment beside": ("import logging\nlogging.getLogger().setLevel(logging.DEBUG)  # EAGLE3 DEBUG\n", 2),
    "switch from elsewhere": ("from engine.dbg import EAGLE3_DEBUG\ndef f(x):\n    if EAGLE3_DEBUG:\n        x.reset()\n    return x\n", 1),
    "constant that others read": ("EAGLE3_DEBUG = False\ndef f(x):\n    if EAGLE3_DEBUG:\n        x.reset()\n    return x\n", 1),
}  # fmt: skip


@pytest.mark.parametrize("text, line", NAMED.values(), ids=NAMED)
def test_what_stays_is_named_and_gate_is_never_clean_over_it(text, line, tmp_path):
    found = plan(text.encode(), "x.py")
    assert line in {piece.line for piece in found.left} and all(piece.why for piece in found.left)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.py").write_text(text)
    assert run([str(tmp_path)]).return_value == 0
    gated = CliRunner().invoke(gate_command, [str(tmp_path)], standalone_mode=False)
    assert gated.return_value == 1, gated.output


HUSKS = {
    "decorator": "import functools, os\ndef debug_trace(fn):\n    @functools.wraps(fn)\n    def wrapper(*args, **kwargs):\n        out = fn(*args, **kwargs)\n        if os.environ.get('EAGLE3_DEBUG'):\n            print(fn.__name__, type(out))\n        return out\n    return wrapper\n@debug_trace\ndef f():\n    return 3\n",
    "decorator by another name": "import os\ndef shown(fn):\n    def wrapper(*args):\n        if os.environ.get('EAGLE3_DEBUG'):\n            print(args)\n        return fn(*args)\n    return wrapper\n@shown\ndef f():\n    return 3\n",
    "context manager": "import contextlib, os, time\n@contextlib.contextmanager\ndef timer():\n    begun = time.time()\n    yield\n    if os.environ.get('EAGLE3_DEBUG'):\n        print(time.time() - begun)\ndef f(x):\n    with timer():\n        return x\n",
}  # fmt: skip


@pytest.mark.parametrize("text", HUSKS.values(), ids=HUSKS)
def test_what_carries_a_report_is_not_hollowed_out(text):
    """Its report stays where it is, and is named: a hollow wrapper would be found by nobody any more."""
    found = plan(text.encode(), "x.py")
    assert found.after.decode() == text and any("take both out by hand" in piece.why for piece in found.left)


def test_a_handler_that_only_raises_again_is_named():
    text = "import pdb\ndef f(x):\n    try:\n        return x.run()\n    except Exception:\n        pdb.post_mortem()\n        raise\n"
    found = plan(text.encode(), "x.py")
    assert "pdb" not in found.after.decode()
    assert [(piece.line, piece.kind) for piece in found.left] == [(5, "husk")]


OWN = {
    "rows and type alone": "def forward(self, hidden_states):\n    logger.info('%s %s', hidden_states.shape[0], hidden_states.dtype)\n",
    "a trace by the engine's own switch": "def forward(self, hidden_states):\n    if trace_norm:\n        print(f'SGLANG_TRACE_NORM hidden={tuple(hidden_states.shape)}', flush=True)\n    return 1\n",
    "a shape outside of a forward": "def run(self, hidden_states):\n    logger.warning('%s', tuple(hidden_states.shape))\n",
    "a tag in another business": "def report(x):\n    print('[DEBUG] session finished', x)\n",
    "a comment on debugging": "def f(hidden_states):\n    # log for debugging only\n    return hidden_states\n",
    "diagonals": "def f(g_diag, hidden_states):\n    block_diag = g_diag * 2  # diag(beta)\n    return block_diag\n",
    "a switch of the engine's": "class P:\n    _debug_transfer = logger.isEnabledFor(logging.DEBUG)\n    def f(self, hidden_states):\n        return 1\n",
}


@pytest.mark.parametrize("text", OWN.values(), ids=OWN)
def test_what_is_the_engines_own_is_not_named(text):
    found = plan(text.encode(), "x.py")
    assert not found.gone and not found.left


UNGUARDED = """def verify(self, index, lens, packed):
    # debug only: may go before production
    expected = []
    for i, n in enumerate(lens.tolist()):  # a sync, debug only
        expected.extend(range(i * self.width, i * self.width + n))
    is_tree = set(index.tolist()) != set(expected)  # a sync, debug only
    if is_tree:
        print(f"[EAGLE3_DEBUG] tree: {lens.tolist()}")
    return packed
"""


def test_what_a_comment_calls_debug_only_goes_with_what_used_it():
    found = plan(UNGUARDED.encode(), "x.py")
    assert found.after.decode() == "def verify(self, index, lens, packed):\n    return packed\n" and not found.left


@pytest.mark.parametrize(
    "line",
    [
        "    return packed, expected",
        "    return packed, i",
        "    self.run(is_tree)",
        "    kept = expected\n    return kept",
    ],
)
def test_what_is_used_stays_whatever_a_comment_says(line):
    text = UNGUARDED.replace("    return packed", line)
    after = plan(text.encode(), "x.py").after.decode()
    assert line in after and "print" not in after
    assert "is_tree" not in line or "is_tree = " in after
    assert "expected" not in line or "expected.extend" in after
    assert ", i" not in line or "for i, n" in after


def test_the_proof_refuses_what_is_not_the_original_without_the_statements():
    text = Text(b"x = 1\nprint('[EAGLE3-DEBUG]')\ny = 2\n", "x.py")
    gone = [text.tree.body[1]]
    prove(text, b"x = 1\ny = 2\n", gone, {2})
    with pytest.raises(AssertionError, match="not the original's"):
        prove(text, b"x = 1\n", gone, {2, 3})
    with pytest.raises(SpecwireError, match="read differently"):
        prove(text, b"x = 1\r\ny = 2\n", gone, {2})


def test_strip_and_gate_ask_neither_torch_nor_the_engine(package):
    code = (
        "import sys\nfrom specwire.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'sglang', 'libcst', 'numpy') if name in sys.modules])"
    )
    for words in (["strip", str(package)], ["gate", str(package)]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]", done


COUNTER = """class M:
    def forward(self, hidden_states, embeds):
        if not hasattr(self, '_diag_ct'):
            self._diag_ct = 0
        self._diag_ct += 1
        if self._diag_ct <= 5:
            norm = hidden_states.float().norm().item()
            print(f"[E3-SCALE] {norm:.3f}", flush=True)
        return self.fc(hidden_states)
"""
BARE = "class M:\n    def forward(self, hidden_states, embeds):\n        return self.fc(hidden_states)\n"


@pytest.mark.parametrize("name", ["_diag_ct", "_debug_step", "_dbg_n"])
def test_a_counter_of_reports_goes_with_them(name):
    text = COUNTER.replace("_diag_ct", name)
    found = plan(text.encode(), "x.py")
    assert found.after.decode() == BARE and not found.left
    in_init = text.replace(f"        if not hasattr(self, '{name}'):\n            self", "        self", 1)
    assert plan(in_init.encode(), "x.py").after.decode() == BARE


@pytest.mark.parametrize(
    "before, after",
    [
        ("        return", "        self.log(self._diag_ct)\n        return"),  # somebody reads it
        ("self._diag_ct = 0", "self._diag_ct = self.start"),  # no number of its own
        ("            norm =", "            self.reset()\n            norm ="),  # more than a report
        ("<= 5:", "<= 5 and self.take():"),
    ],
)
def test_a_counter_that_has_a_use_stays(before, after):
    text = COUNTER.replace(before, after, 1)
    found = plan(text.encode(), "x.py")
    assert "self._diag_ct += 1" in found.after.decode() and after.strip().splitlines()[0] in found.after.decode()
    assert found.left
