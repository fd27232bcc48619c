"""What a tap may read where: only what is bound on every way there."""

import textwrap

import pytest

from specwire.sites.bindings import made_from, readable, reading, sources_of
from specwire.sites.source import Source


def place_in(body: str, parameters: str = "self, given"):
    """The function of `body`, and its statement that says `here`."""
    text = (
        f"import torch\ndef forward({parameters}):\n"
        + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        + "\n"
    )
    (function,) = Source("case.py", text.encode()).functions
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "here" in each)
    return next(place for place in reversed(function.places) if place.lines[0] == line)


BEFORE = {
    "a parameter": ("here = 1", "given", "given"),
    "assigned": ("x = 1\nhere = 1", "x", "x"),
    "assigned later": ("here = 1\nx = 1", "x", None),
    "assigned in both branches": ("if a:\n    x = 1\nelse:\n    x = 2\nhere = 1", "x", "x"),
    "assigned in one branch": ("if a:\n    x = 1\nhere = 1", "x", None),
    "assigned where a flag is set": ("if flag:\n    x = 1\nhere = 1", "x", None),
    "assigned where a known flag is set": ("flag = a()\nif flag:\n    x = 1\nhere = 1", "x", "x if flag else None"),
    "the flag is set anew": ("flag = a()\nif flag:\n    x = 1\nflag = b()\nhere = 1", "x", None),
    "the other branch leaves": ("if a:\n    x = 1\nelse:\n    return\nhere = 1", "x", "x"),
    "an elif without an else": ("if a:\n    x = 1\nelif b:\n    x = 2\nhere = 1", "x", None),
    "assigned in a with": ("with context:\n    x = 1\nhere = 1", "x", "x"),
    "assigned where errors are swallowed": ("with suppress(ValueError):\n    x = f()\nhere = 1", "x", None),
    "assigned in a loop": ("for i in a:\n    x = 1\nhere = 1", "x", None),
    "assigned in a try": ("try:\n    x = 1\nexcept ValueError:\n    pass\nhere = 1", "x", None),
    "the loop's own variable": ("for i, x in a:\n    here = 1", "x", "x"),
    "the loop's own variable, after it": ("for x in a:\n    pass\nhere = 1", "x", None),
    "deleted": ("x = 1\ndel x\nhere = 1", "x", None),
    "deleted and bound anew": ("x = 1\ndel x\nx = 2\nhere = 1", "x", "x"),
    "a parameter, deleted": ("del given\nhere = 1", "given", None),
    "deleted by the turn before": ("x = 1\nfor i in a:\n    here = 1\n    del x", "x", None),
    "read by the statement itself": ("here = f(x)", "x", "x"),
    "read by it, perhaps": ("here = f(x if a else y)", "x", None),
    "read by it, behind an and": ("if a and x:\n    pass  # here\n", "x", None),
    "read by its test": ("if x and here:\n    pass", "x", "x"),
    "read in a lambda": ("here = lambda: x", "x", None),
    "a nested function": ("def x():\n    pass\nhere = 1", "x", "x"),
    "annotated only": ("x: int\nhere = 1", "x", None),
    "annotated itself, without a value": ("here: int", "x", None),
    "unpacked": ("(x, y), z = f()\nhere = 1", "y", "y"),
}


@pytest.mark.parametrize("body, name, expected", BEFORE.values(), ids=BEFORE)
def test_before(body, name, expected):
    assert reading(place_in(body), "before", name) == expected


@pytest.mark.parametrize(
    "body, name, expected",
    [
        ("here = x = 1", "x", True),
        ("if here:\n    x = 1\nelse:\n    x = 2", "x", True),
        ("if here:\n    x = 1", "x", False),
        ("for here in a:\n    x = 1", "x", False),
        ("del given, here", "given", False),
    ],
)
def test_after(body, name, expected):
    assert readable(place_in(body), "after", name) is expected


def test_where_a_value_comes_from_and_goes_to():
    place = place_in("a = f(given)\nb, c = g(a)\nd = 1\nhere = c + d")
    assert sources_of(place.function, "c") == {"c", "g", "a", "f", "given"}
    assert made_from(place.function, {"a"}) == {"a", "b", "c", "here"}
