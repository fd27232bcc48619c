"""A disk without room, wherever a command is in its work: one sentence, exit 2, nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from captures import concat, make_golden, make_states, write_batch
from planted import make_scene
from small_trees import FILES, make_tree, snapshot

ROOMS = (0, 4, 8, 16, 24)  # kilobytes: the work stops at its first file, or at a later one


@pytest.fixture
def disk(tmp_path):
    """A file system of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", place]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def run(*words, cwd=None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specwire", *map(os.fspath, words)], cwd=cwd, capture_output=True, timeout=600
    )


def fill(disk: Path, kilobytes: int) -> None:
    """Leave so much room."""
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(file.tell() - 1024 * kilobytes)


def refused(done: subprocess.CompletedProcess[bytes]) -> None:
    (*_, last) = done.stderr.decode().splitlines()
    assert done.returncode == 2, done
    assert last.startswith("specwire: ") and "No space left on device" in last and "ake room" in last


@pytest.mark.parametrize("kilobytes", ROOMS[:-1])
def test_applying_where_there_is_no_room(disk, kilobytes):
    tree = make_tree(disk / "tree", FILES)
    fill(disk, kilobytes)
    before = snapshot(tree.root)
    refused(run("apply", tree.root))
    assert snapshot(tree.root) == before
    assert sorted(os.listdir(disk)) == ["fill", "tree"] and not list(disk.rglob(".*"))
    (disk / "fill").unlink()
    assert run("apply", tree.root).returncode == 0 and run("remove", tree.root).returncode == 0
    assert snapshot(tree.root) == before


@pytest.mark.parametrize("kilobytes", ROOMS[:2])
def test_removing_where_there_is_no_room(disk, kilobytes):
    """Room was there for the taps: a full disk takes no byte of what they stand in, and hinders nobody afterwards."""
    tree = make_tree(disk / "tree", FILES)
    pristine = snapshot(tree.root)
    assert run("apply", tree.root).returncode == 0
    tapped = snapshot(tree.root)
    fill(disk, kilobytes)
    done = run("remove", tree.root)
    assert (done.returncode, snapshot(tree.root)) in ((2, tapped), (0, pristine))
    (disk / "fill").unlink()
    run("remove", tree.root)
    assert snapshot(tree.root) == pristine


@pytest.fixture
def scene(tmp_path, monkeypatch):
    made = tmp_path / "scene"
    made.mkdir()
    make_scene(made)
    ids = [4, 5, 6, 7, 8]
    states = make_states([ids])
    make_golden(made / "golden.safetensors", [ids], states)
    write_batch(made / "capture", 0, 0, [(ids, 0, 5)], [concat(states[0], (1, 3, 5))])
    (made / "train").mkdir()
    from safetensors.torch import save_file

    one = states[0]
    import torch

    save_file(
        {"token_ids": torch.tensor(ids), "hidden_states": torch.stack([one[k] for k in (1, 3, 5, 6)], dim=1)},
        made / "train" / "hs_0.safetensors",
    )
    config = {"num_hidden_layers": 6, "hidden_size": one[0].shape[-1], "vocab_size": 32}
    (made / "small").mkdir()
    (made / "small" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("TMPDIR", str(made / "tmp"))
    return made


def models(scene):
    return ["--target", scene / "target", "--draft", scene / "draft", "--device", "cpu", "--tokens", "3,4"]


WRITERS = {
    "view": lambda scene, disk: ["apply", scene / "tree", "--overlay", disk / "made"],
    "page": lambda scene, disk: [
        "check", "--golden", scene / "golden.safetensors", "--capture", scene / "capture", "--html", disk / "made",
    ],
    "golden": lambda scene, disk: [
        "golden", "import", scene / "train", "--target", scene / "small", "--trained", "1,3,5",
        "--ids", "1,3,5,6", "--convention", "boundary", "--out", disk / "made",
    ],
    "run": lambda scene, disk: ["run", scene / "tree", *models(scene), "--out", disk / "made"],
    "verify": lambda scene, disk: ["verify", scene / "tree", *models(scene), "--out", disk / "made"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [
        *((name, 0) for name in WRITERS),
        *(pytest.param(name, room, marks=pytest.mark.slow) for name in ("view", "run", "verify") for room in (4, 8)),
    ],
)
def test_writing_where_there_is_no_room(scene, disk, name, kilobytes):
    fill(disk, kilobytes)
    before = snapshot(scene / "tree")
    refused(run(*WRITERS[name](scene, disk), cwd=scene))
    assert os.listdir(disk) == ["fill"] and snapshot(scene / "tree") == before
    assert os.listdir(scene / "tmp") == []


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [0, 12])
def test_building_a_golden_where_there_is_no_room(tmp_path, disk, kilobytes):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=64, num_hidden_layers=6, head_dim=16, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    fill(disk, kilobytes)
    words = ["golden", "build", "--target", tmp_path / "target", "--trained", "1,3,5", "--out", disk / "made"]
    refused(run(*words))
    left = {path.relative_to(disk).as_posix() for path in disk.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith(".made.part/")} == {"fill"}  # what it may go on from
    (disk / "fill").unlink()
    assert run(*words).returncode == 0
