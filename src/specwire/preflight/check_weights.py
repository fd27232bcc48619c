"""Are the draft's own tensors there, of the right size, and taken by the class that this tree has for them?"""

from __future__ import annotations

import ast
import re

from specwire.preflight.facts import EAGLE3_CLASS, NESTED, Facts, eagle3_class
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import ClassRef
from specwire.preflight.outcome import Check, fault, ok, skipped
from specwire.preflight.plumbing import KEY
from specwire.preflight.rule import EAGLE3

GETTER, WORKERS = "get_embed_and_head", "sglang/srt/speculative"
_NORM_KEYS = {"norm_before_fc": "input_norm", "fc_norm": "fc_norm", "use_aux_norm": "fc_norm"}


def check(facts: Facts) -> list[Check]:
    if facts.kind != EAGLE3:
        why = "the draft is no EAGLE-3 draft"
        return [skipped(name, why, needed=True) for name in ("draft-load", "embed-head", "weights-random", "norm")]
    loads = _loads(facts)
    if loads.state == "fault" or facts.model is None or facts.model.problem:
        why = f"the draft's class was not read: {loads.why}"
        needed = loads.state == "skipped"
        return [loads, *(skipped(name, why, needed) for name in ("embed-head", "weights-random", "norm"))]
    return [loads, _embed_head(facts), _random(facts), _norms(facts)]


def _loads(facts: Facts) -> Check:
    names = facts.draft["architectures"]
    if facts.foreign:
        ids = facts.rule.ids_for(facts.trained) if facts.trained and not facts.assumed else None
        return fault(
            "draft-load",
            f"{facts.draft_dir}/config.json is in speculators' own layout: the draft's sizes stand in {NESTED}, where "
            f"{facts.release} does not look",
            f"convert it: write what {NESTED} holds at the top of config.json, with draft_vocab_size, "
            f'"architectures": ["{EAGLE3_CLASS}"] and eagle_config.{KEY}{f" = {ids}" if ids else ""}',
        )
    if facts.misnamed:
        return _misnamed(facts, names[0])
    if facts.model is None:
        return fault("draft-load", f"{facts.release} has no model class {names[0]}", "use a release that has it")
    problem = facts.model.problem
    if facts.model.stops:
        return fault("draft-load", problem, _load_fix(problem))
    if problem:
        return skipped("draft-load", problem, needed=True)
    return ok("draft-load", f"{facts.model.class_name} ({facts.model.where}) builds and loads it")


def _misnamed(facts: Facts, name: str) -> Check:
    built = facts.named.shape("fc.weight") if facts.named else None
    if built:
        does = f" ({facts.named.where}), which builds fc.weight as {list(built)}"
    elif facts.named and facts.named.where:
        does = f" ({facts.named.where}), a class without fc"
    else:
        does = f", for which {facts.release} has no class"
    parts = [part for part in ("midlayer", "d2t", "hidden_norm") if any(part in key for key in facts.weights.tensors)]
    fc = f": fc.weight is {list(facts.fc)}" if facts.fc else ""
    return fault(
        "draft-load",
        f"the config names {name}{does}; the tensors are an EAGLE-3 draft's{fc}, {', '.join(parts)}",
        f'"architectures": ["{eagle3_class(facts.source, name)}"] in the draft\'s config.json',
    )


def _load_fix(problem: str) -> str:
    if "'draft_vocab_size'" in problem:
        return "draft_vocab_size in the draft's config.json: the rows of lm_head, or null for the target's head"
    return "make the draft's config.json and tensor names fit this release, or use one that they fit"


def _embed_head(facts: Facts) -> Check:
    """lm_head must come from the checkpoint or from the target; the embedding comes from the target."""
    model, head = facts.model, facts.weights.find("lm_head.weight")
    if lacking := _lacks_getter(facts):
        return lacking
    if head is None and not model.head_from_target and not model.tied:
        return fault(
            "embed-head",
            f"no lm_head.weight in {facts.draft_dir}, and {facts.release} takes the target's only when "
            f"draft_vocab_size is null (it is {facts.draft.get('draft_vocab_size')}): the head would stay random",
            "export the draft with its lm_head, or set draft_vocab_size to null to share the target's",
        )
    if head in model.dropped and not model.head_from_target and not model.tied:
        return fault(
            "embed-head",
            f"{facts.release} takes no tensor by the name {head}, and not the target's head either: it would stay random",
            f"rename {head} to lm_head.weight in the checkpoint",
        )
    wrong = _wrong_shape(facts, "lm_head.weight") or _wrong_shape(facts, "embed_tokens.weight") or _shared(facts)
    if wrong:
        return fault("embed-head", *wrong)
    said = "the target's" if head is None else str(list(facts.weights.shape(head)))
    return ok("embed-head", f"lm_head: {said}; embed_tokens: the target's")


