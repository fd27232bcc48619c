"""`verify` and `run` by what they say and how they exit, on captures that stand in for the engine's; and the proof that a tree
is what it was, which must be able to fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_trees import FILES, TARGET, make_tree, snapshot

from specwire import cli, verify
from specwire.answers import read_answers
from specwire.diagnosis.case import Case, evidence_of
from specwire.engine import run as engine
from specwire.patching import surgery
from specwire.patching.overlay import make_overlay
from specwire.tensorfile import open_tensors, write_tensors

torch.set_num_threads(1)
NAME = "sglang/srt/models/target.py"
ENTRY = b"\n\nEntryClass = Target\n"


@pytest.fixture
def tree(tmp_path: Path):
    return make_tree(tmp_path / "tree", FILES | {NAME: TARGET + ENTRY})


# --- the proof ----------------------------------------------------------------------------------------


def view_of(tree, folder: Path) -> Path:
    return make_overlay(surgery.plan_apply(tree, surgery.chosen((), ())), folder)


def test_a_view_without_its_taps_is_the_tree(tree, tmp_path: Path) -> None:
    assert verify.restored(view_of(tree, tmp_path / "view"), tree)


@pytest.mark.parametrize("role", ["view", "tree"])
def test_a_file_that_a_hand_changed_on_either_side_is_not_restored(role: str, tree, tmp_path: Path) -> None:
    view = view_of(tree, tmp_path / "view")
    path = (view if role == "view" else tree.root) / NAME
    path.write_bytes(path.read_bytes().replace(b"residual = None", b"residual = 0"))
    assert not verify.restored(view, tree)


def test_an_edited_tap_is_not_restored(tree, tmp_path: Path) -> None:
    view = view_of(tree, tmp_path / "view")
    path = view / NAME
    path.write_bytes(path.read_bytes().replace(b"if _specwire.on: _specwire.captured(", b"_specwire.captured("))
    assert not verify.restored(view, tree)


CHANGES = {
    "content": lambda path: path.write_bytes(path.read_bytes() + b"#\n"),
    "mode": lambda path: path.chmod(0o600 if path.stat().st_mode & 0o077 else 0o644),
    "a file less": lambda path: path.unlink(),
    "a file more": lambda path: path.with_name("more.py").write_bytes(b""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_fingerprint_tells_content_mode_and_which_files(what: str, tree) -> None:
    before = verify.fingerprint(tree)
    assert before == verify.fingerprint(tree) and len(before) == len(FILES)
    (tree.package / "__pycache__").mkdir()
    (tree.package / "__pycache__" / "x.pyc").write_bytes(b"whoever runs it")
    assert verify.fingerprint(tree) == before
    CHANGES[what](tree.path(NAME))
    assert verify.fingerprint(tree) != before


# --- the commands -------------------------------------------------------------------------------------


@pytest.fixture
def command(tree, tmp_path: Path, monkeypatch, capfd):
    """Calls a command on an engine that leaves behind what a healthy system records; `spoil` goes over it."""
    evidence_of(Case("healthy", said={}, draft_run={}), tmp_path)
    (tmp_path / "capture" / "answers.json").rename(tmp_path / "answers.json")
    made = read_answers(tmp_path).answers
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    (tmp_path / "target" / "config.json").write_text(json.dumps(config | {"architectures": ["Target"]}))

    def call(*words, spoil=lambda capture: None):
        def captures(view, target, draft, batches, *, env, out, **_):
            capture = Path(env["EAGLE3_CAPTURE_DIR"])
            os.rmdir(capture)
            (tmp_path / "capture").rename(capture)
            spoil(capture)
            (out / "engine.log").write_text("")
            answers = {one.prompt: one for one in made}
            given = [[answers[tuple(ids)] for ids in batch] for batch in batches]
            return engine.EngineResult(
                "0", "cpu", [list(map(completion, batch)) for batch in given], [], out / "engine.log", 1, 1
            )

        monkeypatch.setattr(engine, "run_engine", captures)
        prompts = [word for one in made for word in ("--tokens", ",".join(map(str, one.prompt)))]
        golden = ["--golden", tmp_path / "golden.safetensors"] if words[0] == "verify" else prompts
        words = [
            *words,
            tree.root,
            "--target",
            tmp_path / "target",
            "--draft",
            tmp_path / "draft",
            "--device",
            "cpu",
            *golden,
        ]
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, words), "--out", str(tmp_path / "out")])
        return ended.value.code, *capfd.readouterr()

    return call


def completion(answer) -> engine.Completion:
    scored = [[value, token, None] for value, token in zip(answer.logprobs, answer.tokens, strict=True)]
    meta = {"input_token_logprobs": scored[: len(answer.prompt)], "output_token_logprobs": scored[len(answer.prompt) :]}
    return engine.Completion(list(answer.output), meta)


def test_verify_of_a_healthy_system_matches_and_leaves_the_tree(command, tree, tmp_path: Path) -> None:
    before = snapshot(tree.root)
    code, out, _ = command("verify", "--json")
    document = json.loads(out)
    assert (code, document["verdict"], document["tree_restored"]) == (0, "match", True)
    assert snapshot(tree.root) == before
    assert json.loads((tmp_path / "out" / "verify.json").read_text()) == document


def test_verify_exits_with_1_when_the_tree_is_not_what_it_was(command, tree) -> None:
    def writes(capture: Path) -> None:
        tree.path("sglang/version.py").write_bytes(b"")

    code, out, _ = command("verify", spoil=writes)
    assert code == 1 and out.startswith("MATCH")
    assert "NOT RESTORED: that the tree is what it was cannot be shown (changed meanwhile: sglang/version.py)" in out


@pytest.mark.parametrize(
    ("trained", "code", "verdict"),
    [(None, 3, "inconclusive"), ("3,7,10", 0, "match"), ("2,6,9", 1, "mismatch")],
    ids=str,
)
def test_a_list_that_was_guessed_is_no_fault_until_it_is_given(command, tmp_path: Path, trained, code, verdict) -> None:
    golden = open_tensors(tmp_path / "golden.safetensors")
    tensors = {name: golden.rows(name) for name in golden.tensors}
    guess = {**golden.metadata, "trained_boundaries": "[2, 6, 9]", "trained_source": "assumed"}
    write_tensors(tmp_path / "golden.safetensors", tensors, guess)
    done = command("verify", "--json", *(["--trained", trained] if trained else []))
    assert (done[0], json.loads(done[1])["verdict"]) == (code, verdict)


def reversed_ends(capture: Path) -> None:
    for path in capture.glob("rank0/*.forward-end.safetensors"):
        file = open_tensors(path)
        tensors = {name: file.rows(name) for name in file.tensors}
        write_tensors(
            path, tensors | {"hidden_states": tensors["hidden_states"].flip(0).contiguous()}, dict(file.metadata)
        )


@pytest.mark.parametrize(
    ("spoil", "code", "state"),
    [(lambda capture: None, 3, "holds"), (reversed_ends, 1, "fails")],
    ids=["holds", "fails"],
)
def test_run_without_a_golden_makes_the_self_check(command, spoil, code: int, state: str) -> None:
    done = command("run", "--json", spoil=spoil)
    document = json.loads(done[1])
    assert done[0] == code and document["schema"] == "specwire.run/1"
    assert document["self_check"]["state"] == state and document["verdict"] != "match"
    assert [cause["id"] for cause in document["causes"]] == ([] if code == 3 else ["stream-end"])


def test_run_says_so_in_text_as_well(command) -> None:
    code, out, _ = command("run")
    assert code == 3 and "INCONCLUSIVE  no golden; self-check holds" in out and out.startswith("captured: ")


@given(st.lists(st.integers(1, 6000), min_size=1, max_size=40))
def test_the_first_prompt_is_sent_alone_and_the_others_together_as_far_as_they_are_small(lengths: list[int]) -> None:
    batches = verify._together(lengths)
    assert [number for batch in batches for number in batch] == list(range(len(lengths)))
    assert batches[0] == (0,)
    for batch, following in zip(batches[1:], [*batches[2:], None]):
        tokens = sum(lengths[number] for number in batch)
        assert len(batch) == 1 or (len(batch) <= verify.TOGETHER and tokens <= verify.TOKENS_TOGETHER)
        if following is not None:
            assert len(batch) == verify.TOGETHER or tokens + lengths[following[0]] > verify.TOKENS_TOGETHER
