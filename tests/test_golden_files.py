"""Golden files: written the same way every time, and refused with a sentence when anything is wrong with
them."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from captures import make_golden, make_states
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from specwire.cli.golden import command as golden_command
from specwire.errors import SpecwireError
from specwire.goldens.golden import open_golden
from specwire.goldens.log import open_log_golden
from specwire.tensorfile import open_tensors, write_tensors

PROMPTS = [[4, 5, 6, 7], [9, 5, 8]]


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return make_golden(tmp_path / "golden.safetensors", PROMPTS, make_states(PROMPTS))


def test_the_same_input_gives_the_same_bytes(golden: Path, tmp_path: Path) -> None:
    again = make_golden(tmp_path / "again.safetensors", PROMPTS, make_states(PROMPTS))
    assert golden.read_bytes() == again.read_bytes()


def test_others_can_read_it(golden: Path) -> None:
    states = make_states(PROMPTS)
    with safe_open(golden, "pt") as file:
        assert file.metadata()["schema"] == "specwire.golden/1" and json.loads(
            file.metadata()["trained_boundaries"]
        ) == [1, 3, 5]
        assert torch.equal(file.get_tensor("boundary.3"), states[0][3])
        assert torch.equal(file.get_tensor("prompt.1.boundary.6"), states[1][6])


def test_rows_come_back_in_the_order_asked(golden: Path) -> None:
    states = make_states(PROMPTS)
    rows = open_golden(golden).rows("boundary.2", [(1, 2), (1, 0), (0, 3)])
    assert torch.equal(rows, torch.stack([states[1][2][2], states[1][2][0], states[0][2][3]]))


def parts(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put(path: Path, header, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def changed(change):
    """A spoiler that rewrites the header of a good golden."""

    def spoil(path: Path) -> None:
        header, data = parts(path)
        put(path, change(header) or header, data)

    return spoil


def spoil_metadata(**values):
    return changed(lambda header: header["__metadata__"].update(values))


def spoil_entry(name, **values):
    return changed(lambda header: header[name].update(values))


def rename(old, new):
    return changed(lambda header: header.update({new: header.pop(old)}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def all_nan(path: Path) -> None:
    header, data = parts(path)
    data = bytearray(data)
    for name, entry in header.items():
        if "boundary" in name:
            a, b = entry["data_offsets"]
            data[a:b] = struct.pack("<f", float("nan")) * ((b - a) // 4)
    put(path, header, bytes(data))


def overlapping(path: Path) -> None:
    header, data = parts(path)
    header["boundary.1"]["data_offsets"] = header["boundary.0"]["data_offsets"]
    put(path, header, data)


def tensors(count: int):
    def spoil(path: Path) -> None:
        entries = (b'"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(count))
        put(path, b"{" + b",".join(entries) + b"}", b"")

    return spoil


def a_flood_of_token_ids(path: Path) -> None:
    """An honest header of a sparse file: nothing of it takes any room on the disk."""
    rows = 3 << 30
    header, _ = parts(path)
    kept = {"__metadata__": header["__metadata__"]}
    kept["token_ids"] = {"dtype": "I64", "shape": [rows], "data_offsets": [0, 8 * rows]}
    kept["boundary.1"] = {"dtype": "F32", "shape": [rows, 16], "data_offsets": [8 * rows, 72 * rows]}
    put(path, kept, b"")
    os.truncate(path, path.stat().st_size + 72 * rows)


def with_first_id(path: Path, token: int) -> tuple[dict, bytes]:
    header, data = parts(path)
    start = header["token_ids"]["data_offsets"][0]
    return header, data[:start] + struct.pack("<q", token) + data[start + 8 :]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-executed",)


SPOILERS = {
    "no file": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello, this is not a golden file at all"),
    "truncated": truncate,
    "truncated in the header": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "a byte too long": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "header too long": lambda path: path.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
    "header no JSON": lambda path: put(path, b"{nope", b""),
    "header nested deep": lambda path: put(path, b"[" * 100_000, b""),
    "header a list": lambda path: put(path, b"[]", b""),
    "a name twice": lambda path: put(
        path,
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        b"",
    ),
    "a million tensors": tensors(1_000_000),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "old pickle": lambda path: path.write_bytes(pickle.dumps(Bomb(), protocol=2)),
    "torch pickle": lambda path: torch.save({"token_ids": torch.tensor([1])}, path),
    "overlapping": overlapping,
    "offsets beyond the file": spoil_entry("boundary.6", data_offsets=[10**9, 10**9 + 256]),
    "negative offsets": spoil_entry("boundary.0", data_offsets=[-256, 0]),
    "shape and bytes disagree": spoil_entry("boundary.0", shape=[4, 17]),
    "huge shape": spoil_entry("boundary.0", shape=[2**62, 2**62]),
    "shape of texts": spoil_entry("boundary.0", shape=["4", "16"]),
    "a shape beyond what can be printed": spoil_entry("boundary.0", shape=[10**4000, 10**4000]),
    "unknown dtype": spoil_entry("boundary.0", dtype="Q7"),
    "a list as dtype": spoil_entry("boundary.0", dtype=["F32"]),
    "a dict as dtype": spoil_entry("boundary.0", dtype={"F32": 1}),
    "a path as name": rename("boundary.0", "../../etc/boundary.0"),
    "wrong schema": spoil_metadata(schema="specwire.golden/9"),
    "no metadata": changed(lambda header: header.pop("__metadata__") and None),
    "metadata no strings": spoil_metadata(num_layers=6),
    "trained no list": spoil_metadata(trained_boundaries="3, 31"),
    "trained beyond the layers": spoil_metadata(trained_boundaries="[1, 3, 99]"),
    "trained on more slots than there are boundaries": spoil_metadata(trained_boundaries=json.dumps([2] * 8)),
    "trained empty": spoil_metadata(trained_boundaries="[]"),
    "trained a million wrong ones": spoil_metadata(trained_boundaries=json.dumps([-1] * 10**6)),
    "trained on a million slots": spoil_metadata(trained_boundaries=json.dumps([1] * 10**6), num_layers="99999"),
    "trained nested deep": spoil_metadata(trained_boundaries="[" * 100_000),
    "layers with zeros in front": spoil_metadata(num_layers="000000000001" + "0" * 5000),
    "layers past the limit behind zeros": spoil_metadata(num_layers="00000000000100000000000000"),
    "layers without end": spoil_metadata(num_layers="999999999"),
    "layers in other digits": spoil_metadata(num_layers="\u0666"),
    "boundary of another width": changed(lambda header: header["boundary.0"].update(shape=[2, 32])),
    "token ids without end": a_flood_of_token_ids,
    "a negative token id": lambda path: put(path, *with_first_id(path, -1)),
    "layers no number": spoil_metadata(num_layers="many"),
    "hidden size wrong": spoil_metadata(hidden_size="17"),
    "boundary beyond the layers": rename("boundary.6", "boundary.7"),
    "no token ids": rename("token_ids", "tokens"),
    "noise no table": spoil_metadata(noise='{"float32": [1]}'),
    "noise of 400 digits": spoil_metadata(noise='{"float32": {"1": [%s, 0, 0]}}' % ("9" * 400)),
    "noise as text": spoil_metadata(noise='{"float32": {"1": "000"}}'),
    "noise of two": spoil_metadata(noise='{"float32": {"1": [0, 2, 0]}}'),
    "noise not finite": spoil_metadata(noise='{"float32": {"1": [NaN, 1, 0]}}'),
    "token ids beyond the vocabulary": spoil_metadata(vocab_size="8"),
    "integers where floats belong": spoil_entry("boundary.0", dtype="I32"),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_a_bad_file_is_refused_with_one_sentence(name: str, golden: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    SPOILERS[name](golden)
    with pytest.raises(SpecwireError) as caught:
        open_golden(golden)
    assert str(caught.value).strip() and "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert not (tmp_path / "pickle-was-executed").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": float("inf")}, {"hidden_size": 0}, {"hidden_size": "128"}, {"num_layers": -1}, {"dtype": 5},
        {"concat_shape": [float("inf"), 1]}, {"concat_shape": [8, 0]}, {"concat_shape": 5}, {"slots": 5},
        {"slots": [[10**400] * 5]}, {"slots": [[float("nan")] * 5]}, {"slots": [[1] * 5] * 5000}, {"slots": [None]},
        {"trained_boundaries": [10**400]}, {"schema": ["x"] * 10**6}, {"target": {}},
    ],
)  # fmt: skip
def test_a_bad_log_golden_is_refused_with_one_sentence(change, tmp_path: Path) -> None:
    good = {
        "schema": "specwire.golden/1",
        "kind": "log",
        "slots": [[1, 2, 3, 4, 5]],
        "hidden_size": 8,
        "dtype": "float32",
    }
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(good))
    assert open_log_golden(path).slots == ((1, 2, 3, 4, 5),)
    path.write_text(json.dumps(good | change))
    with pytest.raises(SpecwireError) as caught:
        open_log_golden(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_more_tensors_than_are_read(golden: Path, monkeypatch) -> None:
    monkeypatch.setattr("specwire.tensorheader.TENSOR_LIMIT", 1000)
    tensors(1001)(golden)
    with pytest.raises(SpecwireError, match="holds 1,001 tensors, more than the 1,000 that are read"):
        open_golden(golden)


@pytest.mark.parametrize("name", ["boundary.1", "residual.1", "final_norm"])
def test_rows_that_are_not_the_token_ids(name: str, golden: Path) -> None:
    with safe_open(golden, "pt") as file:
        tensors, metadata = {each: file.get_tensor(each) for each in file.keys()}, file.metadata()
    rows = len(tensors["token_ids"])
    save_file({**tensors, name: torch.zeros(rows, 16)}, golden, metadata)
    open_golden(golden)
    save_file({**tensors, name: torch.zeros(rows - 1, 16)}, golden, metadata)
    with pytest.raises(SpecwireError, match=f"{name} of .* has {rows - 1} rows, token_ids {rows}"):
        open_golden(golden)


def test_a_pickle_is_called_one(golden: Path) -> None:
    for name in ("pickle", "old pickle"):
        SPOILERS[name](golden)
        with pytest.raises(SpecwireError, match="pickle"):
            open_golden(golden)


def test_nan_everywhere_is_refused_when_it_is_read(golden: Path) -> None:
    all_nan(golden)
    with pytest.raises(SpecwireError, match="NaN"):
        open_golden(golden).rows("boundary.1", [(0, 0)])


@settings(max_examples=150, deadline=None)
@given(at=st.floats(0, 1), byte=st.integers(0, 255), cut=st.integers(0, 50))
def test_damage_never_gets_past_the_reader_as_anything_but_a_sentence(
    at: float, byte: int, cut: int, tmp_path_factory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = make_golden(folder / "golden.safetensors", [[4, 5]], make_states([[4, 5]], layers=2, hidden=4), trained=[1])
    raw = bytearray(path.read_bytes())
    raw[int(at * (len(raw) - 1))] = byte
    path.write_bytes(bytes(raw[: len(raw) - cut]))
    try:
        golden = open_golden(path)
        golden.rows("boundary.1", [(0, 0)])
    except SpecwireError:
        return
    assert golden.trained


def test_values_are_read_without_a_tensor_library(tmp_path: Path) -> None:
    numbers = [0.0, -1.5, 3.140625, 1e30]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        tensor = torch.tensor(numbers[: 3 if dtype is torch.float16 else 4], dtype=dtype)
        write_tensors(tmp_path / "t", {"x": tensor}, {})
        assert open_tensors(tmp_path / "t").values("x", 1, 2) == tensor[1:3].double().tolist()


def test_show_says_what_is_in_it(golden: Path) -> None:
    shown = CliRunner().invoke(golden_command, ["show", str(golden), "--json"])
    document = json.loads(shown.stdout)
    assert shown.exit_code == 0 and document["boundaries"] == list(range(7)) and document["concat_shape"] == [4, 48]
    assert document["slots"][1]["hs_first5"] == pytest.approx(make_states(PROMPTS)[0][3][0, :5].tolist(), rel=1e-5)
    text = CliRunner().invoke(golden_command, ["show", str(golden)])
    assert "all 7 boundaries" in text.stdout and "4,5,6,7 (4 tokens)" in text.stdout
    assert document["trained_assumed"] is False and "assumed" not in text.stdout


def show(path: Path, *flags: str) -> str:
    return CliRunner().invoke(golden_command, ["show", str(path), *flags], catch_exceptions=False).stdout


def test_show_gives_the_ids_that_a_server_is_to_be_sent(tmp_path: Path) -> None:
    prompts = [list(range(3, 43)), [9, 5]]
    path = make_golden(tmp_path / "golden", prompts, make_states(prompts))
    assert json.loads(show(path, "--tokens")) == prompts
    assert [one["token_ids"] for one in json.loads(show(path, "--json"))["prompts"]] == prompts
    text = show(path)
    assert (
        "3,4,5," in text
        and "(40 tokens; --tokens gives all)" in text
        and ",42" not in text
        and "9,5 (2 tokens)" in text
    )


def test_show_says_that_a_list_was_assumed(tmp_path: Path) -> None:
    path = make_golden(tmp_path / "golden", PROMPTS, make_states(PROMPTS), trained_source="assumed")
    assert json.loads(show(path, "--json"))["trained_assumed"] is True
    assert "[1, 3, 5] (assumed" in show(path)
