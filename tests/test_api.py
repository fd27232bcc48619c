"""`import specwire` as a notebook uses it, cell by cell, and what it costs to start."""

import subprocess
import sys

import pytest
from captures import concat, make_golden, make_states, write_batch
from preflight_models import draft, target
from small_trees import make_tree, snapshot

import specwire
from specwire import api

NOTEBOOK = """
import specwire

tree = specwire.Tree.find({tree!r})
assert specwire.status(tree).result == "nothing"

planned = specwire.apply(tree, ["draft-input"], dry_run=True)
assert planned.diff().startswith(b"--- a/sglang/srt/models")
assert specwire.status(tree).result == "nothing"

assert specwire.apply(tree).result == "applied"
taps = [site for site in specwire.status(tree).sites if site.state == "applied"]
assert {{site.probe for site in taps}} >= {{"draft-input", "layer-capture"}}
assert specwire.remove(tree).result == "removed"

assert specwire.apply(tree, overlay={view!r}).result == "applied"
assert specwire.status(tree).result == "nothing"
assert specwire.status({view!r}).result == "applied"

try:
    specwire.apply(tree, ["no-such-probe"])
except specwire.SpecwireError as error:
    assert "no-such-probe" in str(error)
else:
    raise AssertionError

import sys
assert "torch" not in sys.modules and "click" not in sys.modules
"""


def test_a_notebook_on_a_tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    before = snapshot(tree.root)
    cells = NOTEBOOK.format(tree=str(tree.root), view=str(tmp_path / "view"))
    done = subprocess.run([sys.executable, "-c", cells], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert snapshot(tree.root) == before


def test_a_capture_is_judged(tmp_path):
    states = make_states([[4, 5, 6]])
    golden = make_golden(tmp_path / "golden.safetensors", [[4, 5, 6]], states)
    write_batch(tmp_path / "right", 0, 0, [([4, 5, 6], 0, 3)], [concat(states[0], (1, 3, 5))])
    write_batch(tmp_path / "wrong", 0, 0, [([4, 5, 6], 0, 3)], [concat(states[0], (3, 1, 5))])
    assert specwire.open_golden(golden).trained == (1, 3, 5)
    right, wrong = (specwire.check_capture(golden, tmp_path / which) for which in ("right", "wrong"))
    assert (right.verdict, right.findings) == ("match", ())
    assert (wrong.verdict, wrong.findings[0].id, wrong.findings[0].confidence) == ("mismatch", "slot-order", "certain")
    assert wrong.document["causes"][0]["fix"] == wrong.findings[0].fix


def test_a_launch_is_judged(tmp_path):
    served, made = target(tmp_path / "t"), draft(tmp_path / "d")
    launch = f"--model-path {served} --speculative-draft-model-path {made} --speculative-algorithm EAGLE"
    verdict = specwire.preflight_launch(served, made, launch, trained=[2, 6, 9])
    assert verdict.verdict == "fault"
    assert "algo-flag" in [finding.id for finding in verdict.findings]


def test_the_face_is_what_it_says():
    assert sorted(specwire.__all__) == sorted(api.__all__) and set(specwire.__all__) <= set(dir(specwire))
    for name in specwire.__all__:
        assert getattr(specwire, name) is getattr(api, name)
        assert getattr(specwire, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specwire.nothing  # noqa: B018


def test_importing_it_loads_nothing():
    code = "import sys, specwire; print([name for name in sys.modules if name.startswith(('specwire.', 'libcst'))])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
