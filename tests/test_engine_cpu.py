"""The real engine on the CPU, on the reference kernels: a tiny Llama with a draft that it accepts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from specwire.engine.run import run_engine
from specwire.errors import SpecwireError
from specwire.trees.tree import Tree

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
from make import make

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Two rounds in one boot: one prompt alone, then three of different lengths together.
BATCHES = [[[3, 4, 5, 6, 7, 8, 9, 10]], [[200, 100, 50, 20], [33, 44], list(range(60, 90))]]
MARK = f"SPECWIRE_TEST_OF={os.getpid()}"


@pytest.fixture(scope="module")
def root() -> Path:
    return Tree.find("installed").root


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make("llama", tmp_path_factory.mktemp("llama"), draft="accepted")


@pytest.fixture(scope="module")
def serve(root, llama, tmp_path_factory):
    """Runs the engine on BATCHES."""

    def run(*extra: str, tp: int = 1, draft: Path | None = llama.draft, **options):
        return run_engine(
            root,
            llama.target,
            draft,
            BATCHES,
            tp=tp,
            device="cpu",
            extra_args=extra,
            env=dict([MARK.split("=")]),
            out=tmp_path_factory.mktemp("out"),
            max_new_tokens=24,
            python=sys.executable,
            **options,
        )

    return run


@pytest.fixture(scope="module")
def plain(serve):
    """The target alone, with a record of what the run left in the tree."""
    before = entries(Tree.find("installed").package)
    result = serve(draft=None)
    assert entries(Tree.find("installed").package) == before
    return result


def entries(package: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below it, with size and time of change."""
    found = {}
    for folder, _, files in os.walk(package):
        for name in [".", *files]:
            state = os.stat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
    return found


def tokens(result) -> list[list[list[int]]]:
    return [[answer.output_ids for answer in batch] for batch in result.batches]


def acceptance(result) -> float:
    lengths = [answer.meta["spec_accept_length"] for batch in result.batches for answer in batch]
    return sum(lengths) / len(lengths)


def alive() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            pass
    return found


@pytest.mark.parametrize(
    "ranks, extra",
    [
        pytest.param(1, [], id="1 rank"),
        pytest.param(2, [], id="2 ranks"),
        pytest.param(
            1,
            ["--speculative-num-steps=3", "--speculative-eagle-topk=2", "--speculative-num-draft-tokens=6"],
            id="a tree of draft tokens",
        ),
    ],
)
def test_speculation_changes_no_token_and_saves_steps(serve, plain, ranks, extra):
    heard, running = [], []

    def listen(words: str) -> None:
        heard.append(words)
        running.append(len(alive()))

    result = serve(*extra, tp=ranks, on_progress=listen)
    assert tokens(result) == tokens(plain)
    assert acceptance(result) > 1.5
    assert any("loading weights" in words for words in heard) and any("prefill" in words for words in heard)
    assert max(running) > 1 + ranks  # driver, schedulers and the engine's helpers: all are seen while they live
    assert alive() == []


def test_an_eagle3_draft_under_the_flag_eagle_serves_in_silence_and_is_never_accepted(serve, plain):
    result = serve("--speculative-algorithm", "EAGLE")
    assert tokens(result) == tokens(plain)
    assert acceptance(result) < 1.2


def test_a_draft_without_weights_ends_the_engine_with_that_error(serve, llama, tmp_path):
    shutil.copy(llama.draft / "config.json", tmp_path)
    with pytest.raises(SpecwireError, match=r"Cannot find any model weights .*Log: .*engine\.log"):
        serve(draft=tmp_path)
    assert alive() == []


def test_an_argument_that_the_engine_does_not_know_is_told_in_its_words(serve):
    with pytest.raises(SpecwireError, match="unrecognized arguments: --no-such-argument"):
        serve("--no-such-argument")
