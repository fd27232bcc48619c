"""Goldens and capture directories made of tensors, for tests that need no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from specwire.capture_write import write_event
from specwire.goldens.golden import Noise
from specwire.goldens.write import States, write_golden

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


def make_states(
    prompts: Sequence[Sequence[int]], layers: int = 6, hidden: int = 16, seed: int = 0
) -> list[dict[int, torch.Tensor]]:
    """For each prompt, boundary -> [tokens, hidden]: a stream to which every layer adds a little."""
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(1 + max(max(ids) for ids in prompts), hidden, generator=random)
    found = []
    for ids in prompts:
        stream = table[torch.tensor(ids)]
        states = {0: stream}
        for k in range(1, layers + 1):
            stream = stream + 0.3 * torch.randn(stream.shape, generator=random)
            states[k] = stream
        found.append(states)
    return found


def make_golden(
    path: Path,
    prompts: Sequence[Sequence[int]],
    states: Sequence[Mapping[int, torch.Tensor]],
    trained: Sequence[int] = (1, 3, 5),
    **extra: str,
) -> Path:
    layers = max(states[0])
    noise = {"float32": {k: Noise(1e-6, 1.5e-6, 0.0) for k in range(layers + 1)}}
    write_golden(
        path,
        [States(ids, held) for ids, held in zip(prompts, states, strict=True)],
        trained=trained,
        layers=layers,
        dtype="float32",
        target="made for a test",
        source="tests",
        noise=noise,
        extra=extra,
    )
    return path


def write_batch(
    folder: Path,
    rank: int,
    sequence: int,
    requests: Sequence[tuple[Sequence[int], int, int]],
    states: Sequence[torch.Tensor],
    *,
    site: str = "draft-input",
    ranks: int = 1,
    with_lengths: bool = True,
    **about,
) -> None:
    """One prefill event. A request is (the prompt's ids, first token, end): what of the prompt this batch
    prefills."""
    shifted = site.startswith("draft")
    ids, positions = [], []
    for prompt, first, end in requests:
        ids += [*prompt[1:], 1][first:end] if shifted else prompt[first:end]
        positions += range(first, end)
    tensors = {
        "hidden_states": torch.cat(list(states)),
        "token_ids": torch.tensor(ids),
        "positions": torch.tensor(positions),
    }
    if with_lengths:
        tensors["extend_seq_lens"] = torch.tensor([end - first for _, first, end in requests])
        tensors["extend_prefix_lens"] = torch.tensor([first for _, first, _ in requests])
    write_event(folder, rank, sequence, site, tensors, world_size=ranks, **about)


def concat(
    states: Mapping[int, torch.Tensor], slots: Sequence[int], first: int = 0, end: int | None = None
) -> torch.Tensor:
    return torch.cat([states[k][first:end] for k in slots], dim=-1)
