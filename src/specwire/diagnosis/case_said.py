"""Make-believe ends of a forward for the checks' own cases: the last states as recorded, a head, and what the engine
said by them.

How it is told: `end` alters the recorded states, `head` may be "random" (the checkpoint's is not the served one),
`normed` False records them before the final norm, `logprobs` False returns tokens alone, `captured` is the engine's
word for what it captures. `verified` has the last tokens of the last prompt said and verified as well, "alike" or
"otherwise".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.answers import Answer, Answers, write_answers
from specwire.capture_write import write_event
from specwire.diagnosis.case_world import SEQUENCE, TRAINED, VOCABULARY, World
from specwire.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch

EPS = 1e-6
SAID = 3  # tokens of an answer that are verified


def write_said(
    folder: Path, capture: Path, worlds: Sequence[World], ranks: int, dtype: str, layers: int, said: Mapping[str, Any]
) -> None:
    """The target's checkpoint, a forward-end event of every prompt on every rank, and the answers."""
    import torch

    weight = worlds[0]["norm_weight"]
    hidden = len(weight)
    served = 3 * torch.randn(VOCABULARY, hidden, generator=torch.Generator().manual_seed(9)) / hidden**0.5
    saved = served.flip(0) if said.get("head") == "random" else served
    _write_target(folder / "target", layers, {"lm_head.weight": saved, "model.norm.weight": weight})
    answers = []
    for world in worlds:
        stream = world[layers]
        normed = (stream / (stream.square().mean(-1, keepdim=True) + EPS).sqrt() * weight).to(getattr(torch, dtype))
        answers.append(_answer(world.tokens, normed, served, said.get("logprobs", True)))
        recorded = normed if said.get("normed", True) else stream
        tensors = {
            "hidden_states": said.get("end", lambda states: states)(recorded).contiguous(),
            "token_ids": torch.tensor(world.tokens),
            "positions": torch.arange(len(world.tokens)),
            "extend_seq_lens": torch.tensor([len(world.tokens)]),
            "extend_prefix_lens": torch.tensor([0]),
        }
        concat = torch.cat([world[k] for k in TRAINED], dim=-1).to(getattr(torch, dtype))
        for rank in range(ranks):
            about = {"world_size": ranks, "captured": said.get("captured")}
            write_event(capture, rank, SEQUENCE * world.prompt, "forward-end", tensors, **about)
            if "verified" in said:
                made = tensors | {"hidden_states": concat}
                write_event(capture, rank, SEQUENCE * world.prompt, "concat-full", made, **about)
    if "verified" in said:
        answers.append(_write_verified(capture, worlds[-1], ranks, dtype, said["verified"] == "alike"))
    write_answers(capture, Answers(tuple(answers), ranks))


def _write_verified(capture: Path, world: World, ranks: int, dtype: str, alike: bool) -> Answer:
    """The last prompt once more: a shorter one, and its end as an answer that is verified."""
    import torch

    ids, count = list(world.tokens), len(world.tokens) - SAID
    parts = {
        "forward-end": world["final_norm"],
        "concat-full": torch.cat([world[k] for k in TRAINED], dim=-1),
    }
    for step, (first, end, mode) in enumerate(((0, count, "EXTEND"), (count, len(ids), "TARGET_VERIFY"))):
        batch = {
            "token_ids": torch.tensor(ids[first:end]),
            "positions": torch.arange(first, end),
            "req_pool_indices": torch.tensor([7]),
        }
        lengths = (
            {"extend_seq_lens": torch.tensor([count]), "extend_prefix_lens": torch.tensor([0])} if not step else {}
        )
        for number, (site, states) in enumerate(parts.items()):
            rows = states[first:end].to(getattr(torch, dtype))
            rows = rows if alike or not step else rows + 0.1 * rows.roll(1, 1)
            for rank in range(ranks):
                sequence = SEQUENCE * (world.prompt + 1) + 2 * step + number
                tensors = {"hidden_states": rows, **batch, **lengths}
                write_event(capture, rank, sequence, site, tensors, mode=mode, world_size=ranks)
    return Answer(tuple(ids[:count]), (*ids[count:], 1))


def _answer(tokens: Sequence[int], normed: torch.Tensor, head: torch.Tensor, logprobs: bool) -> Answer:
    """What an engine says: logits in the states' precision, logprobs in float32."""
    said = (normed @ head.to(normed.dtype).T).float().log_softmax(dim=-1)
    token = int(said[-1].argmax())
    returned = [None, *(float(said[row, after]) for row, after in enumerate([*tokens[1:], token]))]
    return Answer(tuple(tokens), (token,), tuple(returned) if logprobs else None)


def _write_target(place: Path, layers: int, tensors: Mapping[str, torch.Tensor]) -> None:
    place.mkdir(exist_ok=True)
    vocabulary, hidden = tensors["lm_head.weight"].shape
    config = {"num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocabulary, "rms_norm_eps": EPS}
    (place / "config.json").write_text(json.dumps(config))
    write_tensors(place / "model.safetensors", tensors, {})
