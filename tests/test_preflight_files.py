"""Checkpoints as they should not be: every one is refused with a sentence, none is opened."""

from __future__ import annotations

import json
import math
import pickle
import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_models import draft, draft_config, draft_tensors, write_tensors

from specwire.errors import SpecwireError
from specwire.preflight.checkpoint import INDEXES, open_checkpoint


@pytest.fixture
def place(tmp_path) -> Path:
    return draft(tmp_path / "draft")


def shards(place: Path, weight_map: object) -> None:
    (place / INDEXES[0]).write_text(json.dumps({"weight_map": weight_map}))


def test_a_checkpoint_is_read_from_its_header(place):
    found = open_checkpoint(place)
    assert found.shape("fc.weight") == (64, 192)
    assert found.find("lm_head.weight") == "lm_head.weight" and found.find("nothing") is None
    assert list(found.integers("d2t")[:3]) == [0, 3, 6] and sum(found.integers("t2d")) == 128
    assert found.dtypes() == {"bfloat16"}


def test_shards_are_read_through_the_index(place):
    tensors = draft_tensors(draft_config())
    names = sorted(tensors)
    halves = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for name, part in halves.items():
        write_tensors(place / name, {key: tensors[key] for key in part})
    (place / "model.safetensors").rename(place / "old.safetensors")
    shards(place, {key: name for name, part in halves.items() for key in part})
    found = open_checkpoint(place)
    assert set(found.tensors) == set(tensors) and found.missing == ()
    assert sum(found.integers("t2d")) == 128
    shards(
        place,
        {"lost.weight": "one.safetensors", **{key: name for name, part in halves.items() for key in part}},
    )
    assert open_checkpoint(place).missing == ("lost.weight",)


@pytest.mark.parametrize(
    "weight_map, said",
    [
        ({"fc.weight": "../../../etc/passwd"}, "plain .*name"),
        ({"fc.weight": "/etc/shadow.safetensors"}, "plain .*name"),
        ({"fc.weight": "sub/model.safetensors"}, "plain .*name"),
        ({"fc.weight": "model.bin"}, "plain .*name"),
        ({"fc.weight": "other.safetensors"}, "is not in"),
        ({"fc.weight": 3}, "no weight_map"),
        ([], "no weight_map"),
        (None, "no weight_map"),
    ],
)
def test_an_index_that_leads_elsewhere(place, weight_map, said):
    shards(place, weight_map)
    with pytest.raises(SpecwireError, match=said):
        open_checkpoint(place)


def test_an_index_that_is_no_json(place):
    (place / INDEXES[0]).write_text("[" * 100_000)
    with pytest.raises(SpecwireError, match="cannot read"):
        open_checkpoint(place)


def test_a_tensor_in_two_shards(place):
    write_tensors(place / "more.safetensors", {"fc.weight": ("BF16", (2, 2), None)})
    with pytest.raises(SpecwireError, match="in two shards"):
        open_checkpoint(place)


def test_pickles_are_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    place = tmp_path / "draft"
    place.mkdir()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SpecwireError, match="pickle"):
        open_checkpoint(place)
    (place / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SpecwireError):
        open_checkpoint(place)
    assert not (tmp_path / "ran").exists()


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]
TENSORS = st.tuples(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 3), st.integers(0, 2)
)


