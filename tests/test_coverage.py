"""`probes --coverage`: a row for every loop, wrapper, draft and head, and a reason for whatever is not reached."""

import json

import pytest
from small_trees import make_tree, snapshot

from specwire import cli

WRAPPER = b"""import torch
from sglang.srt.models.target import Target


class Wrapper:
    def __init__(self):
        self.model = Target()

    def set_eagle3_layers_to_capture(self, ids):
        self.model.layers_to_capture = ids
"""
HEAD = b"""import torch


class Head:
    def forward(self, input_ids, forward_batch):
        embeds = self.embed_tokens(input_ids)
        return self.fc(torch.cat((embeds, forward_batch.spec_info.hidden_states), dim=-1))
"""
RUNNER = b"""import torch


class EAGLEDraftCudaGraphRunner:
    def replay(self, forward_batch):
        forward_batch.spec_info.hidden_states = self.fc(forward_batch.spec_info.hidden_states)
        self.graphs[self.bs].replay()
"""


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    tree.path("sglang/srt/models/wrapper.py").write_bytes(WRAPPER)
    tree.path("sglang/srt/models/head_mtp.py").write_bytes(HEAD)
    (runner := tree.path("sglang/srt/speculative/eagle_draft_cuda_graph_runner.py")).parent.mkdir(exist_ok=True)
    runner.write_bytes(RUNNER)  # reads a batch's states, and is no draft
    return tree


def run(capfd, *arguments):
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code, capfd.readouterr().out


def test_rows(tree, capfd):
    before = snapshot(tree.root)
    code, out = run(capfd, "probes", "--coverage", tree.root, "--json")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "specwire.coverage/1" and document["version"] == "0.5.99"
    assert {key: document[key] for key in ("loops", "loops_covered", "drafts", "drafts_covered", "elsewhere", "other_heads", "not_recognised")} == {
        "loops": 1, "loops_covered": 1, "drafts": 1, "drafts_covered": 1, "elsewhere": 1, "other_heads": 1, "not_recognised": 0
    }  # fmt: skip
    rows = {(row["file"].rsplit("/", 1)[-1], row["name"]): row for row in document["rows"]}
    target = rows["target.py", "Target.forward"]
    assert target["covered"] and target["family"] == "loop, before the layer (append); sum"
    expected = {"embedding-capture": 1, "forward-end": 1, "hidden-state-dump": 2, "layer-capture": 1}
    assert expected.items() <= target["taps"].items() and not target["why"]
    assert {"draft-fc": 2, "draft-input": 1}.items() <= rows["draft_eagle3.py", "Draft.forward"]["taps"].items()
    assert "goes through Target (sglang/srt/models/target.py)" in rows["wrapper.py", "Wrapper"]["why"]["layer-capture"]
    assert "joins one state with the embedding" in rows["head_mtp.py", "Head.forward"]["why"]["draft-input"]
    assert snapshot(tree.root) == before


def test_table(tree, capfd):
    code, out = run(capfd, "probes", "--coverage", tree.root)
    assert code == 0
    assert "models/target.py" in out and "layer-capture 1" in out
    assert out.splitlines()[-1] == (
        "SGLang 0.5.99: 1 of 1 capture loops, 1 of 1 EAGLE-3 drafts; 1 that go through another's loop, "
        "1 heads that take one state, 0 not recognised"
    )


def test_the_same_with_taps_in(tree, capfd):
    _, before = run(capfd, "probes", "--coverage", tree.root)
    assert run(capfd, "apply", tree.root)[0] == 0
    assert run(capfd, "probes", "--coverage", tree.root) == (0, before)


def test_unknown_structure_is_said_and_apply_taps_the_rest(tree, capfd):
    path = tree.path("sglang/srt/models/target.py")
    path.write_bytes(
        path.read_bytes().replace(b"aux_hidden_states.append(hidden_states + residual)", b"self.kept = hidden_states")
    )
    before = snapshot(tree.root)
    code, out = run(capfd, "probes", "--coverage", tree.root)
    assert code == 2 and "NOT RECOGNISED" in out and "0 of 1 capture loops" in out and "1 not recognised" in out
    code, out = run(capfd, "apply", tree.root, "--json")
    document = json.loads(out)
    (site,) = [site for site in document["sites"] if site["probe"] == "layer-capture" and site["state"] == "failed"]
    assert code == 3 and document["result"] == "partial" and site["qualname"] == "Target.forward"
    assert "nearest is sglang/srt/models/target.py:" in site["why"] and "if i in self.layers_to_capture:" in site["why"]
    assert run(capfd, "remove", tree.root)[0] == 0 and snapshot(tree.root) == before


BROKEN = b"class Target(\n"
DEEP = b"x = " + b"(" * 300 + b"\n"
HEIR = b"from sglang.srt.models.target import Target\nclass Heir(Target):\n    pass\nEntryClass = Heir\n"


@pytest.mark.parametrize("broken", [BROKEN, DEEP, BROKEN.replace(b"\n", b"\0")], ids=["no Python", "too deep", "a NUL"])
def test_a_file_that_is_no_python_keeps_no_other_one_back(tree, capfd, broken):
    """Neither as itself, nor as the one that a class of another file comes from."""
    names = {"target.py": broken, "heir.py": HEIR, "broken.py": broken + b"EntryClass = []\n"}
    for name, data in names.items():
        tree.path(f"sglang/srt/models/{name}").write_bytes(data)
    code, out = run(capfd, "probes", "--coverage", tree.root, "--json")
    rows = {row["file"].rsplit("/", 1)[-1]: row for row in json.loads(out)["rows"]}
    assert code == 2 and "not Python" in rows["broken.py"]["why"]["layer-capture"]
    assert "which is not at hand here" in rows["wrapper.py"]["why"]["layer-capture"]
    assert rows["draft_eagle3.py"]["covered"]


def test_names_that_lead_to_each_other_have_an_end(tree, capfd):
    for name, other in (("one", "two"), ("two", "one")):
        text = f"from sglang.srt.models.{other} import Target\nclass Heir(Target):\n    pass\nA = B\nB = A\nEntryClass = [Heir, A]\n"
        tree.path(f"sglang/srt/models/{name}.py").write_text(text)
    assert run(capfd, "probes", "--coverage", tree.root)[0] == 0
