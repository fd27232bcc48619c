"""Writes events of a capture directory, as the taps do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.capture import SCHEMA
from specwire.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch


def write_prefill(
    folder: Path,
    rank: int,
    ranks: int,
    sequence: int,
    ids: Sequence[int],
    states: torch.Tensor,
    id_shift: int = 1,
    positions: Sequence[int] | None = None,
) -> None:
    """One draft-input event of a prefill of `ids`, as the engine's draft gets it: ids shifted left by one."""
    import torch

    write_event(
        folder,
        rank,
        sequence,
        "draft-input",
        {
            "hidden_states": states,
            "token_ids": torch.tensor([*ids, 1][id_shift : id_shift + len(ids)]),
            "positions": torch.tensor(list(range(len(ids)) if positions is None else positions)),
            "extend_seq_lens": torch.tensor([len(ids)]),
            "extend_prefix_lens": torch.tensor([0]),
            "seq_lens": torch.tensor([len(ids)]),
        },
        world_size=ranks,
    )


def write_event(
    folder: Path, rank: int, sequence: int, site: str, tensors: Mapping[str, torch.Tensor], **about: Any
) -> None:
    """One event of a capture directory."""
    place = folder / f"rank{rank}"
    place.mkdir(parents=True, exist_ok=True)
    facts = {
        "schema": SCHEMA,
        "site": site,
        "rank": rank,
        "world_size": 1,
        "step": sequence,
        "mode": "EXTEND",
        "graph": "eager",
        "boundary": None,
        "captured": None,
        "note": None,
        "pid": 1,
        "model": None,
        **about,
    }
    write_tensors(
        place / f"{sequence:06d}.{site}.safetensors", tensors, {"specwire": json.dumps(facts, sort_keys=True)}
    )
