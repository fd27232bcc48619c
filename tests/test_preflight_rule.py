"""The layer-id rule, read from source: hand-written slices of each shape that releases have had."""

from __future__ import annotations

import ast
import re
import resource
import shutil
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from specwire.errors import SpecwireError
from specwire.preflight.draft import read_draft
from specwire.preflight.interpreter import execute, machine
from specwire.preflight.interpreter.evaluate import machine_for
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.plain import substituted
from specwire.preflight.interpreter.values import UNKNOWN
from specwire.preflight.rule import advice, captured_boundaries, draft_rule
from specwire.trees.tree import Tree

SLICES = Path(__file__).parent.parent / "fixtures" / "slices"
ADDS_ONE, BOUNDARIES = SLICES / "adds-one", SLICES / "boundaries"
LAYERS = {"num_hidden_layers": 61, "first_k_dense_replace": 1, "hidden_size": 64}


@pytest.fixture(scope="module")
def sources() -> dict[Path, Source]:
    return {place: Source(Tree.find(place)) for place in (ADDS_ONE, BOUNDARIES)}


def rule(sources, place, architecture, ids, **config):
    described = {"architectures": [architecture], **LAYERS, **config}
    return captured_boundaries(sources[place], described, ids)


CASES = [
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 30, 57], [3, 31, 58], id="always adds one"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", None, [2, 30, 58], id="defaults"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [57, 2, 30], [3, 31, 58], id="the loop decides the order"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 2, 30], [3, 31], id="twice is once"),
    pytest.param(ADDS_ONE, "LlamaForCausalLM", [2, 30, 60], [3, 31], id="beyond the last layer is lost"),
    pytest.param(ADDS_ONE, "DeepseekV3ForCausalLM", [2, 30, 58], [3, 31, 59], id="inherited, branches that agree"),
    pytest.param(ADDS_ONE, "Gemma3ForCausalLM", [2, 60], [3, 61], id="end of stack by an append"),
    pytest.param(BOUNDARIES, "LlamaForCausalLM", [2, 30, 57], [3, 31, 58], id="a keyword captures at entry"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58], [2, 30, 58], id="ids are boundaries"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [1, 29, 57], [2, 30, 58], id="but not when the first is 1"),
    pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [0, 30, 58], [0, 30, 58], id="the embedding"),
    pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 61], [3, 30, 61], id="end of stack by the final norm"),
    pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 60], [4, 31, 61], id="its other branch"),
    pytest.param(BOUNDARIES, "Qwen3_5ForCausalLM", [2, 30, 57], [3, 31, 58], id="flags on the layers"),
    pytest.param(BOUNDARIES, "BeamForCausalLM", [2, 30, 60], [3, 31, 61], id="captured after the layer"),
]


@pytest.mark.parametrize(
    "handed",
    ["capture=aux_hidden_states.capture", "aux_hidden_states.capture", "lambda end: aux_hidden_states.capture(end)"],
)
def test_the_final_norm_captures_however_it_is_told_to(tmp_path, handed):
    tree = shutil.copytree(BOUNDARIES, tmp_path / "tree")
    engine = tree / "sglang" / "srt"
    (engine / "residual_batch.py").write_text(
        "def final_norm(states, batch, capture=None):\n    return capture(states)\n"
    )
    model = engine / "models" / "gpt_oss.py"
    call = model.read_text().replace(
        "capture=aux_hidden_states.capture if self.end_layer in self.layers_to_capture else None", handed
    )
    model.write_text("from sglang.srt import residual_batch\n" + call)
    assert list(rule({tree: Source(Tree.find(tree))}, tree, "GptOssForCausalLM", [3, 30, 61]).captured) == [3, 30, 61]


@pytest.mark.parametrize("place, architecture, ids, expected", CASES)
def test_the_rule_is_read_and_evaluated(sources, place, architecture, ids, expected):
    found = rule(sources, place, architecture, ids)
    assert list(found.captured) == expected
    assert found.problem is None
    assert found.where.startswith("sglang/srt/models/") and found.where.rpartition(":")[2].isdigit()


