"""Generated modules: `strip` keeps every other byte, and never changes what a program computes.

A quick run by default; SPECWIRE_EXAMPLES=5000 makes it a long one.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specwire.strip.plan import plan

EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", 60))
settings.register_profile(
    "strip",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=EXAMPLES <= 60,
)
SETTINGS = settings.get_profile("strip")

GUARDS = [
    'os.environ.get("EAGLE3_DEBUG")',
    'os.environ.get("EAGLE3_DEBUG", "0") == "1"',
    'os.getenv("EAGLE3_DEBUG") is not None',
    'int(os.getenv("EAGLE3_DEBUG", "0"))',
    '"EAGLE3_DEBUG" in os.environ',
    'bool(os.environ.get("EAGLE3_DEBUG")) and x is not None',
    '(os.getenv("EAGLE3_DEBUG") or os.getenv("EAGLE3_TRACE")) and (len(aux) > 1 or not aux)',
    'os.getenv("EAGLE3_DEBUG", "").lower() not in ("", "0", "false")',
]
SAID = [
    ['print("[EAGLE3-DEBUG] x", x, file=sys.stderr)'],
    ['print(f"[EAGLE3-DEBUG] {x}")  # why'],
    ["print(", '    "[EAGLE3-DEBUG]",', "    x,", ")"],
    ['sys.stderr.write("[EAGLE3-DEBUG] \\n")'],
    ['print("[EAGLE3-DEBUG] a"); print("[EAGLE3-DEBUG] b");'],
    ['if x: print("[EAGLE3-DEBUG] x")'],
    ['for k in range(2): print("[EAGLE3-DEBUG]", k)'],
    ['print("""[EAGLE3-DEBUG]', "", '  # no comment""")'],
]
UNTAGGED = [["print(x)"], ["first = x", "print(first)"], ["# only a comment", "print(aux)  # here"], ["pass"]]
FUNCTIONAL = [
    ["hidden_states = spec.hidden_states"],
    ["a = 1; b = 2"],
    ["if x: a = 3"],
    ['print("serving")'],
    ['logger.info("EAGLE %s", x)'],
    ["text = '''", 'print("[EAGLE3-DEBUG]")', "if DEBUG:", "'''"],
    ["c = x + \\", "    1"],
    ["with manager: x = 2"],
    ["@decorated", "def inner(q):", '    """Doc: [EAGLE3-DEBUG]"""', "    return q"],
    ["class Local:", "    value = 1"],
    ["try:", "    x = 1", "finally:", "    x = 2"],
    ["return x"],
]
NOISE = [[], [], [""], ["# comment"], ["", "# [EAGLE3-DEBUG] in a comment", ""], ["        # oddly indented"]]


@st.composite
def block(draw, depth=2):
    """Lines of one block, each with whether it is debug code. At least one statement of the block is not."""
    lines: list[tuple[str, bool]] = []
    count = draw(st.integers(1, 4))
    keep_at = draw(st.integers(0, count - 1))
    for number in range(count):
        lines += [(line, False) for line in draw(st.sampled_from(NOISE))]
        if number == keep_at or draw(st.booleans()):
            if depth and draw(st.booleans()):
                head = draw(
                    st.sampled_from(
                        [
                            "if a:",
                            "for h in aux:",
                            "while x:",
                            "with m as n:",
                            "@dec\ndef g(x, aux):",
                            "class C:",
                        ]
                    )
                )
                inner = draw(block(depth - 1))
                lines += [(line, False) for line in head.split("\n")] + [
                    ("    " + line if line else "", flag) for line, flag in inner
                ]
            else:
                lines += [(line, False) for line in draw(st.sampled_from(FUNCTIONAL))]
        else:
            lines += [(line, True) for line in draw(debug())]
    return lines


@st.composite
def debug(draw):
    """The lines of one piece of debug code that can go as a whole."""
    kind = draw(st.sampled_from(["said", "guard", "once", "one line"]))
    if kind == "said":
        return draw(st.sampled_from(SAID))
    guard = draw(st.sampled_from(GUARDS))
    if kind == "one line":
        return [f"if {guard}: print(x)"]
    if kind == "guard":
        body = [
            line for part in draw(st.lists(st.sampled_from(SAID + UNTAGGED), min_size=1, max_size=3)) for line in part
        ]
        if not any(line for line in body if not line.startswith("#")):
            body.append("pass")
        return [f"if {guard}:"] + ["    " + line if line else "" for line in body]
    flag = draw(st.sampled_from(["_debug_done", "_dbg_once", "_eagle3_debug_printed"]))
    return [
        f'if not hasattr(self, "{flag}"):',
        *("    " + line if line else "" for line in draw(st.sampled_from(SAID))),
        f"    self.{flag} = True",
    ]


