"""SGLang's releases: there and back without a trace, and every loop and draft reached with the right boundary."""

import concurrent.futures
import multiprocessing
import re
from collections import defaultdict

import pytest
import releases
from run_releases import round_trip

from specwire.patching import surgery
from specwire.patching.coverage import coverage, totals
from specwire.trees.tree import Tree

pytestmark = [pytest.mark.release, pytest.mark.slow]

# By file: the boundaries that the taps of layer-capture name, where they are not one `i` or `layer_idx`. Read off
# each release's source by eye: ids of `…_v3`, beam, inkling, kimi and muse_spark name layers, not boundaries.
BOUNDARIES = {
    "0.5.9": {"bailing_moe": ["i", "i"]},
    "0.5.20": {
        "bailing_moe": ["i", "i"], "bailing_moe_v3": ["i + 1"], "deepseek_v4": ["i + 1"], "inkling": ["layer.layer_id + 1"],
        "gemma3_causal": ["i", "i", "num_layers"], "gemma4_causal": ["layer_idx", "num_layers"],
        "gpt_oss": ["self.start_layer", "i + 1"], "kimi_k3": ["i + 1"], "kimi_linear": ["i + 1"], "laguna": ["i", "self.end_layer"],
        "lfm2": ["i", "len(self.layers)"], "lfm2_moe": ["i", "len(self.layers)"], "mimo_v2": ["i", "self.config.num_hidden_layers"],
        "nanbeige": ["logical_id"], "nemotron_h": ["i", "self.end_layer"],
    },
    "0.5.23": {
        "bailing_moe_v3": ["i", "self.end_layer"], "beam": ["layer_id + 1", "layer_id + 1"],
        "deepseek_v4": ["None", "None", "None", "i", "i + 1"], "gemma3_causal": ["i", "i", "num_layers"],
        "gemma4_causal": ["layer_idx", "num_layers"], "gpt_oss": ["i", "self.end_layer", "self.end_layer"],
        "inkling": ["layer.layer_id + 1"], "kimi_k3": ["None", "i", "i + 1", "self.end_layer"], "kimi_linear": ["None", "i + 1"],
        "laguna": ["i", "self.end_layer"], "lfm2": ["i", "len(self.layers)"], "lfm2_moe": ["i", "len(self.layers)"],
        "mimo_v2": ["i", "self.config.num_hidden_layers"], "minimax_m3": ["i", "self.end_layer"], "muse_spark": ["layer_idx + 1"],
        "nanbeige": ["logical_id"], "nemotron_h": ["i", "self.end_layer"], "qwen3_vl": ["layer_idx", "layer_idx"],
        "qwen3_vl_moe": ["layer_idx", "layer_idx"],
    },
}  # fmt: skip
FILES = {"0.5.9": 18, "0.5.20": 38, "0.5.23": 42}


@pytest.fixture(scope="module")
def trips(request):
    """The releases that are to be tested here, under way in two processes at once."""
    wanted = [
        item.callspec.params["version"]
        for item in request.session.items
        if getattr(item, "function", None) is test_there_and_back
    ]
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield {version: pool.submit(round_trip, version) for version in wanted}


def test_enough_are_sampled():
    assert len(releases.sample()) >= 16
    assert {releases.versions()[0], releases.versions()[-1]} <= set(releases.sample())


@pytest.mark.parametrize("version", releases.sample())
def test_there_and_back(version, trips):
    trip = trips[version].result()
    assert not trip.wrong
    assert trip.loops > 0 and trip.states["applied"] > 0 and trip.states["failed"] == 0


@pytest.mark.parametrize("version, loops, drafts", [("0.5.9", 18, 1), ("0.5.23", 45, 2)])
def test_coverage(version, loops, drafts):
    rows = coverage(Tree.find(releases.release_tree(version)))
    count = totals(rows)
    assert (count["loops_covered"], count["loops"]) == (loops, loops)
    assert (count["drafts_covered"], count["drafts"]) == (drafts, drafts)
    assert count["not_recognised"] == 0
    for row in rows:
        assert all(row.why.values()), row
        if row.role == "loop":
            # What a loop has no tap for is its caller's affair, or cannot be read; nothing else is a reason.
            assert row.taps["layer-capture"] and set(row.why) <= {
                "embedding-capture",
                "forward-end",
                "hidden-state-dump",
            }
            for probe, why in row.why.items():
                wanted = {
                    "embedding-capture": ["is handed its states as"],
                    "forward-end": ["gives its states back to", "an earlier way out gives back other than"],
                }
                plain = [
                    "no plain sums, which the engine's own snapshot refuses",
                    "not by adding up what the layers hand on",
                ]
                assert any(reason in why for reason in wanted.get(probe, plain))
        elif row.role == "draft":
            assert row.taps == {"draft-fc": 2, "draft-input": 1}
        elif row.role == "head":
            assert set(row.why) == {"draft-fc", "draft-input"} and all(
                "joins one state with the embedding" in why for why in row.why.values()
            )
        elif row.role == "elsewhere":
            reasons = ("goes through", "chooses the model's class at run time", "collects nothing itself")
            assert all(any(reason in why for reason in reasons) for why in row.why.values())


@pytest.mark.parametrize("version", BOUNDARIES)
def test_boundaries(version):
    tree = Tree.find(releases.release_tree(version))
    found = defaultdict(list)
    for change in surgery.plan_apply(tree, ["layer-capture"]).changes:
        for line in (change.after or b"").decode("utf-8-sig").splitlines():
            if call := re.search(
                r"_specwire\.captured\(self, (?:[\w.]+(?: if \w+ else None)?), ([^,]+)[,)].*# specwire:layer-capture",
                line,
            ):
                found[change.path.stem].append(call[1])
    unusual = {name: each for name, each in found.items() if each not in (["i"], ["layer_idx"])}
    assert unusual == BOUNDARIES[version]
    assert len(found) == FILES[version]
