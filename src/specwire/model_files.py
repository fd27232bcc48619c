"""What a model's directory says about it, read without importing a model library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said
from specwire.picklefile import open_pickled
from specwire.regular import read_json
from specwire.tensorfile import TensorFile, open_tensors

# Where multimodal configs keep the language model's own settings.
LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# They change with the library that saved the file, or with how the model is served, not with the model.
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
_QUANTISED = ("quantization_config", "compression_config")

# What training leaves beside a model, which no engine loads.
_NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "training_state.pt")


def read_config(directory: Path | str) -> dict[str, Any]:
    """The `config.json` of a model directory; SpecwireError when there is none that can be read."""
    path = Path(directory) / "config.json"
    if not Path(directory).is_dir():
        raise SpecwireError(f"{directory} is no directory: name the one that holds the model's config.json")
    try:
        config = read_json(path)
    except FileNotFoundError as error:
        raise SpecwireError(f"{directory} has no config.json: it is no model directory") from error
    except (OSError, ValueError) as error:
        raise SpecwireError(f"cannot read {path}: {said(error)}") from error
    if not isinstance(config, dict):
        raise SpecwireError(f"{path} holds no JSON object")
    return config


def language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as the language model sees it: multimodal models keep its settings one level down."""
    parts = (config.get(key) for key in LANGUAGE_PARTS)
    inner: dict[str, Any] = next((part for part in parts if isinstance(part, dict)), {})
    return {**config, **inner}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a target's config; SpecwireError when it lacks one of the sizes."""
    merged = language_part(config)
    for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if type(merged.get(key)) is not int or not 0 < merged[key] < 10**9:
            raise SpecwireError(
                f"the target's config gives {key} as {str(merged.get(key))[:40]!r}: a positive number is needed"
            )
    return merged


def target_name(directory: Path | str, name: str | None = None) -> str:
    """A model's name (by default its directory's) and a hash of its config, as a golden records them: "NAME
    sha256:HEX"."""
    return f"{name or Path(directory).resolve().name} sha256:{config_hash(directory)}"


def config_hash(directory: Path | str) -> str:
    """16 hex digits of a model's config, without what a library or a launch changes in it, and without its
    quantisation: a copy of the same numbers in another form is the same model."""
    left_out = (*_VOLATILE, *_QUANTISED)
    config = {key: value for key, value in read_config(directory).items() if key not in left_out}
    for part in LANGUAGE_PARTS:
        if isinstance(config.get(part), dict):
            config[part] = {key: value for key, value in config[part].items() if key not in _QUANTISED}
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config, or its language model's part, says of its quantisation; None when it says nothing."""
    parts = (config, *(config.get(part) for part in LANGUAGE_PARTS))
    settings = (part.get(key) for part in parts if isinstance(part, dict) for key in _QUANTISED)
    return next((each for each in settings if isinstance(each, dict)), None)


def quantised_as(config: Mapping[str, Any]) -> str:
    """The method of a config's quantisation, such as "fp8"; empty for none."""
    settings = quantization_config(config)
    return "" if settings is None else str(settings.get("quant_method") or "a method without a name")[:60]


def draft_window(config: Mapping[str, Any]) -> int | None:
    """How many tokens a draft's attention sees by its config, the asking one included; None for all before.

    A size alone does not turn a window on: a layer type does, or `use_sliding_window`.
    """
    size, kinds = config.get("sliding_window"), config.get("layer_types")
    on = "sliding_attention" in kinds if isinstance(kinds, list) else config.get("use_sliding_window") is True
    return size if on and type(size) is int and size > 0 else None


def rope_theta(config: Mapping[str, Any]) -> float | None:
    """The base of a model's rotary embedding, nested in `rope_parameters` or beside them; None when not given."""
    nested = config.get("rope_parameters")
    nested = nested if isinstance(nested, dict) else {}
    if isinstance(whole := nested.get("full_attention"), dict):  # settings for each kind of layer
        nested = whole
    inner = nested.get("rope_theta")
    value = inner if inner is not None else config.get("rope_theta")
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def draft_layer_ids(config: dict[str, Any]) -> list[int] | None:
    """The layer ids that a draft's config asks for, as written; None when it names none."""
    places = (config.get("eagle_config"), config.get("dflash_config"), config)
    for place in places:
        if isinstance(place, dict):
            for key in ("eagle_aux_hidden_state_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids"):
                ids = place.get(key)
                if isinstance(ids, list) and ids and all(type(value) is int for value in ids):
                    return list(ids)
    return None


def weight_files(directory: Path | str) -> list[Path]:
    """The files that an engine loads a model's weights from, by name: safetensors, where there are none torch's own."""
    place = Path(directory)
    for endings in ((".safetensors",), (".bin",), (".pt", ".pth")):
        found = [path for path in sorted(place.glob("*")) if path.suffix in endings and path.name not in _NO_WEIGHTS]
        if found:
            return found
    return []


def open_weights(path: Path) -> TensorFile:
    """A file of weights, of either kind; SpecwireError, with one sentence, when it is none. Nothing is unpickled."""
    return open_tensors(path) if path.suffix == ".safetensors" else open_pickled(path)


def checkpoint(directory: Path | str) -> dict[str, TensorFile]:
    """The file of each tensor of a checkpoint, by the tensor's name; headers only are read."""
    return {name: file for shard in weight_files(directory) for file in [open_weights(shard)] for name in file.tensors}
