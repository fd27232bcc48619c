"""The main job on the real engine: apply, run, compare, remove, and what each wrong wiring is called."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "golden/deepseek/float32.safetensors"


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory) -> Path:
    """The 61-layer DeepSeek-V3 that the committed golden was computed from."""
    return made(tmp_path_factory.mktemp("deepseek"), "deepseek")


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = made(tmp_path_factory.mktemp("llama"), "llama")
    specwire(
        "golden", "build", "--target", folder / "target", "--out", folder / "golden.safetensors", "--trained", "2,4,6"
    )
    return folder


def made(folder: Path, name: str, *options: str) -> Path:
    command = [sys.executable, ROOT / "fixtures/make.py", name, folder, "--dtype", "float32", *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def specwire(*words) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from specwire.cli import main; main()", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def verified(target: Path, draft: Path, golden: Path, *more) -> tuple[int, dict]:
    done = specwire("verify", "installed", "--target", target, "--draft", draft, "--golden", golden, "--json", *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def with_ids(draft: Path, where: Path, ids: list[int]) -> Path:
    """The same draft, its config asking for other layers."""
    shutil.copytree(draft, where)
    config = json.loads((where / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    (where / "config.json").write_text(json.dumps(config))
    return where


def test_eight_ranks_match_the_golden_and_the_tree_is_as_it_was(deepseek):
    code, found = verified(deepseek / "target", deepseek / "draft", GOLDEN, "--tp", 8)
    assert (code, found["verdict"], found["ranks"], found["tree_restored"]) == (0, "match", 8, True)
    assert found["ranks_agree"] and found["causes"] == []
    assert found["concat_shape"] == found["golden_concat_shape"] == [8, 3 * 256]
    blind = [check["id"] for check in found["checks"] if check["state"] == "skipped"]
    shown = (
        (ROOT / "README.md").read_text("utf-8").partition("`make verify` ends like this")[2].partition("MISMATCH")[0]
    )
    assert f"checks: {len(found['checks'])}, of which {len(blind)} could not look" in shown, blind
    assert [slot["nearest_boundary"] for slot in found["slots"]] == [3, 31, 59]
    assert all(slot["rel_l2"] <= 1e-4 for slot in found["slots"])


def test_ids_of_another_release_are_one_layer_off(deepseek, tmp_path):
    draft = with_ids(deepseek / "draft", tmp_path / "draft", [2, 30, 58])
    code, found = verified(deepseek / "target", draft, GOLDEN)
    assert (code, found["verdict"]) == (1, "mismatch")
    first = found["causes"][0]
    assert first["id"] == "boundary-offset"
    assert "[3, 31, 59]" in first["fix"] and "0.5.9" in first["fix"]
    assert [slot["nearest_boundary"] for slot in found["slots"]] == [2, 30, 58]


def test_eagle_for_eagle3_is_an_algorithm_flag_with_both_widths_in_evidence(deepseek):
    arguments = ("--", "--speculative-algorithm", "EAGLE")
    code, found = verified(deepseek / "target", deepseek / "draft", GOLDEN, *arguments)
    assert (code, found["causes"][0]["id"]) == (1, "algo-flag")
    assert "256" in found["causes"][0]["evidence"] and "768" in found["causes"][0]["evidence"]


def test_an_embedding_in_place_of_a_layer(deepseek, tmp_path):
    draft = with_ids(deepseek / "draft", tmp_path / "draft", [0, 31, 59])
    code, found = verified(deepseek / "target", draft, GOLDEN)
    assert (code, found["causes"][0]["id"]) == (1, "embedding-slot")


def test_another_seed_is_another_target(deepseek, tmp_path):
    other = made(tmp_path / "other", "deepseek", "--seed", "1")
    code, found = verified(other / "target", deepseek / "draft", GOLDEN)
    assert (code, found["causes"][0]["id"]) == (1, "wrong-target")


@pytest.mark.parametrize("ranks", [1, 2])
def test_llama_matches_at_one_and_two_ranks(llama, ranks):
    code, found = verified(llama / "target", llama / "draft", llama / "golden.safetensors", "--tp", ranks)
    assert (code, found["verdict"], found["ranks"]) == (0, "match", ranks)
    assert all(slot["rel_l2"] <= 1e-4 for slot in found["slots"])


def test_without_a_golden_the_head_vouches_for_the_states_and_nothing_is_called_a_match(tmp_path):
    folder = made(tmp_path / "llama", "llama", "--draft", "accepted")
    models = ("--target", folder / "target", "--draft", folder / "draft")
    done = specwire("verify", "installed", *models, "--new-tokens", 12, "--out", tmp_path / "out", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["causes"], found["tree_restored"]) == (3, "inconclusive", [], True)
    check = found["self_check"]
    assert (check["state"], check["by"]) == ("holds", "logprobs")
    assert [one["name"] for one in check["subjects"]] == ["forward-end", "boundary 8 at hidden-state-dump"]
    # 25 rows of the prompts' own tokens and 3 or more that said something; no row but its own gives a row's logprob.
    assert all(one["rows"] > 28 and one["worst"] < 1e-5 < 1 < one["other_rows"] for one in check["subjects"])
    assert {slot["state"] for slot in found["slots"]} == {"not-compared"}
    seen = found["acceptance"]
    assert seen["length"] > 1.5 and seen["verifications"] >= 8 and seen["pattern"] is None
    # The same capture fails by the head of another target.
    other = made(tmp_path / "other", "llama", "--seed", "1")
    failed = specwire("check", "--target", other / "target", "--capture", tmp_path / "out/capture", "--json")
    assert failed.returncode == 1 and [one["id"] for one in json.loads(failed.stdout)["causes"]] == ["stream-end"]


def test_taps_on_off_and_absent_give_the_same_tokens(llama, tmp_path):
    view = tmp_path / "view"
    assert specwire("apply", "installed", "--overlay", view, "--group", "debug", "--group", "capture").returncode == 0
    on = tokens(view, llama, tmp_path / "on", {"EAGLE3_DEBUG": "1", "EAGLE3_CAPTURE_DIR": str(tmp_path / "captured")})
    off = tokens(view, llama, tmp_path / "off", {})
    absent = tokens(Path(specwire_root()), llama, tmp_path / "absent", {})
    assert on == off == absent
    assert list((tmp_path / "captured").rglob("*.safetensors"))
    assert "[EAGLE3-DEBUG]" in (tmp_path / "on/engine.log").read_text()
    assert "[EAGLE3-DEBUG]" not in (tmp_path / "off/engine.log").read_text()


def tokens(root: Path, fixture: Path, out: Path, env: dict[str, str]) -> list[list[int]]:
    from specwire.engine.run import run_engine

    clean = {name: "" for name in ("EAGLE3_DEBUG", "EAGLE3_CAPTURE_DIR") if name in os.environ}
    prompts = [[[3, 4, 5, 6, 7, 8, 9, 10]], [[42, 17, 99, 5, 61]]]
    done = run_engine(
        root, fixture / "target", fixture / "draft", prompts, tp=1, device="cpu", extra_args=[], env=clean | env,
        out=out, max_new_tokens=12, python=sys.executable,
    )  # fmt: skip
    return [completion.output_ids for batch in done.batches for completion in batch]


def specwire_root() -> str:
    from specwire.trees.tree import Tree

    return str(Tree.find("installed").root)
