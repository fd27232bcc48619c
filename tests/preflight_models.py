"""Makes tiny model directories for the preflight tests: configs and safetensors with real headers.

The data is a hole in the file (zeros that take no disk), except where a test gives values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "torch_dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 64,
}


def write_tensors(
    path: Path,
    tensors: Mapping[str, tuple[str, Sequence[int], bytes | None]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """A safetensors file: (element type, shape, bytes or None for zeros) by name."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (kind, shape, _) in tensors.items():
        begin, end = end, end + prod(shape) * BYTES[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (_, _, data) in tensors.items():
            if data is not None:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(data)
        file.truncate(8 + len(text) + end)


def target(place: Path, config: Mapping[str, Any] = TARGET, **changes: Any) -> Path:
    """A target's directory: its config alone, as the static checks need no more."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({**config, **changes}))
    return place


def draft_config(
    of: Mapping[str, Any] = TARGET, ids: Sequence[int] | None = (1, 5, 8), **changes: Any
) -> dict[str, Any]:
    """An EAGLE-3 Llama draft's config for a target."""
    config = {
        **TARGET,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 128,
        **{key: of[key] for key in ("hidden_size", "vocab_size", "max_position_embeddings", "rope_theta")},
    }
    if ids is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(ids)}
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


def draft_tensors(config: Mapping[str, Any], slots: int = 3, layer: str = "midlayer") -> dict[str, tuple]:
    """The tensors of such a draft; `d2t` and `t2d` agree and spread over the vocabulary."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config.get("target_hidden_size") or hidden
    size = hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    rows = config.get("draft_vocab_size") or config["vocab_size"]
    shapes = {
        f"{layer}.self_attn.q_proj.weight": (queries, 2 * hidden),
        f"{layer}.self_attn.k_proj.weight": (keys, 2 * hidden),
        f"{layer}.self_attn.v_proj.weight": (keys, 2 * hidden),
        f"{layer}.self_attn.o_proj.weight": (hidden, queries),
        f"{layer}.mlp.gate_proj.weight": (inner, hidden),
        f"{layer}.mlp.up_proj.weight": (inner, hidden),
        f"{layer}.mlp.down_proj.weight": (hidden, inner),
        f"{layer}.hidden_norm.weight": (hidden,),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        "fc.weight": (hidden, slots * width),
        "norm.weight": (hidden,),
        "lm_head.weight": (rows, hidden),
    }
    tensors = {name: ("BF16", shape, ones(*shape) if "norm" in name else None) for name, shape in shapes.items()}
    if rows != config["vocab_size"]:
        step = config["vocab_size"] // rows
        tensors |= vocabulary_map([place * step for place in range(rows)], config["vocab_size"])
    return tensors


def ones(count: int) -> bytes:
    return struct.pack("<H", 0x3F80) * count


def vocabulary_map(ids: Sequence[int], vocabulary: int) -> dict[str, tuple]:
    marks = bytearray(vocabulary)
    for token in ids:
        marks[token] = 1
    offsets = struct.pack(f"<{len(ids)}q", *(token - place for place, token in enumerate(ids)))
    return {"d2t": ("I64", (len(ids),), offsets), "t2d": ("BOOL", (vocabulary,), bytes(marks))}


def draft(place: Path, config: Mapping[str, Any] | None = None, tensors: Mapping[str, tuple] | None = None) -> Path:
    config = draft_config() if config is None else config
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    write_tensors(place / "model.safetensors", draft_tensors(config) if tensors is None else tensors)
    return place


def golden(
    place: Path, trained: Sequence[int], config: Mapping[str, Any] = TARGET, name: str = "", **extra: str
) -> Path:
    """A golden file whose metadata is real and whose states are zeros."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    metadata = {
        "schema": "specwire.golden/1",
        "trained_boundaries": json.dumps(list(trained)),
        "num_layers": str(layers),
        "hidden_size": str(hidden),
        "dtype": "bfloat16",
        "target": name,
        "source": "a test",
        **extra,
    }
    tensors = {"token_ids": ("I64", (2,), struct.pack("<2q", 5, 6))}
    tensors |= {f"boundary.{k}": ("BF16", (2, hidden), None) for k in sorted(set(trained))}
    write_tensors(place, tensors, metadata)
    return place
