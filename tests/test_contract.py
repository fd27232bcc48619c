"""What the command line promises of itself: its commands, its options, one JSON object, the fields of a result, and what is
never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from captures import concat, make_golden, make_states, write_batch
from results import verify
from safetensors.torch import save_file
from small_trees import make_tree

from specwire import __version__, cli, registry
from specwire.answers import Answer, Answers, write_answers
from specwire.diagnosis.acceptance import LONG
from specwire.patching import surgery

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "golden" / "llama" / "float32.safetensors"
PROMPTS = [[4, 5, 6], [7, 8]]
STATES = make_states(PROMPTS)


@pytest.fixture
def run(capfd):
    def call(*words):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(map(str, words)))
        return ended.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_tree(tmp_path / "tree")
    (tmp_path / "by_hand.py").write_text("import os\nif os.getenv('EAGLE3_DEBUG'):\n    print('here')\n")
    (tmp_path / "verify.json").write_text(json.dumps(verify("match")))
    make_golden(tmp_path / "golden.safetensors", PROMPTS, STATES)
    for prompt, ids in enumerate(PROMPTS):
        write_batch(tmp_path / "capture", 0, prompt, [(ids, 0, len(ids))], [concat(STATES[prompt], (1, 3, 5))])
    return tmp_path


STATIC = [
    "probes", "apply {0}/tree", "status {0}/tree", "gate {0}/tree", "remove {0}/tree", "strip {0}/by_hand.py --check",
    f"golden show {GOLDEN}", "report {0}/verify.json --out {0}/page.html", "explain norm", "env",
]  # fmt: skip


def test_what_is_static_imports_neither_torch_nor_sglang_at_work(place: Path) -> None:
    """One process after another would take as long as they take to start."""
    commands = [line.format(place).split() for line in STATIC]
    code = (
        "import io, sys, json, contextlib\nfrom specwire.cli import main\nended = []\n"
        f"for words in {commands!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        try: main(words)\n        except SystemExit as end: ended.append(end.code or 0)\n"
        "    assert not {'torch', 'sglang'} & set(sys.modules), words\n"
        "print(json.dumps(ended))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0, 0, 1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "words",
    ["probes", "apply {0}/tree", "status {0}/tree", "gate {0}/tree", "strip {0}/by_hand.py --check", "golden show {0}/golden.safetensors",
     "check --golden {0}/golden.safetensors --capture {0}/capture", "explain norm", "env"],
)  # fmt: skip
def test_json_is_one_object_and_nothing_else_on_stdout(words: str, place: Path, run) -> None:
    plain, printed, _ = run(*words.format(place).split())
    code, out, _ = run(*words.format(place).split(), "--json", *(["--force"] if "apply" in words else []))
    document = json.loads(out)
    assert code == plain and isinstance(document, dict) and document["schema"].startswith("specwire.")
    assert printed.strip() and not printed.startswith("{")


def test_the_version(run) -> None:
    assert run("--version") == (0, f"specwire, version {__version__}\n", "")


def test_probes_in_both_forms(run) -> None:
    found = json.loads(run("probes", "--json")[1])
    assert found["schema"] == "specwire.probes/1"
    assert {row["name"]: row["group"] for row in found["probes"]} == {
        name: probe.group for name, probe in surgery.probes().items()
    }
    lines = run("probes")[1].splitlines()
    for row in found["probes"]:
        assert set(row) == {"name", "group", "reports", "site", "files"} and all(row.values())
        assert any(line.split()[:2] == [row["name"], row["group"]] and row["reports"] in line for line in lines)
        assert any(line.strip() == f"at {row['site']}" for line in lines)


def test_a_group_of_probes_from_the_command_line(place: Path, run) -> None:
    code, out, _ = run("apply", place / "tree", "--group", "capture", "--json")
    document = json.loads(out)
    assert (code, {site["probe"] for site in document["sites"]}) == (0, {"hidden-state-dump"})
    code, out, _ = run("apply", place / "tree", "--group", "capture", "--probe", "draft-fc", "--json")
    assert {site["probe"] for site in json.loads(out)["sites"]} == {"hidden-state-dump", "draft-fc"}


def test_a_profile_from_the_command_line(tmp_path: Path, run) -> None:
    head = {"schema": "specwire.profile/1", "rank": 0, "pid": 1, "clock": "monotonic", "device": "cpu", "world_size": 1}
    parts = {"draft": [2.0, 1], "target": [6.0, 1], "verify": [1.0, 1], "other": [1.0, 1]}
    cycle = {
        "kind": "cycle",
        "t": 1.0,
        "ms": 10.0,
        "host_ms": 10.0,
        "gap_ms": 1.0,
        "mode": "DECODE",
        "batch": 1,
        "tokens": None,
    }
    cycle |= {"graph": None, "parts": parts, "accepted": [3]}
    (tmp_path / "rank0.1.jsonl").write_text(json.dumps(head) + "\n" + json.dumps(cycle) + "\n")
    code, out, _ = run("profile", tmp_path)
    assert code == 0 and out.startswith("1 rank, clock monotonic on cpu\n") and "target" in out and "60" in out
    code, out, _ = run("profile", tmp_path, "--json")
    assert code == 0 and json.loads(out)["decode"]["total_ms"] == 10.0
    assert run("profile", tmp_path / "nowhere")[0] == 2


CHECK = {
    "schema", "verdict", "concat_shape", "golden_concat_shape", "ranks", "ranks_agree", "noise_floor", "slots", "causes", "checks",
}  # fmt: skip
SLOT = {
    "slot", "expected_boundary", "nearest_boundary", "rel_l2", "nearest_rel_l2", "cosine", "hs_first5", "golden_first5", "state",
}  # fmt: skip


@pytest.mark.parametrize("slots", [(1, 3, 5), (2, 4, 6)])
def test_the_fields_of_a_check(slots, place: Path, run) -> None:
    for prompt, ids in enumerate(PROMPTS):
        write_batch(place / "again", 0, prompt, [(ids, 0, len(ids))], [concat(STATES[prompt], slots)])
    code, out, _ = run("check", "--golden", place / "golden.safetensors", "--capture", place / "again", "--json")
    document, good = json.loads(out), slots == (1, 3, 5)
    assert code == (0 if good else 1) and set(document) >= CHECK and document["schema"] == "specwire.check/1"
    for number, slot in enumerate(document["slots"]):
        assert set(slot) >= SLOT and slot["slot"] == number and slot["expected_boundary"] == (1, 3, 5)[number]
        assert slot["nearest_boundary"] == slots[number] and slot["nearest_rel_l2"] < 1e-6
        wanted = STATES[0][(1, 3, 5)[number]][0, :5].tolist()
        assert slot["golden_first5"] == pytest.approx(wanted, rel=1e-5)
        assert slot["hs_first5"] == pytest.approx(STATES[0][slots[number]][0, :5].tolist(), rel=1e-5)
    assert document["noise_floor"] == pytest.approx(1.5e-6)
    assert [cause["id"] for cause in document["causes"]] == ([] if good else ["boundary-offset"])
    for cause in document["causes"]:
        assert set(cause) >= {"id", "confidence", "evidence", "fix"} and all(
            cause[name] for name in ("evidence", "fix")
        )
    names = set(registry.modules("specwire.checks"))
    assert {line["id"] for line in document["checks"]} == names
    assert {line["state"] for line in document["checks"]} <= {"ok", "fault", "skipped"}


def test_what_somebody_saw_of_acceptance_comes_by_options(place: Path, run) -> None:
    words = ["check", "--golden", place / "golden.safetensors", "--capture", place / "capture", "--json"]
    seen = json.loads(run(*words, "--accept-length", "1.0")[1])["acceptance"]
    assert (seen["length"], seen["pattern"]) == (1.0, "exactly 1.00")
    assert json.loads(run(*words)[1])["acceptance"]["length"] is None
    for folder, ranks, accepted in (("capture", 8, (20,)), ("beside", 1, (0, 10, 10))):
        write_batch(place / folder, 0, 9, [(PROMPTS[0], 0, 3)], [concat(STATES[0], (1, 3, 5))])
        write_answers(place / folder, Answers((Answer((4, 5, 6), (7,) * LONG, None, accepted),), ranks))
    assert json.loads(run(*words)[1])["acceptance"]["pattern"] == "exactly 1.00"
    seen = json.loads(run(*words, "--beside", place / "beside")[1])["acceptance"]
    assert seen["pattern"] == "only with several ranks"
    assert run(*words, "--beside", place / "nowhere")[0] == 2


def test_so_many_records_are_imported(tmp_path: Path, run) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 32}))
    for number, states in enumerate(STATES * 2):
        rows = {"token_ids": PROMPTS[number % 2]}
        joined = concat(states, (1, 3, 5))
        save_file(
            {"token_ids": _tensor(rows["token_ids"]), "concat": joined}, tmp_path / "data" / f"{number}.safetensors"
        )
    words = [
        "golden",
        "import",
        tmp_path / "data",
        "--target",
        tmp_path,
        "--ids",
        "1,3,5",
        "--convention",
        "boundary",
        "--json",
    ]
    for limit in (1, 3):
        code, out, _ = run(*words, "--out", tmp_path / f"{limit}.safetensors", "--limit", limit)
        assert code == 0 and len(json.loads(out)["prompts"]) == limit
    assert run(*words, "--out", tmp_path / "none", "--limit", 0)[0] == 2 and not (tmp_path / "none").exists()


def _tensor(ids):
    import torch

    return torch.tensor(ids)


@pytest.mark.parametrize(
    ("package", "origin"), [("specwire.checks", "checks/slot_order.py"), ("specwire.codemods", "codemods/draft_fc.py")]
)
def test_a_file_registers_itself_by_being_there(package: str, origin: str, tmp_path: Path, monkeypatch) -> None:
    before = set(registry.modules(package))
    (tmp_path / "made_for_a_test.py").write_text((ROOT / origin).read_text())
    (tmp_path / "_not_one.py").write_text("raise ImportError")
    monkeypatch.setattr(sys.modules[package], "__path__", [*sys.modules[package].__path__, str(tmp_path)])
    found = registry.modules(package)
    sys.modules.pop(f"{package}.made_for_a_test")
    assert set(found) == before | {"made-for-a-test"}