def test_where_is_the_line_that_decides(sources):
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58])
    name, _, line = found.where.rpartition(":")
    assert "list(ids)" in (BOUNDARIES / name).read_text().splitlines()[int(line) - 1]


def test_a_wrapper_hands_on_to_its_language_model(sources):
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": LAYERS,
        "vision_config": {},
    }
    found = captured_boundaries(sources[BOUNDARIES], config, [2, 30, 58])
    assert found.captured == (2, 30, 58)
    assert found.num_layers == 61
    assert found.assumptions == ()  # that the encoder may be left out decides nothing that is captured


def test_a_list_that_nothing_reads_captures_nothing(sources):
    config = {"text_config": LAYERS, "architectures": ["Qwen3_5ForConditionalGeneration"]}
    found = captured_boundaries(sources[BOUNDARIES], config, [2, 30, 57])
    assert found.captured == ()
    assert "never captures" in found.problem


def test_ids_that_stop_the_engine_are_said_to(sources):
    found = rule(sources, BOUNDARIES, "Qwen3_5ForCausalLM", [2, 30, 60])
    assert found.captured is None and "IndexError" in found.problem
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 61])
    assert found.captured == (2, 30) and "2 of 3 hidden states" in found.problem
    found = rule(sources, ADDS_ONE, "LlamaForCausalLM", [-1, 2, 30])
    assert found.captured == (0, 3, 31) and "TypeError" in found.problem


def test_a_release_without_a_rule_is_said_plainly(sources):
    found = rule(sources, ADDS_ONE, "PlainForCausalLM", [2, 30, 57])
    assert found.absent and "has no set_eagle3_layers_to_capture for PlainForCausalLM" in found.problem
    found = rule(sources, ADDS_ONE, "MambaForCausalLM", [2])
    assert found.absent and found.ids_for([3]) is None


@pytest.mark.parametrize(
    "place, architecture, wanted, ids",
    [
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [3, 31, 58], [2, 30, 57], id="one less"),
        pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [3, 31, 59], [3, 31, 59], id="as they are"),
        pytest.param(BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58], [2, 30, 58], id="as they are, the defaults"),
        pytest.param(BOUNDARIES, "GptOssForCausalLM", [3, 30, 61], [3, 30, 61], id="with the final one"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [0, 3, 31], None, id="no ids on which the engine would stop"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [31, 3, 58], None, id="no ids change the order"),
        pytest.param(ADDS_ONE, "LlamaForCausalLM", [3, 31, 61], None, id="no ids reach the end"),
    ],
)
def test_ids_are_found_by_trying_them(sources, place, architecture, wanted, ids):
    found = rule(sources, place, architecture, [2, 30, 57])
    assert found.ids_for(wanted) == ids
    if ids:
        assert list(found.for_ids(ids).captured) == wanted


def test_a_first_boundary_of_one_is_reached_by_another_order(sources):
    found = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58])
    ids = found.ids_for([1, 30, 58])
    assert ids[0] != 1 and found.for_ids(ids).captured == (1, 30, 58)


def test_the_sentence_tells_the_branches(sources):
    assert "adds 1 to every layer id" in rule(sources, ADDS_ONE, "LlamaForCausalLM", [2, 30, 57]).text
    text = rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58]).text
    assert "takes layer ids as boundaries" in text and "adds 1 when the first id is 1" in text
    text = rule(sources, BOUNDARIES, "GptOssForCausalLM", [2, 30, 58]).text
    assert "takes them as they are when the largest id is the layer count" in text


def test_a_capture_without_the_residual_is_seen(sources):
    assert "gemma3_causal.py" in rule(sources, ADDS_ONE, "Gemma3ForCausalLM", [2, 30]).bare
    assert rule(sources, ADDS_ONE, "LlamaForCausalLM", [2, 30]).bare is None
    assert rule(sources, BOUNDARIES, "BeamForCausalLM", [2, 30]).bare is None


