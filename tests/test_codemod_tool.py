"""Probes as LibCST codemods, run by LibCST's own tool: the bytes that `specwire apply` writes."""

import subprocess
import sys

import pytest
import releases
from libcst.codemod import CodemodContext, SkipFile
from small_trees import make_tree

from specwire import codemod
from specwire.errors import SpecwireError
from specwire.patching import surgery
from specwire.trees.tree import Tree

TARGET = "sglang/srt/models/target.py"


def run_tool(command, path):
    done = subprocess.run(
        [sys.executable, "-m", "libcst.tool", "codemod", "-x", f"specwire.codemod.{command}", "--no-format", "-j1", str(path)],
        capture_output=True, text=True, cwd=path.parent, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stderr


def transformed(command, path):
    import libcst

    context = CodemodContext(filename=str(path))
    return getattr(codemod, command)(context).transform_module(libcst.parse_module(path.read_bytes())).bytes


def test_the_real_tool_writes_the_bytes_of_apply(tmp_path):
    ours, theirs = make_tree(tmp_path / "ours"), make_tree(tmp_path / "theirs")
    surgery.plan_apply(ours, ["layer-capture"]).write()
    code, said = run_tool("LayerCapture", theirs.path(TARGET))
    assert code == 0, said
    assert theirs.read(TARGET) == ours.read(TARGET) != make_tree(tmp_path / "plain").read(TARGET)


def test_every_probe_is_a_command_with_a_description():
    names = {"".join(word.capitalize() for word in probe.split("-")): probe for probe in surgery.probes()}
    for name, probe in names.items():
        command = getattr(codemod, name)
        assert command is getattr(codemod, name)  # LibCST sends it to other processes by name
        assert surgery.probes()[probe].reports in command.DESCRIPTION
    with pytest.raises(AttributeError, match="LayerCapture"):
        codemod.NoSuchProbe  # noqa: B018


def test_beside_taps_of_other_probes(tmp_path):
    ours, theirs = make_tree(tmp_path / "ours"), make_tree(tmp_path / "theirs")
    for tree in (ours, theirs):
        surgery.plan_apply(tree, ["embedding-capture", "forward-end"]).write()
    surgery.plan_apply(ours, ["layer-capture"]).write()
    assert transformed("LayerCapture", theirs.path(TARGET)) == ours.read(TARGET)


def test_twice_changes_nothing_more(tmp_path):
    path = make_tree(tmp_path).path(TARGET)
    path.write_bytes(transformed("LayerCapture", path))
    assert transformed("LayerCapture", path) == path.read_bytes()


def test_keeps_carriage_returns_and_bom(tmp_path):
    path = make_tree(tmp_path).path(TARGET)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    now = transformed("LayerCapture", path)
    assert now.startswith(b"\xef\xbb\xbf") and b"\n" not in now.replace(b"\r\n", b"")


def test_a_file_without_a_site_is_skipped_with_the_reason(tmp_path):
    tree = make_tree(tmp_path)
    with pytest.raises(SkipFile, match="scheduler.py: no place for layer-capture"):
        transformed("LayerCapture", tree.path("sglang/srt/managers/scheduler.py"))
    (tmp_path / "elsewhere.py").write_bytes(tree.read(TARGET))
    with pytest.raises(SkipFile, match="no sglang package"):
        transformed("LayerCapture", tmp_path / "elsewhere.py")


def test_an_unknown_structure_is_an_error_and_nothing_is_written(tmp_path):
    path = make_tree(tmp_path).path(TARGET)
    path.write_bytes(
        path.read_bytes().replace(b"aux_hidden_states.append(hidden_states + residual)", b"note(hidden_states)")
    )
    with pytest.raises(SpecwireError, match=r"nearest is sglang/srt/models/target.py:\d+"):
        transformed("LayerCapture", path)


@pytest.mark.release
@pytest.mark.parametrize("command, probe, file", [
    ("LayerCapture", "layer-capture", "deepseek_v2.py"),
    ("DraftInput", "draft-input", "llama_eagle3.py"),
    ("HiddenStateDump", "hidden-state-dump", "llama.py"),
])  # fmt: skip
def test_on_real_files(tmp_path, command, probe, file):
    name = f"sglang/srt/models/{file}"
    pristine = Tree.find(releases.release_tree("0.5.23"))
    planned = surgery.plan_apply(pristine, [probe])
    wanted = next(change.after for change in planned.changes if change.path == pristine.path(name))
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(pristine.read(name))
    code, said = run_tool(command, path)
    assert code == 0, said
    assert path.read_bytes() == wanted
