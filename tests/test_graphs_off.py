"""Graphs off, by each release's own argument classes: what is built for CUDA leaves no forward to be replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import releases

from specwire import verify
from specwire.engine.arguments import server_arguments
from specwire.engine.graphs import eager
from specwire.errors import SpecwireError
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.option_source import read_options
from specwire.trees.tree import Tree

ROOT = Path(__file__).parents[1]
RESOLVER = Path(__file__).with_name("cuda_arguments.py")
ON = ("--enable-torch-compile", "--enable-piecewise-cuda-graph", "--debug-cuda-graph")
PHASES = '--cuda-graph-config={"prefill":{"backend":"breakable"}}'


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    command = [sys.executable, ROOT / "fixtures/make.py", "llama", folder, "--dtype", "float32"]
    subprocess.run(command, check=True, capture_output=True)
    return types.SimpleNamespace(target=folder / "target", draft=folder / "draft")


def test_each_generation_is_told_in_its_own_words():
    old = ("--disable-cuda-graph",)
    assert eager(("--tp=8",), old).arguments == ("--tp=8", "--disable-cuda-graph")
    pieces = ("--disable-cuda-graph", "--disable-piecewise-cuda-graph")
    assert eager((), pieces).arguments == ("--disable-cuda-graph", "--disable-piecewise-cuda-graph")
    phases = ("--disable-cuda-graph", "--cuda-graph-config")
    given = eager(("--cuda-graph-backend-prefill", "breakable", PHASES), phases)
    assert given.left_out == () and given.arguments[:3] == ("--cuda-graph-backend-prefill", "breakable", PHASES)
    assert json.loads(given.arguments[-1].partition("=")[2]) == {
        "decode": {"backend": "disabled"},
        "prefill": {"backend": "disabled"},
    }


def test_what_would_turn_them_on_again_is_left_out_and_named():
    known = ("--disable-cuda-graph", "--enable-torch-compile", "--enable-piecewise-cuda-graph", "--tp-size")
    found = eager(("--enable-torch", "--tp-size", "8", "--enable-piecewise-cuda-graph"), known)
    assert found.arguments == ("--tp-size", "8", "--disable-cuda-graph")
    assert found.left_out == ("--enable-torch", "--enable-piecewise-cuda-graph")


PATIENT = ("--watchdog-timeout=3600", "--dist-timeout=3600")

# Every release with SPECWIRE_RELEASES=all: seven seconds each.
ASKED = releases.versions() if os.environ.get("SPECWIRE_RELEASES") == "all" else releases.sample()


@pytest.mark.release
@pytest.mark.parametrize("version", ASKED)
def test_no_graph_is_left_on_by_the_releases_own_classes(version, llama):
    tree = Tree.find(releases.release_tree(version))
    known = read_options(Source(tree)).by_name
    given = tuple(name for name in ON if name in known)
    launches = [(), given, *([(PHASES,)] if "--cuda-graph-config" in known else [])]
    lines = [
        server_arguments(llama.target, llama.draft, tp=8, device="cuda", extra=extra, tokens=10)
        for launch in launches
        for extra in (launch, eager(launch, known).arguments)
    ]
    run = subprocess.run(
        [sys.executable, str(RESOLVER), json.dumps(lines)],
        env={**os.environ, "PYTHONPATH": str(tree.root), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"},
        cwd=llama.target,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(("[", '"'))]
    assert len(said) == len(lines), run.stdout[-2000:] + run.stderr[-2000:]
    assert isinstance(said[0], list), f"the release's own classes do not resolve this here: {said[0]}"
    assert said[0] != [], "with nothing given a graph is on, or the GPU does not look present"
    assert said[1::2] == [[]] * len(launches), said


@pytest.mark.release
def test_a_launch_without_chunks_captures_no_prefill_and_one_as_launched_does(llama):
    """By 0.5.23's own classes: `verify` sends prompts without chunks only where nothing is to be captured."""
    tree, ask = Tree.find("installed"), {"tp": 1, "device": "cuda", "tokens": 10}
    lines = [
        server_arguments(llama.target, llama.draft, extra=extra, **ask)
        for extra in ((), ("--no-chunked-prefill-size",))
    ]
    run = subprocess.run(
        [sys.executable, str(RESOLVER), json.dumps(lines), "sizes"],
        env={**os.environ, "PYTHONPATH": str(tree.root), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"},
        cwd=llama.target,
        capture_output=True,
        text=True,
        timeout=600,
    )
    without, as_launched = (json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    assert without == [] and {8, 16, 32} <= set(as_launched), run.stderr[-2000:]


def job(llama, *arguments, device="cuda", **settings):
    tree = Tree.find("installed")
    return verify.Job(tree, llama.target, llama.draft, None, 8, device, sys.executable, arguments, **settings)


def test_verify_starts_cuda_so_that_python_runs_and_says_so(llama):
    off = {"graphs": "off"}
    found = verify.as_run(job(llama, "--enable-torch-compile", "--mem-fraction-static=0.8", **off))
    assert found.arguments[:3] == (*PATIENT, "--mem-fraction-static=0.8")
    assert "--disable-cuda-graph" in found.arguments
    (note,) = verify._eager_said(job(llama, "--enable-torch-compile", **off))
    assert "graphs were off" in note and "--enable-torch-compile of the launch was left out" in note
    for graphs, device in (("on", "cpu"), ("off", "cpu")):
        other = job(llama, "--tp=8", graphs=graphs, device=device)
        assert verify.as_run(other).arguments == ("--tp=8",) and verify._eager_said(other) == []
    taken_back = verify.as_run(job(llama, "--no-disable-cuda-graph", device="cpu", **off)).arguments
    assert taken_back[:3] == (*PATIENT, "--no-disable-cuda-graph") and "--disable-cuda-graph" in taken_back


@pytest.mark.parametrize("graphs", ["on", "both"])
def test_as_launched_chunks_are_the_release_s_own_unless_a_prompt_is_longer(llama, graphs):
    """Without chunks a release captures no prefill at all, which the launch in service would replay."""
    one = job(llama, "--tp=8", graphs=graphs)
    assert verify.as_run(one).arguments == ("--no-chunked-prefill-size", "--tp=8") and verify._eager_said(one) == []
    assert "--chunked-prefill-size=-1" not in server_arguments(
        llama.target, llama.draft, tp=8, device="cuda", extra=verify.as_run(one).arguments, tokens=10
    )
    long = job(llama, graphs=graphs, tokens=((7,) * 2100, (7,) * 40))
    assert verify.as_run(long).arguments == ("--chunked-prefill-size=4096",)
    assert verify.as_run(job(llama, graphs=graphs, tokens=((7,) * 2044,))).arguments == ("--no-chunked-prefill-size",)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--nnodes", "2", "--node-rank", "0"), "--nnodes 2: one node is started and watched"),
        (("--nnodes=4",), "every node"),
        (("--dp-size=2",), "replicas that each have a rank 0"),
        (("--dp", "8"), "--dp-size 8 without --enable-dp-attention"),
    ],
)
def test_what_cannot_be_watched_from_here_is_refused_before_a_boot(llama, arguments, says):
    with pytest.raises(SpecwireError, match=says):
        verify.check_job(job(llama, *arguments))
    verify.check_job(job(llama, "--nnodes=1", "--dp-size=8", "--enable-dp-attention"))
