"""The generator of mutants: what it changes, where, and that it puts all back; a few on the real engine."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "zoo"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "mutants"))
import hunt
from compare import difference
from operators import Change, Seen, Tensor, Text, changes
from places import CAUSES, DRAFT, PARTS, POSITION, RANK, TARGET, parts_of

from specwire.registry import modules

FLOAT = Tensor("float", 2, 8)
SOURCE = b'''
class Layer:
    def forward(self, positions, hidden, residual, forward_batch):
        """Not to be changed."""
        hidden, residual = self.norm(hidden, residual)
        if residual is None:
            return hidden
        for step in range(3):
            hidden = self.attn(positions, hidden)
        if _specwire.on: _specwire.captured(self, hidden)
        hidden = hidden[0] + residual
        return hidden
'''
ALL = frozenset(range(1, 20))
SEEN = Seen(ALL, {"hidden": FLOAT, "residual": FLOAT}, ("DECODE", "EXTEND"), (0, 1), "forward_batch")


def made(seen: Seen = SEEN, ranks: int = 1, source: bytes = SOURCE) -> list[tuple[str, str, bytes]]:
    """(family, guard, the file with the change in it) of every change of the one function."""
    text = Text(source)
    function = text.functions()["Layer.forward", 3]
    return [
        (one.family, one.guard, text.data[: one.start] + one.new.encode() + text.data[one.end :])
        for one in changes(text, function, seen, ranks)
    ]


def test_every_change_is_python_and_no_two_are_the_same():
    found = made(ranks=2)
    for _, _, data in found:
        ast.parse(data)
        assert ast.dump(ast.parse(data)) != ast.dump(ast.parse(SOURCE))
    assert len({data for _, _, data in found}) == len(found) > 100


@pytest.mark.parametrize(
    "family, line",
    [
        ("left out", b"\n        pass\n        if residual is None"),
        ("term", b"hidden = (hidden[0])"),
        ("term", b"hidden = (residual)"),
        ("index", b"hidden[1]"),
        ("swap", b"self.attn(hidden, positions)"),
        ("skip", b"hidden = hidden\n"),
        ("condition", b"if (residual is not None)"),
        ("name", b"return residual"),
        ("rows", b"v.roll(1, 0)"),
        ("dtype", b"v.bfloat16()"),
    ],
)
def test_an_operator_makes_its_change(family, line):
    assert any(line in data for name, guard, data in made() if name == family and not guard)


def test_taps_words_and_what_did_not_run_are_left_alone():
    for _, _, data in made():
        assert b"if _specwire.on: _specwire.captured(self, hidden)\n" in data and b'"""Not to be changed."""' in data
    assert made(replace(SEEN, lines=frozenset())) == []


def test_a_change_may_be_called_of_its_place_and_of_what_it_changes():
    change = Change(0, 1, "x", "name", 1)
    one = hunt.Mutant("llama", 2, "models/llama.py", "f", 1, "serve", (DRAFT,), change)
    assert one.right("hidden + 1") == (DRAFT,)
    assert one.right("positions") == (DRAFT, POSITION)
    assert (
        one.right("all_reduce(hidden)")
        == (DRAFT, RANK)
        == replace(one, change=replace(change, guard="rank 1")).right("x")
    )
    assert replace(one, ranks=1).right("all_reduce(hidden)") == (DRAFT,)


@pytest.mark.parametrize(
    "guard, condition", [("rank 1", b"get_rank() == 1"), ("DECODE", b"forward_mode.name == 'DECODE'")]
)
def test_a_guard_changes_some_forwards_alone(guard, condition):
    found = [data for _, name, data in made(ranks=2) if name == guard]
    assert found and all(condition in data for data in found)
    assert not any(name.startswith("rank") for _, name, _ in made(ranks=1))


def test_a_guarded_change_leaves_the_others_as_they_were():
    source = b"class Layer:\n\n    def forward(self, hidden):\n        for step in range(3):\n            hidden = hidden + 1\n        return hidden\n"
    seen = Seen(ALL, {"hidden": Tensor("int", 0, 0)})
    text = Text(source)
    guarded = [
        one
        for one in changes(text, text.functions()["Layer.forward", 3], seen, 1)
        if (one.guard, one.family) == ("first step", "term") and one.new.startswith("((hidden) if")
    ]
    names: dict = {}
    exec(source[: guarded[0].start] + guarded[0].new.encode() + source[guarded[0].end :], names)
    assert names["Layer"]().forward(0) == 2, "the first of three steps adds nothing"


def test_every_cause_and_every_place_is_a_part():
    assert CAUSES.keys() == set(modules("specwire.checks")), "a diagnosis says here which part it names"
    assert {part for parts in CAUSES.values() for part in parts} <= set(PARTS)
    own, shared = "sglang/srt/models/qwen3_moe.py", "sglang/srt/models/llama.py"
    assert parts_of(own, "Qwen3MoeModel.forward", "serve", frozenset({own})) == (TARGET,)
    assert parts_of(shared, "LlamaAttention.forward", "serve", frozenset({own})) == (DRAFT,)
    assert parts_of(shared, "LlamaAttention.forward", "serve", frozenset({shared})) == (TARGET, DRAFT)
    assert parts_of("sglang/srt/managers/scheduler.py", "Scheduler.run_batch", "serve", frozenset()) == ()


@pytest.mark.parametrize(
    "change, where, rounding",
    [
        (lambda states, ids: None, None, None),
        (lambda states, ids: states.mul_(1 + 1e-8 * 10), "hidden_states", True),
        (lambda states, ids: states[0].mul_(1.001), "hidden_states", False),
        (lambda states, ids: ids.add_(1), "token_ids", False),
    ],
)
def test_runs_are_alike_to_within_rounding(change, where, rounding, tmp_path):
    for name in ("healthy", "mutant"):
        states, ids = torch.linspace(1, 2, 32).reshape(4, 8), torch.arange(4)
        if name == "mutant":
            change(states, ids)
        _record(tmp_path / name, 0, states, ids)
    found = difference(tmp_path / "mutant", tmp_path / "healthy")
    if where is None:
        assert found is None
    else:
        assert where in found.where and found.rounding is rounding


def test_a_record_too_many_differs_unless_the_run_was_cut_short(tmp_path):
    states, ids = torch.ones(4, 8), torch.arange(4)
    for number in range(2):
        _record(tmp_path / "healthy", number, states, ids)
    _record(tmp_path / "mutant", 0, states, ids)
    assert difference(tmp_path / "mutant", tmp_path / "healthy").where == "1 records instead of 2"
    assert difference(tmp_path / "mutant", tmp_path / "healthy", whole=False) is None


def _record(capture: Path, number: int, states: torch.Tensor, ids: torch.Tensor) -> None:
    about = {"site": "draft-input", "mode": "EXTEND", "boundary": None, "captured": None, "note": None}
    (capture / "rank0").mkdir(parents=True, exist_ok=True)
    save_file(
        {"hidden_states": states, "token_ids": ids},
        capture / "rank0" / f"{number:06d}.draft-input.safetensors",
        {"specwire": json.dumps(about)},
    )


def test_a_result_is_a_line_and_the_last_one_counts(tmp_path):
    one = _result("a", "match")
    for each in (one, _result("b", "named"), replace(one, state="named")):
        hunt.write(tmp_path / "report.jsonl", each)
    with open(tmp_path / "report.jsonl", "a") as file:
        file.write('{"id": "cut sho')
    found = hunt.read(tmp_path / "report.jsonl")
    assert [(row.id, row.state) for row in found.values()] == [("a", "named"), ("b", "named")]


@pytest.mark.parametrize(
    "states, code",
    [
        (["named", "equivalent"], 0),
        (["named", "died"], 0),
        (["named"] * 60 + ["inconclusive"], 0),
        (["named"] * 30 + ["inconclusive"], 1),
        (["named"] * 200 + ["match"], 1),
        (["named", "named", "misnamed"], 1),
        (["crash"], 1),
        ([], 1),
    ],
)
def test_the_score_passes_what_is_found_and_named_and_no_match(states, code, tmp_path, capsys):
    for number, state in enumerate(states):
        hunt.write(tmp_path / "report.jsonl", _result(str(number), state))
    assert hunt.summary(tmp_path / "report.jsonl") == code


def _result(id: str, state: str) -> hunt.Result:
    return hunt.Result(
        id=id, system="llama", ranks=1, place="models/llama.py:1 f (serve)", family="rows", guard="", right=(TARGET, RANK),
        state=state, verdict="match", causes=(), said="", differs="", distance=None, old="a", new="b", diff="-a\n+b",
        seconds=1.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place():
    with hunt.Range("llama", 1, None) as found:
        yield found


@pytest.mark.engine
@pytest.mark.slow
def test_mutants_are_chosen_by_the_seed_alone(place):
    first = [mutant.id for mutant in place.chosen(40, "1")]
    assert len(set(first)) == 40
    assert first == [mutant.id for mutant in place.chosen(40, "1")] != [mutant.id for mutant in place.chosen(40, "2")]


@pytest.mark.engine
@pytest.mark.slow
def test_a_sample_of_mutants_is_found_on_a_warm_engine(place):
    """One in the target's, the draft's and the worker's own function each; none is a match."""
    wanted = {
        ("models/llama.py", "LlamaDecoderLayer.forward", "v.roll(1, 0)", "self.mlp("),
        ("models/llama_eagle3.py", "LlamaModel.forward", "v * 1.02", "self.fc("),
        ("model_executor/forward_batch_info.py", "compute_position_torch", "v + 1", "torch.cat("),
    }
    found = {}
    for mutant in place.all():
        for file, function, made, value in wanted:
            inside = mutant.file.endswith(file) and mutant.function == function and not mutant.change.guard
            if inside and made in mutant.change.new and value in mutant.change.new:
                found.setdefault((file, function, made, value), mutant)
    assert found.keys() == wanted
    results = {key: place.run(mutant) for key, mutant in found.items()}
    assert {one.state for one in results.values()} <= {"named", "misnamed"}, results
    assert place.hot.boots == 1, "one engine served them all"
    assert (place.view / "sglang/srt/models/llama.py").read_bytes() == place._text("sglang/srt/models/llama.py").data
