"""What the engine answered in a run: tokens, logprobs, and how many drafted tokens it accepted. Kept beside the
captures, as `answers.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError, said, shortened
from specwire.regular import read_json, written_whole

SCHEMA = "specwire.answers/1"
NAME = "answers.json"
POSITIONS = 1024  # drafted tokens of one cycle, many times over


@dataclass(frozen=True)
class Answer:
    """One request. `logprobs` has one entry per token of prompt and output, None where the engine gave none.

    `accepted[k]` is how often exactly k drafted tokens were accepted; empty when the engine does not say.
    `batch` numbers the requests' batches: those of one batch were sent together.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float | None, ...] | None = None
    accepted: tuple[int, ...] = ()
    batch: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output


@dataclass(frozen=True)
class Answers:
    """A run's answers, greedy ones, on so many ranks."""

    answers: tuple[Answer, ...]
    ranks: int


def answer(prompt: Sequence[int], output: Sequence[int], meta: Mapping[str, Any], batch: int) -> Answer:
    """From the engine's own words, SGLang's `meta_info`."""
    said = [meta.get(f"{part}_token_logprobs") for part in ("input", "output")]
    logprobs = tuple(one[0] for part in said for one in part or ()) if all(said) else None
    if logprobs is not None and len(logprobs) != len(prompt) + len(output):
        logprobs = None  # a release that leaves some out: which, it does not say
    histogram = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram") or ()
    return Answer(tuple(prompt), tuple(output), logprobs, tuple(map(int, histogram)), batch)


def write_answers(folder: Path, answers: Answers) -> None:
    """Write them into a capture directory; the file appears whole or not at all."""
    document = {"schema": SCHEMA, "ranks": answers.ranks, "answers": [asdict(one) for one in answers.answers]}
    with written_whole(folder / NAME) as file:
        file.write(json.dumps(document).encode())


def read_answers(folder: Path) -> Answers | None:
    """A capture directory's answers; None when it has none. SpecwireError when the file is not what is written here."""
    path = folder / NAME
    try:
        document = read_json(path)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {shortened(document['schema'])}")
        return Answers(tuple(map(_checked, document["answers"])), _count(document["ranks"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecwireError(f"cannot read {path}: {said(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise SpecwireError(f"{path} holds no answers of a run ({str(error)[:200]}): it must be {SCHEMA}") from error


def _checked(one: Mapping[str, Any]) -> Answer:
    found = Answer(
        tuple(map(_count, one["prompt"])),
        tuple(map(_count, one["output"])),
        None if one["logprobs"] is None else tuple(map(_logprob, one["logprobs"])),
        tuple(map(_count, one["accepted"])),
        _count(one["batch"]),
    )
    if found.logprobs is not None and len(found.logprobs) != len(found.tokens):
        raise ValueError(f"{len(found.logprobs)} logprobs for {len(found.tokens)} tokens")
    if len(found.accepted) > POSITIONS:
        raise ValueError(f"accepted counts {len(found.accepted):,} positions: no cycle drafts that many")
    return found


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**40:
        raise ValueError(f"{shortened(value)} is no count and no token id")
    return value


def _logprob(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not -1e300 < value <= 1e-3 and value != -math.inf:
        raise ValueError(f"{shortened(value)} is no logprob")
    return float(value)
