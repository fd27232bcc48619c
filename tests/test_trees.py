"""`apply`, `remove` and `status` on whole trees, through what befalls a tree in its life."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from small_trees import (
    DEBUG,
    DRAFT,
    FILES,
    TAPPED,
    TARGET,
    applied,
    crlf,
    make_tree,
    removed,
    snapshot,
)

from specwire import cli
from specwire.errors import SpecwireError
from specwire.patching import marks, surgery
from specwire.trees import transaction
from specwire.trees.transaction import Change, commit, locked
from specwire.trees.tree import Tree

DONE = "[DONE] All debug logging removed. Ready for production restart."
TARGET_NAME, DRAFT_NAME = "sglang/srt/models/target.py", "sglang/srt/models/draft_eagle3.py"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


@pytest.fixture
def run(capfd):
    def call(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return call


@pytest.fixture
def run_json(run):
    def call(*arguments):
        code, out, err = run(*arguments, "--json")
        document = json.loads(out)
        assert document["schema"] == "specwire.tree/1"
        assert set(document) >= {
            "tree",
            "engine",
            "version",
            "result",
            "sites",
            "files",
            "created",
            "deleted",
        }
        assert all(set(site) >= {"probe", "file", "qualname", "line", "state", "why"} for site in document["sites"])
        return code, document

    return call


def states(document):
    """Of the sites that the small tree has: it runs no graphs."""
    return {site["state"] for site in document["sites"] if site["probe"] != "graph-replay"}


def edit(tree, name, old, new):
    data = tree.read(name)
    assert old in data
    tree.path(name).write_bytes(data.replace(old, new, 1))


# --- there and back -----------------------------------------------------------------------------------


def test_there_and_back(tree, run, run_json):
    before = snapshot(tree.root)
    code, document = run_json("apply", tree.root)
    assert (code, document["result"], states(document)) == (0, "applied", {"applied"})
    assert document["created"] == [marks.RUNTIME] and document["deleted"] == []
    assert sorted(document["files"]) == sorted([*TAPPED, marks.RUNTIME])
    assert {site["probe"] for site in document["sites"]} == set(DEBUG)
    code, document = run_json("status", tree.root)
    assert (code, document["result"], states(document)) == (0, "applied", {"applied"})
    code, out, _ = run("remove", tree.root)
    assert code == 0 and out.splitlines()[-1] == DONE
    assert sum(line.startswith("[OK] ") for line in out.splitlines()) == len(document["sites"])
    assert snapshot(tree.root) == before
    code, document = run_json("status", tree.root)
    assert (code, document["result"], document["sites"]) == (0, "nothing", [])


def test_nothing_to_remove(tree, run, run_json):
    before = snapshot(tree.root)
    code, out, _ = run("remove", tree.root)
    assert code == 0 and out.splitlines()[-1] == DONE
    assert run_json("remove", tree.root)[1]["result"] == "nothing"
    assert snapshot(tree.root) == before


@pytest.mark.parametrize("line", ["import pdb; pdb.set_trace()", "print('[EAGLE3-DEBUG] here')"])
def test_not_all_is_removed_while_something_by_hand_is_in(tree, run, line):
    file = tree.root / "sglang" / "srt" / "by_hand.py"
    file.write_text(f"def look(x):\n    {line}\n    return x\n")
    before = snapshot(tree.root)
    run("apply", tree.root)
    code, out, _ = run("remove", tree.root)
    last = out.splitlines()[-1]
    assert (
        code == 0
        and DONE not in out
        and "1 place, such as sglang/srt/by_hand.py:2" in last
        and "specwire strip" in last
    )
    assert snapshot(tree.root) == before


@pytest.mark.parametrize("command", ["apply", "remove"])
def test_what_is_only_planned_is_not_said_to_be_done(tree, run, command):
    if command == "remove":
        run("apply", tree.root)
    out = run(command, tree.root, "--dry-run")[1]
    done = {"apply": "applied", "remove": "removed"}[command]
    assert f"[would be {done}] draft-fc" in out and "[OK]" not in out and f"[{done}]" not in out


def test_twice_is_already(tree, run_json):
    run_json("apply", tree.root)
    before = {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")}
    code, document = run_json("apply", tree.root)
    assert (code, document["result"], states(document), document["files"]) == (0, "already", {"already"}, {})
    assert {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")} == before


def test_more_probes_keep_the_old_ones(tree, run_json):
    run_json("apply", tree.root, "--probe", "draft-input")
    code, document = run_json("apply", tree.root, "--probe", "draft-fc", "--probe", "draft-input")
    assert {(site["probe"], site["state"]) for site in document["sites"]} == {
        ("draft-input", "already"),
        ("draft-fc", "applied"),
    }
    code, document = run_json("status", tree.root)
    assert {site["probe"] for site in document["sites"]} == {"draft-input", "draft-fc"}


def test_some_probes_leave(tree, run, run_json):
    before = snapshot(tree.root)
    applied(tree, ["draft-fc", "forward-end", "layer-capture"])
    some = snapshot(tree.root)
    applied(tree)
    others = set(surgery.chosen((), ())) - {"draft-fc", "forward-end", "layer-capture"}
    code, out, _ = run("remove", tree.root, *(word for name in sorted(others) for word in ("--probe", name)))
    assert code == 0 and DONE not in out and "Other taps are still in" in out
    assert snapshot(tree.root) == some
    code, document = run_json("remove", tree.root)
    assert document["deleted"] == [marks.RUNTIME] and set(document["proofs"].values()) == {"original-hash"}
    assert snapshot(tree.root) == before


def test_looking_writes_nothing(tree, run):
    before = snapshot(tree.root)
    for extra in (["--dry-run"], ["--diff"], ["--dry-run", "--json"]):
        assert run("apply", tree.root, *extra)[0] == 0
        assert snapshot(tree.root) == before
    applied(tree)
    before = snapshot(tree.root)
    for extra in (["--dry-run"], ["--diff"], ["--dry-run", "--json"]):
        code, out, _ = run("remove", tree.root, *extra)
        assert code == 0 and DONE not in out
        assert snapshot(tree.root) == before


def test_looking_is_told_from_doing(tree, run, run_json):
    sites = sum(site["state"] == "applied" for site in run_json("apply", tree.root, "--diff", "--json")[1]["sites"])
    assert (
        run("apply", tree.root, "--dry-run")[1].splitlines()[-1].startswith(f"would be applied: {sites} sites, 4 files")
    )
    assert run_json("apply", tree.root, "--dry-run")[1]["dry_run"] is True
    assert run_json("apply", tree.root)[1]["dry_run"] is False
    assert run("status", tree.root)[1].splitlines()[-1].startswith(f"applied: {sites} sites, 3 files")
    assert (
        run("remove", tree.root, "--dry-run")[1]
        .splitlines()[-1]
        .startswith(f"would be removed: {sites} sites, 4 files")
    )
    assert run("remove", tree.root)[1].splitlines()[-2].startswith(f"removed: {sites} sites, 4 files")
    assert run("remove", tree.root, "--dry-run")[1].splitlines()[-1].startswith("nothing: 0 sites, 0 files")


def test_sites_that_are_well_come_as_a_sum_and_with_verbose_each(tree, run, run_json):
    sites = run_json("apply", tree.root, "--dry-run")[1]["sites"]
    counts = Counter(site["probe"] for site in sites if site["state"] == "applied")
    for words, mark in (
        (("apply", "--dry-run"), "would be applied"),
        (("apply",), "applied"),
        (("status",), "applied"),
    ):
        lines = run(words[0], tree.root, *words[1:])[1].splitlines()
        found = (re.fullmatch(rf"\[{mark}\] (\S+) +(\d+) sites? in \d+ files?", line) for line in lines)
        sums = {match[1]: int(match[2]) for match in found if match}
        assert sums == counts
    each = [line for line in run("status", tree.root, "--verbose")[1].splitlines() if line.startswith("[applied]")]
    assert len(each) == sum(counts.values()) and all(re.search(r"\.py:\d+ ", line) for line in each)


def test_apply_says_what_to_type_next_and_a_plan_does_not(tree, run, tmp_path):
    assert "next:" not in run("apply", tree.root, "--dry-run")[2]
    view = run("apply", tree.root, "--overlay", tmp_path / "view")[2]
    assert f"next: PYTHONPATH={tmp_path / 'view'} EAGLE3_DEBUG=1" in view
    assert f"specwire remove {tree.root}" in run("apply", tree.root)[2]


def test_sites_that_are_absent_take_one_line(tree, run, run_json):
    for number in range(3):
        head = b"import torch\n\n\nclass Head:\n    def forward(self, ids, forward_batch):\n        embeds = self.embed_tokens(ids)\n"
        head += b"        states = forward_batch.spec_info.hidden_states\n        return self.fc(torch.cat((embeds, states), dim=-1))\n"
        tree.path(f"sglang/srt/models/head{number}_mtp.py").write_bytes(head)
    sites = run_json("apply", tree.root, "--dry-run")[1]["sites"]
    absent = [site for site in sites if site["state"] == "absent"]
    assert len(absent) >= 3
    printed = run("apply", tree.root, "--dry-run", "--verbose")[1].splitlines()
    assert [line for line in printed if "absent" in line] == [
        f"[absent] {len(absent)} sites in {len({site['file'] for site in absent})} files (--json names each), such as "
        f"{absent[0]['probe']} {absent[0]['file']} {absent[0]['qualname']} - {absent[0]['why']}"
    ]
    assert len(printed) == len(sites) - len(absent) + 2


def test_diff_is_a_patch(tmp_path, run):
    files = {**FILES, TARGET_NAME: crlf(TARGET), DRAFT_NAME: DRAFT.rstrip(b"\n")}
    tree, patched = make_tree(tmp_path / "tree", files), make_tree(tmp_path / "patched", files)
    _, diff, _ = run("apply", tree.root, "--diff")
    subprocess.run(["patch", "-p1", "--binary", "-s"], input=diff.encode(), cwd=patched.root, check=True)
    applied(tree)
    assert snapshot(patched.root) == snapshot(tree.root)


def test_a_failed_site_with_nothing_beside_it_writes_nothing(tree, run, run_json):
    edit(tree, "sglang/srt/layers/logits_processor.py", b"torch.cat(", b"stack(")
    before = snapshot(tree.root)
    only = ("apply", tree.root, "--probe", "concat-full")
    code, document = run_json(*only)
    assert (code, document["result"], document["files"], document["created"]) == (2, "failed", {}, [])
    assert "Nothing was written." in run(*only)[1]
    assert snapshot(tree.root) == before


ODD = {
    "a packing of another kind": ("sglang/srt/layers/logits_processor.py", b"torch.cat(", b"stack("),
    "no Python": (DRAFT_NAME, b"class Draft", b"clas Draft"),
    "too deep": (DRAFT_NAME, b"class Draft", b"x = " + b"-" * 100_000 + b"1\nclass Draft"),
    "a bad byte": (DRAFT_NAME, b"class Draft", b"# \xff\nclass Draft"),
    "the taps' name": (DRAFT_NAME, b"class Draft", b"_specwire_ = 1\nclass Draft"),
    "the taps' mark as text": (DRAFT_NAME, b"class Draft", b"x = '# specwire:import'\nclass Draft"),
    "a NUL": (DRAFT_NAME, b"class Draft", b"# \x00\nclass Draft"),
}


@pytest.mark.parametrize("name, old, new", ODD.values(), ids=ODD)
def test_one_odd_file_keeps_no_other_out(tree, run, run_json, name, old, new):
    edit(tree, name, old, new)
    before = snapshot(tree.root)
    code, out, _ = run("apply", tree.root, "--dry-run")
    assert code == 3 and "[FAILED]" in out and snapshot(tree.root) == before
    code, document = run_json("apply", tree.root)
    assert (code, document["result"]) == (3, "partial") and name in document["why"]
    states = {(site["file"], site["state"]) for site in document["sites"]}
    assert (name, "failed") in states and (TARGET_NAME, "applied") in states
    assert marks.RUNTIME in document["created"] and tree.path(marks.RUNTIME).exists()
    code, document = run_json("apply", tree.root)
    assert (code, document["result"], document["files"]) == (3, "partial", {})
    assert run("remove", tree.root)[0] == 0 and snapshot(tree.root) == before


# --- a tree that lived on -----------------------------------------------------------------------------


def test_edits_elsewhere_survive(tree, run_json):
    applied(tree)
    edit(tree, TARGET_NAME, b'"""A target."""', b'"""A better target."""')
    edit(tree, DRAFT_NAME, b"        return 1\n", b"        return 2  # why not\n")
    code, document = run_json("apply", tree.root)
    assert (code, document["result"]) == (0, "already")
    code, document = run_json("remove", tree.root)
    assert (code, document["result"]) == (0, "removed")
    assert document["proofs"] == {
        TAPPED[0]: "original-hash",
        DRAFT_NAME: "syntax-tree",
        TARGET_NAME: "syntax-tree",
    }
    assert tree.read(TARGET_NAME) == TARGET.replace(b"A target", b"A better target")
    assert tree.read(DRAFT_NAME) == DRAFT.replace(b"return 1", b"return 2  # why not")


def test_edited_tap_goes_by_force_only(tree, run, run_json):
    original = snapshot(tree.root)
    applied(tree)
    edit(
        tree,
        DRAFT_NAME,
        b"_specwire.fc_before(self, hidden_states, embeds)",
        b"_specwire.fc_before(self, hidden_states)",
    )
    before = snapshot(tree.root)
    for command in ("status", "remove", "apply"):
        code, document = run_json(command, tree.root)
        edited = [site for site in document["sites"] if site["state"] == "edited"]
        assert [(site["probe"], site["file"], site["qualname"]) for site in edited] == [
            ("draft-fc", DRAFT_NAME, "Draft.forward")
        ]
        lines = document["edits"][DRAFT_NAME].splitlines()
        assert [line[0] for line in lines if "fc_before" in line] == ["-", "+"]
        assert "fc_before(self, hidden_states, embeds)" in next(line for line in lines if line.startswith("-  "))
        assert (code, document["result"]) == ((0, "partial") if command == "status" else (2, "refused"))
        assert document["files"] == {}
        assert snapshot(tree.root) == before
    code, out, _ = run("remove", tree.root)
    assert (
        code == 2
        and "[EDITED] draft-fc" in out
        and "--force" in out
        and "Nothing was written." in out
        and DONE not in out
    )
    code, out, _ = run("remove", tree.root, "--force")
    assert code == 0 and out.splitlines()[-1] == DONE
    assert snapshot(tree.root) == original


def test_other_probes_go_beside_an_edited_one(tree, run_json):
    applied(tree)
    edit(
        tree,
        DRAFT_NAME,
        b"_specwire.fc_before(self, hidden_states, embeds)",
        b"_specwire.fc_before(self, hidden_states)",
    )
    code, document = run_json("remove", tree.root, "--probe", "draft-input")
    assert (code, document["result"], document["proofs"]) == (
        0,
        "removed",
        {DRAFT_NAME: "syntax-tree"},
    ) or document["proofs"] == {DRAFT_NAME: "original-hash"}
    left = tree.read(DRAFT_NAME)
    assert b"specwire:draft-input" not in left and b"fc_before(self, hidden_states)" in left


def test_what_does_more_than_report_stays(tree, run_json):
    applied(tree)
    edit(
        tree,
        DRAFT_NAME,
        b"        return self.midlayer",
        b"        hidden_states = _specwire.seen(hidden_states)\n        return self.midlayer",
    )
    before = snapshot(tree.root)
    code, document = run_json("remove", tree.root, "--force")
    assert (code, document["result"]) == (2, "failed")
    assert [site["probe"] for site in document["sites"] if site["state"] == "failed"] == ["unknown"]
    assert snapshot(tree.root) == before


def test_tap_alone_in_its_block(tree, run_json):
    applied(tree)
    edit(
        tree,
        "sglang/srt/layers/logits_processor.py",
        b"                aux_hidden_states = torch.cat(aux_hidden_states, dim=-1)\n",
        b"",
    )
    edit(
        tree,
        "sglang/srt/layers/logits_processor.py",
        b"                hidden_states_to_store = aux_hidden_states\n",
        b"",
    )
    before = snapshot(tree.root)
    for force in ([], ["--force"]):
        code, document = run_json("remove", tree.root, *force)
        assert (code, document["result"]) == (2, "failed")
        failed = [site for site in document["sites"] if site["state"] == "failed"]
        assert failed and all("block" in site["why"] for site in failed)
        assert snapshot(tree.root) == before


def test_older_tree(tree, run, run_json):
    """Taps and tap file of an older specwire: removed as they are, brought up to date where known."""
    original = snapshot(tree.root)
    applied(tree, ["draft-input"])
    old_line = next(line for line in tree.read(DRAFT_NAME).splitlines() if b"draft-input" in line).strip()
    old = marks.marked("if _specwire.on: _specwire.draft_states(self, hidden_states)", "draft-input").encode()
    gone = marks.marked("if _specwire.on: _specwire.seen(self)", "long-gone").encode()
    edit(tree, DRAFT_NAME, old_line, old)
    tree.path(marks.RUNTIME).write_bytes(marks.sealed(b"# specwire:runtime of long ago\non = False\n"))
    older = snapshot(tree.root)
    code, document = run_json("apply", tree.root, "--probe", "draft-input")
    assert (code, document["result"]) == (0, "applied")
    assert old_line in tree.read(DRAFT_NAME) and b"long ago" not in tree.read(marks.RUNTIME)
    shutil.rmtree(tree.root)
    for name, (_, _, data) in older.items():
        if data is not None:
            tree.path(name).parent.mkdir(parents=True, exist_ok=True)
            tree.path(name).write_bytes(data)
    edit(tree, DRAFT_NAME, old, old + b"\n        " + gone)
    code, document = run_json("status", tree.root)
    assert (code, document["result"], {site["probe"] for site in document["sites"]}) == (
        0,
        "applied",
        {"draft-input", "long-gone"},
    )
    code, document = run_json("apply", tree.root)
    assert (code, document["result"]) == (2, "refused")
    code, _, error = run("remove", tree.root, "--probe", "never-was")
    assert code == 2 and "never-was" in error
    code, document = run_json("remove", tree.root, "--probe", "long-gone")
    assert code == 0 and [site["probe"] for site in document["sites"]] == ["long-gone"]
    code, out, _ = run("remove", tree.root)
    assert code == 0 and out.splitlines()[-1] == DONE
    assert {name: entry[2] for name, entry in snapshot(tree.root).items()} == {
        name: entry[2] for name, entry in original.items()
    }


def test_tap_file_edited(tree, run, run_json):
    original = snapshot(tree.root)
    applied(tree)
    edit(tree, marks.RUNTIME, b"import json", b"import json  # mine")
    for command in ("apply", "remove", "status"):
        code, document = run_json(command, tree.root)
        edited = [site for site in document["sites"] if site["state"] == "edited"]
        assert [(site["probe"], site["file"]) for site in edited] == [("runtime", marks.RUNTIME)]
        assert "+import json  # mine" in document["edits"][marks.RUNTIME]
        assert code == (0 if command == "status" else 2)
    assert run("remove", tree.root, "--force")[1].splitlines()[-1] == DONE
    assert snapshot(tree.root) == original


def test_tap_file_without_its_first_line(tree, run, run_json):
    original = snapshot(tree.root)
    applied(tree)
    tree.path(marks.RUNTIME).write_bytes(tree.read(marks.RUNTIME).partition(b"\n")[2])
    assert run_json("remove", tree.root)[1]["result"] == "refused"
    assert run("remove", tree.root, "--force")[1].splitlines()[-1] == DONE
    assert snapshot(tree.root) == original


def test_line_ends_changed_by_version_control(tree, run, run_json):
    applied(tree)
    for path in tree.root.rglob("*.py"):
        path.write_bytes(crlf(path.read_bytes()))
    code, document = run_json("status", tree.root)
    assert (document["result"], states(document)) == ("applied", {"applied"})
    code, out, _ = run("remove", tree.root)
    assert code == 0 and out.splitlines()[-1] == DONE
    assert tree.read(TARGET_NAME) == crlf(TARGET) and tree.read(DRAFT_NAME) == crlf(DRAFT)


def test_tap_file_missing(tree, run, run_json):
    applied(tree)
    tree.path(marks.RUNTIME).unlink()
    code, document = run_json("status", tree.root)
    assert (code, document["result"]) == (0, "partial")
    assert "cannot start" in document["sites"][-1]["why"]
    code, document = run_json("apply", tree.root)
    assert (code, document["result"], document["created"]) == (0, "applied", [marks.RUNTIME])


def test_somebody_elses_file_in_its_place(tree, run_json):
    tree.path(marks.RUNTIME).write_bytes(b"import os\n")
    before = snapshot(tree.root)
    code, document = run_json("apply", tree.root)
    assert (code, document["result"]) == (2, "failed")
    code, document = run_json("remove", tree.root)
    assert (code, document["result"]) == (0, "nothing")
    assert snapshot(tree.root) == before


def test_copied_and_cleaned_anywhere(tree, tmp_path, run):
    original = snapshot(tree.root)
    applied(tree)
    copy = tmp_path / "shipped" / "python"
    shutil.copytree(tree.root, copy)
    shutil.rmtree(tree.root)
    assert run("remove", tmp_path / "shipped")[1].splitlines()[-1] == DONE
    assert snapshot(copy) == original


def test_marks_of_another_hand(tree, run_json):
    """A file that tells of marks in its strings is left alone, and nothing of it is a tap."""
    text = b'"""See\nif _specwire.on: x()  # specwire:draft-fc 00000000\n"""\n'
    tree.path("sglang/srt/managers/notes.py").write_bytes(text)
    original = snapshot(tree.root)
    applied(tree)
    code, document = run_json("status", tree.root)
    assert document["result"] == "applied" and not [site for site in document["sites"] if "notes" in site["file"]]
    assert removed(tree).clean
    assert snapshot(tree.root) == original


