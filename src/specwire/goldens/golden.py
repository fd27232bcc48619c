"""Golden files: the reference states that a capture is compared with.

A golden is safetensors: token ids, the target's residual stream at each known boundary, and in the metadata
which boundaries the draft was trained on. A *log golden* is a small JSON file that knows only the first five
values of each slot, for comparing with a line of a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError, shortened
from specwire.goldens.labels import ASSUMED
from specwire.tensorfile import TensorFile, open_tensors

if TYPE_CHECKING:
    import torch

SCHEMA = "specwire.golden/1"
STRAY = 4.0
LAYER_LIMIT = 100_000  # what the tensors' names can count to
SLOT_LIMIT = 1024
TOKEN_LIMIT = 1 << 22  # of all prompts together: as many as one captured batch may have
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"(?:prompt\.(\d{1,6})\.)?(?:(boundary|residual)\.(\d{1,5})|token_ids|final_norm)")


@dataclass(frozen=True)
class PromptText:
    """What token ids were made from: the text, and where a chat template made that of a conversation, the template's
    hash (16 hex digits) and the arguments that it was given."""

    text: str
    template: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """One prompt: the prefix of its tensors' names, its token ids, which boundaries are known for it, and the words
    that the ids were made from, where they were."""

    prefix: str
    token_ids: tuple[int, ...]
    boundaries: tuple[int, ...]
    words: PromptText | None = None

    def described(self) -> dict[str, Any]:
        """For a JSON document: what the prompt was."""
        words = self.words
        return {
            "tokens": len(self.token_ids),
            "text": words.text if words else None,
            "template": (words.template or None) if words else None,
            "template_arguments": dict(words.arguments) if words else {},
        }


@dataclass(frozen=True)
class Noise:
    """How far two honest computations of the same rows lie apart, in relative L2: the median row, the worst
    row, and the share of rows that stray, which is those beyond `STRAY` medians (rounding that flipped an
    expert)."""

    median: float
    worst: float
    stray: float


@dataclass(frozen=True)
class Golden:
    """A checked golden file. Tensors stay on disk: `rows` reads the ones asked for.

    `assumed` is the list that was recorded although nobody gave it (`trained` says what is gone by); None where it
    was given, or where an older golden does not say.
    """

    file: TensorFile
    prompts: tuple[Prompt, ...]
    trained: tuple[int, ...]
    layers: int
    hidden: int
    dtype: str
    target: str
    source: str
    noise: Mapping[str, Mapping[int, Noise]] = field(default_factory=dict)
    assumed: tuple[int, ...] | None = None

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The boundaries that every prompt has."""
        common = set(self.prompts[0].boundaries).intersection(*(prompt.boundaries for prompt in self.prompts))
        return tuple(sorted(common))

    def has(self, what: str) -> bool:
        return all(prompt.prefix + what in self.file.tensors for prompt in self.prompts)

    def rows(self, what: str, places: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Rows of the tensor `what` ("boundary.3", "final_norm") at (prompt, position) pairs: [len(places),
        hidden].

        Raises SpecwireError when one of them is not finite: nothing can be judged by such a golden.
        """
        import torch

        parts = [
            self.file.pick(self.prompts[prompt].prefix + what, [position for _, position in run])
            for prompt, run in _by_prompt(places)
        ]
        found = torch.cat(parts) if parts else torch.empty((0, self.hidden))
        if not torch.isfinite(found.float()).all():
            raise SpecwireError(f"{what} in {self.path} holds NaN or infinity: build the golden again")
        return found


def open_golden(path: Path | str, trained: Sequence[int] | None = None) -> Golden:
    """Check a golden file and read its token ids; SpecwireError names the first thing that is wrong.

    `trained`, if given, takes the place of the file's own list.
    """
    file = open_tensors(path)
    metadata = file.metadata
    if metadata.get("schema") != SCHEMA:
        raise SpecwireError(
            f"{path} is no golden file: its metadata says schema {metadata.get('schema')!r}, not {SCHEMA!r}"
        )
    layers = _number(file, "num_layers", LAYER_LIMIT)
    hidden = _number(file, "hidden_size")
    known = tuple(_json(file, "trained_boundaries"))
    for name, given in (
        ("trained_boundaries", known),
        ("--trained, instead of those", known if trained is None else trained),
    ):
        if not given or not all(type(k) is int and 0 <= k <= layers for k in given):
            raise SpecwireError(
                f"{name} of {path} must be a list of boundaries between 0 and {layers}, not {shortened(list(given))}"
            )
    if len(known) > min(layers + 1, SLOT_LIMIT):
        raise SpecwireError(
            f"trained_boundaries of {path} names {len(known):,} slots: a target with {layers} layers has {layers + 1} "
            f"boundaries, and no draft gets more than {SLOT_LIMIT:,}"
        )
    prompts = _prompts(file, layers, hidden)
    if "vocab_size" in metadata:
        check_token_ids([prompt.token_ids for prompt in prompts], _number(file, "vocab_size"), str(path))
    return Golden(
        file,
        prompts,
        known if trained is None else tuple(trained),
        layers,
        hidden,
        metadata.get("dtype", ""),
        metadata.get("target", ""),
        metadata.get("source", ""),
        _noise(file),
        known if trained is None and metadata.get("trained_source") == ASSUMED else None,
    )


def check_token_ids(prompts: Sequence[Sequence[int]], vocabulary: int, where: str) -> None:
    """SpecwireError when an id is negative or beyond the vocabulary."""
    for number, ids in enumerate(prompts):
        for place, token in enumerate(ids):
            if not 0 <= token < vocabulary:
                raise SpecwireError(
                    f"token id {token} at prompt {number}[{place}] of {where} is outside the vocabulary of {vocabulary}"
                )


def _prompts(file: TensorFile, layers: int, hidden: int) -> tuple[Prompt, ...]:
    known: dict[str, set[int]] = {}
    for name, entry in file.tensors.items():
        found = _NAME.fullmatch(name)
        if not found:
            continue
        prefix = f"prompt.{found[1]}." if found[1] else ""
        known.setdefault(prefix, set())
        if name.endswith("token_ids"):
            continue
        if len(entry.shape) != 2 or entry.shape[1] != hidden or entry.dtype not in ("F16", "BF16", "F32", "F64"):
            raise SpecwireError(
                f"{name} of {file.path} must be floating point [n, {hidden}], not {entry.dtype} {list(entry.shape)}"
            )
        if found[3] and int(found[3]) > layers:
            raise SpecwireError(f"{name} of {file.path} is beyond the target's {layers} layers")
        if found[2] == "boundary":
            known[prefix].add(int(found[3]))
    if "" not in known:
        raise SpecwireError(f"{file.path} has no token_ids: nothing to run, nothing to compare")
    if (tokens := sum(prod(file.entry(prefix + "token_ids").shape) for prefix in known)) > TOKEN_LIMIT:
        raise SpecwireError(f"{file.path} holds {tokens:,} token ids, more than the {TOKEN_LIMIT:,} that are read")
    order = sorted(known, key=lambda prefix: int(prefix.split(".")[1]) if prefix else -1)
    words = _words(file, len(order))
    return tuple(_prompt(file, prefix, known[prefix], of) for prefix, of in zip(order, words, strict=True))


def _words(file: TensorFile, count: int) -> list[PromptText | None]:
    """What the metadata says that each prompt was made from."""
    if "prompts" not in file.metadata:
        return [None] * count
    try:
        found = [None if one is None else _words_of(one) for one in _json(file, "prompts")]
    except (KeyError, TypeError, ValueError):
        found = []
    if len(found) != count:
        raise SpecwireError(
            f"prompts in the metadata of {file.path} must be a list of {{text, template, template_arguments}} for each of its "
            f"{count} prompts"
        )
    return found


def _words_of(one: Any) -> PromptText:
    text, template, arguments = one["text"], one["template"], one["template_arguments"]
    if not isinstance(text, str) or not isinstance(template, str) or not isinstance(arguments, dict):
        raise TypeError
    text.encode()  # half a surrogate pair is a ValueError
    return PromptText(text, template, arguments)


def _prompt(file: TensorFile, prefix: str, boundaries: set[int], words: PromptText | None) -> Prompt:
    entry = file.entry(prefix + "token_ids")
    if entry.dtype != "I64" or len(entry.shape) != 1 or entry.shape[0] == 0:
        raise SpecwireError(
            f"{prefix}token_ids of {file.path} must be int64 [n] with n > 0, not {entry.dtype} {list(entry.shape)}"
        )
    if not boundaries:
        raise SpecwireError(f"{file.path} holds no {prefix}boundary.K: nothing to compare")
    for name in (*(f"{kind}.{k}" for kind in ("boundary", "residual") for k in boundaries), "final_norm"):
        tensor = file.tensors.get(prefix + name)
        if tensor and tensor.shape[0] != entry.shape[0]:
            raise SpecwireError(f"{prefix}{name} of {file.path} has {tensor.shape[0]} rows, token_ids {entry.shape[0]}")
    ids = tuple(int(value) for value in file.values(prefix + "token_ids", 0, entry.shape[0]))
    if min(ids) < 0:
        raise SpecwireError(f"{prefix}token_ids of {file.path} holds the negative id {min(ids)}")
    return Prompt(prefix, ids, tuple(sorted(boundaries)), words)


def _number(file: TensorFile, key: str, limit: int = 10**9) -> int:
    text = file.metadata.get(key, "")
    if not _COUNT.fullmatch(text) or int(text) >= limit:
        raise SpecwireError(
            f"{key} in the metadata of {file.path} must be a positive number below {limit:,}, not {shortened(text)}"
        )
    return int(text)


def _json(file: TensorFile, key: str) -> Any:
    try:
        found = json.loads(file.metadata.get(key, ""))
    except (ValueError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, (list, dict)):
        raise SpecwireError(
            f"{key} in the metadata of {file.path} must be JSON, not {shortened(file.metadata.get(key, ''))}"
        )
    return found


def _noise(file: TensorFile) -> dict[str, dict[int, Noise]]:
    if "noise" not in file.metadata:
        return {}
    try:
        noise = {
            dtype: {int(k): Noise(*map(_share, one)) for k, one in table.items()}
            for dtype, table in _json(file, "noise").items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecwireError(
            f"noise in the metadata of {file.path} must be {{dtype: {{boundary: [median, worst, stray]}}}}, each between "
            "0 and 2"
        ) from error
    return noise


def _share(value: Any) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < 2:  # NaN is in no range
        raise ValueError("no share")
    return float(value)


def _by_prompt(places: Sequence[tuple[int, int]]) -> list[tuple[int, list[tuple[int, int]]]]:
    groups: list[tuple[int, list[tuple[int, int]]]] = []
    for place in places:
        if not groups or groups[-1][0] != place[0]:
            groups.append((place[0], []))
        groups[-1][1].append(place)
    return groups
