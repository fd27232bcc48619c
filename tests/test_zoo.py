"""The zoo's sample, and the herd's, on the real engine: the right cause first, and none where nothing is wrong."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "zoo"))
from boots import edited, replaced
from herd import HERD
from kinds import all_faults
from trial import INVENTED, Edit, Trial
from yard import tree_of, yard

from specwire.errors import SpecwireError
from specwire.registry import modules

FAULTS = all_faults()


@pytest.fixture(scope="module")
def yards(tmp_path_factory):
    """One warm engine for each release that is asked for; all are proven clean in the end."""
    open_yards = {}

    def of(release):
        if release not in open_yards:
            context = yard(tmp_path_factory.mktemp("yard"), tree_of(release))
            open_yards[release] = context, context.__enter__()
        return open_yards[release][1]

    yield of
    for context, _ in open_yards.values():
        context.__exit__(None, None, None)


def sample(trials: list[Trial]) -> list:
    return [pytest.param(trial, id=trial.name) for trial in trials if trial.sample]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("trial", sample(FAULTS))
def test_the_fault_is_named_first(trial, yards):
    outcome = yards(trial.release).run(trial)
    assert outcome.right(trial), (outcome.causes, outcome.static, outcome.died)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("trial", sample(HERD))
def test_a_healthy_system_is_a_match_without_a_cause(trial, yards):
    outcome = yards(trial.release).run(trial)
    assert outcome.right(trial), (
        outcome.document and outcome.document["verdict"],
        outcome.causes,
        outcome.static,
        outcome.died,
    )


def test_every_diagnosis_has_a_fault_in_the_sample():
    causes = {name.replace("_", "-") for name in modules("specwire.checks")}
    assert {trial.cause for trial in FAULTS} == {trial.cause for trial in FAULTS if trial.sample} == causes


def test_faults_are_many_and_follow_public_reports():
    assert len(FAULTS) >= 30 and len(HERD) >= 15
    unfounded = [
        trial.name
        for trial in FAULTS
        if not trial.report.startswith("https://github.com/") and trial.report != INVENTED
    ]
    assert unfounded == [], "each names the public report that it follows, on github.com, or says INVENTED"
    assert sum(trial.report == INVENTED for trial in FAULTS) < len(FAULTS) / 2
    assert all(trial.cause is None for trial in HERD)


def test_a_kind_is_named_after_its_cause():
    for trial in FAULTS:
        assert any(
            trial in module.FAULTS
            for name, module in sys.modules.items()
            if name == f"kinds.{trial.cause.replace('-', '_')}"
        )


SOURCE = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 1\n"


def test_an_edit_stays_within_its_function():
    after = replaced(SOURCE, Edit("a.py", "A.g", "return 1", "return 2"))
    assert after == SOURCE[:-2] + "2\n" and ast.parse(after)


@pytest.mark.parametrize("where, old", [("A.h", "return 1"), ("A.f", "return 3"), ("A.f", " ")])
def test_an_edit_that_fits_nowhere_or_twice_is_refused(where, old):
    with pytest.raises(SpecwireError, match="the fault needs"):
        replaced(SOURCE, Edit("a.py", where, old, ""))


def test_a_view_is_as_before_after_an_edit_that_fails(tmp_path):
    (tmp_path / "origin.py").write_text(SOURCE)
    (tmp_path / "a.py").symlink_to(tmp_path / "origin.py")
    good, bad = Edit("a.py", "A.g", "return 1", "return 2"), Edit("a.py", "A.g", "return 7", "")
    with pytest.raises(SpecwireError), edited(tmp_path, (good, bad)):
        pass
    assert (tmp_path / "a.py").is_symlink() and (tmp_path / "origin.py").read_text() == SOURCE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py", "origin.py"]


@pytest.mark.engine
def test_every_edit_fits_the_installed_engine():
    package = tree_of(None)
    for trial in FAULTS:
        texts = {edit.file: package.path(edit.file).read_text("utf-8") for edit in trial.source}
        for edit in trial.source:
            texts[edit.file] = replaced(texts[edit.file], edit)
        for text in texts.values():
            ast.parse(text)