@st.composite
def module(draw):
    """(bytes before, bytes expected after)"""
    body = draw(block(3))
    lines = [
        ("import os, sys", False),
        ("def forward(self, x, aux, spec, a, b, m, dec, logger, decorated, manager):", False),
    ]
    lines += [("    " + line if line else "", flag) for line, flag in body]
    lines += [("    return os, sys", False)]
    if draw(st.booleans()):
        lines = [(line.replace("    ", "\t"), flag) for line, flag in lines]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    last = draw(st.sampled_from([end, ""]))
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    before = end.join(line for line, _ in lines) + last
    after = end.join(line for line, flag in lines if not flag) + last
    return bom + before.encode(), bom + after.encode()


@SETTINGS
@given(module())
def test_exactly_the_debug_lines_go(pair):
    before, after = pair
    ast.parse(before)
    found = plan(before, "generated.py")
    assert found.after == after, found.left
    again = plan(found.after, "generated.py")
    assert again.after == found.after and not again.gone


NAMES = ["a", "b", "c"]
VALUES = ["a + 1", "b * 2", "c - a", "len(xs) + c", "sum([a for a in xs])", "max(a, b)"]


@st.composite
def program(draw, depth=3, loop=False, functions=True):
    """Statements over three names, some of them under a debug switch, where they may or may not matter."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["set", "set", "debug", "debug", "if", "for", "try", "say", "def", "leave"]))
        name, value = draw(st.sampled_from(NAMES)), draw(st.sampled_from(VALUES))
        if kind == "set" or (kind == "leave" and not loop) or (kind == "def" and not functions):
            lines.append(f"{name} {draw(st.sampled_from(['=', '=', '+=']))} {value}")
        elif kind == "leave":
            lines += [
                f"if {name} > 3:",
                "    " + draw(st.sampled_from(["break", "continue", f"return {value}"])),
            ]
        elif kind == "say":
            lines.append(f'print("[EAGLE3-DEBUG]", {value})')
        elif kind == "debug":
            lines.append(f"if {draw(st.sampled_from(GUARDS[:5]))}:")
            body = draw(st.lists(st.sampled_from(DEBUG_BODIES), min_size=1, max_size=3))
            lines += ["    " + line.replace("N", name).replace("V", value) for part in body for line in part]
        elif kind == "def":
            lines += [f"def g({draw(st.sampled_from(['', 'a=1', 'b=c']))}):"]
            lines += [
                "    " + line
                for line in [
                    "nonlocal c" if draw(st.booleans()) else "a = b = c = 1",
                    f"c = {value}",
                    "return c",
                ]
            ]
            lines += [f"{name} = g()"]
        elif depth:
            inner = ["    " + line for line in draw(program(depth - 1, loop or kind == "for", False))]
            if kind == "if":
                lines += [f"if {name} % 2:", *inner]
                if draw(st.booleans()):
                    lines += ["else:", *("    " + line for line in draw(program(depth - 1, loop, False)))]
            elif kind == "for":
                lines += [f"for {name} in {draw(st.sampled_from(['xs', 'range(2)', 'xs[:0]']))}:", *inner]
            else:
                lines += [
                    "try:",
                    *inner,
                    f"    {name} = xs[{value}]",
                    "except IndexError:",
                    f"    {name} = {value}",
                ]
        else:
            lines.append(f"{name} = {value}")
    return lines


DEBUG_BODIES = [
    ["print(V)"],
    ["N = V"],
    ["N = V", "print(N)"],
    ["for N in xs:", "    print(N)"],
    ["N += 1"],
    ["print([N for N in xs])"],
    ["print(N := V)"],
    ["import json as N", "print(N)"],
    ["try:", "    print(V)", "except Exception as N:", "    print(N)"],
    ["del N"],
    ["x = V", "print(x)"],
]


@SETTINGS
@given(program())
def test_a_program_computes_the_same_with_and_without(lines):
    text = "import os\ndef f(a, b, c, xs):\n" + "".join(f"    {line}\n" for line in lines) + "    return a, b, c\n"
    try:
        compile(text, "x", "exec")
    except SyntaxError:
        return  # such as `break` outside a loop
    found = plan(text.encode(), "generated.py")
    kept = iter(text.splitlines())
    assert all(line in kept for line in found.after.decode().splitlines())  # a subsequence
    for switch in (None, "1"):
        for arguments in ((1, 2, 3), (4, 0, 1)):
            expected = _result(text, switch, arguments)
            if switch and isinstance(expected, type):
                continue  # debug code that fails once it is on: there is nothing to compare with
            assert expected == _result(found.after.decode(), switch, arguments), found.after.decode()


def _result(text: str, switch: str | None, arguments: tuple) -> object:
    """What the program returns; which error it raises counts, what it says about it does not."""
    space: dict = {}
    patch = pytest.MonkeyPatch()
    patch.delenv("EAGLE3_DEBUG", raising=False)
    if switch:
        patch.setenv("EAGLE3_DEBUG", switch)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, "x", "exec"), space)
            return space["f"](*arguments, [1, 2])
    except (NameError, TypeError, AttributeError) as error:
        return type(error)
    finally:
        patch.undo()
