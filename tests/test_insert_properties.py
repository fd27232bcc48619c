"""Generated targets and drafts: taps keep every byte, read nothing unbound, and change nothing that is computed.

A quick run by default; SPECWIRE_EXAMPLES=5000 makes it a long one.
"""

from __future__ import annotations

import os
import sys
import textwrap
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specwire import registry
from specwire.errors import SpecwireError
from specwire.patching import marks
from specwire.patching.insert import render
from specwire.patching.taps import TappedFile

EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", 40))
settings.register_profile(
    "insert",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=EXAMPLES <= 40,
)
SETTINGS = settings.get_profile("insert")
PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}
TARGET = ["embedding-capture", "layer-capture", "forward-end", "hidden-state-dump"]
DRAFT = ["draft-input", "draft-fc"]

# What may stand between the statements that matter: blocks at no indentation. `{n}` makes names unique; a line
# that begins with \x00 lies inside a string and is not indented.
NOISE = st.sampled_from([
    "", "# a comment", "\n# one\n\n# two", "a{n} = 1; b{n} = 2", "a{n} = 1;", "if self.flag(): a{n} = 1",
    "for _ in range(2): a{n} = _", '"""a string"""', 'a{n} = """one\n\x00  two\n\x00# no comment\n\x00"""', "a{n} = 1 + \\\n    2",
    "def inner{n}(x):\n    # within\n    return x", "@staticmethod\ndef inner{n}(): ...", "with self.context():\n    a{n} = 1  # behind",
    "try:\n    a{n} = 1\nexcept ValueError:\n    pass\nfinally:\n    b{n} = 2", "class Inner{n}: pass",
    "if self.flag():\n    a{n} = 1\nelif self.flag():\n    a{n} = 2\nelse:\n    a{n} = 3  # end", "a{n} = [\n    1,\n    2,\n]",
    "while False: pass", "a{n} = (lambda x: x)(1)", "\f", "a{n} = 'é'",
])  # fmt: skip
# In the templates a line `@@` is where noise may stand, at that indentation.
EMBED = [
    "hidden = self.embed_tokens(input_ids)",
    """
if input_embeds is None:
    hidden = self.embed_tokens(input_ids)
    @@
else:
    hidden = input_embeds
""",
    "hidden = self.embed_tokens(input_ids) if input_embeds is None else input_embeds",
    """
if self.first:
    if input_embeds is not None:
        hidden = input_embeds
    else:
        hidden = self.embed_tokens(input_ids)
    @@
else:
    hidden = given
""",
    "hidden = self.embed_tokens(input_ids)\nhidden = hidden * 2",
]
COLLECTION = [
    "aux = []",
    "aux: list = []",
    "aux = AuxHiddenStateList()",
    "aux = [] if self.flag() else list()",
]
LOOPS = [
    """
for i in range(self.start, self.end):
    @@
    if i in self.layers_to_capture:
        aux.append(hidden + residual)
    @@
    hidden, residual = self.layers[i](hidden, residual)
    @@
""",
    """
for i, layer in enumerate(self.layers):
    @@
    hidden, residual = layer(hidden, residual)
    @@
    if i in self.layers_to_capture:
        # why
        aux.append(hidden + residual)
    @@
""",
    """
for i in range(self.start, self.end):
    with self.context():
        layer = self.layers[i]
        @@
        hidden, residual = layer(
            hidden, residual,
            capture=aux.append if i in self.layers_to_capture else None,
        )  # behind
        @@
    @@
""",
    """
for i in range(self.start, self.end):
    @@
    if i in self.layers_to_capture: aux.append(hidden + residual)
    hidden, residual = self.layers[i].forward(hidden, residual)
""",
    """
for i in range(self.start, self.end):
    @@
    if i in self.layers_to_capture:
        if self.flag():
            aux.append(hidden + residual)
        else:
            @@
            aux.append(hidden)
    layer = self.layers[i]
    @@
    if self.flag():
        hidden, residual = layer(hidden, residual)
    else:
        hidden, residual = layer(hidden, residual)
        @@
""",
]
ENDS = [
    """
hidden = self.norm(hidden, residual)
@@
if len(aux) == 0:
    return hidden
return hidden, aux
""",
    "hidden = self.norm(hidden, residual)\n@@\nreturn (hidden, aux) if aux else hidden",
    """
if self.end in self.layers_to_capture:
    aux.append(hidden)
@@
hidden = self.norm(hidden, residual)
return hidden, aux
""",
    """
try:
    hidden = self.norm(hidden, residual)
    @@
    return hidden, aux
finally:
    self.done = True
""",
    """
if not self.is_last_rank:
    return hidden, residual
else:
    hidden = self.norm(hidden, residual)
    @@
return hidden, aux
""",
]
DRAFTS = [
    """
if input_embeds is None:
    embeds = self.embed_tokens(input_ids)
else:
    embeds = input_embeds
@@
hidden = forward_batch.spec_info.hidden_states
@@
if hidden.shape[-1] != embeds.shape[-1]:
    @@
    hidden = self.fc(hidden)
    @@
@@
return hidden, embeds
""",
    """
hidden = forward_batch.spec_info.hidden_states
@@
embeds = self.embed_tokens(input_ids)
if hidden.shape[-1] != embeds.shape[-1]:
    hidden = self.fc(hidden)
return hidden, embeds
""",
]
HEADS = [
    "",
    "#!/usr/bin/env python\n",
    "# -*- coding: utf-8 -*-\n",
    '"""What the file is for."""\n',
    '"""Doc."""\nfrom __future__ import annotations\n',
]
DOCSTRINGS = ["", '"""What it does.\n\n\x00    At length.\n\x00"""']
DECORATORS = ["", "@wrapped\n", "# said\n@wrapped\n\n"]
BEFORE = ["", "kept = 1\n\n", "def other(self):\n    return 1\n\n"]
AFTER = ["", "\n\ndef last(self): return 2\n", "\n# the end\n"]


