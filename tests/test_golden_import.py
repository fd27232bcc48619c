"""`golden import`: training data in the forms people have it, and no guessing."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from captures import make_states, write_batch
from safetensors.torch import save_file

from specwire.diagnosis.check import check_capture
from specwire.errors import SpecwireError
from specwire.goldens.golden import open_golden
from specwire.goldens.imports import import_golden

IDS = [4, 5, 6, 7, 8]
STATES = make_states([IDS], layers=6, hidden=16)[0]
TRAINED = (1, 3, 5)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 32}))
    return folder


def specforge(folder: Path) -> Path:
    concat = torch.cat([STATES[k] for k in TRAINED], dim=-1)[None]
    (folder / "rows_0-5000").mkdir(parents=True)
    torch.save(
        {
            "input_ids": torch.tensor(IDS),
            "loss_mask": torch.ones(5),
            "hidden_state": torch.ones(1, 5, 16),
            "aux_hidden_state": concat,
        },
        folder / "rows_0-5000" / "data_0.ckpt",
    )
    return folder


def speculators(folder: Path) -> Path:
    folder.mkdir()
    save_file(
        {
            "token_ids": torch.tensor(IDS),
            "hidden_states": torch.stack([STATES[k] for k in (*TRAINED, 6)], dim=1),
        },
        folder / "hs_0.safetensors",
    )
    return folder


def layers_first(folder: Path) -> Path:
    folder.mkdir()
    torch.save(
        {"input_ids": torch.tensor([IDS]), "hidden_states": torch.stack([STATES[k] for k in TRAINED])},
        folder / "0.pt",
    )
    return folder


def concat_file(folder: Path) -> Path:
    folder.mkdir()
    save_file(
        {"token_ids": torch.tensor(IDS), "concat": torch.cat([STATES[k] for k in TRAINED], dim=-1)},
        folder / "features.safetensors",
    )
    return folder / "features.safetensors"


def compressed(folder: Path) -> Path:
    """As SpecForge's --compress writes it."""
    made = specforge(folder) / "rows_0-5000" / "data_0.ckpt"
    with gzip.open(made.with_suffix(".ckpt.gz"), "wb") as file:
        file.write(made.read_bytes())
    made.unlink()
    return folder


def listed(folder: Path) -> Path:
    """As speculators 0.3 and 0.4 wrote it, with its count of tokens beside it."""
    folder.mkdir()
    states = [STATES[k] for k in (*TRAINED, 6)]
    torch.save(
        {"input_ids": torch.tensor(IDS), "loss_mask": torch.ones(5), "hidden_states": states}, folder / "data_0.pt"
    )
    torch.save(dict.fromkeys(IDS, 1), folder / "token_freq.pt")
    return folder


def singular(folder: Path) -> Path:
    """An older layout that speculators 0.3 reads."""
    folder.mkdir()
    joined = torch.cat([STATES[k] for k in TRAINED], dim=-1)
    torch.save(
        {"input_ids": torch.tensor(IDS), "loss_mask": torch.ones(5), "hidden_state": joined, "target": STATES[6]},
        folder / "data_0.pt",
    )
    return folder


def nested(folder: Path) -> Path:
    """Ids and masks one level down, as a trainer's step has them."""
    folder.mkdir()
    joined = torch.cat([STATES[k] for k in TRAINED], dim=-1)[None]
    torch.save({"step": 1, "batch": {"input_ids": torch.tensor([IDS])}, "hidden_states": joined}, folder / "step_0.pt")
    return folder


def raw_connector(folder: Path) -> Path:
    """What a serving engine's connector writes: the data's own names, under any file name."""
    folder.mkdir()
    states = torch.stack([STATES[k] for k in (*TRAINED, 6)], dim=1)
    save_file({"token_ids": torch.tensor(IDS), "hidden_states": states}, folder / "cmpl-7-0.safetensors")
    return folder


def beside_a_map(folder: Path) -> Path:
    torch.save({"d2t": torch.zeros(4), "t2d": torch.ones(32) > 0}, specforge(folder) / "vocab_mapping.pt")
    return folder


