"""Which forwards a launch replays as CUDA graphs, by the tree's own source, and what a tap sees of them."""

from __future__ import annotations

from specwire.preflight.facts import Facts

CONFIG = "sglang/srt/model_executor/cuda_graph_config.py"
READ = "taps keep their rows in buffers of their own, which are read after each replay"
COMPILED = "what torch.compile takes in is not seen"


def replayed(facts: Facts) -> str | None:
    """A sentence; None where the launch has no graphs, or that is not known."""
    if not facts.graphs or facts.launch is None:
        return None
    if facts.launch.get("debug-cuda-graph"):
        return "--debug-cuda-graph takes the graphs' path and runs every forward as Python: taps see all of it"
    if facts.launch.get("enable-torch-compile"):
        return f"decode and verification are compiled and replayed (--enable-torch-compile): {COMPILED}"
    prefill, seen = _prefill(facts)
    return f"decode, verification and the draft's own steps are replayed as CUDA graphs; {prefill}. {seen.capitalize()}"


def _prefill(facts: Facts) -> tuple[str, str]:
    """How prefills run by default on CUDA, and what is seen."""
    assert facts.launch is not None
    text = _text(facts, CONFIG)
    default = text.partition("def default_prefill_backend")[2].partition("\ndef ")[0]
    told = facts.launch.get("cuda-graph-config") or facts.launch.get("cuda-graph-backend-prefill")
    if told:
        return f"prefills run as the launch says ({told})", READ
    if "Backend.BREAKABLE if is_cuda()" in default:
        return "prefills, too, up to the captured length (breakable graphs, the default on CUDA)", READ
    if "Phase.PREFILL" in text:
        return f"prefills of up to the captured length by pieces, compiled ({COMPILED})", f"elsewhere {READ}"
    on_unless_told = _is_option(facts, "disable-piecewise-cuda-graph")
    if not facts.launch.get("disable-piecewise-cuda-graph") and (
        on_unless_told or facts.launch.get("enable-piecewise-cuda-graph")
    ):
        return f"prefills by pieces, compiled, unless the engine rules that out ({COMPILED})", f"elsewhere {READ}"
    return "prefills run as Python", READ


def _is_option(facts: Facts, name: str) -> bool:
    return f"--{name}" in _text(facts, "sglang/srt/server_args.py")


def _text(facts: Facts, name: str) -> str:
    try:
        return facts.source.tree.read(name).decode("utf-8", "replace")
    except OSError:
        return ""