@st.composite
def modules(draw, kind: str) -> bytes:
    """A module with one class whose forward is a capture loop's or a draft's, in some layout."""
    if kind == "target":
        parts = [draw(st.sampled_from(EMBED)), "residual = 0", draw(st.sampled_from(COLLECTION))]
        parts += [draw(st.sampled_from(LOOPS)), draw(st.sampled_from(ENDS))]
        signature = "self, input_ids, positions, forward_batch, given, input_embeds=None"
    else:
        parts = [draw(st.sampled_from(DRAFTS))]
        signature = "self, input_ids, positions, forward_batch, input_embeds=None"
    body = "\n@@\n".join([draw(st.sampled_from(DOCSTRINGS)), *(part.strip("\n") for part in parts)])
    method = f"{draw(st.sampled_from(DECORATORS))}def forward({signature}):\n{_indented(body)}\n{draw(st.sampled_from(AFTER))}"
    text = f"{draw(st.sampled_from(HEADS))}import math\n\n\nclass Model:\n{_indented(draw(st.sampled_from(BEFORE)) + method)}\n"
    lines = []
    for line in text.split("\n"):
        lines += _noise(draw, line[: -len("@@")]) if line.strip() == "@@" else [line]
    unit = draw(st.sampled_from(["    ", "\t", "  "]))
    data = "\n".join(_laid_out(line, unit) for line in lines).encode()
    data = data.replace(b"\n", draw(st.sampled_from([b"\n", b"\r\n"])))
    if draw(st.booleans()) and not data.startswith(b"#!"):
        data = b"\xef\xbb\xbf" + data
    return data.rstrip(b"\r\n") if draw(st.integers(0, 5)) == 0 else data


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ", lambda line: bool(line.strip()) and line[0] not in "\x00\f")


def _noise(draw, indentation: str) -> list[str]:
    lines = []
    for number in range(draw(st.integers(0, 2))):
        text = draw(NOISE).replace("{n}", f"{draw(st.integers(0, 99))}_{number}")
        lines += [line if line[:1] in ("", "\x00", "\f") else indentation + line for line in text.split("\n")]
    return lines


