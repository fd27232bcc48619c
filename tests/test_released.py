"""A release named `sglang==VERSION`: fetched once, never written to, and a clear sentence where there is none."""

import os
import subprocess
import sys
import zipfile

import pytest

from specwire.errors import SpecwireError
from specwire.trees import released as module
from specwire.trees.released import released
from specwire.trees.tree import Tree


def wheel(folder, version, names):
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(name, f"__version__ = '{version}'\n")
        info = f"sglang-{version}.dist-info"
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return path


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An index of wheels in a directory, as pip takes it, and an empty cache."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    names = ["sglang/__init__.py", "sglang/version.py", "sglang/srt/__init__.py", "sglang.libs/blob.so"]
    wheel(shelf, "9.9.1", names)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("SPECWIRE_CACHE", str(tmp_path / "cache"))
    return shelf


def test_a_release_is_fetched_once_and_said(shelf, tmp_path, capsys):
    tree = Tree.find("sglang==9.9.1")
    assert tree.version == "9.9.1" and tree.root == tmp_path / "cache" / "releases" / "9.9.1"
    assert "fetching sglang 9.9.1" in capsys.readouterr().err
    assert not (tree.root / "sglang.libs").exists() and tree.fetched
    for each in shelf.iterdir():
        each.unlink()
    assert Tree.find(" sglang == 9.9.1 ").root == tree.root
    assert capsys.readouterr().err == ""
    assert [each.name for each in tree.root.parent.iterdir()] == ["9.9.1"]


@pytest.mark.parametrize("words", [["apply"], ["remove"]])
def test_what_writes_refuses_a_fetched_release(shelf, words):
    done = subprocess.run(
        [sys.executable, "-m", "specwire", *words, "sglang==9.9.1"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 2 and "--overlay DIR" in done.stderr


def test_no_such_release_is_one_sentence_and_leaves_nothing(shelf, tmp_path):
    with pytest.raises(SpecwireError, match="pip gives no wheel"):
        released("9.9.2", print)
    assert list((tmp_path / "cache" / "releases").iterdir()) == []


def test_what_is_no_wheel_is_one_sentence_and_leaves_nothing(shelf, tmp_path, monkeypatch):
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK but no wheel")
    monkeypatch.setattr(module, "download", lambda version, folder: broken)
    with pytest.raises(SpecwireError, match="no wheel"):
        released("9.9.3", print)
    assert list((tmp_path / "cache" / "releases").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECWIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SpecwireError, match="cannot be kept there"):
        released("9.9.1", print)


def test_another_run_that_was_first_is_no_error(shelf, tmp_path, monkeypatch):
    first = tmp_path / "cache" / "releases" / "9.9.1"

    def download(version, folder):
        (first / "sglang").mkdir(parents=True)
        return shelf / "sglang-9.9.1-py3-none-any.whl"

    monkeypatch.setattr(module, "download", download)
    assert released("9.9.1", print) == first


@pytest.mark.parametrize("named", ["sglang", "sglang=9.9.1", "sglang==", "sglang>=0.5", "sglang==../x"])
def test_other_words_are_no_release(named, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECWIRE_CACHE", str(tmp_path))
    with pytest.raises(SpecwireError, match="no SGLang source here"):
        Tree.find(named)
