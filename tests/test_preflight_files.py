"""Checkpoints as they should not be: every one is refused with a sentence, none is opened."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_models import draft, draft_config, draft_tensors, write_tensors

from specwire.errors import SpecwireError
from specwire.preflight.checkpoint import INDEX, open_checkpoint


@pytest.fixture
def place(tmp_path) -> Path:
    return draft(tmp_path / "draft")


def shards(place: Path, weight_map: object) -> None:
    (place / INDEX).write_text(json.dumps({"weight_map": weight_map}))


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
    (place / INDEX).write_text("[" * 100_000)
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