def test_file_that_is_not_utf8(tree, run, run_json):
    tree.path("sglang/srt/managers/bytes.py").write_bytes(b"# specwire: \xff\xfe\nx = '\xe9'\n")
    before = snapshot(tree.root)
    code, document = run_json("status", tree.root)
    assert code == 0 and [site["state"] for site in document["sites"] if "bytes.py" in site["file"]] == ["edited"]
    code, document = run_json("remove", tree.root, "--force")
    assert (code, document["result"]) == (2, "failed") and "no valid Python" in document["sites"][0]["why"]
    tree.path("sglang/srt/managers/bytes.py").write_bytes(b"")
    tree.path("sglang/srt/models/odd.py").write_bytes(TARGET + b"x = '\xff'\n")
    code, out, error = run("apply", tree.root, "--dry-run")
    assert code == 3 and "[FAILED] layer-capture sglang/srt/models/odd.py" in out and "bug" not in error
    tree.path("sglang/srt/models/odd.py").unlink()
    tree.path("sglang/srt/managers/bytes.py").write_bytes(b"# specwire: \xff\xfe\nx = '\xe9'\n")
    assert snapshot(tree.root) == before


# --- trees of all kinds -------------------------------------------------------------------------------


def test_ways_to_name_a_tree(tmp_path, monkeypatch):
    checkout = tmp_path / "a check out é"
    root = make_tree(checkout / "python").root
    (tmp_path / "link").symlink_to(checkout)
    (tmp_path / "named-otherwise").symlink_to(root / "sglang")
    monkeypatch.chdir(root)
    names = [
        checkout,
        root,
        root / "sglang",
        f"{checkout}/",
        f"{root}/sglang/",
        ".",
        "sglang",
        "sglang/",
        "../../" + checkout.name,
    ]
    for name in [*names, tmp_path / "link", tmp_path / "named-otherwise"]:
        assert Tree.find(name).package.samefile(root / "sglang"), name
    monkeypatch.chdir(root / "sglang")
    assert Tree.find(".").package.samefile(root / "sglang")
    for name in (tmp_path, root / "sglang" / "srt", tmp_path / "not there"):
        with pytest.raises(SpecwireError):
            Tree.find(name)


