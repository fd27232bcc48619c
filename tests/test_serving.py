"""`apply --target`: only the files that serve a target are tapped, and the drafts."""

import json

import pytest
from releases import release_tree
from small_trees import FILES, TARGET, make_tree

from specwire import cli
from specwire.errors import SpecwireError
from specwire.patching import surgery
from specwire.sites.serving import serving_files
from specwire.trees.tree import Tree

ENTRY = b"\n\nclass %s:\n    pass\n\n\nEntryClass = [%s]\n"


def entry(name: str, before: bytes = b"") -> bytes:
    return before + ENTRY % (name.encode(), name.encode())


@pytest.fixture
def tree(tmp_path):
    models = {
        "plain.py": TARGET + entry("PlainForCausalLM"),
        "base.py": TARGET,
        "wrapped.py": b"def build():\n    from sglang.srt.models.base import Model\n" + entry("WrappedForCausalLM"),
        "relative.py": b"from .wrapped import WrappedForCausalLM as Other\n" + entry("RelativeForCausalLM"),
        "broken.py": b"EntryClass = BrokenForCausalLM(\n",
        "speaks.py": b"# PlainForCausalLM\nEntryClass = []\n",
    }
    return make_tree(
        tmp_path / "tree", {**FILES, **{f"sglang/srt/models/{name}": data for name, data in models.items()}}
    )


def served(tree, *architectures):
    return {name.rsplit("/", 1)[-1] for name in serving_files(tree, architectures)}


def test_the_file_that_registers_and_all_that_it_imports_from(tree):
    assert served(tree, "PlainForCausalLM") == {"plain.py"}
    assert served(tree, "WrappedForCausalLM") == {"wrapped.py", "base.py"}
    assert served(tree, "RelativeForCausalLM") == {"relative.py", "wrapped.py", "base.py"}
    assert served(tree, "Unknown", "PlainForCausalLM") == {"plain.py"}


@pytest.mark.parametrize("architectures", [(), ("Unknown",), ("BrokenForCausalLM",)])
def test_a_target_that_the_tree_does_not_serve_is_refused(tree, architectures):
    with pytest.raises(SpecwireError, match="EntryClass"):
        serving_files(tree, architectures)


def test_apply_taps_these_files_and_the_drafts_and_status_and_remove_need_no_target(tree, tmp_path, capfd):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": ["WrappedForCausalLM"]}))
    before = {name: tree.read(name) for name in tree.python_files()}
    with pytest.raises(SystemExit) as ended:
        cli.main(["apply", str(tree.root), "--target", str(tmp_path / "model"), "--json"])
    assert ended.value.code == 0
    tapped = {site["file"] for site in json.loads(capfd.readouterr().out)["sites"] if site["state"] == "applied"}
    assert "sglang/srt/models/base.py" in tapped and "sglang/srt/models/draft_eagle3.py" in tapped
    assert not tapped & {"sglang/srt/models/plain.py", "sglang/srt/models/target.py"}
    surgery.plan_remove(tree).write()
    assert {name: tree.read(name) for name in tree.python_files()} == before


def test_what_was_tapped_without_a_target_stays(tree):
    surgery.plan_apply(tree, surgery.chosen((), ())).write()
    again = surgery.plan_apply(tree, surgery.chosen((), ()), models=serving_files(tree, ["PlainForCausalLM"]))
    assert not again.changes and again.result == "already"


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize(
    "architecture, loops", [("LlamaForCausalLM", "llama.py"), ("KimiK25ForConditionalGeneration", "deepseek_v2.py")]
)
def test_of_a_release_the_loop_s_file_is_among_them_and_most_are_not(version, architecture, loops):
    tree = Tree.find(release_tree(version))
    names = serving_files(tree, [architecture])
    assert f"sglang/srt/models/{loops}" in names
    assert len(names) < len(tree.python_files("sglang/srt/models")) / 4
