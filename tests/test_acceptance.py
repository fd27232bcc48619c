"""The acceptance pattern: gathered from a capture or the engine's counts, named with the right numbers, and a prior only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from specwire.answers import Answer, Answers, write_answers
from specwire.capture import open_capture
from specwire.capture_write import write_event
from specwire.diagnosis import check
from specwire.diagnosis.acceptance import Share, acceptance, described, of_capture
from specwire.diagnosis.case import Case, evidence_of
from specwire.diagnosis.context import make_context
from specwire.diagnosis.finding import Cause
from specwire.diagnosis.transcript import Cycle, Spoken, Transcript, transcript

STATES = torch.zeros(1, 4)


class Engine:
    """Writes the batch tensors of forwards as an engine's taps do; the states do not matter here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sequence = folder, 0

    def write(
        self, site: str, mode: str, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], **more
    ) -> None:
        tensors = {"token_ids": list(ids), "positions": list(positions), "req_pool_indices": list(slots), **more}
        tensors = {name: torch.tensor(value) for name, value in tensors.items()}
        write_event(
            self.folder,
            0,
            self.sequence,
            site,
            {"hidden_states": STATES.expand(len(ids), 4).contiguous(), **tensors},
            mode=mode,
        )
        self.sequence += 1

    def prefill(self, slot: int, ids: Sequence[int], first: int, then: int) -> None:
        positions = range(first, first + len(ids))
        lengths = {"extend_seq_lens": [len(ids)], "extend_prefix_lens": [first]}
        self.write("forward-end", "EXTEND", ids, positions, [slot], **lengths)
        self.write("draft-input", "EXTEND", [*ids[1:], then], positions, [slot], **lengths)

    def verify(self, place: int, ids: Sequence[int], slot: int = 7, positions: Sequence[int] | None = None) -> None:
        self.write("forward-end", "TARGET_VERIFY", ids, positions or range(place, place + len(ids)), [slot])


