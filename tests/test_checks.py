"""Every check proves itself on its own cases: it catches what it names, and keeps quiet on the rest."""

from __future__ import annotations

import pytest
import torch

from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.check import documented, examine
from specwire.diagnosis.evidence import Cause
from specwire.registry import modules

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
CHECKS = modules("specwire.checks")
CASES = [
    pytest.param(name, kind, case, id=f"{name}-{kind}-{case.name}")
    for name, module in CHECKS.items()
    for kind in ("CAUGHT", "CLEAN")
    for case in getattr(module, kind, [])
]


def test_there_are_checks() -> None:
    assert len(CHECKS) >= 9


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_says_what_it_is_and_has_cases(name: str) -> None:
    module = CHECKS[name]
    parts = documented(module)
    assert parts["summary"].endswith(".") and all(parts.get(part) for part in ("symptom", "cause", "fix"))
    assert module.CAUGHT and module.CLEAN


@pytest.mark.parametrize(("name", "kind", "case"), CASES)
def test_case(name: str, kind: str, case: Case, tmp_path) -> None:
    evidence = evidence_of(case, tmp_path)
    answer = CHECKS[name].check(evidence)
    document = examine(evidence)
    if kind == "CLEAN":
        assert not isinstance(answer, Cause), f"{name} is noisy: {answer}"
        assert name not in [cause["id"] for cause in document["causes"]]
        return
    assert isinstance(answer, Cause), (
        f"{name} missed its case; nearest {evidence.nearest}, found {evidence.found}"
    )
    assert document["verdict"] == "mismatch" or answer.confidence == "possible"
    assert document["causes"][0]["id"] == name, [
        (cause["id"], cause["evidence"]) for cause in document["causes"]
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_healthy_system_has_no_cause(dtype: str, ranks: int, tmp_path) -> None:
    document = examine(evidence_of(Case("healthy", dtype=dtype, ranks=ranks), tmp_path))
    assert document["verdict"] == "match" and document["causes"] == []
    assert document["ranks"] == ranks and document["ranks_agree"] is True