def test_installed(tmp_path, run_json, monkeypatch):
    site = make_tree(tmp_path / "env" / "site").root
    elsewhere = make_tree(tmp_path / "elsewhere").root  # not what is found, although we are in it
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(elsewhere)
    assert run_json("status", "installed", "--python", sys.executable)[1]["tree"] == str(site)


def test_editable_install(tmp_path, monkeypatch):
    """What a .pth file or an editable finder leads to is the checkout, and that is what is patched."""
    checkout = make_tree(tmp_path / "checkout" / "python").root
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "__editable__.sglang-0.5.99.pth").write_text(f"{checkout}\n")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    tree = Tree.find("installed", str(environment / "bin" / "python"))
    assert tree.package.samefile(checkout / "sglang")


def test_names_with_spaces_and_more(tmp_path, run):
    tree = make_tree(tmp_path / "söme where" / 'it\'s "here"')
    before = snapshot(tree.root)
    assert run("apply", tree.root)[0] == 0
    assert run("remove", tree.root)[0] == 0
    assert snapshot(tree.root) == before


def test_line_ends_modes_and_boms(tmp_path):
    mixed = TARGET.replace(b"\n", b"\r\n", 4)
    files = {
        **FILES,
        TARGET_NAME: b"\xef\xbb\xbf" + crlf(TARGET),
        DRAFT_NAME: crlf(DRAFT),
        "sglang/srt/models/mixed.py": mixed,
    }
    tree = make_tree(tmp_path / "tree", files)
    tree.path(TARGET_NAME).chmod(0o755)
    tree.path(DRAFT_NAME).chmod(0o600)
    before = snapshot(tree.root)
    applied(tree)
    during = snapshot(tree.root)
    assert [during[name][1] for name in (TARGET_NAME, DRAFT_NAME)] == ["0o755", "0o600"]
    assert b"\n" not in tree.read(TARGET_NAME).replace(b"\r\n", b"")
    removed(tree)
    assert snapshot(tree.root) == before


