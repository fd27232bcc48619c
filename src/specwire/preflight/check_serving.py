"""Launch numbers, positions, element types, quantization: what the draft will meet when it is served."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from specwire.finding import CONFIDENCES
from specwire.model_files import draft_window, quantization_config, rope_theta
from specwire.preflight.facts import Facts
from specwire.preflight.graphs import replayed
from specwire.preflight.outcome import Check, Note, fault, ok, skipped, suspected

DEFAULT_THETA = 10000.0  # what an engine takes where a config gives none
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_READS_WINDOW = re.compile(r"config\.(sliding_window|layer_types)|['\"](sliding_window|layer_types)['\"]")
_ROTATIONS = ("quarot", "spinquant", "hadamard", "rotation", "rotate_", "rotated")


def check(facts: Facts) -> list[Check]:
    return [_options(facts), _steps(facts), *_rope(facts), _window(facts), _dtype(facts), _basis(facts)]


def _options(facts: Facts) -> Check:
    """Every option must be one of this release's, and every file that one names be there."""
    launch = facts.launch
    if launch is None:
        return skipped("launch", "no launch was given")
    if refusals := facts.refusals:
        said = "; ".join(dict.fromkeys(refusal.why for refusal in refusals))
        fix = "; ".join(dict.fromkeys(refusal.fix for refusal in refusals))
        sure = min((refusal.confidence for refusal in refusals), key=CONFIDENCES.index)
        return fault("launch", f"{facts.release} would not start so: {said}", fix, sure)
    if any(word.startswith("--config ") for word in launch.open):
        return skipped("launch", f"not read: {', '.join(launch.open)}", needed=True)
    if absent := launch.absent():
        said = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in absent.items())
        return skipped(
            "launch",
            f"{said}: no such file here, without which the engine does not start",
            needed=any("speculative" in name for name in absent),
        )
    return ok("launch", f"{facts.release} takes every word of it")


def _steps(facts: Facts) -> Check:
    """Steps, top-k and draft tokens: given together, and enough of the tree to pick the tokens from."""
    if facts.launch is None:
        return skipped("spec-params", "no launch was given")
    names = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    if unknown := [name for name in names if facts.launch.unknown(name)]:
        return skipped("spec-params", f"--{unknown[0]} is not known here")
    if facts.launch.get("speculative-adaptive"):
        return skipped("spec-params", "--speculative-adaptive has the engine choose them as it runs")
    steps, topk, tokens = (facts.launch.number(name) for name in names)
    given = [name for name, value in zip(names, (steps, topk, tokens)) if value is not None]
    if not given:
        return ok("spec-params", "steps, top-k and draft tokens are left to the engine")
    adjusted = facts.resolution.adjusts_tokens if topk == 1 else None
    if steps is not None and adjusted and steps >= 1:
        said = f"{steps} steps of top-k 1 make {steps + 1} draft tokens"
        told = f", which {facts.release} sets itself ({adjusted})" if tokens != steps + 1 else ""
        return ok("spec-params", said + told)
    if len(given) < 3:
        lacking = ", ".join(f"--{name}" for name in names if name not in given)
        said = f"{facts.launch.source} gives {', '.join(f'--{name}' for name in given)} without {lacking}"
        return fault("spec-params", f"{said}: the engine wants all three or none", f"add {lacking}")
    if min(steps, topk) < 1 or tokens < 2:
        said = f"{steps} steps, top-k {topk}, {tokens} draft tokens: nothing could be drafted"
        return fault("spec-params", said, "at least 1 step, top-k 1 and 2 draft tokens")
    if topk == 1 and tokens != steps + 1:
        said = f"with top-k 1 the {steps} steps make {steps + 1} draft tokens, the launch asks for {tokens}"
        return fault("spec-params", said, f"--speculative-num-draft-tokens {steps + 1}", "likely")
    most = topk + (steps - 1) * topk * topk + 1
    if tokens > most:
        said = f"{steps} steps of top-k {topk} give {most} tokens at most, the launch asks for {tokens}"
        return fault("spec-params", said, f"--speculative-num-draft-tokens {most} or fewer")
    return ok("spec-params", f"{steps} steps, top-k {topk}, {tokens} draft tokens agree")


