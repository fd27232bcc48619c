"""`ship`: signed off when all is well, and each thing that can be missing is named, the first of them first."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from preflight_models import draft, draft_config, golden, target

from specwire.cli.ship import command
from specwire.patching import marks
from specwire.trees.identity import model_identity, tree_identity
from specwire.trees.tree import Tree

SLICE = Path(__file__).parent.parent / "fixtures" / "slices" / "adds-one"


class Papers:
    """A tree as its release has it, models that fit it, and a verify that matched: all real but the engine's run."""

    def __init__(self, place: Path) -> None:
        self.root = place / "site"
        shutil.copytree(SLICE, self.root)
        self.write_record()
        self.target, self.draft = target(place / "target"), draft(place / "draft", draft_config())
        self.golden = golden(place / "golden.safetensors", (2, 6, 9))
        self.verified = place / "verify.json"
        self.launch = (
            f"--model-path {self.target} --speculative-draft-model-path {self.draft} --speculative-algorithm EAGLE3"
        )
        self.write_verified()

    def write_record(self) -> None:
        info = self.root / f"sglang-{Tree.find(self.root).version}.dist-info"
        info.mkdir()
        rows = []
        for path in sorted((self.root / "sglang").rglob("*")):
            if path.is_file():
                digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
                rows.append(f"{path.relative_to(self.root)},sha256={digest},{path.stat().st_size}\n")
        (info / "RECORD").write_text("".join(rows))

    def write_verified(self, **changes) -> None:
        hashes = {
            "tree": tree_identity(Tree.find(self.root))["sha256"],
            "target": model_identity(self.target)["sha256"],
            "draft": model_identity(self.draft)["sha256"],
        }
        run = {
            "tree": str(self.root),
            "target": str(self.target),
            "draft": str(self.draft),
            "golden": str(self.golden),
            "sha256": hashes,
        }
        document = {
            "schema": "specwire.check/1",
            "verdict": "match",
            "ranks": 8,
            "tree_restored": True,
            "run": run,
            **changes,
        }
        self.verified.write_text(json.dumps(document))

    def ship(self, *words):
        arguments = [
            self.root,
            "--target",
            self.target,
            "--draft",
            self.draft,
            "--verify",
            self.verified,
            "--launch",
            self.launch,
            "--quiet",
            *words,
        ]
        return CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False)

    def missing(self):
        done = self.ship("--json")
        document = json.loads(done.stdout)
        return done.return_value, (document["missing"] or {}).get("id"), (document["missing"] or {}).get("why")


@pytest.fixture
def papers(tmp_path):
    return Papers(tmp_path)


def test_signed_off(papers):
    done = papers.ship()
    assert done.return_value == 0 and done.stdout.startswith("SIGNED OFF\n")
    assert (
        tree_identity(Tree.find(papers.root))["sha256"] in done.stdout
        and model_identity(papers.draft)["sha256"] in done.stdout
    )


def test_a_tap_left_in(papers):
    file = papers.root / "sglang" / "srt" / "models" / "llama.py"
    file.write_text(file.read_text() + marks.marked("tap = 1", "draft-input") + "\n")
    code, step, why = papers.missing()
    assert (code, step) == (1, "tree-clean") and "specwire remove" in why
    assert papers.ship().stdout.startswith("NOT SIGNED OFF: tree-clean does not hold: ")


def test_a_tree_that_is_not_the_releases(papers):
    file = papers.root / "sglang" / "srt" / "models" / "llama.py"
    file.write_text(file.read_text() + "# a local change\n")
    code, step, why = papers.missing()
    assert (code, step) == (1, "tree-pristine") and "models/llama.py" in why


def test_a_tree_without_a_record_cannot_be_told(papers):
    for folder in papers.root.glob("*.dist-info"):
        shutil.rmtree(folder)
    assert papers.missing()[:2] == (3, "tree-pristine")


def test_a_launch_that_is_wrong(papers):
    papers.launch = papers.launch.replace("EAGLE3", "EAGLE")
    code, step, why = papers.missing()
    assert (code, step) == (1, "preflight") and "algo-flag" in why