def test_hard_linked_twin_does_not_change(tree, tmp_path):
    twin = tmp_path / "cache.py"
    os.link(tree.path(TARGET_NAME), twin)
    applied(tree)
    assert twin.read_bytes() == TARGET != tree.read(TARGET_NAME)
    removed(tree)
    assert twin.read_bytes() == TARGET == tree.read(TARGET_NAME) and twin.stat().st_nlink == 1


def test_link_stays_a_link(tree, tmp_path):
    place = tmp_path / "elsewhere.py"
    tree.path(TARGET_NAME).rename(place)
    tree.path(TARGET_NAME).symlink_to(place)
    before = snapshot(tmp_path)
    applied(tree)
    assert tree.path(TARGET_NAME).is_symlink() and b"specwire" in place.read_bytes()
    removed(tree)
    assert snapshot(tmp_path) == before


def test_git_sees_nothing(tmp_path, run):
    make_tree(tmp_path / "repo" / "python")
    git = ["git", "-C", tmp_path / "repo", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)

    def status():
        return subprocess.run(
            [*git, "status", "--porcelain", "--ignored"], check=True, capture_output=True, text=True
        ).stdout

    assert run("apply", tmp_path / "repo")[0] == 0
    assert sorted(line.split()[-1] for line in status().splitlines()) == sorted(
        f"python/{name}" for name in (*TAPPED, marks.RUNTIME)
    )
    assert run("remove", tmp_path / "repo")[0] == 0
    assert status() == ""


