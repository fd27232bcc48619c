"""Taps change no token, whatever the target's architecture, and see what transformers computes for it.

Each architecture is served three times: by a release with all its taps in and reporting, by the same with the taps
silent, and by the release as it is.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specwire.capture import open_capture
from specwire.diagnosis.check import check_capture
from specwire.engine.run import run_engine
from specwire.errors import SpecwireError
from specwire.goldens.golden import open_golden
from specwire.patching import surgery
from specwire.patching.overlay import make_overlay

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "zoo"))
from boots import Warm
from systems import System, system
from yard import tree_of

from specwire.verify import restored

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NEWEST = None  # the installed one
SERVED = {
    NEWEST: [
        "llama", "mistral", "ministral3", "phi3", "qwen2", "qwen3", "qwen3-moe", "deepseek_v2", "deepseek", "glm4-moe",
        "glm4_moe_lite", "gpt-oss", "gemma4_text", "apertus", "mellum",
    ],
    "0.5.20": ["llama", "qwen3", "deepseek", "glm4-moe", "gpt-oss"],
    "0.5.16": ["llama"],  # the first release that can draft on a CPU
}  # fmt: skip
# Served as well, but the release itself is at fault: the cause that is named first. Gemma 3 captures the branch alone.
# Llama 4 drops what its rotary embedding returns, which on a CPU is not written in place.
WRONG = {NEWEST: {"gemma3_text": "missing-residual", "llama4_text": "rope"}}
# Where the target alone is served: what the engine ends with, taps or none, when a draft is asked for.
ONLY_ALONE = {
    NEWEST: {
        "glm4": "Model Glm4ForCausalLM does not implement set_eagle3_layers_to_capture",
        "arcee": "'ArceeForCausalLM' object has no attribute 'get_embed_and_head'",
    },
    "0.5.20": {"glm4": "'Glm4ForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'"},
    "0.5.9": {"llama": "in _init_kv_copy_and_warmup(?s:.*)0 active drivers"},  # a Triton kernel
}
# What it ends with, draft or none, where this machine lacks what the architecture asks for.
NOT_ON_A_CPU = {
    NEWEST: {
        "exaone_moe": "'fa3', 'triton', 'trtllm_mha'.* is required for ExaoneMoeForCausalLM, but got intel_amx",
        "llama4_text+experts": "in moe_forward_native\n    raise NotImplementedError",  # weights the experts' input
        "minimax_m2": r"in rms_sumsq_serial\n    assert x1\.is_cuda",
        # with a draft, and without
        "qwen2_moe": "no attribute 'get_embed_and_head'|in fused_gate_sigmoid_mul_add(?s:.*)0 active drivers",
        "qwen3_next": r"device=torch\.get_device_module\(\)\.current_device\(\)",
        "qwen3_5_text": "Ignore import error.*'sgl_kernel' object has no attribute 'fused_sigmoid_mul_cpu'",
    }
}
SITES = {"embedding-capture", "hidden-state-dump", "layer-capture", "concat-full"}


@dataclass
class Engines:
    """A release, warm twice: as it is, and a view of it with all debug and capture taps."""

    tree: Any
    view: Path
    plain: Warm
    tapped: Warm
    folder: Path

    def serve(self, made: System, draft: Path | None, taps: str) -> list[tuple[list[int], int | None]]:
        """For each prompt what was generated, and by how many verify steps; `taps` are on, off or absent."""
        log = self.log(made, taps)
        captured = self.captured(made)
        prompts = [list(prompt.token_ids) for prompt in open_golden(made.golden).prompts]
        root, warm = (self.tree.root, self.plain) if taps == "absent" else (self.view, self.tapped)
        if taps == "on":
            captured.mkdir(parents=True)
        done = run_engine(
            root, made.target, draft, [prompts[:1], prompts[1:]], tp=1, device="cpu", extra_args=[], out=log.parent,
            env={"SGLANG_DISABLED_MODEL_ARCHS": ",".join(others(root, made.target))}
            | ({"EAGLE3_DEBUG": "1", "EAGLE3_CAPTURE_DIR": str(captured)} if taps == "on" else {}),
            max_new_tokens=8, python=sys.executable, timeout=300, run=warm.runner(()),
        )  # fmt: skip
        said = "[EAGLE3-DEBUG]" in log.read_text("utf-8", "replace")
        assert said == (taps == "on")
        return [(answer.output_ids, answer.meta.get("spec_verify_ct")) for batch in done.batches for answer in batch]

    def log(self, made: System, taps: str) -> Path:
        return self.folder / f"{made.target.parent.name}-{taps}" / "engine.log"

    def captured(self, made: System) -> Path:
        return self.log(made, "on").with_name("capture")


def others(root: Path, target: Path) -> set[str]:
    """The engine's model files that serve neither this target nor the draft: it imports all that it is not told of."""
    (name,) = json.loads((target / "config.json").read_text("utf-8"))["architectures"]
    files = list((root / "sglang" / "srt" / "models").glob("*.py"))
    needed = {path.stem for path in files if f"class {name}(" in path.read_text("utf-8")}
    assert needed, f"no model file of this release has a {name}"
    return {path.stem for path in files} - needed - {"llama_eagle3"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The engines of a release, started when they are first asked for."""
    with ExitStack() as started:
        known = {}

        def of(release: str | None) -> Engines:
            if release not in known:
                known[release] = started.enter_context(engines_of(release, tmp_path_factory.mktemp("engines")))
            return known[release]

        yield of


@contextmanager
def engines_of(release: str | None, folder: Path):
    tree = tree_of(release)
    outcome = surgery.plan_apply(tree, surgery.chosen((), ("debug", "capture")))
    assert outcome.exit_code == 0
    view = make_overlay(outcome, folder / "tree")
    (folder / "plain").mkdir()
    tapped = Warm(view, sys.executable, folder, {"PYTHONDONTWRITEBYTECODE": ""})  # into the view, for the next child
    plain = Warm(tree.root, sys.executable, folder / "plain")
    try:
        yield Engines(tree, view, plain, tapped, folder)
        assert restored(view, tree)
    finally:
        tapped.close()
        plain.close()


def of(table: dict) -> pytest.MarkDecorator:
    """One case for each architecture of each release, with what the table says about it, if anything."""
    cases = []
    for release, found in table.items():
        for name in found:
            said = found[name] if isinstance(found, dict) else None
            cases.append(pytest.param(release, name, said, id=f"{release or 'installed'}-{name}"))
    return pytest.mark.parametrize(("release", "name", "said"), cases)


@of(SERVED)
def test_served_with_a_draft(engines, release, name, said):
    made, engines = system(name), engines(release)
    assert_taps_change_nothing(engines, made, made.draft)
    document = check_capture(made.golden, engines.captured(made))
    assert document["verdict"] == "match", document["causes"]
    assert [slot["nearest_boundary"] for slot in document["slots"]] == list(open_golden(made.golden).trained)
    assert all(slot["rel_l2"] < 1e-4 for slot in document["slots"])
    assert {site["site"]: site["state"] for site in document["target_sites"]} == dict.fromkeys(SITES, "exact")


@of(WRONG)
def test_served_though_the_release_is_at_fault(engines, release, name, said):
    made, engines = system(name), engines(release)
    only_what_is_captured = said == "missing-residual"
    assert_taps_change_nothing(engines, made, made.draft, exact=only_what_is_captured)
    document = check_capture(made.golden, engines.captured(made))
    assert document["verdict"] == "mismatch"
    assert document["causes"][0]["id"] == said


@of(ONLY_ALONE)
def test_served_alone(engines, release, name, said):
    made, engines = system(name), engines(release)
    assert_the_engine_ends(engines, made, made.draft, said)
    assert_taps_change_nothing(engines, made, None)


@of(NOT_ON_A_CPU)
def test_not_served_on_a_cpu(engines, release, name, said):
    made, engines = system(name), engines(release)
    assert_the_engine_ends(engines, made, made.draft, said)
    assert_the_engine_ends(engines, made, None, said)


def assert_taps_change_nothing(engines: Engines, made: System, draft: Path | None, exact: bool = True) -> None:
    """The same tokens in the same steps three times, and (`exact`) at every boundary every row is the golden's."""
    on, off, absent = (engines.serve(made, draft, taps) for taps in ("on", "off", "absent"))
    assert on == off == absent
    assert len({token for tokens, _ in on for token in tokens}) > 2
    assert all((steps is None) == (draft is None) for _, steps in on)
    if exact:
        assert_exact(made, engines.captured(made))


def assert_the_engine_ends(engines: Engines, made: System, draft: Path | None, said: str) -> None:
    for taps in ("off", "absent"):
        with pytest.raises(SpecwireError):
            engines.serve(made, draft, taps)
        log = engines.log(made, taps).read_text("utf-8", "replace")
        assert re.search(said, log), log[-2000:]


def assert_exact(made: System, captured: Path) -> None:
    """At every boundary, every row of every prompt is the golden's."""
    golden = open_golden(made.golden)
    prompts, seen = [tuple(prompt.token_ids) for prompt in golden.prompts], {}
    for event in open_capture(captured).at("hidden-state-dump", rank=0):
        states, ids = event.file.rows(event.states).double(), tuple(event.token_ids)
        for first, count, _ in event.requests:
            number = prompts.index(ids[first : first + count])
            wanted = golden.rows(f"boundary.{event.boundary}", [(number, row) for row in range(count)]).double()
            distance = (states[first : first + count] - wanted).norm(dim=-1) / wanted.norm(dim=-1)
            seen[number, event.boundary] = distance.max().item()
    assert set(seen) == {(number, k) for number in range(len(prompts)) for k in range(golden.layers + 1)}
    assert max(seen.values()) < 1e-4, seen