def _lacks_getter(facts: Facts) -> Check | None:
    """The worker asks the target for its embedding as it starts, by a method that not every class has."""
    source = facts.source
    names = (name for name in source.tree.python_files(WORKERS) if GETTER.encode() + b"()" in source.tree.read(name))
    asked = next(names, None)
    cls = source.model_class(facts.target_config["architectures"])
    if asked is None or cls is None or source.attribute(cls, GETTER) or source.attribute(cls, "__getattr__"):
        return None
    if source.attribute(cls, f"{GETTER}_for_draft") or not _bases_known(source, cls):
        return None
    return fault(
        "embed-head",
        f"{cls.name} ({cls.module.where(cls.node)}) has no {GETTER}, by which {facts.release} takes the target's embedding "
        f"for the draft ({asked}): the engine would stop",
        "serve this target with a release whose class has it",
    )


def _bases_known(source: Source, cls: ClassRef) -> bool:
    """Whether every base is torch's module or was found in the tree: else the method may come from one that was not."""
    names = {ast.unparse(base).rpartition(".")[2] for ref in source.mro(cls) for base in ref.node.bases}
    return names <= {"Module", *(ref.name for ref in source.mro(cls))}


def _shared(facts: Facts) -> tuple[str, str] | None:
    """The target's embedding, which the engine gives to the draft: is it there, and of the right width?"""
    own = facts.weights.find("embed_tokens.weight")
    if own is None and facts.draft_hidden_in != facts.draft.get("hidden_size"):
        return (
            f"no embed_tokens.weight in {facts.draft_dir}; the target's, {facts.hidden} wide, cannot be shared",
            "export the draft with its embed_tokens",
        )
    theirs = facts.target_weights
    table = theirs.shape(theirs.find("embed_tokens.weight")) if theirs else None
    if table and table[-1] != facts.hidden:
        return (
            f"the target's embed_tokens is {list(table)}, its config has hidden_size {facts.hidden}",
            "copy the target's config.json and weights from one place",
        )
    tied = facts.target.get("tie_word_embeddings") or facts.target_config.get("tie_word_embeddings")
    if table and facts.model.head_from_target and not theirs.find("lm_head.weight") and not tied:
        return (
            f"the draft takes the target's lm_head, and {facts.target_dir} has none",
            "copy the target again, or export the draft with its own lm_head",
        )
    return None


def _wrong_shape(facts: Facts, ending: str) -> tuple[str, str] | None:
    have, want = facts.weights.shape(facts.weights.find(ending)), facts.model.shape(ending)
    if have is None or want is None or have == want:
        return None
    key = "draft_vocab_size" if "lm_head" in ending else "vocab_size"
    return (
        f"{ending} is {list(have)}, {facts.release} builds {list(want)} from the draft's config",
        f'"{key}": {have[0]} in the draft\'s config.json if the checkpoint is right, else export it again',
    )


def _random(facts: Facts) -> Check:
    """Every parameter that is built must be filled, from the checkpoint or from the target."""
    model = facts.model
    if facts.weights.missing:
        return fault(
            "weights-random",
            f"the index names {_few(facts.weights.missing)}, which no shard holds",
            "copy the checkpoint again",
        )
    given = {"embed_tokens.weight", "lm_head.weight"}
    empty = [
        name
        for name in model.parameters
        if name not in model.filled
        and name not in model.optional
        and not any(name.endswith(end) for end in given)
        and not (facts.without_aux and _is_fc(name))
        and not _is_norm(name)
    ]
    if empty:
        dropped = f"; dropped without a word: {_few(model.dropped)}" if model.dropped else ""
        return fault(
            "weights-random",
            f"no tensor fills {_few(empty)} of {model.class_name} ({model.where}): they stay random{dropped}",
            "export the draft under the names that this release loads, or use a release that knows its names",
        )
    halves = [f"{name} ({', '.join(given)})" for name, given in model.filled.items() if _half(name, given)]
    if halves:
        return fault(
            "weights-random",
            f"only a part of {_few(halves)} is in the checkpoint",
            "copy the checkpoint again",
        )
    biases = [name for name in model.dropped if name.endswith(".bias") and not name.endswith("fc.bias")]
    if biases:
        return fault(
            "weights-random",
            f"the checkpoint has {_few(biases)}, which {facts.release} drops: it builds none for this config",
            '"attention_bias" or "mlp_bias": true in the draft\'s config.json',
            "likely",
        )
    rest = f"; it takes no {_few(model.dropped)}" if model.dropped else ""
    return ok("weights-random", f"all {len(model.parameters)} parameters are filled{rest}")


