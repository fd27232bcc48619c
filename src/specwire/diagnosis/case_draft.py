"""Make-believe drafts for the checks' own cases: a small checkpoint, and what an engine records that runs it,
rightly or not.

How it is run: `theta` and `window` change the layer, `own_window` is its config's window; `fc`, `layer`, `head`
and `embed` may be "random" (the engine's are not the checkpoint's; `embed` also "scaled"), `names` "unknown" (the MLP's,
in the checkpoint), `nan` names the tensor of the checkpoint that holds one, or "its layer", which then comes of sound ones; `unmapped`
leaves d2t out, `norms` and `bias` are "there" (before fc, and its own) or "skipped" (there, and not applied), `output`
is "normed" where the config does not say so, or "bare" where it says normed. `without` is a part of the layer that is
left out, `swapped` gives it its inputs in each other's place, `head_of` is what the head takes ("bare", "branch"),
`choice` "second" takes its second best; `step_position` is added to the first step's, `handed` is what becomes of the
state that it gets, `graph` "replay" that it ran as one. `tail` is the token that comes with a prefill's last row, where it is not the target's own next one.
`kept` is how many rows of a verification, of which the target confirms two, the next step goes on from. `by_rank` has
more of these for single ranks; there `layer` "partial" makes half of the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.capture_write import write_event
from specwire.diagnosis.case_world import HIDDEN, LAYERS, TRAINED, VOCABULARY
from specwire.diagnosis.draft_reference import Ask, Reference, Rows, Way
from specwire.model_files import checkpoint
from specwire.regular import read_json
from specwire.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch

HEADS, SIZE, OWN_VOCABULARY = 2, 16, 24
SAID, AFTER = 1, 2  # the target's tokens: after each prompt, and after a draft
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": SIZE,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": OWN_VOCABULARY,
    "rope_theta": 10000.0,
}


def write_draft_run(
    folder: Path,
    capture: Path,
    rank: int,
    prompt: int,
    ids: Sequence[int],
    states: torch.Tensor,
    run: Mapping[str, Any],
) -> None:
    """The events of one prefill and of the draft's first step after it; the checkpoints beside them on the
    first call."""
    import torch

    run = {**run, **run.get("by_rank", {}).get(rank, {})}
    served, own = (
        _models(folder, run),
        Reference(checkpoint(folder / "draft"), read_json(folder / "draft" / "config.json")),
    )
    tokens = [*ids[1:], run.get("tail", SAID)]
    embeds = _table("random" if run.get("embed") == "random" else "target")[torch.tensor(tokens)]
    if run.get("embed") == "scaled":
        embeds = 1.02 * embeds
    positions = torch.arange(len(ids))
    normed = False if run.get("norms") == "skipped" else None
    projected = served.fc(states.double(), normed, biased=run.get("bias") != "skipped")
    way = Way(
        name="served",
        theta=run.get("theta", own.theta),
        window=run.get("window", own.window),
        without=run.get("without", ""),
        swapped=bool(run.get("swapped")),
    )
    asked = Ask(len(ids) - 1, tuple(range(len(ids))))
    made, branch = served.layer(Rows(embeds.double(), projected, positions), [asked], [way])
    last = made[0] / 2 if run.get("layer") == "partial" else made[0]
    taken = {"bare": last, "branch": served.normed(branch[0])}.get(run.get("head_of"), served.normed(last))
    scores = served.scores(taken)[0]
    unmapped = int(scores.topk(2).indices[1 if run.get("choice") == "second" else 0])
    mapped = int(served.mapped[unmapped])
    last = served.hidden_out(last, run.get("output") == "normed")  # "bare" leaves out the norm of its config
    if bad := run.get("nan"):
        projected = projected * float("nan") if bad == "fc.weight" else projected
        last = last if bad == "lm_head.weight" else last * float("nan")
    about = {"world_size": rank + 1}  # the last rank knows how many there are
    batch = {
        "token_ids": torch.tensor(tokens),
        "positions": positions,
        "extend_seq_lens": torch.tensor([len(ids)]),
        "extend_prefix_lens": torch.tensor([0]),
        "seq_lens": torch.tensor([len(ids)]),
        "req_pool_indices": torch.tensor([prompt]),
    }
    number = 10 * prompt
    write_event(capture, rank, number, "draft-input", {"hidden_states": states, "embeds": embeds, **batch}, **about)
    write_event(
        capture,
        rank,
        number + 1,
        "draft-fc",
        {"input": states, "output": projected.float(), **batch},
        fc_ran=True,
        **about,
    )
    write_event(capture, rank, number + 2, "concat-last", {"hidden_states": last.float()}, **about)
    write_event(
        capture,
        rank,
        number + 3,
        "draft-input",
        {
            "hidden_states": _handed(last.float(), run.get("handed")),
            "embeds": _table("target")[torch.tensor([unmapped if run.get("unmapped") else mapped])],
            "token_ids": torch.tensor([unmapped if run.get("unmapped") else mapped]),
            "positions": torch.tensor([len(ids) + run.get("step_position", 0)]),
            "seq_lens": torch.tensor([len(ids)]),
            "req_pool_indices": torch.tensor([prompt]),
        },
        mode="DECODE",
        graph=run.get("graph", "eager"),
        **about,
    )
    if "kept" in run or "tail" in run:
        _write_verified(capture, rank, number + 4, prompt, len(ids), mapped, run.get("kept", 2), about)


def _write_verified(
    capture: Path, rank: int, number: int, prompt: int, place: int, draft: int, kept: int, about: Mapping[str, Any]
) -> None:
    """The target verifies one draft, and says it itself; the draft gets both rows, and goes on from so many of them."""
    import torch

    def write(event: int, site: str, mode: str, ids: Sequence[int], width: int, total: int, first: int) -> None:
        tensors = {
            "hidden_states": torch.ones(len(ids), width),
            "token_ids": torch.tensor(ids),
            "positions": torch.arange(first, first + len(ids)),
            "seq_lens": torch.tensor([total]),
            "req_pool_indices": torch.tensor([prompt]),
        }
        embeds = {"embeds": _table("target")[torch.tensor(ids)]} if site == "draft-input" else {}
        write_event(capture, rank, number + event, site, tensors | embeds, mode=mode, **about)

    write(0, "forward-end", "TARGET_VERIFY", [SAID, draft], HIDDEN, place, place)
    write(1, "draft-input", "DRAFT_EXTEND_V2", [draft, AFTER], len(TRAINED) * HIDDEN, place + 2, place)
    write(2, "draft-input", "DECODE", [3], HIDDEN, place + kept, place + kept)


def _handed(state: torch.Tensor, how: str | None) -> torch.Tensor:
    """What the next step is given of a state."""
    import torch

    first_half = torch.arange(state.shape[-1]) < state.shape[-1] // 2
    return {"halved": state / 2, "zero": 0 * state, "in part": state * first_half}.get(how or "", state)


def _models(folder: Path, run: Mapping[str, Any]) -> Reference:
    """Write the target's and the draft's checkpoint, and the one that the engine really computes with."""
    config = CONFIG | ({"norm_before_fc": True} if "norms" in run else {})
    if run.get("output") == "bare":
        config |= {"norm_output": True}
    if "own_window" in run:
        config |= {"layer_types": ["sliding_attention"], "sliding_window": run["own_window"]}
    for name in ("target", "draft", "served"):
        if not (folder / name).exists():
            (folder / name).mkdir()
            layers = {"num_hidden_layers": LAYERS} if name == "target" else {}
            (folder / name / "config.json").write_text(json.dumps(config | layers))
    weights = _weights("norms" in run, "bias" in run)
    shared = {"lm_head.weight": weights["lm_head.weight"] + weights["lm_head.weight"].flip(0)}
    theirs = {"model.embed_tokens.weight": _table("target")} | (shared if run.get("head") == "target" else {})
    write_tensors(folder / "target" / "model.safetensors", theirs, {})
    if "head_of" in run:  # a norm without which no token is the best that is so with it
        weights["norm.weight"] = -weights["norm.weight"]
        weights["midlayer.mlp.down_proj.weight"] = weights["midlayer.mlp.down_proj.weight"] / 5
    here = "feed_forward" if run.get("names") == "unknown" else "mlp"
    own = {name.replace(".mlp.", f".{here}."): tensor for name, tensor in weights.items()}
    if run.get("nan") in own:
        own[run["nan"]] = own[run["nan"]].clone()
        own[run["nan"]][3] = float("nan")
    write_tensors(folder / "draft" / "model.safetensors", own, {})
    random = {"fc": "fc.weight", "layer": "midlayer.mlp.up_proj.weight", "head": "lm_head.weight"}
    changed = {random[part]: weights[random[part]].flip(0) for part in random if run.get(part) == "random"}
    changed |= shared if run.get("head") == "target" else {}
    write_tensors(folder / "served" / "model.safetensors", weights | changed, {})
    return Reference(checkpoint(folder / "served"), config)


def _weights(norms: bool, bias: bool) -> dict[str, torch.Tensor]:
    import torch

    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) / shape[-1] ** 0.5

    layer = {
        "self_attn.q_proj": (HEADS * SIZE, 2 * HIDDEN),
        "self_attn.k_proj": (SIZE, 2 * HIDDEN),
        "self_attn.v_proj": (SIZE, 2 * HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
        "mlp.gate_proj": (48, HIDDEN),
        "mlp.up_proj": (48, HIDDEN),
        "mlp.down_proj": (HIDDEN, 48),
    }
    found = {
        "fc.weight": normal(HIDDEN, len(TRAINED) * HIDDEN),
        "lm_head.weight": normal(OWN_VOCABULARY, HIDDEN),
    }
    found |= {f"midlayer.{name}.weight": 1.5 * normal(*shape) for name, shape in layer.items()}
    found |= {
        f"midlayer.{name}.weight": 1 + 0.3 * normal(HIDDEN)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    found["norm.weight"] = 1 + 0.3 * normal(HIDDEN)
    found["d2t"] = torch.arange(OWN_VOCABULARY) + 7  # draft id i is target id 2 i + 7
    found |= {"input_norm.weight": 1 + 0.5 * normal(len(TRAINED) * HIDDEN)} if norms else {}
    return found | ({"fc.bias": normal(HIDDEN)} if bias else {})


def _table(name: str) -> torch.Tensor:
    import torch

    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed({"target": 6, "random": 7}[name]))
