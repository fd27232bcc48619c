"""The matchers on structures that releases have had, and on ones that they have not: never a guess, never silence."""

import re
import textwrap

import pytest

from specwire import registry
from specwire.patching.insert import render

PROBES = {name: module.PROBE for name, module in registry.modules("specwire.codemods").items()}


def taps(source: str, *probes: str, name: str = "sglang/srt/models/case.py", read=lambda name: None):
    """The inserted calls without their batch arguments, in file order; and what else was said, as (state, qualname, why)."""
    data = textwrap.dedent(source).lstrip("\n").encode()
    done = render(name, data, {probe: PROBES[probe] for probe in probes}, read)
    lines = [
        line.strip()
        for line in done.data.decode().splitlines()
        if "# specwire:" in line and "specwire:import" not in line
    ]
    calls = [re.sub(r"  # specwire:.*", "", line).removeprefix("if _specwire.on: _specwire.") for line in lines]
    short = [re.sub(r", (input_ids|positions|forward_batch)=\1", "", call) for call in calls]
    return short, [(site.state, site.qualname, site.why) for site in done.sites if site.state != "applied"]


def failure(source: str, *probes: str, **more) -> str:
    """The reason of the one site that was not recognised."""
    calls, said = taps(source, *probes, **more)
    assert not calls
    assert [state for state, _, _ in said] == ["failed"]
    return said[0][2]


LOOP = """
    import torch
    class Model:
        def forward(self, input_ids, positions, forward_batch, input_embeds=None):
            if input_embeds is None:
                hidden_states = self.embed_tokens(input_ids)
            else:
                hidden_states = input_embeds
            residual = None
            aux_hidden_states = []
            for i in range(self.start_layer, self.end_layer):
                if i in self.layers_to_capture:
                    aux_hidden_states.append(hidden_states + residual)
                layer = self.layers[i]
                hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
            hidden_states, _ = self.norm(hidden_states, residual)
            if len(aux_hidden_states) == 0:
                return hidden_states
            return hidden_states, aux_hidden_states
"""


def swapped(*pairs: tuple[str, str], source: str = LOOP) -> str:
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source


def with_body(body: str, end: str = "return hidden_states, aux") -> str:
    """A target whose forward is `body`, between an embedding and a return."""
    inside = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 12)
    return f"""
    import torch
    class Model:
        def forward(self, input_ids, positions, forward_batch):
            hidden_states = self.embed_tokens(input_ids)
{inside}
            {end}
"""


# --- which boundary a capture is ---------------------------------------------------------------------