def _half(name: str, given: tuple[str, ...]) -> bool:
    """A fused parameter of which some parts are missing."""
    parts = {"qkv_proj": 3, "gate_up_proj": 2}
    return any(f".{part}." in name and 0 < len(given) < count for part, count in parts.items())


def _is_fc(name: str) -> bool:
    return name.endswith(("fc.weight", "fc.bias"))


def _is_norm(name: str) -> bool:
    """Whether it is the weight of a norm, which starts at ones: one that is not filled is not random."""
    return "norm" in name.rpartition(".")[0].rpartition(".")[2] or _is_fc_norm(name)


def _is_fc_norm(name: str) -> bool:
    return "input_norm." in name or "fc_norm." in name


def _norms(facts: Facts) -> Check:
    """The norms before fc: asked for by a key, present as tensors, built by the tree: all three or none."""
    model = facts.model
    nested = facts.draft.get("eagle_config")
    config = {**facts.draft, **(nested if isinstance(nested, dict) else {})}
    for key, module in _NORM_KEYS.items():
        if config.get(key) and not any(f"{module}." in name for name in model.parameters):
            return fault(
                "norm",
                f"the draft's config has {key}: true, {facts.release} builds no {module} "
                f"({model.where}): it would run without",
                f"use a release whose draft class reads {key}",
            )
    if config.get("norm_output") and not re.search(r"""['"]norm_output['"]|config\.norm_output""", model.text):
        return fault(
            "norm",
            f"the draft's config has norm_output: true, which {facts.release} never reads",
            "use a release whose draft class reads norm_output",
        )
    unused = [name for name in model.dropped if "norm" in name]
    if unused:
        return fault(
            "norm",
            f"the checkpoint has {_few(unused)}, which {facts.release} drops: nothing applies it",
            "set the key that turns this norm on (norm_before_fc, fc_norm) in the draft's config.json",
        )
    lacking = [name for name in model.parameters if _is_norm(name) and name not in (*model.filled, *model.optional)]
    empty = [name for name in lacking if _is_fc_norm(name)]
    if empty:
        return fault(
            "norm",
            f"{facts.release} builds {_few(empty)}, and no tensor fills it: it stays at ones",
            "export the draft with its norms, or take the key out of its config.json",
        )
    if lacking:
        return fault(
            "norm",
            f"no tensor fills {_few(lacking)} of {model.class_name} ({model.where}): a norm starts at ones, and so it stays",
            "export the draft with all of its norms; if it was trained without this one, use a release that builds none",
            "likely",
        )
    return _norm_sizes(facts)


def _norm_sizes(facts: Facts) -> Check:
    for name, tensors in facts.model.filled.items():
        want = facts.model.parameters[name]
        have = facts.weights.shape(tensors[0]) if len(tensors) == 1 else None
        if "norm" in name and want and have and want != have:
            return fault(
                "norm",
                f"{tensors[0]} is {list(have)}, {facts.release} builds {list(want)}",
                "serve the draft with the config that it was trained with",
            )
        if "norm" in name and (wrong := _norm_values(facts, tensors)):
            return wrong
    count = sum("norm" in name for name in facts.model.parameters)
    return ok("norm", f"{count} norms, each filled and of its size")


def _norm_values(facts: Facts, tensors: tuple[str, ...]) -> Check | None:
    """Norms are small enough to look into. Where 1 is added to a norm's weight, zeros are as it starts."""
    said = {name: facts.weights.emptied(name) for name in tensors}
    for name, state in said.items():
        if state == "not finite":
            return fault(
                "non-finite",
                f"{name} holds infinities or NaN",
                "copy the checkpoint again, or export it from an earlier step",
            )
        if state == "zero" and name.endswith(".weight") and "GemmaRMSNorm" not in facts.model.text:
            return fault(
                "norm",
                f"{name} is zero throughout: whatever passes through it is lost",
                "copy the checkpoint again, or export it from the trained model",
            )
    return None


def _few(names: tuple[str, ...] | list[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