@pytest.mark.parametrize("place", [ADDS_ONE, BOUNDARIES])
@pytest.mark.parametrize(
    "draft, ids, use",
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 57]}}, [2, 30, 57], True),
        ({}, None, True),
        ({"eagle_config": {}}, None, True),
        ({"eagle_aux_hidden_state_layer_ids": [2, 30, 57]}, None, True),
        (
            {"eagle_config": {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": [2]}},
            [2],
            False,
        ),
        ({"eagle_config": "wrong"}, None, True),
    ],
)
def test_ids_are_read_as_the_tree_reads_them(sources, place, draft, ids, use):
    target = {"architectures": ["LlamaForCausalLM"], **LAYERS}
    found, plumbing = draft_rule(sources[place], target, draft)
    assert (plumbing.layer_ids, plumbing.use_aux, plumbing.problem) == (ids, use, None)
    assert found.captured == (() if not use else (2, 30, 58) if ids is None else (3, 31, 58))


def test_graphs_that_get_the_defaults_first_are_seen(sources):
    target = {"architectures": ["LlamaForCausalLM"], **LAYERS}
    _, plumbing = draft_rule(sources[ADDS_ONE], target, {})
    assert plumbing.early.startswith("sglang/srt/model_executor/cuda_graph_runner.py:")
    _, plumbing = draft_rule(sources[BOUNDARIES], target, {})
    assert plumbing.early is None


def test_the_advice_says_which_ids_to_write(sources):
    text = advice(rule(sources, BOUNDARIES, "DeepseekV3ForCausalLM", [2, 30, 58]), [3, 31, 59])
    assert "= [3, 31, 59] for SGLang 0.0.2" in text and "0.5.9" in text
    none = advice(rule(sources, ADDS_ONE, "DeepseekV3ForCausalLM", [2, 30, 58]), [59, 31, 3])
    assert "No layer ids make" in none


def test_code_of_the_tree_is_never_run(tmp_path, sources):
    """A tree whose import would leave a mark is read without leaving one."""
    mark = tmp_path / "ran"
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "srt" / "model_executor").mkdir()
    for folder in (tmp_path / "sglang", tmp_path / "sglang" / "srt", models):
        (folder / "__init__.py").write_text("")
    evil = f"open({str(mark)!r}, 'w').close()\n"
    source = (ADDS_ONE / "sglang/srt/models/llama.py").read_text()
    (models / "llama.py").write_text(
        source.replace("class LlamaMLP", evil + "class LlamaMLP").replace(
            "self.capture_aux_hidden_states = True", f"__import__('os').system('touch {mark}')", 1
        )
    )
    found = rule({tmp_path: Source(Tree.find(tmp_path))}, tmp_path, "LlamaForCausalLM", [2, 30, 57])
    assert found.captured == (3, 31, 58)
    assert not mark.exists()


def test_a_loop_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 5_000)
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "srt" / "model_executor").mkdir()
    for folder in (tmp_path / "sglang", tmp_path / "sglang" / "srt", models):
        (folder / "__init__.py").write_text("")
    (models / "loop.py").write_text(
        "class LoopForCausalLM:\n"
        "    def set_eagle3_layers_to_capture(self, ids=None):\n"
        "        for a in range(9999):\n            for b in range(9999):\n                pass\n"
        "EntryClass = [LoopForCausalLM]\n"
    )
    found = rule({tmp_path: Source(Tree.find(tmp_path))}, tmp_path, "LoopForCausalLM", [2])
    assert found.captured is None and "too many steps" in found.problem


LOOKED_AT_AGAIN = """
from torch import nn
from torch.nn import Linear


class Part(nn.Module):
    def __init__(self):
        self.proj = Linear(4, 4, bias=False)


class TinyEagle3(nn.Module):
    def __init__(self, config):
        self.fc = Linear(12, 4, bias=False)
        self.parts = nn.ModuleList([Part()])
        if window() is not None:
            for part in self.parts:
                part.window = window()

    def load_weights(self, weights):
        params = dict(self.named_parameters())
        for name, tensor in weights:
            if name in params:
                params[name].weight_loader(params[name], tensor)


EntryClass = [TinyEagle3]
"""


