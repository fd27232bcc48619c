"""Whatever stops `apply` or `remove`, wherever: the tree is then the old one or the new one, and clean."""

import contextlib
import functools
import io
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import CHANGING, Fault, errors, kills, stopped
from small_trees import DEBUG, FILES, TARGET, applied, make_tree, snapshot

from specwire import cli
from specwire.errors import SpecwireError
from specwire.patching import surgery
from specwire.patching.overlay import make_overlay, sweep
from specwire.trees.transaction import Change, commit, pending, recover
from specwire.trees.tree import Tree


class Scene:
    """A tree before and after a piece of work, to be copied as often as the work is to be stopped."""

    def __init__(self, folder, prepare, plan):
        self.folder, self.count = folder, 0
        (folder / "template").mkdir()
        tree = make_tree(folder / "template")
        prepare(tree)
        # As uv and others do it: the file in the tree is also one of a cache.
        os.link(tree.path("sglang/srt/models/target.py"), folder / "template" / "cached.py")
        self.before = snapshot(tree.root)
        outcome = plan(tree)
        assert outcome.exit_code == 0 and outcome.changes
        self.changes = [(change.path.relative_to(tree.root), change.before, change.after) for change in outcome.changes]
        tree, work = self.fresh()
        self.operations = stopped(work).operations
        self.after = snapshot(tree.root)
        assert self.before != self.after

    def fresh(self):
        """A new copy of the tree, and the work on it."""
        self.count += 1
        place = self.folder / str(self.count)
        shutil.copytree(self.folder / "template", place, symlinks=True)
        os.unlink(place / "cached.py")
        os.link(place / "sglang/srt/models/target.py", place / "cached.py")
        return Tree.find(place), self.work(place)

    def work(self, place):
        changes = [Change(place / name, before, after) for name, before, after in self.changes]
        return lambda: commit(place / "sglang", changes)

    def check(self, tree, fault):
        """The old tree or the new one, and either way the work can be done."""
        now = snapshot(tree.root)
        assert now in (self.before, self.after), f"{fault}: {_difference(now, self.before, self.after)}"
        assert now["cached.py"] == self.before["cached.py"]
        if now == self.before:
            self.work(tree.root)()
            assert snapshot(tree.root) == self.after
        shutil.rmtree(tree.root)
        return now == self.after


def _difference(now, before, after):
    return {
        name: (now.get(name), before.get(name), after.get(name))
        for name in {*now, *before, *after}
        if now.get(name) not in (before.get(name), after.get(name))
    } or "a mixture of both"


def nothing(tree):
    pass


def compiled(tree):
    """Taps are in, and Python has compiled the file that they call."""
    applied(tree)
    cache = tree.path("sglang/srt/__pycache__")
    cache.mkdir()
    (cache / "_specwire.cpython-311.pyc").write_bytes(b"compiled")


SCENES = {
    "apply": (nothing, lambda tree: surgery.plan_apply(tree, DEBUG)),
    "remove": (compiled, surgery.plan_remove),
    "apply-more": (applied, lambda tree: surgery.plan_apply(tree, ["hidden-state-dump"])),
    "remove-some": (applied, lambda tree: surgery.plan_remove(tree, ["draft-input", "layer-capture"])),
}
QUICK, THOROUGH = pytest.param(False, id="quick"), pytest.param(True, id="thorough", marks=pytest.mark.slow)
QUICK_SCENES = [
    pytest.param(
        name,
        thorough,
        id=f"{name}-{'thorough' if thorough else 'quick'}",
        marks=[pytest.mark.slow] if thorough else [],
    )
    for name in SCENES
    for thorough in (False, True)
    if thorough or name in ("apply", "remove")
]


