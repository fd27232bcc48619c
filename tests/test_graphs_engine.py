"""The real server with its own graph runners, of which only the device's graphs are emulated: rows read after replays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specwire import verify
from specwire.capture import open_capture
from specwire.diagnosis.render import render_text
from specwire.diagnosis.replays import beside
from specwire.progress import silent
from specwire.trees.tree import Tree

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
from make import make

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[1]
ALL = "decode,draft,draft-extend,prefill"
SITES = {"embedding-capture", "layer-capture", "forward-end", "concat-full", "concat-last", "draft-input", "draft-fc"}
ON = ("--no-disable-cuda-graph", "--cuda-graph-bs-prefill", "8", "16", "32")
WIDTH = 3  # tokens that are verified for each request


def job(name: str, folder: Path, **settings) -> verify.Job:
    made = make(name, folder)
    golden = ROOT / "golden" / name / "float32.safetensors"
    return verify.Job(Tree.find("installed"), made.target, made.draft, golden, 1, "cpu", sys.executable, ON, **settings)


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("EMULATED_GRAPHS", ALL)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "emulated_graphs"))


def is_padded(event) -> bool:
    return event.rows not in (event.about["graph_rows"], event.about["graph_rows"] // WIDTH)


def test_every_row_of_the_server_s_replays_is_the_eager_row(tmp_path, emulated):
    """One, two and three requests at once: batches of a graph's size and smaller ones, prefills of 8 and of 26 tokens in 32.

    A product of matrices rounds otherwise in another shape; where the graph has that of the batch, every row is equal.
    """
    asked = job("llama", tmp_path, graphs="both", batches=((0,), (0, 1), (0, 1, 2)))
    document = verify.verify(asked, tmp_path / "out", silent)
    assert (document["verdict"], document["causes"], document["tree_restored"]) == ("match", [], True)
    assert document["replays"]["replayed"] > 100 and document["replays"]["without_eager"] == 0
    assert {one["site"] for one in document["replays"]["sites"] if not one["off"]} >= SITES
    assert all(one["rel_l2"] < 1e-6 for one in document["replays"]["sites"])
    assert "relative L2 to the eager forwards: up to" in render_text(document)
    eager, replayed = (open_capture(tmp_path / "out" / part).events for part in ("eager/capture", "capture"))
    exact = beside(eager, [event for event in replayed if event.replayed and not is_padded(event)])
    assert {site.furthest for site in exact.sites.values()} == {0.0} and set(exact.sites) >= SITES
    # What ran as Python on this launch: the head behind a prefill's graph, and nothing else.
    assert {(e.site, e.mode) for e in replayed if not e.replayed} == {
        ("concat-full", "EXTEND"),
        ("concat-last", "EXTEND"),
    }
    shapes = {(event.mode, event.about["graph_rows"], event.rows) for event in replayed if event.replayed}
    assert {("EXTEND", 8, 8), ("EXTEND", 32, 26)} <= shapes
    for mode, width in (("TARGET_VERIFY", WIDTH), ("DRAFT_EXTEND_V2", WIDTH), ("DECODE", 1)):
        assert {(mode, width, width), (mode, 2 * width, 2 * width), (mode, 4 * width, 3 * width)} <= shapes
