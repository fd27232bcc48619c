"""An engine that ends early: what it captured until then is judged, and is never a match."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from specwire.engine import run as engine
from specwire.errors import SpecwireError
from specwire.progress import silent
from specwire.trees.tree import Tree
from specwire.verify import Job, judged_run

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "golden" / "llama" / "float32.safetensors"
RUN = ROOT / "fixtures" / "captures" / "llama-0.5.23"
TREE = ROOT / "fixtures" / "slices" / "adds-one"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make import make

    return make("llama", tmp_path_factory.mktemp("llama"))


def judged(models, out: Path, monkeypatch, left_behind: Path | None, trained=None):
    """The document on an engine that died after it had left these captures behind."""

    def dies(*_, **__):
        if left_behind:
            shutil.copytree(left_behind, out / "capture", dirs_exist_ok=True)
        raise engine.EngineFailed("the engine failed: ValueError: gone. Log: x")

    monkeypatch.setattr(engine, "run_engine", dies)
    job = Job(Tree.find(TREE), models.target, models.draft, GOLDEN, 1, "cpu", "python")
    return judged_run(job, TREE, out, silent, trained=trained)


def test_a_fault_in_what_was_captured_is_named(models, tmp_path, monkeypatch):
    document = judged(models, tmp_path, monkeypatch, RUN / "capture", trained=[3, 5, 7])
    assert document["verdict"] == "mismatch" and document["causes"][0]["id"] == "boundary-offset"
    assert document["run"]["died"] == "the engine failed: ValueError: gone. Log: x"
    assert document["notes"][0].startswith("the engine failed: ValueError: gone.")


@pytest.mark.parametrize("left_behind", [RUN / "capture", None], ids=["rows that match", "nothing"])
def test_without_a_fault_the_engine_s_death_is_the_answer(models, tmp_path, monkeypatch, left_behind):
    with pytest.raises(SpecwireError, match=r"ValueError: gone\. Log: x"):
        judged(models, tmp_path, monkeypatch, left_behind)