CAPTURES = {
    "before the layer": (LOOP, ["captured(self, aux_hidden_states, i)"]),
    "after the layer, by the layer's number": (
        with_body("""
            aux = []
            for i, layer in enumerate(self.layers):
                hidden_states = layer(positions, hidden_states)
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
        """),
        ["captured(self, aux, i + 1, after=True)"],
    ),
    "after the layer, by the boundary": (
        with_body("""
            aux = []
            if self.start_layer in self.layers_to_capture:
                aux.append(hidden_states)
            for i in range(self.start_layer, self.end_layer):
                hidden_states, residual = self.layers[i](positions, hidden_states)
                if i + 1 in self.layers_to_capture:
                    aux.append(hidden_states + residual)
        """),
        ["captured(self, aux, self.start_layer)", "captured(self, aux, i + 1)"],
    ),
    "by the layer, at its input, id one less": (
        with_body("""
            aux = AuxHiddenStateList()
            for i in range(self.start_layer, self.end_layer):
                layer = self.layers[i]
                hidden_states = layer(hidden_states, capture_output=aux.capture if i > 0 and i - 1 in self.layers_to_capture else None)
        """),
        ["captured(self, aux, i, after=True)"],
    ),
    "by the layer, flagged on the layer": (
        with_body("""
            aux = []
            for i in range(len(self.layers)):
                with recorder(i):
                    layer = self.layers[i]
                    hidden_states = layer(
                        hidden_states, captured_last_layer_outputs=aux if getattr(layer, "_is_layer_to_capture", False) else None
                    )
        """),
        ["captured(self, aux, i)"],
    ),
    "through a local that holds the method": (
        with_body("""
            aux = AuxHiddenStateList()
            for number, layer in enumerate(self.layers[self.start_layer : self.end_layer]):
                number += self.start_layer
                capture = aux.capture if number in self.layers_to_capture else None
                if self.other_order:
                    hidden_states = layer(hidden_states, order=1, capture_output=capture)
                else:
                    hidden_states = layer(hidden_states, capture_output=capture)
        """),
        ["captured(self, aux, number)", "captured(self, aux, number)"],
    ),
    "through a function of its own, which is not always there": (
        with_body("""
            collects = self.layers_to_capture is not None
            if collects:
                aux = AuxHiddenStateList()
                def keep(value, *, owned=False):
                    aux.capture(value, owned=owned)
            for i in range(self.start_layer, self.end_layer):
                hidden_states = self.layers[i](hidden_states, capture_output=keep if collects and i - 1 in self.layers_to_capture else None)
            hidden_states = final_norm(hidden_states, capture=keep if collects and self.end_layer - 1 in self.layers_to_capture else None)
        """, "return hidden_states"),
        ["captured(self, aux if collects else None, i, after=True)", "captured(self, aux if collects else None, self.end_layer, after=True)"],
    ),
    "through one of two functions of its own": (
        with_body("""
            aux = AuxHiddenStateList()
            other = AuxHiddenStateList()
            def drop(value):
                other.capture(value)
            def keep(value):
                aux.capture(value)
            for i in range(self.start_layer, self.end_layer):
                hidden_states = self.layers[i](hidden_states, capture_output=keep if i - 1 in self.layers_to_capture else None)
        """),
        ["captured(self, aux, i, after=True)"],
    ),
    "unrolled, by a number of its own": (
        with_body("""
            aux = AuxHiddenStateList()
            for turn in range(self.turns):
                for i in range(self.start_layer, self.end_layer):
                    logical = turn * self.count + i
                    hidden_states = self.layers[i](hidden_states, capture_output=aux.capture if logical in self.layers_to_capture else None)
        """),
        ["captured(self, aux, logical)"],
    ),
    "gathered or not, in one choice": (
        with_body("""
            aux = []
            for i in range(self.start_layer, self.end_layer):
                if i in self.layers_to_capture:
                    if self.gathers and i > 3:
                        state = all_gather(hidden_states + residual, dim=0)
                        aux.append(state)
                    else:
                        aux.append(hidden_states + residual)
                hidden_states, residual = self.layers[i](hidden_states, residual)
        """),
        ["captured(self, aux, i)"],
    ),
    "the layer's own number": (
        with_body("""
            aux = [] if self.ids_to_capture else None
            for layer in self.layers:
                hidden_states = layer(hidden_states)
                if aux is not None and layer.layer_id in self.ids_to_capture:
                    aux.append(hidden_states)
        """),
        ["captured(self, aux, layer.layer_id + 1, after=True)"],
    ),
    "the end of the stack, by a number that a test may not reach": (
        with_body("""
            aux = []
            for i in range(self.start_layer, self.end_layer):
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
                hidden_states = self.layers[i](hidden_states)
            if self.is_last and self.config.num_layers in self.layers_to_capture:
                aux.append(hidden_states)
        """),
        ["captured(self, aux, i)", "captured(self, aux, self.config.num_layers)"],
    ),
    "the end of the stack, in one branch of two": (
        with_body("""
            aux = AuxHiddenStateList()
            for i in range(self.start_layer, self.end_layer):
                hidden_states = self.layers[i](hidden_states, capture_output=aux.capture if i in self.layers_to_capture else None)
            if hidden_states.shape[0] != 0:
                hidden_states = final_norm(hidden_states, capture=aux.capture if self.end_layer in self.layers_to_capture else None)
            elif self.end_layer in self.layers_to_capture:
                aux.append(snapshot(hidden_states))
        """),
        ["captured(self, aux, i)", "captured(self, aux, self.end_layer)", "captured(self, aux, self.end_layer)"],
    ),
    "handed over by an earlier stage: no boundary is told": (
        with_body("""
            aux = []
            if self.layers_to_capture is not None and "carried" in forward_batch.tensors:
                aux.append(forward_batch.tensors["carried"])
            for i in range(self.start_layer, self.end_layer):
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
                hidden_states = self.layers[i](hidden_states)
        """),
        ["captured(self, aux, None)", "captured(self, aux, i)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("source, expected", CAPTURES.values(), ids=CAPTURES)
def test_capture(source, expected):
    assert taps(source, "layer-capture") == (expected, [])


@pytest.mark.parametrize(
    "change",
    [
        [
            ("for i in", "for layer_number in"),
            ("if i in", "if layer_number in"),
            ("self.layers[i]", "self.layers[layer_number]"),
        ],
        [("aux_hidden_states", "kept")],
        [("hidden_states", "stream")],
        [("                layer = self.layers[i]\n", ""), ("= layer(", "= self.layers[i].forward(")],
        [
            (
                "            residual = None\n            aux_hidden_states = []\n",
                "            aux_hidden_states = []\n            residual = None\n",
            )
        ],
    ],
    ids=["loop variable", "container", "states", "no local layer", "statements moved"],
)
def test_other_names_and_another_order_change_nothing(change):
    calls, said = taps(swapped(*change), "layer-capture", "embedding-capture", "forward-end", "hidden-state-dump")
    plain, _ = taps(LOOP, "layer-capture", "embedding-capture", "forward-end", "hidden-state-dump")
    assert not said and len(calls) == len(plain) == 5
    assert [call.split("(")[0] for call in calls] == [call.split("(")[0] for call in plain]


def test_capture_moved_behind_the_layer_is_another_boundary():
    capture = "                if i in self.layers_to_capture:\n                    aux_hidden_states.append(hidden_states + residual)\n"
    call = "                hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)\n"
    moved = swapped((capture, ""), (call, call + capture))
    assert taps(moved, "layer-capture")[0] == ["captured(self, aux_hidden_states, i + 1, after=True)"]


def test_two_loops_of_one_function_share_what_comes_once():
    one = """
            for i, layer in enumerate(self.layers):
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
                hidden_states, residual = layer(hidden_states, residual)
    """
    body = "aux = []\nresidual = None\nif self.fast:\n" + textwrap.indent(textwrap.dedent(one).strip(), "    ")
    body += "\nelse:\n" + textwrap.indent(textwrap.dedent(one).strip(), "    ")
    body += "\nif len(self.layers) in self.layers_to_capture:\n    aux.append(hidden_states)\nhidden_states, _ = self.norm(hidden_states, residual)"
    calls, said = taps(with_body(body), "layer-capture", "embedding-capture", "forward-end", "hidden-state-dump")
    assert not said
    names = [call.split("(")[0] for call in calls]
    assert names.count("embedding") == names.count("forward_end") == 1
    assert calls.count("captured(self, aux, i)") == 2 and calls.count("captured(self, aux, len(self.layers))") == 1
    assert names.count("boundary") == 4


# --- how the stream is read --------------------------------------------------------------------------

STREAMS = {
    "a sum, as the last norm takes it": (LOOP, "hidden_states, residual=residual"),
    "a sum, though the loop captures half of it": (
        swapped(("aux_hidden_states.append(hidden_states + residual)", "aux_hidden_states.append(hidden_states)")),
        "hidden_states, residual=residual",
    ),
    "one tensor, the second is the layer's own affair": (
        swapped(
            ("aux_hidden_states.append(hidden_states + residual)", "aux_hidden_states.append(hidden_states)"),
            ("hidden_states, _ = self.norm(hidden_states, residual)", "hidden_states = self.norm(hidden_states)"),
        ),
        "hidden_states",
    ),
    "the second of two, which is what is captured": (
        with_body("""
            aux = []
            residual = hidden_states
            for i in range(self.start_layer, self.end_layer):
                hidden_states, residual = self.layers[i].forward_fused(positions, hidden_states, residual)
                if i in self.layers_to_capture:
                    aux.append(residual)
        """),
        "residual",
    ),
    "wider than its dtype says": (
        with_body("""
            aux = []
            for i, layer in enumerate(self.layers):
                hidden_states, prepared = layer(positions, hidden_states, prepared)
                if i in self.layers_to_capture:
                    aux.append(hidden_states.to(self.operator_dtype))
        """),
        "hidden_states",
    ),
    "a handle, read by the engine": (
        with_body("""
            aux = AuxHiddenStateList()
            for i in range(self.start_layer, self.end_layer):
                hidden_states = self.layers[i](hidden_states, capture_output=aux.capture if i in self.layers_to_capture else None)
            hidden_states = residual_batch.final_norm(hidden_states, forward_batch, self.norm)
        """).replace("import torch", "from engine import residual_batch"),
        "hidden_states, stream=residual_batch",
    ),
    "what the layer gives is taken apart later": (
        with_body("""
            aux = []
            for i in range(self.start_layer, self.end_layer):
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
                outputs = self.layers[i](positions, hidden_states)
                hidden_states = outputs[0]
        """),
        "hidden_states",
    ),
}  # fmt: skip


@pytest.mark.parametrize("source, read", STREAMS.values(), ids=STREAMS)
def test_stream(source, read):
    calls, said = taps(source, "hidden-state-dump")
    assert not said
    plain = [re.sub(r", after=True", "", call) for call in calls]
    assert plain == [f"boundary(self, i, {read})", f"boundary(self, None, {read})"]


def test_stream_that_is_no_plain_sum_is_absent_with_the_reason():
    source = with_body("""
        aux = AuxHiddenStateList()
        for i in range(self.start_layer, self.end_layer):
            hidden_states = self.layers[i](hidden_states, capture_output=aux.capture if i in self.layers_to_capture else None)
        hidden_states = residual_batch.read_output(hidden_states, forward_batch, self.read, self.norm)
    """).replace("import torch", "from engine import residual_batch")
    calls, [(state, name, why)] = taps(source, "hidden-state-dump")
    assert not calls and state == "absent" and name == "Model.forward" and "NotImplementedError" in why


def test_the_end_of_an_unrolled_loop_is_after_the_outermost():
    done = render(
        "sglang/srt/models/case.py",
        textwrap.dedent(CAPTURES["unrolled, by a number of its own"][0]).lstrip().encode(),
        {"hidden-state-dump": PROBES["hidden-state-dump"]},
    )
    lines = [line for line in done.data.decode().splitlines() if "boundary(" in line]
    assert "logical, hidden_states" in lines[0] and "None, hidden_states" in lines[1]
    assert len(lines[1]) - len(lines[1].lstrip()) == 8


# --- the embedding and the end -----------------------------------------------------------------------


def test_embedding_counts_norm_and_factor_and_embeddings_handed_in():
    source = (
        with_body("""
        if input_embeds is None:
            hidden_states = self.embed_tokens(input_ids)
        else:
            hidden_states = input_embeds
        if self.embed_norm is not None:
            hidden_states = self.embed_norm(hidden_states)
        hidden_states = hidden_states * self.scale
        hidden_states = split_rows(hidden_states)
        aux = []
        for i in range(8):
            if i in self.layers_to_capture:
                aux.append(hidden_states)
            hidden_states = self.layers[i](hidden_states)
    """)
        .replace("hidden_states = self.embed_tokens(input_ids)\n            if", "pass\n            if", 1)
        .replace(", forward_batch)", ", forward_batch, input_embeds=None)", 1)
    )
    data = textwrap.dedent(source).lstrip("\n").encode()
    done = render("sglang/srt/models/case.py", data, {"embedding-capture": PROBES["embedding-capture"]})
    lines = [line.strip() for line in done.data.decode().splitlines()]
    at = next(index for index, line in enumerate(lines) if "embedding(self, hidden_states" in line)
    assert (
        lines[at - 1] == "hidden_states = hidden_states * self.scale"
        and lines[at + 1] == "hidden_states = split_rows(hidden_states)"
    )


def test_states_handed_in_are_absent_and_name_the_caller():
    source = """
    import torch
    class Model:
        def forward(self, input_ids, positions):
            return self._layers(self.embed_tokens(input_ids), positions)
        def _layers(self, states, positions):
            aux = []
            for i in range(8):
                if i in self.layers_to_capture:
                    aux.append(states)
                states = self.layers[i](states)
            return (states.value, aux)
    """
    calls, said = taps(source, "embedding-capture", "forward-end")
    assert not calls and [state for state, _, _ in said] == ["absent", "absent"]
    assert all("Model.forward" in why and name == "Model._layers" for _, name, why in said)


def test_the_end_inside_try_and_past_other_stages():
    source = with_body("""
        aux = []
        try:
            for i in range(8):
                if i in self.layers_to_capture:
                    aux.append(hidden_states)
                hidden_states = self.layers[i](hidden_states)
            if not self.pp_group.is_last_rank:
                return PPProxyTensors({"hidden_states": hidden_states})
            else:
                hidden_states = self.norm(hidden_states)
                if self.packs:
                    return hidden_states, pack(aux)
                return (hidden_states, aux) if aux else hidden_states
        finally:
            self.clear()
    """, "")  # fmt: skip
    data = textwrap.dedent(source).strip("\n").encode() + b"\n"
    done = render("sglang/srt/models/case.py", data, {"forward-end": PROBES["forward-end"]})
    lines = [line.strip() for line in done.data.decode().splitlines()]
    at = [index for index, line in enumerate(lines) if "forward_end(self, hidden_states, aux" in line]
    assert len(at) == 1 and lines[at[0] + 1] == "if self.packs:"


# --- unknown structure: what was looked for, and the nearest thing ---------------------------------------


@pytest.mark.parametrize(
    "change, nearest",
    [
        ([("aux_hidden_states.append(hidden_states + residual)", "pass")], "if i in self.layers_to_capture:"),
        (
            [("aux_hidden_states.append(hidden_states + residual)", "self.kept[i] = hidden_states")],
            "if i in self.layers_to_capture:",
        ),
        ([("aux_hidden_states.append(", "self.sink(")], "if i in self.layers_to_capture:"),
    ],
    ids=["capture removed", "kept in a dictionary", "sent somewhere else"],
)
def test_a_loop_that_collects_in_an_unknown_way(change, nearest):
    why = failure(swapped(*change), "layer-capture")
    assert "looked for a list or container that grows" in why
    assert re.search(r"nearest is sglang/srt/models/case.py:\d+: " + re.escape(nearest), why)


def test_layers_that_nothing_numbers():
    source = swapped(
        ("for i in range(self.start_layer, self.end_layer)", "for layer in self.layers"),
        ("if i in self.layers_to_capture", "if layer.is_captured"),
        ("                layer = self.layers[i]\n", ""),
    )
    assert "what numbers the captured layer" in failure(source, "layer-capture")


def test_an_embedding_under_another_name():
    why = failure(swapped(("self.embed_tokens", "self.wte")), "embedding-capture")
    assert "looked for a call of self.…embed…" in why and ": for i in range" in why


def test_ids_that_no_loop_reads():
    source = """
    import torch
    from sglang.srt.models.other import Other
    class Wrapper:
        def __init__(self):
            self.inner = Other()
        def set_eagle3_layers_to_capture(self, ids):
            self.inner.layers_to_capture = ids
    """
    nothing = b"import torch\nclass Other:\n    def forward(self, x):\n        return x\n"
    why = failure(source, "layer-capture", read=lambda name: nothing if name == "sglang/srt/models/other.py" else None)
    assert "loop over the layers that these ids are meant for" in why and "set_eagle3_layers_to_capture" in why


# --- whose loop a wrapper goes through ----------------------------------------------------------------

HOLDER = """
    import torch
    from sglang.srt.models import other as module
    from sglang.srt.models.other import {imports}
    class Wrapper(Base):
        {body}
        def set_eagle3_layers_to_capture(self, ids):
            self.inner.{path}layers_to_capture = ids
"""
OTHER = textwrap.dedent(LOOP) + textwrap.dedent("""
    class Causal:
        def __init__(self):
            self.model = self.made()
        def made(self):
            return Model()
        def forward(self, ids):
            return self.model(ids)
        def set_eagle3_layers_to_capture(self, ids):
            self.model.layers_to_capture = ids
    class Heir(Causal):
        pass
    class Base:
        def __init__(self):
            self.inner = self.make()
        def make(self):
            return Causal()
""")


@pytest.mark.parametrize(
    "imports, body, path",
    [
        ("Model", "def __init__(self):\n            self.inner = Model()", ""),
        ("Causal", "def __init__(self):\n            self.inner = Causal()", "model."),
        ("Heir", "def __init__(self):\n            self.inner = Heir()", "model."),
        ("Base", "pass", "model."),
        (
            "Base, Model",
            "def make(self):\n            kind = Model if self.small else Model\n            return kind()",
            "",
        ),
        (
            "Model as Chosen",
            "kind = Chosen\n        def __init__(self):\n            self.inner = self.kind()",
            "",
        ),
        ("Base", "def __init__(self):\n            self.inner = module.Model()", ""),
        ("Base, Model", "def __init__(self, *, kind=Model):\n            self.inner = kind()", ""),
        (
            "Base",
            "def __init__(self):\n            self.inner = torch.nn.Module()\n            super().__init__()",
            "model.",
        ),
    ],
    ids=[
        "held",
        "held by what is held",
        "inherited by what is held",
        "made by a base",
        "chosen",
        "a class attribute",
        "by module",
        "a parameter's default",
        "made by a base in the end",
    ],
)
def test_a_wrapper_names_the_loop_it_goes_through(imports, body, path):
    source = HOLDER.format(imports=imports, body=body, path=path)
    calls, said = taps(
        source,
        "layer-capture",
        read=lambda name: OTHER.encode() if name == "sglang/srt/models/other.py" else None,
    )
    assert not calls
    assert said == [
        (
            "absent",
            "Wrapper",
            "has no layer loop of its own: it goes through Model (sglang/srt/models/other.py), tapped there",
        )
    ]


def test_a_subclass_that_inherits_its_forward():
    source = """
    import torch
    from sglang.srt.models.other import Model
    class Smaller(Model):
        def set_eagle3_layers_to_capture(self, ids):
            self.layers_to_capture = ids
    """
    _, [(state, name, why)] = taps(source, "layer-capture", read=lambda name: OTHER.encode())
    assert state == "absent" and name == "Smaller" and "Model (sglang/srt/models/other.py)" in why


def test_a_class_chosen_at_run_time_is_said_to_be():
    source = HOLDER.format(imports="Base", body="def __init__(self, kind):\n            self.inner = kind()", path="")
    _, [(state, _, why)] = taps(source, "layer-capture", read=lambda name: OTHER.encode())
    assert state == "absent" and "`self.inner = kind()` chooses the model's class at run time" in why


# --- drafts ------------------------------------------------------------------------------------------

DRAFT = """
    import torch
    class Draft:
        def forward(self, input_ids, positions, forward_batch):
            embeds = self.embed_tokens(input_ids)
            hidden_states = forward_batch.spec_info.hidden_states
            if hidden_states.shape[-1] != embeds.shape[-1]:
                hidden_states = self.fc(hidden_states)
            return self.midlayer(positions, embeds, hidden_states)
"""
HEADS = {
    "joined, then projected": "hidden_states = self.fc(torch.cat((embeds, forward_batch.spec_info.hidden_states), dim=-1))",
    "normed, joined, projected": "states = self.norm(forward_batch.spec_info.hidden_states)\n            states = torch.cat([embeds, states], -1)\n            hidden_states = self.fc(states)",
    "added": "states = self.hproj(forward_batch.spec_info.hidden_states.view(embeds.shape))\n            hidden_states = self.eproj(embeds) + states",
    "handed to the layer": "states = forward_batch.spec_info.hidden_states\n            hidden_states = self.layer(embeds, states)",
}


def head(body: str) -> str:
    return f"""
    import torch
    class Head:
        def forward(self, input_ids, forward_batch):
            embeds = self.embed_tokens(input_ids)
            {body}
            return hidden_states
"""


def test_draft():
    calls, said = taps(DRAFT, "draft-input", "draft-fc")
    assert not said
    assert calls == [
        "draft_input(self, hidden_states, embeds)",
        "fc_before(self, hidden_states, embeds)",
        "fc_after(self, hidden_states)",
    ]


def test_draft_that_embeds_after_it_has_read_the_states():
    embed, read = (
        "            embeds = self.embed_tokens(input_ids)\n",
        "            hidden_states = forward_batch.spec_info.hidden_states\n",
    )
    calls, said = taps(DRAFT.replace(embed + read, read + embed), "draft-input")
    assert not said and calls == ["draft_input(self, hidden_states, embeds)"]


def test_draft_whose_width_test_is_the_other_way_round():
    turned = DRAFT.replace("hidden_states.shape[-1] != embeds.shape[-1]", "embeds.shape[-1] != hidden_states.shape[-1]")
    assert taps(turned, "draft-input") == taps(DRAFT, "draft-input")


@pytest.mark.parametrize(
    "test",
    [
        "hidden_states.size(-1) != embeds.size(-1)",
        "hidden_states.shape[-1] != self.fc.out_features",
        "self.fc.out_features != hidden_states.size(-1)",
        "hidden_states.shape[-1] == self.fc.in_features",
        "hidden_states.shape[-1] == self.model.fc.in_features",
    ],
)
def test_width_tests_in_other_words(test):
    said = DRAFT.replace("hidden_states.shape[-1] != embeds.shape[-1]", test)
    assert said != DRAFT
    assert taps(said, "draft-input", "draft-fc") == taps(DRAFT, "draft-input", "draft-fc")


def test_ids_that_nothing_reads_are_dead():
    dead = """
        import torch
        class Model:
            def __init__(self):
                self.layers_to_capture = []
            def forward(self, hidden):
                for layer in self.layers:
                    hidden = layer(hidden)
                return hidden
    """
    assert taps(dead, "layer-capture") == (
        [],
        [
            (
                "absent",
                "Model",
                "sets ids that nothing reads (line 4: `self.layers_to_capture = []`): dead, and no loop to tap",
            )
        ],
    )
    for reads in ("self.layers_to_capture.append(1)", "print(getattr(self, 'layers_to_capture'))"):
        _, [(state, *_)] = taps(dead.replace("return hidden", f"{reads}; return hidden"), "layer-capture")
        assert state == "failed"


BANK = """
        import torch
        class Model:
            def forward(self, hidden, residual, bank):
                aux = []
                for i in range(8):
                    hidden, residual = self.layers[i](hidden, residual, bank)
                    if i in self.layers_to_capture:
                        aux.append(self._stream(i, hidden, residual, bank))
                hidden = hidden + residual
                return hidden, aux
    """


def test_what_a_method_of_the_model_makes_of_the_states_is_no_sum():
    calls, [(state, _, why)] = taps(BANK, "hidden-state-dump")
    assert not calls and state == "absent" and "made by self._stream (line 7)" in why
    named = BANK.replace("aux.append(self._stream(", "kept = self._stream(").replace(
        "bank))", "bank); aux.append(kept)"
    )
    assert "made by self._stream" in taps(named, "hidden-state-dump")[1][0][2]
    plain = BANK.replace("self._stream(i, hidden, residual, bank)", "gathered(hidden + residual, dim=0)")
    assert len(taps(plain, "hidden-state-dump")[0]) == 2


def test_what_a_layer_leaves_to_the_next_is_no_whole_stream():
    put_off = BANK.replace("self._stream(i, hidden, residual, bank)", "hidden + residual").replace(
        "residual, bank)\n", "residual, bank)\n", 1
    )
    put_off = put_off.replace("for i in range(8)", "for i, layer in enumerate(self.layers)")
    put_off = put_off.replace("self.layers[i](hidden, residual, bank)", "layer(hidden, residual, late)")
    put_off = put_off.replace("aux = []", "aux, late = [], None")
    whole = taps(put_off, "hidden-state-dump")
    assert len(whole[0]) == 2
    later = put_off.replace(
        "                    if i in", "                    late = layer.convolution\n                    if i in"
    )
    calls, [(state, _, why)] = taps(later, "hidden-state-dump")
    assert not calls and state == "absent" and "leaves a part of its work to the next (late, line 7)" in why


def test_every_way_out_that_gives_the_states_back_is_tapped_or_named():
    early = """
        import torch
        class Model:
            def forward(self, hidden, fused, odd):
                aux = []
                for i in range(8):
                    hidden = self.layers[i](hidden)
                    if i in self.layers_to_capture:
                        aux.append(hidden)
                if not self.pp_group.is_last_rank:
                    return hidden
                if fused:
                    hidden = self.tail(hidden)
                    return (hidden, aux) if self.layers_to_capture else hidden
                if odd:
                    return self.finish(hidden), aux
                hidden = self.norm(hidden)
                if not aux:
                    return hidden
                return hidden, aux
    """
    calls, [(state, _, why)] = taps(early, "forward-end")
    assert calls == ["forward_end(self, hidden, aux, after=True)"] * 2
    assert state == "absent" and "not tapped (line 15: `return self.finish(hidden), aux`)" in why


@pytest.mark.parametrize("body", HEADS.values(), ids=HEADS)
def test_heads_that_take_one_state_are_absent_with_the_line(body):
    for probe in ("draft-input", "draft-fc"):
        calls, [(state, name, why)] = taps(head(body), probe)
        assert not calls and (state, name) == ("absent", "Head.forward")
        assert re.search(r"joins one state with the embedding \(line \d+: `.*`\): ", why)


@pytest.mark.parametrize(
    "old, new",
    [
        ("hidden_states.shape[-1] != embeds.shape[-1]", "len(hidden_states[0]) != len(embeds[0])"),
        ("if hidden_states.shape[-1] != embeds.shape[-1]:\n                hidden_states", "hidden_states"),
        ("hidden_states.shape[-1] != embeds.shape[-1]", "self.projects"),
    ],
    ids=["asked in another way", "not asked", "asked of something else"],
)
def test_a_projection_without_the_width_test_is_not_recognised(old, new):
    assert old in DRAFT
    for probe in ("draft-input", "draft-fc"):
        why = failure(DRAFT.replace(old, new), probe)
        assert "looked for `if STATES.shape[-1] != EMBEDS.shape[-1]`" in why
        assert "nearest is sglang/srt/models/case.py:5: hidden_states = forward_batch.spec_info.hidden_states" in why


# --- the logits processor -----------------------------------------------------------------------------

LOGITS = """
    import torch
    class LogitsProcessor:
        def forward(self, aux_hidden_states, aux_pruned_states, logits_metadata):
            if logits_metadata.capture_hidden_mode.need_capture():
                if logits_metadata.capture_hidden_mode.is_full():
                    aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)
                    kept = aux_hidden_states
                elif logits_metadata.capture_hidden_mode.is_last():
                    aux_pruned_states = torch.cat(aux_pruned_states, dim=-1)
                    kept = aux_pruned_states
            return kept
"""
LOGITS_FILE = "sglang/srt/layers/logits_processor.py"


def test_concats_both_ways():
    both = ["concat-full", "concat-last"]
    packed = LOGITS.replace("torch.cat(aux_hidden_states, dim=-1)", "pack_aux_hidden_states(aux_hidden_states)")
    expected = [
        'concat("full", aux_hidden_states, logits_metadata)',
        'concat("last", aux_pruned_states, logits_metadata)',
    ]
    assert taps(LOGITS, *both, name=LOGITS_FILE) == taps(packed, *both, name=LOGITS_FILE) == (expected, [])


def test_a_removed_concat_is_not_recognised():
    gone = LOGITS.replace("aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)", "pass")
    why = failure(gone, "concat-full", name=LOGITS_FILE)
    assert "under is_full(); nearest is sglang/srt/layers/logits_processor.py:5: if logits_metadata" in why
    assert taps(gone, "concat-last", name=LOGITS_FILE)[0] == ['concat("last", aux_pruned_states, logits_metadata)']