@pytest.fixture
def folder(tmp_path):
    """A folder in memory where there is one: a thousand transactions take long on a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="specwire-") as name:
        yield Path(name)


@pytest.fixture
def scene(folder):
    return lambda name: Scene(folder, *SCENES[name])


@pytest.mark.parametrize("name, thorough", QUICK_SCENES)
def test_killed(scene, name, thorough):
    scene = scene(name)
    assert len(scene.operations) > 30
    ends = set()
    for fault in kills(scene.operations, thorough):
        tree, work = scene.fresh()
        assert stopped(work, fault).end == "killed"
        begun, done = pending(tree.package), recover(tree.package)
        assert (done is not None) == begun and not pending(tree.package), str(fault)
        assert done is None or done.left_alone == ()
        ends.add((done and done.outcome, scene.check(tree, fault)))
    assert {("undone", False), ("finished", True)} <= ends


@pytest.mark.parametrize("name, thorough", QUICK_SCENES)
def test_refused_by_the_kernel(scene, name, thorough):
    scene = scene(name)
    ends = set()
    for fault in errors(scene.operations, thorough):
        tree, work = scene.fresh()
        report = stopped(work, fault)
        if report.end == "raised":
            assert isinstance(report.value, SpecwireError), (str(fault), report.value.text)
            assert "Nothing was changed" in str(report.value) or "specwire status" in str(report.value)
        left = pending(tree.package)
        assert not left or report.value, (str(fault), report)
        recover(tree.package)
        new = scene.check(tree, fault)
        assert new == (report.end == "done"), (str(fault), report)
        ends.add((report.end, new, left))
    assert ("raised", False, False) in ends


@pytest.mark.parametrize("name", ["apply", "remove"])
def test_interrupted_from_the_keyboard(scene, name):
    scene = scene(name)
    for at in range(0, len(scene.operations), 4):
        tree, work = scene.fresh()
        report = stopped(work, Fault(at, "interrupt"))
        assert report.end == "raised" and isinstance(report.value, KeyboardInterrupt)
        recover(tree.package)
        scene.check(tree, at)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apply", "remove"])
def test_recovery_killed_too(scene, name):
    scene = scene(name)
    count = 0
    for fault in kills(scene.operations, thorough=False):
        tree, work = scene.fresh()
        stopped(work, fault)
        half = scene.folder / "half"
        recovering = functools.partial(recover, half / "sglang")
        shutil.copytree(tree.root, half, symlinks=True)
        again = stopped(recovering).operations
        shutil.rmtree(half)
        for second in kills(again, thorough=False):
            shutil.copytree(tree.root, half, symlinks=True)
            assert stopped(recovering, second).end == "killed"
            recovering()
            assert not pending(half / "sglang")
            assert snapshot(half) in (scene.before, scene.after), (str(fault), str(second))
            shutil.rmtree(half)
            count += 1
        shutil.rmtree(tree.root)
    assert count > 300


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apply", "remove"])
def test_error_and_then_killed_while_undoing(scene, name):
    """The error that begins an undoing leaves no other trace than a kill does."""
    scene = scene(name)
    for first in errors(scene.operations, thorough=False):
        tree, work = scene.fresh()
        operations = stopped(work, first).operations
        shutil.rmtree(tree.root)
        for at in range(first.at + 1, len(operations)):
            tree, work = scene.fresh()
            assert stopped(work, first, Fault(at, "before")).end == "killed"
            recover(tree.package)
            scene.check(tree, (first, at))


def command(*arguments):
    """A piece of work for a child: a whole command, quietly; its exit code."""

    def work():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                cli.main([str(argument) for argument in arguments])
            except SystemExit as end:
                return end.code, said.getvalue()

    return work


@pytest.mark.slow
@pytest.mark.parametrize("name, prepare", [("apply", nothing), ("remove", compiled)])
def test_command_killed_and_put_right_by_the_next(folder, name, prepare):
    """From the first byte read to the last line printed, and then `status`, which says what it did."""
    tree = make_tree(folder / "tree")
    prepare(tree)
    before = snapshot(tree.root)
    shutil.copytree(tree.root, folder / "spare", symlinks=True)
    surgery.plan_apply(tree, DEBUG)  # so that no child has to import what it needs
    only = {os: CHANGING}  # how much the guard reads depends on who else is running
    operations = stopped(command(name, tree.root), watched=only).operations
    after = snapshot(tree.root)
    ends = set()
    for fault in kills(operations, thorough=False):
        shutil.rmtree(tree.root)
        shutil.copytree(folder / "spare", tree.root, symlinks=True)
        assert stopped(command(name, tree.root), fault, watched=only).end == "killed"
        code, said = stopped(command("status", tree.root)).value
        assert code == 0 and snapshot(tree.root) in (before, after), str(fault)
        ends.add(
            (
                snapshot(tree.root) == after,
                next((word for word in ("undone", "finished") if word in said), ""),
            )
        )
        assert stopped(command(name, tree.root)).value[0] == 0 and snapshot(tree.root) == after
    assert ends >= {(False, "undone"), (True, "finished")}


@pytest.mark.slow
def test_killed_from_outside_at_any_moment(folder):
    """A change of 60 files, and a kill -9 from another process that knows nothing of its steps."""
    many = {f"sglang/srt/models/target_{number}.py": TARGET for number in range(60)}
    tree = make_tree(folder / "tree", {**FILES, **many})
    before, changes = snapshot(tree.root), surgery.plan_apply(tree, DEBUG).changes
    back = [Change(change.path, change.after, change.before) for change in changes]
    began = time.monotonic()
    commit(tree.package, changes)
    lasted, after = time.monotonic() - began, snapshot(tree.root)
    commit(tree.package, back)
    ends = Counter()
    for number in range(60):
        child = os.fork()
        if child == 0:
            commit(tree.package, changes)
            os._exit(0)
        time.sleep(lasted * number / 50)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = recover(tree.package)
        now = snapshot(tree.root)
        assert now in (before, after)
        ends[done and done.outcome] += 1
        if now == after:
            commit(tree.package, back)
    assert ends["undone"] >= 3


@pytest.mark.parametrize("thorough", [QUICK, THOROUGH])
@pytest.mark.parametrize("again", [False, True], ids=["new", "anew"])
def test_overlay_killed(folder, thorough, again):
    tree = make_tree(folder / "tree")
    before = snapshot(tree.root)
    outcome = surgery.plan_apply(tree, DEBUG)
    other = surgery.plan_apply(tree, ["draft-input"])
    place = folder / "out" / "view"

    def start():
        shutil.rmtree(place.parent, ignore_errors=True)
        if again:
            make_overlay(other, place)

    start()
    old = snapshot(place) if again else None
    operations = stopped(lambda: make_overlay(outcome, place)).operations
    new = snapshot(place)
    step = 1 if thorough else 3
    for fault in kills(operations, thorough)[::step]:
        start()
        assert stopped(lambda: make_overlay(outcome, place), fault).end == "killed"
        if place.parent.exists():
            sweep(place)
            assert os.listdir(place.parent) in ([], ["view"]), str(fault)
        assert (snapshot(place) if place.exists() else None) in (old, new), str(fault)
        make_overlay(outcome, place)
        assert snapshot(place) == new and os.listdir(place.parent) == ["view"]
    assert snapshot(tree.root) == before


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["new", "anew"])
def test_overlay_refused_by_the_kernel(folder, again):
    tree = make_tree(folder / "tree")
    outcome = surgery.plan_apply(tree, DEBUG)
    other = surgery.plan_apply(tree, ["draft-input"])
    place = folder / "out" / "view"
    place.parent.mkdir()

    def start():
        shutil.rmtree(place.parent)
        place.parent.mkdir()
        if again:
            make_overlay(other, place)

    start()
    old = snapshot(place) if again else None
    operations = stopped(lambda: make_overlay(outcome, place)).operations
    new = snapshot(place)
    for fault in errors(operations, thorough=False):
        start()
        report = stopped(lambda: make_overlay(outcome, place), fault)
        if report.end == "raised":
            assert isinstance(report.value, SpecwireError), (str(fault), report.value.text)
        sweep(place)
        assert (snapshot(place) if place.exists() else None) in (old, new), str(fault)
        assert os.listdir(place.parent) in ([], ["view"]), str(fault)