@pytest.mark.parametrize(
    ("make", "ids", "convention"),
    [
        (compressed, (0, 2, 4), "layer-output"),
        (listed, (0, 2, 4, 5), "layer-output"),
        (singular, (1, 3, 5), "boundary"),
        (specforge, (0, 2, 4), "layer-output"),
        (specforge, (1, 3, 5), "boundary"),
        (speculators, (1, 3, 5, 6), "boundary"),
        (layers_first, (0, 2, 4), "layer-output"),
        (concat_file, (1, 3, 5), "boundary"),
        (nested, (0, 2, 4), "layer-output"),
        (raw_connector, (1, 3, 5, 6), "boundary"),
        (beside_a_map, (1, 3, 5), "boundary"),
    ],
)
def test_the_states_end_up_under_their_boundaries(make, ids, convention, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "golden.safetensors"
    import_golden(make(tmp_path / "data"), out, target, ids=ids, convention=convention)
    golden = open_golden(out)
    assert golden.trained == TRAINED and golden.prompts[0].token_ids == tuple(IDS)
    for k in TRAINED:
        assert torch.equal(golden.rows(f"boundary.{k}", [(0, i) for i in range(5)]), STATES[k])
    assert golden.file.metadata["id_convention"] == convention


@pytest.mark.parametrize("path", ["batch", "inputs", "data", "sample.inputs"])
@pytest.mark.parametrize("ids", [torch.tensor(IDS), torch.tensor([IDS], dtype=torch.int32), IDS, [IDS]], ids=str)
@pytest.mark.parametrize("states_too", [False, True])
def test_a_record_is_found_in_dicts_of_any_name(path, ids, states_too, target: Path, tmp_path: Path) -> None:
    joined = {"hidden_states": torch.cat([STATES[k] for k in TRAINED], dim=-1)}
    inner = {"input_ids": ids, **(joined if states_too else {})}
    for name in reversed(path.split(".")):
        inner = {name: inner}
    torch.save({"step": 1, **inner, **({} if states_too else joined)}, tmp_path / "one.pt")
    import_golden(tmp_path / "one.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
    golden = open_golden(tmp_path / "out")
    assert golden.trained == TRAINED and golden.prompts[0].token_ids == tuple(IDS)


def test_two_things_of_one_name_are_not_chosen_from(target: Path, tmp_path: Path) -> None:
    joined = torch.cat([STATES[k] for k in TRAINED], dim=-1)
    record = {"input_ids": torch.tensor(IDS), "hidden_states": joined}
    for inner, said in (
        ({"input_ids": torch.tensor(IDS) + 1}, "holds input_ids and target.input_ids, which differ"),
        ({"hidden_states": joined + 1}, "holds hidden_states and target.hidden_states, which differ"),
        ({"input_ids": torch.tensor(IDS)}, None),
    ):
        torch.save({**record, "target": inner}, tmp_path / "one.pt")
        if said is None:
            import_golden(tmp_path / "one.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
            continue
        with pytest.raises(SpecwireError, match=said):
            import_golden(tmp_path / "one.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
    torch.save({name: torch.stack([value, value]) for name, value in record.items()}, tmp_path / "one.pt")
    with pytest.raises(SpecwireError, match="are of 2 prompts in a batch: save a record for each"):
        import_golden(tmp_path / "one.pt", tmp_path / "out2", target, ids=(1, 3, 5), convention="boundary")


def test_what_holds_no_record_is_passed_over_and_listed(target: Path, tmp_path: Path) -> None:
    said: list[str] = []
    place = beside_a_map(tmp_path / "data")
    torch.save([1, 2], place / "lengths.pt")
    torch.save(torch.zeros(3), place / "mean.pt")
    import_golden(place, tmp_path / "out", target, ids=(1, 3, 5), convention="boundary", say=said.append)
    assert said[:3] == [
        f"passed over: {place}/lengths.pt holds list of 2, the first int",
        f"passed over: {place}/mean.pt holds float32 [3]",
        f"passed over: {place}/vocab_mapping.pt holds no record (d2t, t2d)",
    ]
    assert len(open_golden(tmp_path / "out").prompts) == 1


@pytest.mark.parametrize("ids, trained", [((1, 3, 5, 6), (1, 3, 5)), ((0, 1, 3, 5), (0, 1, 3, 5))])
@pytest.mark.parametrize("make", [speculators, raw_connector])
def test_that_the_last_one_is_the_end_is_told_by_its_id(make, ids, trained, target: Path, tmp_path: Path) -> None:
    import_golden(make(tmp_path / "data"), tmp_path / "out", target, ids=ids, convention="boundary")
    assert open_golden(tmp_path / "out").trained == trained


def test_a_list_of_dicts_is_as_many_records(target: Path, tmp_path: Path) -> None:
    joined = torch.cat([STATES[k] for k in TRAINED], dim=-1)
    two = [{"input_ids": torch.tensor(ids), "concat": joined} for ids in (IDS, IDS[::-1])]
    torch.save(two, tmp_path / "0.pt")
    import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=TRAINED, convention="boundary")
    assert [prompt.token_ids for prompt in open_golden(tmp_path / "out").prompts] == [tuple(IDS), tuple(IDS[::-1])]
    torch.save([*two, {"input_ids": torch.tensor(IDS)}], tmp_path / "0.pt")
    with pytest.raises(SpecwireError, match=r"0.pt\[2\] holds \[input_ids: int64 \[5\]\]"):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=TRAINED, convention="boundary")


@pytest.mark.parametrize("ending", [".ckpt.gz", ".pt.gz"])
def test_what_unpacks_to_more_than_a_prompt_can_be_is_not_read(
    ending: str, target: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("specwire.goldens.records.LIMIT", 1 << 20)
    with gzip.open(tmp_path / f"0{ending}", "wb") as file:
        file.write(bytes(3 << 20))
    assert (tmp_path / f"0{ending}").stat().st_size < 1 << 14
    with pytest.raises(SpecwireError, match="more than the 1,048,576"):
        import_golden(tmp_path / f"0{ending}", tmp_path / "out", target, ids=TRAINED, convention="boundary")


def test_a_compressed_file_that_is_cut_is_one_sentence(target: Path, tmp_path: Path) -> None:
    packed = next(compressed(tmp_path / "data").rglob("*.gz"))
    for damaged in (packed.read_bytes()[:-20], b"not compressed"):
        packed.write_bytes(damaged)
        with pytest.raises(SpecwireError, match="was not loaded: it is damaged"):
            import_golden(tmp_path / "data", tmp_path / "out", target, ids=TRAINED, convention="boundary")


@pytest.mark.parametrize(
    ("ids", "convention", "named"),
    [
        ((1, 3, 5), "boundary", "; name it as well, as by --ids 1,3,5,6 --convention boundary$"),
        ((0, 2, 4), "layer-output", "; name it as well, as by --ids 0,2,4,5 --convention layer-output$"),
        ((0, 2, 4), None, "--ids 0,2,4,6 --convention boundary or --ids 0,2,4,5 --convention layer-output$"),
        ((1, 3, 5), "layer-output", "behind those that the draft gets$"),
    ],
)
def test_the_end_that_speculators_saves_is_to_be_named(ids, convention, named, target: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecwireError, match=f"names 3 layers, .* holds 4: the last one is the output.*{named}"):
        import_golden(speculators(tmp_path / "data"), tmp_path / "out", target, ids=ids, convention=convention)


def test_the_folder_of_a_run_is_taken_for_its_capture(target: Path, tmp_path: Path) -> None:
    for k in TRAINED:
        states = [STATES[k]]
        write_batch(tmp_path / "out/capture", 0, k, [(IDS, 0, 5)], states, site="hidden-state-dump", boundary=k)
    import_golden(tmp_path / "out", tmp_path / "golden", target, trained=TRAINED)
    assert open_golden(tmp_path / "golden").boundaries == TRAINED


def test_two_conventions_that_fit_are_not_guessed_between(target: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecwireError, match="fit two conventions.*--convention"):
        import_golden(specforge(tmp_path / "data"), tmp_path / "out", target, ids=(0, 2, 4))
    assert not (tmp_path / "out").exists()


def test_the_only_convention_that_fits_is_taken_and_recorded(target: Path, tmp_path: Path) -> None:
    import_golden(speculators(tmp_path / "data"), tmp_path / "out", target, ids=(1, 3, 5, 6))
    golden = open_golden(tmp_path / "out")
    assert golden.trained == TRAINED and "only convention that fits" in golden.file.metadata["id_convention"]


def test_the_final_norm_of_specforge_is_kept(target: Path, tmp_path: Path) -> None:
    import_golden(specforge(tmp_path / "data"), tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
    assert open_golden(tmp_path / "out").has("final_norm")


def test_an_engines_own_dump_is_imported_and_a_run_matches_it(target: Path, tmp_path: Path) -> None:
    for k in range(7):
        write_batch(tmp_path / "dump", 0, k, [(IDS, 0, 5)], [STATES[k]], site="hidden-state-dump", boundary=k)
    with pytest.raises(SpecwireError, match="--trained"):
        import_golden(tmp_path / "dump", tmp_path / "out", target)
    import_golden(tmp_path / "dump", tmp_path / "out", target, trained=TRAINED)
    assert open_golden(tmp_path / "out").boundaries == tuple(range(7))
    write_batch(tmp_path / "run", 0, 0, [(IDS, 0, 5)], [torch.cat([STATES[k] for k in (0, 2, 4)], dim=-1)])
    assert check_capture(tmp_path / "out", tmp_path / "run")["causes"][0]["id"] == "boundary-offset"


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-executed",)


def test_a_pickle_is_refused_and_never_executed(target: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    torch.save({"input_ids": Bomb(), "hidden_states": torch.zeros(1)}, tmp_path / "data" / "0.pt")
    with pytest.raises(SpecwireError, match="never unpickled"):
        import_golden(tmp_path / "data", tmp_path / "out", target, ids=(1,), convention="boundary")
    assert not (tmp_path / "pickle-was-executed").exists()


def pickled(*, pickle: bytes, compressed: bool = False) -> bytes:
    """An archive as torch.save makes it, with this pickle."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/version", "3\n")
    return made.getvalue()


NESTED_TUPLES = b"\x80\x02N" + b"q\x00h\x00\x86" * 60  # each holds the one before it twice
BOMBS = {
    "a bytearray of 3 GiB": (b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (3 << 30).to_bytes(5, "little") + b"\x85R.", "bytearray"),
    "a tensor of 3 GiB": (b"\x80\x02ctorch\nTensor\n\x8a\x05" + (3 << 30).to_bytes(5, "little") + b"\x85R.", "torch.Tensor"),
    "an argument of a GB": (b"\x80\x02X" + (1 << 30).to_bytes(4, "little") + b"abc.", "claims"),
    "a codec that takes for ever": (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R.", "_codecs"),
    "a name ten million times": (b"\x80\x02](" + b"N" * 30_000 + b"e.", "steps"),
    "a key that is never hashed to its end": (NESTED_TUPLES + b"}h\x00Ns.", "over and over"),
    "tuples as deep as the stack": (b"\x80\x02N" + b"\x85" * 100_000 + b".", "over and over"),
    "no end": (b"\x80\x02]", "damaged"),
    "more taken than there is": (b"\x80\x02R.", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_grows_is_refused_before_it_is_loaded(
    name, wrapped: bool, target: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("specwire.pickles.OPCODE_LIMIT", 20_000)
    pickle, why = BOMBS[name]
    (tmp_path / "0.pt").write_bytes(pickled(pickle=pickle) if wrapped else pickle)
    with pytest.raises(SpecwireError, match=f"never unpickled here .*{why}"):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")


def test_an_archive_that_unpacks_is_refused(target: Path, tmp_path: Path) -> None:
    (tmp_path / "0.pt").write_bytes(pickled(pickle=bytes(1 << 26), compressed=True))
    with pytest.raises(SpecwireError, match="compressed records"):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")


def test_what_torch_saves_in_either_form_is_loaded(target: Path, tmp_path: Path) -> None:
    data = {"input_ids": torch.tensor(IDS), "hidden_states": torch.cat([STATES[k] for k in TRAINED], dim=-1)}
    data |= {"n": torch.nn.Parameter(torch.ones(2)), "size": torch.Size([1]), "kind": torch.bfloat16, "note": "x"}
    for old in (False, True):
        torch.save(data, tmp_path / "0.pt", _use_new_zipfile_serialization=not old)
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=TRAINED, convention="boundary")
        assert open_golden(tmp_path / "out").boundaries == TRAINED


def test_a_pipe_among_the_data_is_not_waited_for(target: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "data_0.pt")
    with pytest.raises(SpecwireError, match="no regular file"):
        import_golden(tmp_path / "data", tmp_path / "out", target, ids=TRAINED, convention="boundary")


HELD = torch.zeros(1).expand(5, 16)
SELF: list = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"input_ids": torch.tensor(IDS), "hidden_states": [HELD] * 2000}, "lists 2,000 layers"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(1).expand(5, 1 << 20)}, "save each once"),
        ({"input_ids": SELF, "hidden_states": SELF}, "input_ids: list of 1, the first list of 1"),
        (
            {
                "input_ids": torch.tensor(IDS),
                "hidden_states": torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]),
            },
            "nested",
        ),
        ({"loss_mask": torch.ones(3)}, r"holds \[loss_mask: float32 \[3\]\]"),
        (
            {"input_ids": torch.tensor(IDS), "hidden": [torch.ones(5, 16)], "n": 5},
            r"input_ids: int64 \[5\], hidden: list of 1, the first float32 \[5, 16\], n: int\]",
        ),
        ({"input_ids": [0.5] * 5, "hidden_states": torch.zeros(5, 48)}, "input_ids: list of 5, the first float"),
        ({"input_ids": torch.tensor(IDS), "hidden_state": torch.zeros(5, 16)}, "one layer alone"),
        (
            {"input_ids": torch.tensor(IDS), "hidden_states": [torch.zeros(5, 16), torch.zeros(4, 16)]},
            "4 rows of states for 5",
        ),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(1, 3, 48)}, "3 rows of states for 5 token ids"),
        (torch.zeros(5, 48), r"holds float32 \[5, 48\]: a dict is needed"),
        ([torch.zeros(5, 48)], "list of 1, the first float32"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 17)}, "no layout fits"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 5, 16)}, "cannot be told"),
        (
            {"input_ids": torch.tensor([4, 5, 6, 7, 99]), "hidden_states": torch.zeros(5, 48)},
            "outside the vocabulary",
        ),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.full((5, 48), float("nan"))}, "NaN"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 32)}, "names 3 layers"),
        ({"input_ids": torch.ones(5), "hidden_states": torch.zeros(5, 48)}, "no token ids"),
        ({"input_ids": torch.ones(5) > 0, "hidden_states": torch.zeros(5, 48)}, "no token ids"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48).to(torch.float8_e4m3fn)}, "16 bits"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48).to_sparse()}, "no plain tensor"),
        ({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48, device="meta")}, "no plain tensor"),
        (
            {"input_ids": torch.zeros(1).expand(10**9), "hidden_states": torch.zeros(1).expand(10**9, 48)},
            "more than the",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused(tensors, message: str, target: Path, tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "0.pt")
    with pytest.raises(SpecwireError, match=message):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
    assert not (tmp_path / "out").exists()


def test_a_file_larger_than_a_prompt_can_be_is_not_read(target: Path, tmp_path: Path) -> None:
    """Its header is honest; nothing of it takes any room on the disk."""
    rows = (5 << 30) // 192
    header = json.dumps(
        {
            "hidden_states": {"dtype": "F32", "shape": [rows, 48], "data_offsets": [0, rows * 192]},
            "input_ids": {"dtype": "I64", "shape": [rows], "data_offsets": [rows * 192, rows * 200]},
        }
    ).encode()
    with open(tmp_path / "0.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + rows * 200)
    with pytest.raises(SpecwireError, match="more than the"):
        import_golden(tmp_path / "0.safetensors", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")


@pytest.mark.parametrize(
    ("ids", "trained", "message"),
    [((1, 1, 5), None, "names a layer twice"), ((1, 3, 5), (1, 2, 5), r"not \[2\]")],
)
def test_layers_that_the_data_has_not_are_refused(ids, trained, message: str, target: Path, tmp_path: Path) -> None:
    torch.save({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48)}, tmp_path / "0.pt")
    with pytest.raises(SpecwireError, match=message):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=ids, convention="boundary", trained=trained)
    assert not (tmp_path / "out").exists()


def test_a_place_that_takes_no_file_is_said(target: Path, tmp_path: Path) -> None:
    torch.save({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48)}, tmp_path / "0.pt")
    with pytest.raises(SpecwireError, match="cannot write /proc/"):
        import_golden(tmp_path / "0.pt", Path("/proc/golden"), target, ids=(1, 3, 5), convention="boundary")


def test_a_config_of_absurd_numbers_writes_nothing(target: Path, tmp_path: Path) -> None:
    config = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": 10**400}
    (target / "config.json").write_text(json.dumps(config))
    torch.save({"input_ids": torch.tensor(IDS), "hidden_states": torch.zeros(5, 48)}, tmp_path / "0.pt")
    with pytest.raises(SpecwireError, match="positive number"):
        import_golden(tmp_path / "0.pt", tmp_path / "out", target, ids=(1, 3, 5), convention="boundary")
    assert not (tmp_path / "out").exists()


def test_records_of_different_layer_counts_are_not_mixed(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, count in enumerate((3, 2)):
        states = torch.stack([STATES[k] for k in TRAINED[:count]])
        torch.save({"input_ids": torch.tensor([IDS]), "hidden_states": states}, folder / f"{number}.pt")
    with pytest.raises(SpecwireError, match=r"hold \[2, 3\] layers: import those of one kind at a time"):
        import_golden(folder, tmp_path / "golden.safetensors", target, ids=TRAINED, convention="boundary")
    assert not (tmp_path / "golden.safetensors").exists()