def test_tokens_and_accepted_drafts_are_read_from_the_batches(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.prefill(7, [10, 11, 12], 0, then=13)
    engine.verify(3, [13, 14, 99])  # 14 is accepted, 99 is not: the target says 15 instead
    engine.verify(5, [15, 16, 17])  # both are accepted
    engine.verify(8, [18, 98, 98])
    engine.prefill(7, [20, 21], 0, then=22)  # the slot has another request
    engine.prefill(7, [30, 31], 2, then=32)  # whose second chunk this is
    engine.verify(4, [32, 40, 41, 42], positions=[4, 5, 5, 6])  # a tree, two drafts deep
    engine.verify(6, [33, 97, 97, 97], positions=[6, 7, 7, 8])
    found = transcript(open_capture(tmp_path), None)
    first, second = found.spoken
    assert (first.tokens, first.asked) == (dict(enumerate(range(10, 19))), (10, 11, 12))
    assert first.cycles == [Cycle(3, 2, 1, 1), Cycle(5, 2, 2, 1), Cycle(8, 2, None, 1)]
    assert (second.tokens, second.asked) == ({0: 20, 1: 21, 2: 30, 3: 31, 4: 32, 6: 33}, (20, 21, 30, 31))
    assert second.cycles == [Cycle(4, 2, 1, 1), Cycle(6, 2, None, 1)]
    # What a row after a rejected draft computed was never said: no such row is a row of the request.
    assert [[row.place for row in forward.rows] for forward in found.forwards] == [
        [0, 1, 2], [3, 4], [5, 6, 7], [8], [0, 1], [2, 3], [4], [6],
    ]  # fmt: skip


def spoken(*accepted: int, drafted: int = 2, batch: int = 1, place: int = 10) -> Spoken:
    """A request whose verifications accepted so many drafts each, beginning at `place`."""
    return Spoken({}, 0, [Cycle(place + i, drafted, count, batch) for i, count in enumerate(accepted)])


def seen(*requests: Spoken, ranks: int = 1, others=()):
    return acceptance(Transcript(requests, ()), None, ranks, None, others)


def test_the_numbers_of_a_healthy_run_and_no_pattern() -> None:
    found = seen(spoken(2, 1, 0, 2), spoken(1, 2, 2, 0, 1, 2))
    assert (found.steps, found.length) == (10, 2.3)
    assert found.by_position == (Share(8, 10), Share(5, 8))  # the second draft counts where the first was accepted
    assert found.by_request == (Share(3, 4), Share(5, 6))
    assert found.by_batch == {1: Share(8, 10)} and found.by_ranks == {1: Share(8, 10)}
    assert found.pattern is None and found.points_to == ()
    assert described(found) == "acceptance length 2.30 over 10 verifications, by draft 80 %, 62 %"


@pytest.mark.parametrize(
    ("found", "pattern", "cause"),
    [
        (seen(spoken(*[0] * 9)), "exactly 1.00", "vocab-map"),
        (seen(spoken(*[2] * 9)), "every draft accepted", "non-finite"),
        (seen(spoken(*[1] * 30, 0, 0)), "decaying with position", "norm"),
        (seen(spoken(*[2, 1] * 10, *[0] * 20)), "falling past a length", "rope"),
        (seen(spoken(*[2, 1] * 10), spoken(*[0] * 20, batch=2)), "only in batches", "row-select"),
        (
            seen(spoken(*[0] * 20), ranks=8, others=[seen(spoken(*[1, 2] * 10))]),
            "only with several ranks",
            "rank-partial",
        ),
    ],
)
def test_a_pattern_points_to_causes(found, pattern: str, cause: str) -> None:
    assert found.pattern == pattern and cause in found.points_to
    assert pattern in described(found) and "never a proof" in described(found)


@pytest.mark.parametrize(
    ("found", "pattern"),
    [
        pytest.param(seen(spoken(*[0] * 7)), None, id="seven verifications are too few"),
        pytest.param(seen(spoken(*[0] * 8)), "exactly 1.00", id="eight are enough"),
        pytest.param(seen(spoken(*[1] * 6, *[2] * 6)), None, id="half of the second drafts is no fall"),
        pytest.param(
            seen(spoken(*[0] * 20), ranks=8, others=[seen(spoken(1, 2), ranks=1)]),
            "exactly 1.00",
            id="too little beside it",
        ),
        pytest.param(seen(spoken(*[2, 0] * 12), spoken(*[2, 0] * 12, batch=4)), None, id="batches like requests alone"),
    ],
)
def test_no_pattern_of_comparisons_where_little_or_nothing_differs(found, pattern) -> None:
    assert found.pattern == pattern


@pytest.mark.parametrize(
    ("low", "high", "falls"),
    [(Share(1, 8), Share(8, 8), True), (Share(0, 7), Share(8, 8), False), (Share(2, 8), Share(6, 8), False),
     (Share(8, 32), Share(24, 32), True), (Share(45, 100), Share(95, 100), True), (Share(60, 100), Share(95, 100), False)],
    ids=["clear", "too few", "two errors of the difference", "four of them", "less than half", "more than half"],
)  # fmt: skip
def test_a_share_falls_by_half_and_by_three_errors_or_it_does_not(low: Share, high: Share, falls: bool) -> None:
    assert low.falls_from(high) is falls and not high.falls_from(low)


def test_answers_of_a_few_tokens_tell_nothing(tmp_path: Path) -> None:
    """The main job makes no more: of which kind of text its prompts are would say as much as the draft."""
    Engine(tmp_path).prefill(7, [10, 11, 12], 0, then=13)
    write_answers(tmp_path, Answers(tuple(Answer((10, 11, 12), (13, 14, 15, 16), None, (3,)) for _ in range(4)), 1))
    assert described(of_capture(open_capture(tmp_path), None)) is None


def test_the_engines_own_counts_win_and_tell_of_steps_that_no_tap_saw(tmp_path: Path) -> None:
    Engine(tmp_path).prefill(7, [10, 11, 12], 0, then=13)
    write_answers(tmp_path, Answers((Answer((10, 11, 12), tuple(range(13, 36)), None, (2, 3, 5)),), 4))
    found = of_capture(open_capture(tmp_path), None)
    assert (found.steps, found.length) == (10, 2.3) and found.by_ranks == {4: Share(8, 10)}


def test_a_length_that_somebody_saw_counts_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert acceptance(None, None, 1, 1.0).pattern == "exactly 1.00"
    assert acceptance(None, None, 1, 2.5).pattern is None and acceptance(None, None, 1, None).length is None


# What it does to causes: their order among equals, and nothing else.


def causes_of(tmp_path: Path, monkeypatch, length: float | None, **found: Cause) -> list[str]:
    """The order in which causes come out that these checks found."""

    class Module:
        def __init__(self, cause: Cause) -> None:
            self.check = lambda evidence: cause

    tmp_path.mkdir()
    monkeypatch.setattr(
        check, "modules", lambda name: {name.replace("_", "-"): Module(one) for name, one in found.items()}
    )
    evidence = evidence_of(Case("any", context={"accept_length": length}), tmp_path)
    return [cause.id for cause in check.diagnose(evidence)[0]]


def test_it_orders_equals_and_never_outranks_a_simpler_or_surer_cause(tmp_path: Path, monkeypatch) -> None:
    equal = {"dtype": Cause("likely", "", "", 2), "vocab_map": Cause("likely", "", "", 2)}
    assert causes_of(tmp_path / "a", monkeypatch, None, **equal) == ["dtype", "vocab-map"]
    assert causes_of(tmp_path / "b", monkeypatch, 1.0, **equal) == ["vocab-map", "dtype"]
    simpler = equal | {"dtype": Cause("likely", "", "", 1)}
    assert causes_of(tmp_path / "c", monkeypatch, 1.0, **simpler) == ["dtype", "vocab-map"]
    surer = equal | {"dtype": Cause("certain", "", "", 9)}
    assert causes_of(tmp_path / "d", monkeypatch, 1.0, **surer) == ["dtype", "vocab-map"]


def test_it_makes_no_cause_by_itself(tmp_path: Path) -> None:
    evidence_of(Case("healthy"), tmp_path)
    context = make_context(accept_length=1.0)
    document = check.check_capture(tmp_path / "golden.safetensors", tmp_path / "capture", context)
    assert document["verdict"] == "match" and document["acceptance"]["pattern"] == "exactly 1.00"
    assert [cause["id"] for cause in document["causes"]] == ["not-wiring"]  # a possible one, as ever
    assert document["causes"][0]["acceptance_agrees"] is False