def test_compiled_tap_file_goes(tree):
    applied(tree)
    subprocess.run([sys.executable, "-m", "py_compile", tree.path(marks.RUNTIME)], check=True)
    cache = tree.path("sglang/srt/__pycache__")
    assert list(cache.iterdir())
    removed(tree)
    assert list(cache.iterdir()) == []


def test_compiled_files_that_hide_their_source(tree, run, tmp_path):
    """Taps beside one would never run; taps inside one would stay."""
    compile_all = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
        tree.package,
    ]
    subprocess.run(compile_all, check=True)
    before = snapshot(tree.root)
    code, _, error = run("apply", tree.root)
    assert code == 2 and ".pyc: compiled so that Python never looks at the source" in error and "--overlay" in error
    assert run("apply", tree.root, "--overlay", tmp_path / "view")[0] == 0
    assert snapshot(tree.root) == before
    shutil.rmtree(tree.path("sglang/srt/models/__pycache__"))
    shutil.rmtree(tree.path("sglang/srt/layers/__pycache__"))
    before = snapshot(tree.root)
    assert run("apply", tree.root)[0] == 0
    subprocess.run(compile_all, check=True)
    assert run("remove", tree.root)[0] == 0
    compiled = {path.name.split(".")[0] for path in tree.root.rglob("*.pyc")}
    assert compiled == {"__init__", "version", "scheduler"}
    assert {name: entry for name, entry in snapshot(tree.root).items() if "__pycache__" not in name} == {
        name: entry for name, entry in before.items() if "__pycache__" not in name
    }


