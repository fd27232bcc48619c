"""A tree from elsewhere reaches nothing outside of itself, whatever its journal says."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from faults import kills, stopped
from small_trees import DEBUG, applied, make_tree, snapshot

from specwire.errors import SpecwireError
from specwire.patching import surgery
from specwire.patching.guarded import opened
from specwire.trees.transaction import JOURNAL, Change, commit, pending, recover
from specwire.trees.tree import Tree

HELD = b"innocent\n"
HASH = hashlib.sha256(HELD).hexdigest()


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim.py").write_bytes(HELD)
    return make_tree(tmp_path / "tree")


def journal(tree: Tree, *files: dict, name: str = JOURNAL, links: bool = False, place: Path | None = None) -> Path:
    document = {"schema": "specwire.journal/1", "token": "abcd0123", "replace_links": links, "files": list(files)}
    path = (place or tree.package) / name
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("links", [False, True], ids=["through", "replaced"])
@pytest.mark.parametrize("way", ["file", "directory", "two directories", "parent"])
@pytest.mark.parametrize("before", [None, "0" * 64], ids=["made", "changed"])
@pytest.mark.parametrize("writes", [True, False], ids=["apply", "status"])
def test_a_link_out_of_the_tree(tree, tmp_path, links, way, before, writes):
    outside = tmp_path / "outside"
    inside = tree.package / "inside"
    name = {"file": "inside", "directory": "inside/victim.py", "parent": "inside/outside/victim.py"}.get(
        way, "inside/on/victim.py"
    )
    if way == "two directories":
        inside.mkdir()
        (inside / "on").symlink_to(outside)
    else:
        inside.symlink_to({"file": outside / "victim.py", "directory": outside, "parent": tmp_path}[way])
    journal(tree, {"name": name, "before": before, "after": HASH}, links=links)
    if way == "file" and links:  # then the link itself is meant, which lies in the tree
        with opened(str(tree.root), None, print, writes):
            pass
    else:
        with pytest.raises(SpecwireError, match="outside of the tree"), opened(str(tree.root), None, print, writes):
            pass
        assert pending(tree.package)
    assert (outside / "victim.py").read_bytes() == HELD


@pytest.mark.parametrize("name", [JOURNAL, ".specwire-journal.done"])
def test_second_names_outside_of_the_tree_stay(tree, tmp_path, name):
    (tree.package / "inside").symlink_to(tmp_path / "outside")
    second = tmp_path / "outside" / ".victim.py.specwire-abcd0123.old"
    second.write_bytes(b"of somebody")
    journal(tree, {"name": "inside/victim.py", "before": "0" * 64, "after": "1" * 64}, name=name)
    with pytest.raises(SpecwireError, match="outside of the tree"):
        recover(tree.package)
    assert second.exists()


def test_a_witness_that_was_made_for_another_journal_vouches_for_nothing(tree, tmp_path):
    (tree.package / "inside").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / ".witness.specwire-abcd0123.json").write_text("0" * 64 + "\n")
    journal(tree, {"name": "inside/victim.py", "before": None, "after": HASH})
    with pytest.raises(SpecwireError, match="outside of the tree"):
        recover(tree.package)
    assert (tmp_path / "outside" / "victim.py").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [JOURNAL, ".specwire-journal.done"])
def test_a_journal_of_another_user(tree, name):
    mine = tree.path("sglang/srt/models/target.py")
    held = hashlib.sha256(mine.read_bytes()).hexdigest()
    os.chown(journal(tree, {"name": "srt/models/target.py", "before": None, "after": held}, name=name), 1234, 1234)
    with pytest.raises(SpecwireError, match="belongs to user 1234"):
        recover(tree.package)
    assert mine.exists()


def test_a_journal_that_others_may_write_to(tree):
    journal(tree, {"name": "version.py", "before": None, "after": "0" * 64}).chmod(0o666)
    with pytest.raises(SpecwireError, match="others may write"):
        recover(tree.package)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "zero"])
def test_a_journal_that_is_no_file(tree, tmp_path, kind):
    place = tree.package / JOURNAL
    if kind == "link":
        place.symlink_to(journal(tree, name="elsewhere"))
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "zero":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    with pytest.raises(SpecwireError, match="no file"):
        recover(tree.package)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "null", "[" * 100_000, '{"schema": "specwire.journal/1"}', '{"files": 5}']
    + [
        json.dumps({"schema": "specwire.journal/1", "token": token, "replace_links": False, "files": files})
        for token, files in [
            ("../x", []),
            ("a" * 300, []),
            (5, []),
            ("ab", 5),
            ("ab", [5]),
            ("ab", [None]),
            ("ab", [{"name": 5, "before": None, "after": None}]),
            ("ab", [{"name": "", "before": None, "after": None}]),
            ("ab", [{"name": "x", "before": 5, "after": None}]),
            ("ab", [{"name": "a\0b", "before": None, "after": "x"}]),
            ("ab", [{"name": "/etc/passwd", "before": None, "after": "x"}]),
            ("ab", [{"name": "../x", "before": None, "after": "x"}]),
            ("ab", [{"name": "n" * 300, "before": "x", "after": "y"}]),
        ]
    ],
)
def test_a_journal_of_any_other_kind(tree, text):
    path = tree.package / JOURNAL
    path.write_text(text)
    before = snapshot(tree.root)
    with pytest.raises(SpecwireError):
        recover(tree.package)
    assert snapshot(tree.root) == before


def test_a_new_file_where_a_link_leads_out_is_not_made(tree, tmp_path):
    (tree.package / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(SpecwireError, match="a new file outside"):
        commit(tree.package, [Change(tree.package / "inside" / "new.py", None, b"x")])
    assert os.listdir(tmp_path / "outside") == ["victim.py"]


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "thorough"])
def test_a_change_through_links_that_is_killed_is_put_right(tmp_path, thorough):
    """What lies outside is the user's own way to lay out a tree: nothing of it is lost either."""

    def made(number):
        tree = make_tree(tmp_path / str(number) / "tree")
        tree.path("sglang/srt/models").rename(tmp_path / str(number) / "models")
        tree.path("sglang/srt/models").symlink_to("../../../models")
        return tree, surgery.plan_apply(tree, DEBUG)

    tree, outcome = made("template")
    before = snapshot(tree.root.parent)
    operations = stopped(outcome.write).operations
    after = snapshot(tree.root.parent)
    assert before != after
    ends = set()
    for number, fault in enumerate(kills(operations, thorough)):
        tree, outcome = made(number)
        assert stopped(outcome.write, fault).end == "killed"
        recover(tree.package)
        now = snapshot(tree.root.parent)
        assert now in (before, after), str(fault)
        ends.add(now == after)
    assert ends == {True, False}


def test_a_view_beside_a_link(tmp_path):
    """What is swept up beside a view is a directory, never what a link leads to."""
    tree = make_tree(tmp_path / "tree")
    applied(tree)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(HELD)
    for state in ("building", "replaced"):
        (tmp_path / f".view.specwire-0000.{state}").symlink_to(tmp_path / "precious")
    from specwire.patching.overlay import sweep

    sweep(tmp_path / "view")
    assert (tmp_path / "precious" / "file").read_bytes() == HELD and not (tmp_path / "view").exists()
