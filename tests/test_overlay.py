"""Views: patched, changed and thrown away without a trace in the tree that they show."""

import os
import subprocess
import sys

import pytest
from small_trees import DEBUG, FILES, TAPPED, TARGET, applied, make_tree, removed, snapshot

from specwire.errors import SpecwireError
from specwire.patching import marks, surgery
from specwire.patching.guarded import opened
from specwire.patching.overlay import make_overlay
from specwire.trees.tree import Tree

TARGET_NAME = "sglang/srt/models/target.py"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def view_of(tree, place, names=DEBUG, **how):
    return Tree.find(make_overlay(surgery.plan_apply(tree, names), place, **how))


def test_view(tree, tmp_path):
    before = snapshot(tree.root)
    tree.path(TARGET_NAME).chmod(0o755)
    view = view_of(tree, tmp_path / "out" / "view")
    assert view.overlay and not tree.overlay
    assert surgery.status(view).result == "applied" and len(surgery.status(view).sites) >= 8
    assert view.path(TARGET_NAME).stat().st_mode & 0o777 == 0o755
    links = [name for name in FILES if view.path(name).is_symlink()]
    assert sorted(links) == sorted(set(FILES) - set(TAPPED))
    tree.path(TARGET_NAME).chmod(0o644)
    assert snapshot(tree.root) == before


def test_caches_of_a_view_are_its_own(tree, tmp_path):
    before = snapshot(tree.root)
    view = view_of(tree, tmp_path / "view")
    subprocess.run(
        [sys.executable, "-c", "import sglang.srt.models, sglang; print(sglang.__file__)"],
        env={"PYTHONPATH": str(view.root)},
        cwd="/",
        check=True,
        capture_output=True,
    )
    assert list(view.package.glob("**/*.pyc"))
    assert snapshot(tree.root) == before
    view_of(tree, tmp_path / "view")  # compiled code is no reason to keep it


def test_compiled_files_of_what_is_not_changed_are_taken_over(tree, tmp_path):
    """To compile an engine anew takes seconds at each start; what was compiled from other source is left behind."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", tree.package], check=True)
    before = snapshot(tree.root)
    view = view_of(tree, tmp_path / "view")
    taken = {path.name.partition(".")[0] for path in view.package.rglob("*.pyc")}
    assert "version" in taken and all(path.is_symlink() for path in view.package.rglob("*.pyc"))
    assert not taken & {name.rpartition("/")[2].removesuffix(".py") for name in TAPPED}
    code = "import sglang.version, sglang; print(sglang.version.__cached__, sglang.version.__file__)"
    for touched in (False, True):
        if touched:  # the source is newer than what was compiled of it: Python compiles it into the view
            os.utime(tree.path("sglang/version.py"), (2e9, 2e9))
        environment = {"PYTHONPATH": str(view.root), "PATH": os.environ["PATH"]}
        subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", check=True)
        (compiled,) = view.path("sglang/__pycache__").glob("version.*")
        assert compiled.is_symlink() is not touched
    assert {name: row for name, row in snapshot(tree.root).items() if name != "sglang/version.py"} == {
        name: row for name, row in before.items() if name != "sglang/version.py"
    }


def test_compiled_files_that_hide_their_source_stay_behind(tree, tmp_path):
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", tree.package]
    subprocess.run(compile_all, check=True)
    assert not list(view_of(tree, tmp_path / "view").package.rglob("*.pyc"))


def test_commands_on_a_view_never_write_through_its_links(tree, tmp_path):
    before = snapshot(tree.root)
    view = view_of(tree, tmp_path / "view", ["draft-input"])
    assert view.path(TARGET_NAME).is_symlink()
    applied(view)
    assert not view.path(TARGET_NAME).is_symlink() and b"specwire" in view.read(TARGET_NAME)
    assert snapshot(tree.root) == before
    assert removed(view).clean
    assert view.read(TARGET_NAME) == TARGET and surgery.status(view).result == "nothing"
    assert snapshot(tree.root) == before


def test_view_of_a_tapped_tree(tree, tmp_path):
    applied(tree)
    before = snapshot(tree.root)
    view = view_of(tree, tmp_path / "view")
    assert view.path(marks.RUNTIME).is_symlink()
    assert removed(view).clean
    assert surgery.status(view).result == "nothing" and not os.path.lexists(view.path(marks.RUNTIME))
    assert snapshot(tree.root) == before


def test_copy_of_the_package_of_a_view(tree, tmp_path):
    """Without the directory around it, it is still a view."""
    before = snapshot(tree.root)
    view = view_of(tree, tmp_path / "view")
    subprocess.run(["cp", "-a", view.package, tmp_path], check=True)
    copy = Tree.find(tmp_path / "sglang")
    assert removed(copy).clean
    applied(copy, ["hidden-state-dump"])
    assert snapshot(tree.root) == before


def test_read_only_tree(tree, tmp_path):
    for path in tree.root.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    view = view_of(tree, tmp_path / "view")
    assert removed(view).clean


def test_made_anew(tree, tmp_path):
    view_of(tree, tmp_path / "view", ["draft-input"])
    view = view_of(tree, tmp_path / "view")
    assert {site.probe for site in surgery.status(view).sites} > {"draft-input", "draft-fc"}
    removed(view)
    view_of(tree, tmp_path / "view")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree", "view"]


def test_what_somebody_put_into_a_view_is_not_lost(tree, tmp_path):
    view = view_of(tree, tmp_path / "view")
    (view.root / "captures").mkdir()
    with pytest.raises(SpecwireError, match="captures: in a view"):
        view_of(tree, tmp_path / "view", force=True)
    (view.root / "captures").rmdir()
    view.path(TARGET_NAME).write_bytes(view.read(TARGET_NAME) + b"# mine\n")
    with pytest.raises(SpecwireError, match="target.py: in a view"):
        view_of(tree, tmp_path / "view")
    assert b"# mine" in view.read(TARGET_NAME)
    view_of(tree, tmp_path / "view", force=True)
    assert b"# mine" not in view.read(TARGET_NAME)


@pytest.mark.parametrize("place", ["tree", "tree/sglang", "tree/sglang/srt/view", "full", "file", "link"])
def test_places_that_it_keeps_off(tree, tmp_path, place):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tree.package)
    before = snapshot(tmp_path)
    with pytest.raises(SpecwireError):
        view_of(tree, tmp_path / place)
    assert snapshot(tmp_path) == before


def test_links_in_the_tree(tree, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "kernel.py").touch()
    tree.path("sglang/kernels").symlink_to(tmp_path / "shared")
    tree.path("sglang/srt/loop").symlink_to("..")
    tree.path("sglang/dangling.py").symlink_to("nowhere")
    view = view_of(tree, tmp_path / "view")
    assert view.path("sglang/kernels/kernel.py").is_file()
    assert surgery.status(view).result == "applied"


def test_view_lost_while_it_was_made_anew_comes_back(tree, tmp_path):
    view = view_of(tree, tmp_path / "view")
    before = snapshot(view.root)
    view.root.rename(tmp_path / ".view.specwire-12345678.replaced")
    (tmp_path / ".view.specwire-12345678.building").mkdir()
    with opened(str(tmp_path / "view"), None, print, writes=False) as found:
        assert found.overlay
    assert snapshot(view.root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree", "view"]


def test_what_the_tree_has_hidden_is_in_the_view(tree, tmp_path):
    """Only a transaction's own files are left out, and their names are longer."""
    (tree.package / ".config.json").write_text("{}")
    view = view_of(tree, tmp_path / "view")
    assert (view.package / ".config.json").read_text() == "{}"