def test_a_module_that_an_unknown_branch_looks_at_is_there_all_the_same(tmp_path):
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (models / "tiny_eagle3.py").write_text(LOOKED_AT_AGAIN)
    found = read_draft(Source(Tree.find(tmp_path)), {"architectures": ["TinyEagle3"]}, ["fc.weight"])
    assert found.problem is None and set(found.filled) == {"fc.weight"}
    assert "parts.0.proj.weight" in found.parameters and not found.optional


# --- sources that are written to hurt: each is understood or is not, soon, in little memory, and never crashes ------------

DOUBLED = "a = a + a\n" * 40
HOSTILE = {
    "a pattern that takes for ever": "a = re.sub('(a+)+$', '', 'a' * 40 + 'b')",
    "a pattern of choices that takes for ever": "a = re.sub('(a|a)' * 30 + 'c', '', 'a' * 40)",
    "a pattern of maybes that takes for ever": "a = re.sub('a?' * 30 + 'a' * 30, '', 'a' * 30)",
    "a pattern that is none": "a = re.sub('[', '', 'a')",
    "a replacement that grows": "a = re.sub('a', 'b' * 90000, 'a' * 90000)",
    "a width without end": "a = '{:>9000000000}'.format(1)",
    "a width that is a field": "a = '{:>{}}'.format(1, 9000000000)",
    "an attribute in a format": "a = '{0.__class__.__mro__}'.format(1)",
    "a width in a percent": "a = '%9000000000d' % 1",
    "a width in a percent that is a star": "a = '%*d' % (9000000000, 1)",
    "a list that is repeated": "a = [0] * 9000000000",
    "a text that is repeated": "a = 'x' * 99999 * 99999",
    "a range that has no end": "a = list(range(10 ** 0 + 9000000000))",
    "a range that len cannot count": "a = len(range(99999999999999999999999))",
    "a fraction looked for in a range": "a = 1.5 in range(9000000000)",
    "an unknown name": "a = nobody.knows[self](what=1)",
}
TOO_MUCH = {
    "numbers that square themselves": "a = 9999999999\n" + "a = a * a\n" * 40,
    "lists that double": "a = [0] * 90000\n" + DOUBLED,
    "texts that double": "a = 'x' * 90000\n" + DOUBLED,
    "tuples that double": "a = (0,) * 90000\n" + DOUBLED,
    "a list that takes itself in": "a = [0] * 90000\n" + "a.extend(a)\n" * 40,
    "texts that replace themselves": "a = 'x' * 9000\na = a.replace('x', a)",
    "texts that replace nothing": "a = 'x' * 9000\na = a.replace('', a)",
    "texts that join themselves": "a = 'x' * 9000\na = a.join([a] * 9000)",
    "an f-string that doubles": "a = 'x' * 9000\n" + "a = f'{a}{a}'\n" * 40,
    "a long list looked through": "b = list(range(99999))\nfor i in range(60000):\n    x = -1 in b",
    "copies of a long list": "b = list(range(99999))\nm = []\nfor i in range(60000):\n    m.append(b.copy())",
    "slices of a long list": "b = list(range(99999))\nm = []\nfor i in range(60000):\n    m.append(b[1:])",
    "a long list unpacked": "b = list(range(99999))\nm = []\nfor i in range(60000):\n    m.append([*b])",
    "a long list as arguments": "b = list(range(99999))\ndef f(*a):\n    return a\nm = []\nfor i in range(60000):\n    m.append(f(*b))",
    "a long list left at once": "b = list(range(99999))\nfor i in range(60000):\n    for x in b:\n        break",
    "a long list as layers": "b = list(range(99999))\nfor i in range(60000):\n    self.layers = b",
    "a text of a list within itself": "a = [0]\n" + "a = [a, a]\n" * 60 + "b = str(a)",
    "equal lists within themselves": "a = [0]\nb = [0]\n" + "a = [a, a]\nb = [b, b]\n" * 60 + "c = a == b",
    "ordered lists within themselves": "a = [0]\nb = [0]\n" + "a = [a, a]\nb = [b, b]\n" * 60 + "c = a < b",
    "a key that is never hashed to its end": "a = (0,)\n" + "a = (a, a)\n" * 60 + "b = set([a])",
    "an index that is never hashed to its end": "a = (0,)\n" + "a = (a, a)\n" * 60 + "b = {}[a]",
    "branches that disagree about such lists": "a = [0]\nb = [0]\n"
    + "a = [a, a]\nb = [b, b]\n" * 60
    + "if self.nobody:\n    c = a\nelse:\n    c = b",
    "two lists that hold each other": "a = []\nb = []\na.append(b)\nb.append(a)\nc = a == b",
    "a sum of lists": "b = [[0] * 300] * 300\nfor i in range(60000):\n    c = sum(b, [])",
    "a default that calls its function": "def f(x=f()):\n    pass\nf()",
    "a function that calls itself": "def f():\n    return f()\nf()",
    "a class attribute that is itself": "x = EvilA.x",
    "an expression 900 deep": "a = " + "+".join(["1"] * 900),
    "900 conditions": "\n".join(f"{'if' if n == 0 else 'elif'} self.config.a == {n}:\n    a = 1" for n in range(900)),
    "loops in loops": "for a in range(999):\n    for b in range(999):\n        for c in range(999):\n            pass",
}
EVIL = "class EvilA:\n    x = EvilA.x\n\n\n"