@pytest.mark.parametrize(
    "changes, code, step",
    [
        ({"verdict": "mismatch"}, 1, "verified"),
        ({"verdict": "inconclusive"}, 3, "verified"),
        ({"tree_restored": False}, 1, "verified"),
        ({"tree_restored": None}, 1, "verified"),
    ],
)
def test_a_verify_that_did_not_match(papers, changes, code, step):
    papers.write_verified(**changes)
    assert papers.missing()[:2] == (code, step)


def test_a_verify_that_does_not_say_that_the_tree_was_restored(papers):
    document = json.loads(papers.verified.read_text())
    del document["tree_restored"]
    papers.verified.write_text(json.dumps(document))
    assert papers.missing()[:2] == (1, "verified")


def test_what_is_missing_comes_before_what_cannot_be_told(papers):
    """tree-pristine comes earlier, and is unknown only."""
    for folder in papers.root.glob("*.dist-info"):
        shutil.rmtree(folder)
    papers.write_verified(verdict="mismatch")
    assert papers.missing()[:2] == (1, "verified")


@pytest.mark.parametrize("at", [0, 500, 999, -1], ids=["head", "middle", "a sample's end", "last byte"])
def test_large_weights_are_told_apart_by_samples(tmp_path, monkeypatch, at):
    """Ten samples of 100 bytes, at 0, 1100, ... 9900, behind a head of 1 MiB."""
    monkeypatch.setattr("specwire.trees.identity.SAMPLES", 10)
    monkeypatch.setattr("specwire.trees.identity.SAMPLE_BYTES", 100)
    monkeypatch.setattr("specwire.trees.identity.HEAD_BYTES", 50)
    weights = tmp_path / "model.safetensors"
    data = bytearray(os.urandom(10_000))
    weights.write_bytes(data)
    before = model_identity(tmp_path)
    assert before["bytes"] == 10_000 and model_identity(tmp_path) == before
    place = {0: 0, 500: 5555, 999: 1199, -1: 9999}[at]
    data[place] ^= 1
    weights.write_bytes(data)
    assert model_identity(tmp_path)["sha256"] != before["sha256"]
    data[place] ^= 1
    data[1200 + 500] ^= 1  # between two samples: it tells another training run, not a forgery
    weights.write_bytes(data)
    assert model_identity(tmp_path) == before


def test_a_verify_without_hashes_cannot_be_told(papers):
    document = json.loads(papers.verified.read_text())
    del document["run"]["sha256"]
    papers.verified.write_text(json.dumps(document))
    assert papers.missing()[:2] == (3, "verified-these")


def test_a_draft_trained_on_after_the_verify(papers):
    weights = papers.draft / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    code, step, why = papers.missing()
    assert (code, step) == (1, "verified-these") and "another draft" in why


def test_a_file_touched_after_the_verify(papers):
    os.utime(papers.target / "config.json", (time.time() + 60, time.time() + 60))
    code, step, why = papers.missing()
    assert (code, step) == (1, "verified-since") and "config.json" in why


def test_a_server_that_runs(papers):
    words = [sys.executable, "-c", "import sglang, time; print(flush=True); time.sleep(60)", "sglang.launch_server"]
    env = {**os.environ, "PYTHONPATH": str(papers.root), "PYTHONDONTWRITEBYTECODE": "1"}
    server = subprocess.Popen(words, cwd=papers.root, env=env, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        code, step, why = papers.missing()
        assert (code, step) == (1, "server-stopped") and f"pid {server.pid}" in why
    finally:
        server.kill()
        server.wait()
    assert papers.missing()[0] == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "specwire.check/1", "verdict": "match"}'])
def test_papers_that_cannot_be_read(papers, text):
    papers.verified.write_text(text)
    done = papers.ship()
    assert done.exception.exit_code == 2 and "specwire verify" in str(done.exception)


def test_the_launch_is_needed_once(papers):
    done = papers.ship("--launch-file", papers.verified)
    assert done.exception.exit_code == 2