def _rope(facts: Facts) -> list[Check]:
    twice = _two_thetas(facts.draft)
    if twice:
        return [
            fault(
                "rope",
                f"the draft's config has rope_theta {twice[0]} and, nested, {twice[1]}",
                "leave the one that the draft was trained with",
                "likely",
            )
        ]
    other = _other_rotation(facts)
    limit, target = _context(facts.draft), _context(facts.target)
    if facts.launch and facts.launch.unknown("context-length"):
        return [skipped("rope", "--context-length is not known here")]
    served = (facts.launch.number("context-length") if facts.launch else None) or target
    if limit is None or served is None:
        return [other or skipped("rope", "no max_position_embeddings in one of the configs")]
    if limit >= served:
        return [other or ok("rope", f"the draft takes {limit} positions, served are {served}")]
    said = f"the draft's config ends at {limit} positions, served are {served}"
    fix = f"--context-length {limit}, or max_position_embeddings in the draft's config.json if it learnt more"
    if facts.launch is None:
        return [skipped("rope", f"{said}, unless the launch sets a shorter --context-length")]
    if facts.launch.environment.get(LONGER, "").lower() in ("1", "true"):
        return [fault("rope", f"{said}; {LONGER} lets it start, rows beyond {limit} are untrained", fix, "possible")]
    return [fault("rope", f"{said}: the engine refuses to load the draft without {LONGER}=1", fix)]


def _other_rotation(facts: Facts) -> Check | None:
    """Rotary settings that are not the target's: a draft trained in its target's positions is served in others then.

    Some drafts were trained so, and the files do not tell which.
    """
    theirs, mine = rope_theta(facts.target), rope_theta(facts.draft)
    scaled = [_scaling(config) for config in (facts.target, facts.draft)]
    shares = [_turned(config) for config in (facts.target, facts.draft)]
    if theirs is not None and shares[0] != shares[1]:
        return suspected(
            "rope",
            f"the draft turns {shares[1]:g} of each head by its position, its target {shares[0]:g}: wrong, unless it was "
            "trained so",
            "look up the partial_rotary_factor that the draft was trained with, and write it into its config.json",
        )
    if theirs is None or (theirs == (mine or DEFAULT_THETA) and scaled[0] == scaled[1]):
        return None
    if mine is None and scaled[1] is None:
        said = f"the draft's config has no rotary settings: it is served with rope_theta {DEFAULT_THETA:g}"
    else:
        said = f"the draft is served with rope_theta {mine or DEFAULT_THETA:g}{_scaled(scaled[1])}"
    return suspected(
        "rope",
        f"{said}, its target has {theirs:g}{_scaled(scaled[0])}: wrong, unless it was trained so",
        "look up the rotary settings that the draft was trained with, and write them into its config.json",
    )


def _turned(config: Mapping[str, Any]) -> float:
    """The share of each head that a model turns by the position, by its config."""
    nested = config.get("rope_parameters")
    inner = nested.get("partial_rotary_factor") if isinstance(nested, dict) else None
    value = inner if inner is not None else config.get("partial_rotary_factor")
    return float(value) if isinstance(value, (int, float)) and 0 < value <= 1 else 1.0


def _scaling(config: Mapping[str, Any]) -> tuple[str, float] | None:
    """The kind of a config's rotary scaling and its factor; None for plain positions."""
    for key in ("rope_scaling", "rope_parameters"):
        inner = config.get(key)
        if isinstance(inner, dict):
            kind, factor = inner.get("rope_type", inner.get("type")), inner.get("factor")
            if isinstance(kind, str) and kind != "default":
                return kind, float(factor) if isinstance(factor, (int, float)) else 1.0
    return None


def _scaled(scaling: tuple[str, float] | None) -> str:
    return f", {scaling[0]} scaling by {scaling[1]:g}" if scaling else ""


def _window(facts: Facts) -> Check:
    """A sliding window that the draft's config names must be one that the engine gives its attention."""
    window = draft_window(facts.draft)
    if window is None:
        return ok("kv-attn", "the draft's config names no sliding window")
    said = f"the draft's config has a sliding window of {window} tokens"
    if facts.model is None or _READS_WINDOW.search(facts.model.text):
        return ok("kv-attn", f"{said}, which {facts.release} reads")
    # The engine's number leaves out the token that asks; the config's counts it.
    option = "speculative-draft-window-size"
    if facts.launch is None:
        return skipped("kv-attn", f"{said}, which {facts.release} never reads: no launch was given")
    if facts.launch.number(option) in (window - 1, window):
        return ok("kv-attn", f"{said}, and the launch gives it")
    if facts.launch.unknown(option):
        return skipped("kv-attn", f"{said}, and --{option} is not known here")
    fix = f"--{option} {window - 1}" if facts.launch.has_option(option) else "use a release that reads it"
    return fault(
        "kv-attn",
        f"{said}, which {facts.release} never reads ({facts.model.where}): the draft would see all tokens before",
        fix,
        "likely",
    )


def _context(config: Mapping[str, Any]) -> int | None:
    """The context length that the engine derives from a config."""
    scaling = config.get("rope_scaling") if isinstance(config.get("rope_scaling"), dict) else {}
    factor = scaling.get("factor")
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = None
    length = next((config[key] for key in _LENGTHS if type(config.get(key)) is int), None)
    if length is None or not isinstance(factor, (int, float)) or not abs(factor) < 1e9:
        return length
    return int(factor * length)