def spoiled(folder, body, before=EVIL):
    """The tree of slices, whose Llama does this first in its setter."""
    tree = shutil.copytree(BOUNDARIES, folder / "tree")
    file = tree / "sglang" / "srt" / "models" / "llama.py"
    head = "def set_eagle3_layers_to_capture(self, ids=None):\n"
    text = file.read_text().replace(head, head + textwrap.indent(body, " " * 8) + "\n")
    file.write_text(text.replace("\nclass ", f"\nimport re\n\n\n{before}class ", 1))
    return {tree: Source(Tree.find(tree))}, tree


@contextmanager
def within(seconds, megabytes):
    """Processor time and memory that the block may take."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes << 10


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_worth_knowing_is_passed_over(tmp_path, name):
    sources, tree = spoiled(tmp_path, HOSTILE[name])
    with within(seconds=20, megabytes=100):
        assert rule(sources, tree, "LlamaForCausalLM", [2, 30, 57]).captured == (3, 31, 58)


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_would_never_end_is_not_understood_with_its_place(tmp_path, name, monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 25_000)
    sources, tree = spoiled(tmp_path, TOO_MUCH[name])
    with within(seconds=60, megabytes=500):
        found = rule(sources, tree, "LlamaForCausalLM", [2, 30, 57])
        assert found.ids_for([3, 31, 58]) is None
    assert re.match(r"not understood: sglang/srt/models/llama.py:\d+: ", found.problem) and not found.understood
    assert len(found.problem) < 400 and found.problem.isprintable()


@pytest.mark.parametrize(
    "body", ["a = [1, 2, 3][::0]", "a = [1, 2]['x']", "a = [1, 2]['a':'b']", "a = 1 // 0", "a = int('x')"]
)
def test_what_the_engine_would_stop_at_is_said_to_stop_it(tmp_path, body):
    sources, tree = spoiled(tmp_path, body)
    found = rule(sources, tree, "LlamaForCausalLM", [2, 30, 57])
    assert found.stops and "the engine would stop with" in found.problem and "llama.py" in found.problem


@pytest.mark.parametrize(
    ("pattern", "replacement", "text", "made"),
    [
        (r"^model\.", "", "model.layers.0", "layers.0"),
        (r"\.qscale_act$", ".input_scale", "a.qscale_act", "a.input_scale"),
        (r"^(model\.merger\.mlp\.\d+)\.mlp\.0\.", r"\1.linear_1.", "model.merger.mlp.12.mlp.0.weight", "model.merger.mlp.12.linear_1.weight"),
        (r"[^A-Za-z0-9._-]+", "_", "a b/c", "a_b_c"),
        (r".*mtp\.(?:model\.)?layers\.\d+\.", "model.", "x.mtp.layers.0.w", UNKNOWN),
        (r"(a+)+$", "", "aab", UNKNOWN),
        (r"a{9}", "", "aab", UNKNOWN),
        (r"a|b", "", "aab", UNKNOWN),
    ],
)  # fmt: skip
def test_a_pattern_is_run_if_it_is_plain(sources, pattern, replacement, text, made):
    assert substituted(machine_for(sources[BOUNDARIES]), pattern, replacement, text, "here:1") is made or (
        substituted(machine_for(sources[BOUNDARIES]), pattern, replacement, text, "here:1") == made
    )


def test_classes_that_inherit_from_each_other(tmp_path):
    sources, tree = spoiled(
        tmp_path, "pass", "from sglang.srt.models.other import Other\n\n\nclass First(Other):\n    pass\n\n\n"
    )
    (tree / "sglang/srt/models/other.py").write_text(
        "from sglang.srt.models.llama import First\n\n\nclass Other(First):\n    pass\n"
    )
    found = sources[tree].resolve(sources[tree].module("sglang/srt/models/llama.py"), "First")
    assert [ref.name for ref in sources[tree].mro(found)] == ["First", "Other"]


def test_a_ladder_of_classes_is_climbed_once(tmp_path):
    rungs = "class A0:\n    pass\n\n\nclass B0:\n    pass\n\n\n"
    rungs += "".join(
        f"class A{n}(A{n - 1}, B{n - 1}):\n    pass\n\n\nclass B{n}(A{n - 1}, B{n - 1}):\n    pass\n\n\n"
        for n in range(1, 1500)
    )
    sources, tree = spoiled(tmp_path, "pass", rungs)
    top = sources[tree].resolve(sources[tree].module("sglang/srt/models/llama.py"), "A1499")
    with within(seconds=20, megabytes=100):
        assert len(sources[tree].mro(top)) == 2 * 1499 + 1


@pytest.mark.parametrize(
    "text", ["x = " + "-" * 100_000 + "1", "x = " + "+".join(["1"] * 50_000), "x = " + "(" * 5000, "x = \0", "if"]
)
def test_a_file_that_python_cannot_parse_is_one_sentence(tmp_path, text):
    sources, tree = spoiled(tmp_path, "pass")
    with open(tree / "sglang/srt/models/llama.py", "a") as file:
        file.write("\n" + text + "\n")
    with pytest.raises(SpecwireError, match="llama.py: not Python that this interpreter can parse") as caught:
        rule(sources, tree, "LlamaForCausalLM", [2, 30, 57])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_config_stays_as_it_is_whatever_the_model_writes_into_it(tmp_path):
    body = "self.config.first_k_dense_replace = 7\nself.config.rope_config.theta = 5"
    found, tree = spoiled(tmp_path, body, before="")
    config = {"architectures": ["LlamaForCausalLM"], **LAYERS, "rope_config": {"theta": 1}}
    assert captured_boundaries(found[tree], config, [2, 30, 57]).problem is None
    assert config == {"architectures": ["LlamaForCausalLM"], **LAYERS, "rope_config": {"theta": 1}}


def test_more_layers_than_any_model_has(sources, monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 25_000)
    with within(seconds=60, megabytes=500):
        found = rule(sources, BOUNDARIES, "LlamaForCausalLM", [2, 30, 57], num_hidden_layers=100_000)
        assert found.problem.startswith("not understood: sglang/srt/") and found.ids_for([3, 31, 58]) is None


def test_whatever_breaks_the_reader_is_not_understood(sources, monkeypatch):
    monkeypatch.setattr(execute, "call", lambda *given: 1 / 0)
    found = rule(sources, BOUNDARIES, "LlamaForCausalLM", [2, 30, 57])
    assert re.fullmatch(r"not understood: sglang/srt/models/llama.py:\d+: ZeroDivisionError: .*", found.problem)


def test_a_tree_with_taps_is_read_as_without(tmp_path):
    from small_trees import applied, make_tree

    bare, tapped = make_tree(tmp_path / "bare"), make_tree(tmp_path / "tapped")
    applied(tapped)
    for name in bare.python_files("sglang/srt/models"):
        ours, theirs = (Source(tree).module(name).node for tree in (tapped, bare))
        assert ast.dump(ours) == ast.dump(theirs), name
        assert tapped.read(name) != bare.read(name) or b"specwire" not in tapped.read(name)
