"""What is sent: prompts from a file, or drawn at random from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from specwire.bench.client import LoadPrompt
from specwire.errors import SpecwireError, said
from specwire.regular import read_text

_FIRST_ORDINARY = 3  # below are the usual places of padding, begin and end


def random_prompts(count: int, length: int, new_tokens: int, vocabulary: int, seed: int) -> list[LoadPrompt]:
    """Uniform token ids: fit for timing a baseline, while a draft trained on text accepts less of them."""
    draw = random.Random(seed)
    return [
        LoadPrompt(tuple(draw.randrange(_FIRST_ORDINARY, vocabulary) for _ in range(length)), new_tokens)
        for _ in range(count)
    ]


def prompts_from(path: Path, new_tokens: int) -> list[LoadPrompt]:
    """One prompt a line, as JSON: {"token_ids": [...]}, {"text": "..."}, a bare list or a bare string.

    Raises SpecwireError, with the line, for anything else and for an empty file.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecwireError(f"cannot read prompts from {path}: {said(error)}") from error
    found = [
        LoadPrompt(_content(line, f"{path}:{number}"), new_tokens)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise SpecwireError(
            f'{path}: holds no prompt. One a line is wanted, as JSON: {{"text": ...}} or {{"token_ids": [...]}}.'
        )
    return found


def repeated(prompts: Sequence[LoadPrompt], count: int) -> list[LoadPrompt]:
    """As many as wanted, from the top again when there are fewer."""
    return [prompts[number % len(prompts)] for number in range(count)]


def _content(line: str, where: str) -> tuple[int, ...] | str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecwireError(f"{where}: not JSON ({str(error)[:200]})") from error
    if isinstance(value, dict):
        value = next((value[key] for key in ("token_ids", "input_ids", "text", "prompt") if key in value), None)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and 0 <= each < 1 << 31 for each in value):
        return tuple(value)
    raise SpecwireError(f"{where}: no prompt: wanted a non-empty text, or a list of token ids")