def _two_thetas(config: Mapping[str, Any]) -> tuple[Any, Any] | None:
    outer = config.get("rope_theta")
    for key in ("rope_parameters", "rope_scaling"):
        inner = config[key].get("rope_theta") if isinstance(config.get(key), dict) else None
        if inner is not None and outer is not None and inner != outer:
            return outer, inner
    return None


def served_dtype(config: Mapping[str, Any], flag: Any) -> str:
    """The element type that a model is served in: the flag's, else the config's, float32 narrowed to float16."""
    if flag not in (None, "auto"):
        return {"half": "float16", "float": "float32"}.get(flag, str(flag))
    said = config.get("dtype") or config.get("torch_dtype") or "float32"
    if said == "float32":
        return "bfloat16" if str(config.get("model_type", "")).startswith("gemma") else "float16"
    return str(said)


def _dtype(facts: Facts) -> Check:
    if facts.launch is None:
        return skipped("dtype", "no launch was given")
    set_by_tree = facts.resolution.sets_dtype(facts.target_config)
    if facts.launch.unknown("dtype") and not set_by_tree:
        return skipped("dtype", "--dtype is not known here")
    flag = set_by_tree[0] if set_by_tree else facts.launch.get("dtype")
    target, draft = served_dtype(facts.target, flag), served_dtype(facts.draft, flag)
    stored = facts.weights.dtypes()
    if set_by_tree and target == draft:
        said = f"{facts.release} serves this quantized target, and the draft with it, in {target} ({set_by_tree[1]})"
        return ok("dtype", f"{said}, the draft is stored in {', '.join(sorted(stored))}")
    if target != draft:
        return fault(
            "dtype",
            f"the target would be served in {target}, the draft in {draft} "
            f"(its config says {facts.draft.get('dtype') or facts.draft.get('torch_dtype')})",
            f'--dtype {target}, or "torch_dtype": "{target}" in the draft\'s config.json',
            "likely",
        )
    if draft == "float16" and "bfloat16" in stored:
        return fault(
            "dtype",
            "the draft is stored in bfloat16 and would be served in float16, which overflows where bfloat16 does not",
            "--dtype bfloat16",
            "likely",
        )
    return ok("dtype", f"target and draft are served in {draft}, the draft is stored in {', '.join(sorted(stored))}")


def _basis(facts: Facts) -> Check:
    """A rotated target hands on rotated states, which a draft trained on plain ones does not understand."""
    said = json.dumps(quantization_config(facts.target_config))
    words = [word for word in _ROTATIONS if word in said.lower()]
    own = json.dumps(facts.draft).lower()
    if words and not any(word in own for word in words):
        said = (
            f"the target's quantization config speaks of {words[0]!r}: its hidden states may be rotated, and "
            "nothing says that the draft was trained on rotated ones"
        )
        fix = "use a draft that was trained on this quantized target, or rotate fc.weight back"
        return fault("quant-basis", said, fix, "possible")
    return ok("quant-basis", "no rotation in the target's quantization config")


def notes(facts: Facts) -> list[Note]:
    """What is risky without being a fault."""
    found = []
    if facts.draft.get("vocab_size") != facts.target["vocab_size"]:
        found.append(
            Note(
                "wrong-target",
                f"the draft's vocabulary is {facts.draft.get('vocab_size')}, the target's "
                f"{facts.target['vocab_size']}: padding, if both have the same tokenizer",
            )
        )
    if facts.launch is not None:
        found += _risky_flags(facts)
    found += [Note("assumed", f"the rule was read assuming {text}") for text in facts.rule.assumptions]
    return found


def _risky_flags(facts: Facts) -> list[Note]:
    launch = facts.launch
    found = []
    if launch.get("disaggregation-mode") not in (None, "null"):
        found.append(
            Note(
                "pd-buffer",
                "prefill and decode run apart: the transferred states must be as wide as the "
                "concatenation, and be the draft's, not the target's",
            )
        )
    if (launch.number("pp-size") or 1) > 1:
        found.append(
            Note(
                "pp-drop",
                "with several pipeline stages a setter that only acts on the last one captures "
                "nothing of the stages before",
            )
        )
    if str(launch.get("kv-cache-dtype") or "auto").startswith("fp8"):
        found.append(Note("kv-attn", "the draft's KV cache may take over the fp8 that --kv-cache-dtype asks for"))
    if launch.get("quantization") and not launch.get("speculative-draft-model-quantization"):
        found.append(
            Note(
                "quant-basis",
                "the draft takes over --quantization unless --speculative-draft-model-quantization says otherwise",
            )
        )
    if (said := replayed(facts)) is not None:
        found.append(Note("graphs", said))
    if launch.unread:
        found.append(Note("launch", f"left as written, only a running shell knows it: {', '.join(launch.unread[:3])}"))
    if launch.open:
        said = ", ".join(launch.open[:3])
        found.append(Note("launch", f"{said}: may hold more options, which are not known here"))
    return found
