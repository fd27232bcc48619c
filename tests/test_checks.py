"""Every check proves itself on its own cases: it catches what it names, and keeps quiet on the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.check import documented, examine
from specwire.diagnosis.finding import Cause
from specwire.registry import modules

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
CHECKS = modules("specwire.checks")
CASES = [
    pytest.param(name, kind, case, id=f"{name}-{kind}-{case.name}")
    for name, module in CHECKS.items()
    for kind in ("CAUGHT", "CLEAN")
    for case in getattr(module, kind, [])
]

# All others are certain. Without the residuals, or where weights merely look so, nothing can be more than likely.
UNSURE = {
    "accept-short": {"one of two rows": "likely"},
    "capture-site": {"placeholder rows at the first boundary": "likely"},
    "final-boundary": {"a small step left out": "likely"},
    "golden-rows": {"another text from the third token on": "likely"},
    "hand-over": {"a state that is halved on its way to the next step": "likely"},
    "kv-attn": {"the target's own window": "likely"},
    "missing-residual": {"branch alone, golden without residuals": "likely"},
    "non-finite": {"NaN that the draft makes of sound weights": "likely"},
    "not-wiring": {"exact, and slow": "possible"},
    "quant-basis": {"rounded weights": "likely"},
    "rank-partial": {"the same, golden without residuals": "likely"},
    "rope": {"the target's own": "likely", "the target's own, in bfloat16": "likely"},
    "stream-end": {"a part of the states": "likely", "another head": "likely", "another head, tokens alone": "likely"},
    "token-shift": {
        "ids shifted in the data, no embeddings in the golden": "likely",
        "ids shifted in the data, and some rows fit": "likely",
    },
    "verify-forward": {"other states of what was verified": "likely"},
    "weights-random": {"a layer of another seed": "likely", "names that the loader does not know": "likely"},
    "wrong-boundary": {
        "a golden of few boundaries": "possible", "one slot of a golden of few boundaries": "possible",
    },
    "wrong-target": {
        "only the layers behind the last slot": "likely", "another seed": "likely", "a fine-tune": "likely",
        "later layers trained on": "possible", "one token's embedding": "possible",
    },
}  # fmt: skip


def test_every_file_is_a_check() -> None:
    files = Path(__file__).parent.parent.joinpath("checks").glob("[a-z]*.py")
    assert {path.stem.replace("_", "-") for path in files} == set(CHECKS) and len(CASES) > 4 * len(CHECKS)


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
    assert isinstance(answer, Cause), f"{name} missed its case; nearest {evidence.nearest}, found {evidence.found}"
    assert answer.confidence == UNSURE.get(name, {}).get(case.name, "certain"), answer.said
    assert document["verdict"] == "mismatch" or answer.confidence == "possible"
    assert document["causes"][0]["id"] == name, [(cause["id"], cause["evidence"]) for cause in document["causes"]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_healthy_system_has_no_cause(dtype: str, ranks: int, tmp_path) -> None:
    document = examine(evidence_of(Case("healthy", dtype=dtype, ranks=ranks), tmp_path))
    assert document["verdict"] == "match" and document["causes"] == []
    assert document["ranks"] == ranks and document["ranks_agree"] is True


def test_a_neighbour_is_looked_for_in_the_slots_that_are_near_one(tmp_path) -> None:
    """The first slot holds noise, the others a layer that this golden does not know."""

    def first_lost(states: torch.Tensor, world: object) -> torch.Tensor:
        width = states.shape[-1] // 3
        return torch.cat([states[:, :width].roll(1, -1), states[:, width:]], dim=-1)

    case = Case("two near", slots=(3, 8, 11), alter=first_lost, known=(3, 7, 10))
    cause = CHECKS["wrong-boundary"].check(evidence_of(case, tmp_path))
    assert cause.confidence == "possible" and cause.said.startswith(
        "slots [1, 2] are near a boundary (relative L2 0.27)"
    )


def _late(states: torch.Tensor, world: object) -> torch.Tensor:
    return states.roll(1, 0)


def _narrow(states: torch.Tensor, world: object) -> torch.Tensor:
    return states.bfloat16().float()


@pytest.mark.parametrize(
    ("alter", "captured", "expected"),
    [
        (_narrow, None, {"boundary-offset", "dtype"}),
        (lambda states, world: states * 1.1, None, {"boundary-offset", "scale"}),
        (_late, [2, 6, 9], {"boundary-offset", "token-shift"}),
        (lambda states, world: states.flip(0), [2, 6, 9], {"boundary-offset", "row-select"}),
    ],
)
def test_two_faults_at_once_are_both_named(alter, captured, expected, tmp_path) -> None:
    end = captured and {"note": "captured: 3", "captured": captured}
    case = Case("both", slots=(2, 6, 9), alter=alter, forward_end=end)
    causes = examine(evidence_of(case, tmp_path))["causes"]
    assert {cause["id"] for cause in causes} == expected
    assert causes[0]["id"] == "boundary-offset" and "once" in causes[0]["evidence"]
    assert "noise floor, once" not in causes[0]["evidence"]


def test_one_fault_is_not_made_two(tmp_path) -> None:
    """Rows of the trained layers, late: what the target said that it captures is what was trained."""
    end = {"note": "captured: 3", "captured": [3, 7, 10]}
    causes = examine(evidence_of(Case("late", alter=_late, forward_end=end), tmp_path))["causes"]
    assert [cause["id"] for cause in causes] == ["token-shift"]


ADDS_ONE = staticmethod(lambda ids: sorted({k + 1 for k in ids}) if ids else [2, 6, 9])


@pytest.mark.parametrize(
    ("ids", "slots", "trained", "fix"),
    [
        ([2, 6, 9], (3, 7, 10), (10, 7, 3), "column blocks of fc.weight in the order [2, 1, 0]"),
        ([9, 2, 6], (3, 7, 10), (10, 3, 7), "column blocks of fc.weight in the order [1, 2, 0]"),
        ([2, 6, 9], (10, 7, 3), (3, 7, 10), "config already gives [2, 6, 9]"),
        ([3, 7, 10], (4, 8, 11), (3, 7, 10), "write [2, 6, 9] as eagle_config.eagle_aux_hidden_state_layer_ids"),
    ],
)
@pytest.mark.parametrize("rule", [ADDS_ONE, None])
def test_a_fix_never_tells_to_write_ids_that_would_not_do(ids, slots, trained, fix, rule, tmp_path) -> None:
    context = {"draft": {"eagle_aux_hidden_state_layer_ids": ids}, "rule": rule and rule.__func__}
    document = examine(evidence_of(Case("ids", slots=slots, trained=trained, context=context), tmp_path))
    if rule is None and "already" in fix:
        fix = (
            "set eagle_config.eagle_aux_hidden_state_layer_ids"  # without the source's rule nobody knows what they give
        )
    assert fix in document["causes"][0]["fix"]


def test_another_config_is_no_proof_that_it_is_the_cause(tmp_path) -> None:
    """It may differ in what changes no state: the length it allows, or its end token."""
    config = {"num_hidden_layers": 12, "hidden_size": 32, "eos_token_id": 7}
    case = Case("reversed columns", alter=lambda states, world: states.flip(1).roll(1, 0), context={"target": config})
    evidence = evidence_of(case, tmp_path)
    evidence = replace(evidence, golden=replace(evidence.golden, target="target sha256:0123456789abcdef"))
    causes = examine(evidence)["causes"]
    assert [(cause["id"], cause["confidence"]) for cause in causes] == [("wrong-target", "likely")]
    assert "the golden is of target sha256:0123456789abcdef" in causes[0]["evidence"]


def test_a_release_without_such_ids_gets_a_next_step(tmp_path) -> None:
    """No id makes a loop over layers' inputs give the last layer's output."""
    stops_early = staticmethod(lambda ids: [k for k in ids if k < 12] if ids else [2, 6, 9]).__func__
    context = {"draft": {"eagle_aux_hidden_state_layer_ids": [3, 7, 11]}, "rule": stops_early}
    case = Case("the end", slots=(3, 7, 11), trained=(3, 7, 12), context=context)
    fixes = [
        cause["fix"] for cause in examine(evidence_of(case, tmp_path))["causes"] if cause["id"] == "wrong-boundary"
    ]
    assert fixes and "no layer ids make" in fixes[0] and "--tree" in fixes[0] and "change the ids" not in fixes[0]
