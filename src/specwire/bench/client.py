"""Loads a server with requests and notes when each token came.

SGLang ships a client for this, `sglang.benchmark.serving`. It takes a token's time from answers that
hold text, wants the model's tokenizer for its prompts and its counts, and keeps of the engine's own
counters the acceptance length alone. Servers here often run on token ids without a tokenizer, and every
count and time below is read from the engine's `meta_info`, so this client is its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specwire.bench.http import Address, ServerSays, post_lines


@dataclass(frozen=True)
class Prompt:
    """What to send: token ids, or text for a server with a tokenizer; and how many tokens to ask for."""

    content: tuple[int, ...] | str
    new_tokens: int


@dataclass(frozen=True)
class Load:
    """`closed`: always `value` requests under way. `open`: `value` requests a second, whatever is under way."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} at a time" if self.kind == "closed" else f"{self.value:g} a second"


@dataclass
class Answer:
    """One request's course, in seconds of the monotonic clock; `arrivals` are (time, tokens so far)."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    done: float = 0.0
    tokens: int = 0
    output: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


async def run_load(
    address: Address,
    prompts: Sequence[Prompt],
    load: Load,
    *,
    seed: int,
    silence: float,
    alive: Callable[[], str | None] = lambda: None,
) -> list[Answer]:
    """Send every prompt once, as the load says, and wait for all answers, in the prompts' order.

    A request that hears nothing for `silence` seconds is given up. `alive` is asked all the while; once it
    says why the server is dead, what is unanswered has that for its error.
    """
    answers: list[Answer | None] = [None] * len(prompts)

    async def one(number: int) -> None:
        answers[number] = await _request(address, prompts[number], silence)

    closed = load.kind == "closed"
    sending = asyncio.create_task(
        _closed(one, len(prompts), int(load.value)) if closed else _open(one, len(prompts), load.value, seed)
    )
    death = None
    while not sending.done() and death is None:
        await asyncio.wait([sending], timeout=0.25)
        death = alive()
    if death is not None and not sending.done():
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    else:
        sending.result()
    return [answer or Answer(sent=time.monotonic(), error=death or "never sent") for answer in answers]


async def _closed(one, count: int, at_a_time: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(min(at_a_time, count))))


async def _open(one, count: int, per_second: float, seed: int) -> None:
    draw = random.Random(seed)
    begin, due, tasks = time.monotonic(), 0.0, []
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + due - time.monotonic()))
        tasks.append(asyncio.create_task(one(number)))
        due += draw.expovariate(per_second)
    await asyncio.gather(*tasks)


async def _request(address: Address, prompt: Prompt, silence: float) -> Answer:
    body = {
        "text" if isinstance(prompt.content, str) else "input_ids": prompt.content,
        "sampling_params": {"temperature": 0, "max_new_tokens": prompt.new_tokens, "ignore_eos": True},
        "stream": True,
    }
    answer = Answer(sent=time.monotonic())
    output = _Output()
    try:
        async for line in post_lines(address, "/generate", body, silence):
            now = time.monotonic()
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                _take(answer, output, json.loads(line[5:]), now)
    except TimeoutError:
        answer.error = f"hangs: silent for {silence:g} s after {answer.tokens} tokens"
    except (OSError, ServerSays, asyncio.IncompleteReadError, ValueError) as error:
        answer.error = f"{error}" if isinstance(error, ServerSays) else f"{type(error).__name__}: {error}"
    answer.done = answer.arrivals[-1][0] if answer.arrivals else time.monotonic()
    answer.output = output.digest()
    if answer.error is None and answer.tokens < prompt.new_tokens:
        answer.error = f"ended after {answer.tokens} of {prompt.new_tokens} tokens: {answer.meta.get('finish_reason')}"
    return answer


def _take(answer: Answer, output: _Output, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        raise ServerSays(f"the server reports: {json.dumps(event['error'])[:300]}")
    meta = event.get("meta_info") or {}
    tokens = int(meta.get("completion_tokens", 0))
    if tokens > answer.tokens:
        answer.tokens = tokens
        answer.arrivals.append((now, tokens))
    answer.meta = meta or answer.meta
    output.take(event, tokens)


class _Output:
    """What was generated, whether the server streams it whole or piece by piece; kept as a hash in the end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""

    def take(self, event: dict[str, Any], tokens: int) -> None:
        ids = event.get("output_ids")
        if ids:
            self.ids = ids if len(ids) >= tokens else [*self.ids, *ids]
        elif text := event.get("text"):
            self.text = text if text.startswith(self.text) else self.text + text

    def digest(self) -> str:
        told = json.dumps(self.ids) if self.ids else self.text
        return hashlib.sha256(told.encode()).hexdigest()[:16]