def _laid_out(line: str, unit: str) -> str:
    """The line with its indentation in other units; what lies in a string stays."""
    if line.startswith("\x00"):
        return line[1:]
    rest = line.lstrip(" ")
    return unit * ((len(line) - len(rest)) // 4) + rest


class Wide(float):
    """A number with a width, as far as a draft asks for one."""

    @property
    def shape(self):
        return (1, 3 if self > 100 else 1)


class Fake:
    """What a forward needs of `self`, in plain numbers; `flag` gives the drawn answers in turn, the same each time."""

    def __init__(self, answers: list[bool], captured: list[int]) -> None:
        self.answers, self.asked, self.layers_to_capture = answers, 0, captured
        self.start, self.end, self.first, self.is_last_rank = 0, 3, answers[0], answers[1]
        self.layers = [Layer(number) for number in range(3)]

    def flag(self):
        self.asked += 1
        return self.answers[self.asked % len(self.answers)]

    def embed_tokens(self, ids):
        return Wide(ids + 0.5)

    def norm(self, hidden, residual):
        return hidden + residual

    def fc(self, hidden):
        return Wide(hidden / 3)

    def context(self):
        import contextlib

        return contextlib.nullcontext()


class Layer:
    def __init__(self, number):
        self.number = number

    def __call__(self, hidden, residual, capture=None):
        if capture is not None:
            capture(hidden + residual)
        return hidden * 2 + self.number, residual + hidden

    forward = __call__


class Recorder(types.SimpleNamespace):
    """A tap file that only writes down what it is called with."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


def run(data: bytes, monkeypatch, kind: str, on: bool, answers, captured):
    """What forward gives back, and the taps' calls. Anything that a tap raises comes out."""
    recorder = Recorder(on=on, calls=[])
    srt = types.ModuleType("sglang.srt")
    srt._specwire = recorder
    monkeypatch.setitem(sys.modules, "sglang.srt", srt)
    names = {
        "AuxHiddenStateList": type("AuxHiddenStateList", (list,), {}),
        "wrapped": lambda function: function,
    }
    exec(compile(data, "generated", "exec", dont_inherit=True), names)
    batch = types.SimpleNamespace(spec_info=types.SimpleNamespace(hidden_states=Wide(300 if answers[0] else 7)))
    given = {"given": 9.5} if kind == "target" else {}
    embeds = Wide(4.0) if answers[2] else None
    return names["Model"].forward(Fake(answers, captured), 3, 1, batch, input_embeds=embeds, **given), recorder.calls


def rendered(data: bytes, kind: str):
    done = render(
        "sglang/srt/models/generated.py",
        data,
        {name: PROBES[name] for name in (TARGET if kind == "target" else DRAFT)},
    )
    assert not [site for site in done.sites if site.state == "failed"], done.sites
    return done


@pytest.mark.parametrize("kind", ["target", "draft"])
def test_taps(kind, monkeypatch):
    @SETTINGS
    @given(
        modules(kind),
        st.lists(st.booleans(), min_size=3, max_size=7),
        st.lists(st.integers(0, 3), unique=True),
    )
    def check(data, answers, captured):
        compile(data, "generated", "exec", dont_inherit=True)
        try:
            done = rendered(data, kind)
        except SpecwireError as error:
            assert "its last line has no end" in str(error) and not data.endswith(b"\n")
            return
        # Every line that was there is there, byte for byte, in its order; what is new is marked and nothing else.
        lines = done.data.splitlines(keepends=True)
        assert [line for line in lines if marks.LITERAL not in line] == data.splitlines(keepends=True)
        assert b"\r\n" not in data or b"\n" not in done.data.replace(b"\r\n", b"")
        file = TappedFile(done.data)
        assert file.without(file.found) == data
        applied = [site.probe for site in done.sites]
        assert set(applied) == set(TARGET if kind == "target" else DRAFT) and len(file.found) == len(applied) + 1
        # And it computes what it computed.
        plain, _ = run(data, monkeypatch, kind, False, answers, captured)
        assert run(done.data, monkeypatch, kind, False, answers, captured) == (plain, [])
        result, calls = run(done.data, monkeypatch, kind, True, answers, captured)
        assert result == plain
        assert {name for name, _, _ in calls} >= (
            {"captured", "boundary"} if kind == "target" else {"draft_input", "fc_before", "fc_after"}
        )
        for name, args, _ in calls:
            if name == "captured" and isinstance(args[2], int):
                assert 0 <= args[2] <= 3

    check()


@pytest.mark.parametrize("kind", ["target", "draft"])
def test_twice_is_once(kind):
    @SETTINGS
    @given(modules(kind))
    def check(data):
        try:
            done = rendered(data, kind)
        except SpecwireError as error:
            assert "its last line has no end" in str(error) and not data.endswith(b"\n")
            return
        file = TappedFile(done.data)
        assert rendered(file.without(file.found), kind).data == done.data

    check()