# --- two at once, and without the right to write ------------------------------------------------------


def test_two_at_once(tree, run):
    before = snapshot(tree.root)
    code = (
        "import sys; from pathlib import Path; from specwire.trees.transaction import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, tree.package], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        code, _, error = run("apply", tree.root)
        assert code == 2 and "another specwire is at work" in error
        assert snapshot(tree.root) == before
    finally:
        other.communicate()
    assert run("apply", tree.root)[0] == 0


def test_lock_is_held_once_more_by_its_holder(tree):
    with locked(tree.package), locked(tree.package):
        applied(tree)
    with locked(tree.package):
        pass


def test_changed_meanwhile(tree):
    outcome = surgery.plan_apply(tree, DEBUG)
    tree.path(TARGET_NAME).write_bytes(TARGET + b"# edited\n")
    before = snapshot(tree.root)
    with pytest.raises(SpecwireError, match="changed while specwire was at work"):
        outcome.write()
    assert snapshot(tree.root) == before


def test_cut_off_change_is_put_right_and_told(tree, run):
    outcome = surgery.plan_apply(tree, DEBUG)
    before = snapshot(tree.root)
    child = os.fork()
    if child == 0:
        os.rename = lambda *_: os._exit(9) if ".specwire-" in str(_[0]) and _[0].suffix == ".new" else os.replace(*_)
        outcome.write()
        os._exit(0)
    assert os.waitpid(child, 0)[1] != 0
    assert snapshot(tree.root) != before
    code, _, error = run("apply", tree.root, "--dry-run")
    assert code == 2 and "specwire status" in error
    code, _, error = run("status", tree.root)
    assert code == 0 and "has been undone: 4 files" in error
    assert snapshot(tree.root) == before


def test_copied_half_done(tree, tmp_path, run):
    """A journal belongs to the tree that it lies in, wherever that is."""
    original, outcome = snapshot(tree.root), surgery.plan_apply(tree, DEBUG)
    child = os.fork()
    if child == 0:
        real = os.rename
        os.rename = lambda *_: os._exit(9) if str(_[1]).endswith("done") else real(*_)
        outcome.write()
        os._exit(0)
    os.waitpid(child, 0)
    half = snapshot(tree.root)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", tree.root, copy], check=True)
    assert "has been undone" in run("status", copy)[2]
    assert snapshot(copy) == original and snapshot(tree.root) == half
    assert "has been undone" in run("status", tree.root)[2] and snapshot(tree.root) == original


def test_edited_after_the_crash_is_left_alone(tree, run):
    outcome = surgery.plan_apply(tree, DEBUG)
    child = os.fork()
    if child == 0:
        real = os.rename
        os.rename = lambda *_: os._exit(9) if str(_[1]).endswith("done") else real(*_)
        outcome.write()
        os._exit(0)
    os.waitpid(child, 0)
    edit(tree, TARGET_NAME, b"A target", b"My target")
    mine = tree.read(TARGET_NAME)
    _, _, error = run("status", tree.root)
    assert "edited since and left alone: srt/models/target.py" in error
    assert tree.read(TARGET_NAME) == mine and tree.read(DRAFT_NAME) == DRAFT
    assert not [path for path in tree.root.rglob("*") if ".specwire-" in path.name]


def test_journal_from_elsewhere_reaches_nothing_outside(tree, tmp_path):
    from specwire.trees.transaction import JOURNAL, recover

    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    file = {
        "name": "../../victim",
        "before": None,
        "after": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    }
    document = {"schema": "specwire.journal/1", "token": "0000", "replace_links": False, "files": [file]}
    (tree.package / JOURNAL).write_text(json.dumps(document))
    with pytest.raises(SpecwireError, match="outside of the tree"):
        recover(tree.package)
    assert victim.exists()


def test_above_a_tree_only_what_this_user_began_counts(tree, tmp_path, monkeypatch):
    from specwire.trees.transaction import JOURNALS, begun_around

    journals = [tmp_path / name for name in JOURNALS]
    assert len(journals) > 1 and begun_around(tree.root) == []
    for journal in journals:
        journal.write_text("{}")
    assert begun_around(tree.root) == [tmp_path]
    real = os.lstat
    other = os.stat_result((*real(journals[-1])[:4], os.geteuid() + 1, *real(journals[-1])[5:]))
    monkeypatch.setattr(os, "lstat", lambda path, **how: other if path == journals[-1] else real(path, **how))
    assert begun_around(tree.root) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("what", ["directory", "file", "all"])
def test_read_only(what):
    with tempfile.TemporaryDirectory(prefix="specwire-") as name:
        place = Path(name)
        place.chmod(0o755)
        tree = make_tree(place / "tree")
        owned = [place, *place.rglob("*")] if what != "all" else []
        for path in owned:
            os.chown(path, 65534, 65534)
        if what == "directory":
            tree.path("sglang/srt/models").chmod(0o555)
        if what == "file":
            tree.path(TARGET_NAME).chmod(0o444)
        before = snapshot(tree.root)
        outcome = surgery.plan_apply(tree, DEBUG)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            try:
                outcome.write()
                os.write(writing, b"written")
            except SpecwireError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        message = os.read(reading, 10_000).decode()
        os.close(reading)
        assert "--overlay" in message and "Permission denied" in message and "Nothing was changed" in message
        assert snapshot(tree.root) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_owner_is_kept(tree):
    os.chown(tree.path(TARGET_NAME), 1234, 4321)
    for step in (applied, removed):
        step(tree)
        status = tree.path(TARGET_NAME).stat()
        assert (status.st_uid, status.st_gid) == (1234, 4321)


def test_change_outside_of_the_root_is_refused(tree, tmp_path):
    with pytest.raises(SpecwireError, match="does not lie below"):
        commit(tree.package, [Change(tmp_path / "x.py", None, b"x")])
    assert not (tmp_path / "x.py").exists()


def test_linked_directory_is_part_of_the_tree(tree, tmp_path):
    """Python imports from there: taps go in there, and none may be left there when the tap file goes."""
    tree.path("sglang/srt/models").rename(tmp_path / "elsewhere")
    tree.path("sglang/srt/models").symlink_to(tmp_path / "elsewhere")
    tree.path("sglang/srt/again").symlink_to("models")
    tree.path("sglang/srt/up").symlink_to("../..")
    before = snapshot(tmp_path)
    outcome = applied(tree)
    assert {change.path for change in outcome.changes} >= {tree.path(name) for name in TAPPED}
    assert b"_specwire" in (tmp_path / "elsewhere" / "target.py").read_bytes()
    assert tree.path("sglang/srt/models").is_symlink() and surgery.status(tree).result == "applied"
    assert removed(tree).clean and snapshot(tmp_path) == before


def test_taps_behind_a_link_keep_the_tap_file(tree, tmp_path):
    applied(tree)
    tree.path("sglang/srt/models").rename(tmp_path / "elsewhere")
    tree.path("sglang/srt/models").symlink_to(tmp_path / "elsewhere")
    removed(tree)
    left = [path for path in tmp_path.rglob("*.py") if b"_specwire" in path.read_bytes()]
    assert left == [] and not tree.path(marks.RUNTIME).exists()


@pytest.mark.parametrize("real", ["_target.py.real", "target_real.py"])
def test_two_names_of_one_file(tree, real):
    """Links to one file are one file: it is changed once."""
    place = tree.path(TARGET_NAME)
    place.rename(place.with_name(real))
    place.symlink_to(real)
    place.with_name("twin.py").symlink_to(real)
    before = snapshot(tree.root)
    outcome = applied(tree)
    assert sum(site.probe == "embedding-capture" for site in outcome.sites) == 1
    assert place.is_symlink() and b"_specwire" in place.read_bytes()
    assert removed(tree).clean and snapshot(tree.root) == before


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes on this system")
def test_extended_attributes_stay(tree):
    place = tree.path(TARGET_NAME)
    try:
        os.setxattr(place, "user.note", b"reviewed")
    except OSError:
        pytest.skip("no extended attributes on this file system")
    applied(tree)
    assert os.getxattr(place, "user.note") == b"reviewed"
    removed(tree)
    assert os.getxattr(place, "user.note") == b"reviewed"


@pytest.mark.parametrize("number", range(2))
def test_what_an_editor_saves_during_the_change_is_kept(tree, monkeypatch, number):
    """Editors save by renaming. That is not overwritten: all of the change is undone, and says why."""
    outcome = surgery.plan_apply(tree, DEBUG)
    *first, last = [change.path for change in outcome.changes if change.before is not None]
    swap, swapped = transaction._swap, []

    def meanwhile(entry):
        swap(entry)
        swapped.append(entry.path)
        if entry.path == first[number]:
            last.with_suffix(".swp").write_bytes(b"edited = 1\n")
            last.with_suffix(".swp").rename(last)

    before = snapshot(tree.root)
    monkeypatch.setattr(transaction, "_swap", meanwhile)
    with pytest.raises(SpecwireError, match="changed while"):
        outcome.write()
    assert last not in swapped and last.read_bytes() == b"edited = 1\n"
    assert {name for name, was in snapshot(tree.root).items() if before.get(name) != was} == {
        last.relative_to(tree.root).as_posix()
    }


def test_taps_without_their_import_are_no_whole(tree):
    applied(tree)
    place = tree.path(TARGET_NAME)
    place.write_bytes(b"".join(line for line in place.read_bytes().splitlines(True) if b"import _specwire" not in line))
    found = surgery.status(tree)
    assert found.result == "partial"
    assert [(site.probe, site.file) for site in found.sites if site.state == "failed"] == [("import", TARGET_NAME)]
    assert removed(tree).clean


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_no_file_in_the_tap_file_s_place(tree, make):
    """It is refused, and not waited for."""
    make(tree.path(marks.RUNTIME))
    for work in (
        lambda: surgery.plan_apply(tree, DEBUG),
        lambda: surgery.plan_remove(tree),
        lambda: surgery.status(tree),
    ):
        with pytest.raises(SpecwireError, match="cannot be read"):
            work()


@pytest.mark.parametrize("length", [201, 252])
def test_a_file_whose_name_is_as_long_as_can_be(tmp_path, length):
    """The names that it has meanwhile are no longer; or nothing could be written, nor undone."""
    name = f"sglang/srt/models/{'x' * (length - 3)}.py"
    tree = make_tree(tmp_path, {**FILES, name: TARGET})
    before = snapshot(tree.root)
    applied(tree)
    assert b"_specwire.embedding" in tree.read(name)
    assert removed(tree).clean and snapshot(tree.root) == before


def test_what_a_hand_wrote_is_shown_clean_and_not_without_end(tree, run):
    """A diff that nobody asked for goes to a terminal; one of a file that is not specwire's would be all of it."""
    applied(tree)
    edit(tree, DRAFT_NAME, b"fc_before(self, hidden_states, embeds)", b"fc_before(self, '\x1b]0;pwned\x07')")
    edit(tree, marks.RUNTIME, b"import json", b"import json\n" + b"mine = 1\n" * 500)
    edit(tree, DRAFT_NAME, b"\n\n", b"\n" + b"#" * 400_000 + b"\n")
    shown = run("remove", tree.root)[1]
    assert "pwned" in shown and "\x1b" not in shown and len(shown) < 20_000
    assert "+mine = 1\n[...]\n" in shown and shown.count("\n") < 90
    tree.path(marks.RUNTIME).write_bytes(b"mine = 1\n" * 500)
    shown = run("status", tree.root)[1]
    assert "not specwire's" in shown and "mine = 1" not in shown


def test_an_empty_tap_file_goes_by_force(tree):
    before = snapshot(tree.root)
    applied(tree)
    tree.path(marks.RUNTIME).write_bytes(b"")
    assert removed(tree).result == "refused"
    removed(tree, force=True)
    assert snapshot(tree.root) == before
