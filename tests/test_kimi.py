"""A tiny Kimi-K2.5 as it is published, served: its golden is of the INT4 checkpoint, the engine has the same numbers dense.

There is no INT4 kernel for a CPU. All is there but the size: the wrapper with its vision tower, latent attention, experts,
and both forms of its draft; of its layers only as many as tell boundaries apart.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from specwire.goldens.build import build_golden
from specwire.progress import silent
from specwire.trees.tree import Tree
from specwire.verify import Job, judged_run

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "zoo"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
import kimi as fixtures
from make import make
from systems import changed_copy
from trial import layer_ids
from yard import Yard, yard

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LAYERS, IDS = 9, [3, 5, 7]
NEEDED = {"kimi_k25", "kimi_k25_eagle3", "deepseek_v2", "llama", "llama_eagle3"}


@dataclass(frozen=True)
class Kimi:
    """What is served, and the yard that it is served in."""

    dense: Path
    drafts: dict[str, Path]
    golden: Path
    yard: Yard

    def verified(self, draft: Path, place: Path, *extra: str, ranks: int = 1) -> dict[str, Any]:
        """What `specwire verify` makes of it."""
        job = Job(
            tree=Tree.find(self.yard.view), target=self.dense, draft=draft, golden=self.golden, ranks=ranks, device="cpu",
            python=sys.executable, engine_arguments=("--trust-remote-code", *extra), timeout=600.0,
        )  # fmt: skip
        known = {path.stem for path in (self.yard.view / "sglang" / "srt" / "models").glob("*.py")}
        settings = {"SGLANG_DISABLED_MODEL_ARCHS": ",".join(sorted(known - NEEDED))}
        driver = self.yard.warm.runner(())
        return judged_run(job, self.yard.view, place, silent, settings=settings, driver=driver)


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    place = tmp_path_factory.mktemp("kimi")
    with pytest.MonkeyPatch.context() as patched:
        family = replace(fixtures.KIMI["kimi-k2.5"], layers=LAYERS, draft_ids=tuple(IDS))
        patched.setitem(fixtures.KIMI, "kimi-k2.5", family)
        made = {
            form: make("kimi-k2.5", place / form, dtype="float32", draft=draft)
            for form, draft in {"llama": "random", "mla": "mla"}.items()
        }
    golden = place / "golden.safetensors"
    build_golden(made["llama"].target, golden, trained=made["llama"].boundaries)
    with yard(place / "yard", Tree.find("installed")) as started:
        drafts = {form: each.draft for form, each in made.items()}
        yield Kimi(made["llama"].dense, drafts, golden, started)


@pytest.mark.parametrize(("form", "ranks"), [("llama", 1), ("mla", 1), ("mla", 8)])
def test_a_golden_of_the_fours_is_what_the_engine_computes(kimi, form, ranks, tmp_path):
    found = kimi.verified(kimi.drafts[form], tmp_path, ranks=ranks)
    assert (found["verdict"], found["ranks"]) == ("match", ranks), (found["causes"], found["why"])
    assert [slot["nearest_boundary"] for slot in found["slots"]] == IDS and found["rows_compared"] == 26
    assert found["target_side"] == "exact"


def test_ids_that_are_one_off_are_named(kimi, tmp_path):
    other = [number - 1 for number in IDS]
    draft = changed_copy(kimi.drafts["llama"], layer_ids(other), tmp_path / "draft")
    found = kimi.verified(draft, tmp_path / "run")
    assert (found["verdict"], found["causes"][0]["id"]) == ("mismatch", "boundary-offset")
    assert str(other) in found["causes"][0]["evidence"] and str(IDS) in found["causes"][0]["evidence"]


def test_the_flag_eagle_is_named(kimi, tmp_path):
    found = kimi.verified(kimi.drafts["llama"], tmp_path, "--speculative-algorithm", "EAGLE")
    assert (found["verdict"], found["causes"][0]["id"]) == ("mismatch", "algo-flag")