@given(tables=st.lists(TENSORS, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_files_of_torch_save_are_read_as_torch_reads_them(tables):
    """Slices of one storage, parameters and transposed tensors among them; values too, where they lie in one piece."""
    saved = {}
    for number, (dtype, shape, before, kind) in enumerate(tables):
        whole = torch.randint(0, 2, (before + math.prod(shape),)).to(dtype)
        tensor = whole[before:].view(shape)
        if kind == 1:
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        saved[f"layer.{number}.weight"] = tensor.transpose(0, -1) if kind == 2 and shape else tensor
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pytorch_model.bin"
        torch.save(OrderedDict(saved), path)
        own, theirs = open_checkpoint(Path(folder)), torch.load(path, weights_only=True)
        assert set(own.tensors) == set(theirs)
        for name, tensor in theirs.items():
            entry = own.tensors[name]
            assert (entry.shape, entry.torch_name) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            assert entry.packed or not tensor.is_contiguous()
            if entry.packed and tensor.ndim:
                read = own.files[0].rows(name)
                assert torch.equal(read.float(), tensor.float())


@pytest.mark.parametrize("place_of", ["state_dict", "model"])
def test_what_an_engine_would_not_load_from_a_pickle_is_refused(tmp_path, place_of):
    for saved in ({place_of: {"fc.weight": torch.ones(2, 2)}}, [torch.ones(2)], torch.nn.Linear(2, 2)):
        torch.save(saved, tmp_path / "pytorch_model.bin")
        with pytest.raises(SpecwireError, match="cannot be read as tensors of torch.save"):
            open_checkpoint(tmp_path)


def test_shards_of_torch_save_are_read_through_their_index(tmp_path):
    torch.save({"fc.weight": torch.ones(2, 6)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"left.over": torch.ones(2, 6)}, tmp_path / "pytorch_model-0.bin")
    torch.save({"lr": 0.1}, tmp_path / "training_args.bin")
    (tmp_path / INDEXES[1]).write_text(json.dumps({"weight_map": {"fc.weight": "pytorch_model-1.bin"}}))
    assert set(open_checkpoint(tmp_path).tensors) == {"fc.weight"}
    write_tensors(tmp_path / "model.safetensors", {"own": ("F32", (1,), None)})
    assert set(open_checkpoint(tmp_path).tensors) == {"own"}  # as an engine, which prefers them


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spoilt=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_spoilt_file_of_torch_save_is_read_or_refused(tmp_path, spoilt):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"fc.weight": torch.ones(2, 6), "d2t": torch.arange(3)}, path)
    data = bytearray(path.read_bytes())
    for where, byte in spoilt:
        data[int(where * len(data))] = byte
    path.write_bytes(bytes(data))
    try:
        found = open_checkpoint(tmp_path)
    except SpecwireError:
        return
    for name, entry in found.tensors.items():
        assert entry.stop <= len(data), name


def test_an_element_type_that_nobody_asks_for_costs_nothing(place):
    header = {"fc.weight": {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]}}
    text = json.dumps(header).encode()
    (place / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))
    found = open_checkpoint(place)
    assert found.shape("fc.weight") == (2, 6) and found.dtypes() == {"F4"} and found.emptied("fc.weight") is None
    with pytest.raises(SpecwireError, match="element type F4, which is not supported here"):
        found.files[0].rows("fc.weight")


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        with pytest.raises(SpecwireError, match=r"no \*.safetensors"):
            open_checkpoint(tmp_path / name)


def test_only_whole_numbers_are_read_as_such(place):
    with pytest.raises(SpecwireError, match="whole numbers"):
        open_checkpoint(place).integers("fc.weight")


HEADERS = [
    pytest.param(b"\xff" * 8, id="header too long"),
    pytest.param((2**40).to_bytes(8, "little") + b"{}", id="header beyond the file"),
    pytest.param(b"\x01", id="too short"),
    pytest.param(b"", id="empty"),
    pytest.param((2).to_bytes(8, "little") + b"[]", id="no object"),
    pytest.param((4).to_bytes(8, "little") + b"\xff\xfe{}", id="no text"),
]


@pytest.mark.parametrize("data", HEADERS)
def test_hostile_headers(place, data):
    (place / "model.safetensors").write_bytes(data)
    with pytest.raises(SpecwireError):
        open_checkpoint(place)


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "F32", "I64", "BOOL", "X", "", None, 3]),
        "shape": st.one_of(
            st.lists(st.integers(-2, 9), max_size=4),
            st.lists(st.integers(0, 2**62), max_size=3),
            st.none(),
            st.text(max_size=3),
        ),
        "data_offsets": st.one_of(st.lists(st.integers(-3, 80), max_size=3), st.none(), st.just([0, 2**63])),
    },
)
NAMES = st.one_of(st.text(max_size=8), st.sampled_from(["../x", "fc.weight", "d2t", "__metadata__", "a/b", "\0"]))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(NAMES, st.one_of(ENTRIES, st.integers(), st.none()), max_size=4), st.binary(max_size=64))
def test_any_header_is_read_or_refused(place, header, data):
    """Whatever the header says: a checkpoint whose tensors lie within the file, or a SpecwireError."""
    text = json.dumps(header).encode()
    file = place / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    try:
        found = open_checkpoint(place)
    except SpecwireError as error:
        assert str(error).strip() and "\n" not in str(error)
    else:
        size = file.stat().st_size
        assert all(0 <= entry.start <= entry.stop <= size for entry in found.tensors.values())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(place, data):
    (place / "model.safetensors").write_bytes(data)
    try:
        open_checkpoint(place)
    except SpecwireError:
        pass
