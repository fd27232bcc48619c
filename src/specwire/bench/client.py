"""Loads a server with requests and notes when each token came.

SGLang ships a client for this, `sglang.benchmark.serving`. It takes a token's time from answers that
hold text, wants the model's tokenizer for its prompts and its counts, and keeps of the engine's own
counters the acceptance length alone. Servers here often run on token ids without a tokenizer, and every
count and time below is read from the engine's `meta_info`, so this client is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from specwire.bench.http import LINE_LIMIT, Address, ServerSays, post_lines, shown
from specwire.errors import shortened

OVERSHOOT = 128  # tokens beyond those asked for: a release may count a last verify's whole
LINES_PER_TOKEN, SPARE_LINES = 16, 4096  # events, comments and the blank lines between them
POSITIONS = 1024  # drafted tokens of one verify, many times over
COUNT_LIMIT = 1 << 40
TOKENS_PER_SILENCE = 10  # a whole answer may take so much longer: silence for each ten tokens, and for the first


@dataclass(frozen=True)
class LoadPrompt:
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
class Response:
    """One request's course, in seconds of the monotonic clock; `arrivals` are (time, tokens so far)."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    done: float = 0.0
    tokens: int = 0
    output: str = ""
    counters: Counters = field(default_factory=lambda: Counters())
    error: str | None = None
    unsent: bool = False


@dataclass(frozen=True)
class Counters:
    """The engine's own counts of one request, from its `meta_info`: `histogram[k]` verifies accepted k drafted tokens."""

    tokens: int = 0
    verifies: int = 0
    histogram: tuple[int, ...] = ()
    finish: str = ""


async def run_load(
    address: Address,
    prompts: Sequence[LoadPrompt],
    load: Load,
    *,
    seed: int,
    silence: float,
    alive: Callable[[], str | None] = lambda: None,
) -> list[Response]:
    """Send every prompt once, as the load says, and wait for all answers, in the prompts' order.

    A request that gets no token for `silence` seconds is given up, and no further one is sent: the run has failed.
    `alive` is asked all the while; once it says why the server is dead, what is unanswered has that for its error.
    """
    answers: list[Response | None] = [None] * len(prompts)
    failed = False

    async def one(number: int) -> None:
        nonlocal failed
        if not failed:
            answer = answers[number] = await _request(address, prompts[number], silence)
            failed = failed or answer.error is not None

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
    unsent = death or "not sent: an earlier request had failed"
    return [answer or Response(sent=time.monotonic(), error=unsent, unsent=death is None) for answer in answers]


async def _closed(one: Callable[[int], Coroutine[Any, Any, None]], count: int, at_a_time: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(min(at_a_time, count))))


async def _open(one: Callable[[int], Coroutine[Any, Any, None]], count: int, per_second: float, seed: int) -> None:
    draw = random.Random(seed)
    begin, due, tasks = time.monotonic(), 0.0, []
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + due - time.monotonic()))
        tasks.append(asyncio.create_task(one(number)))
        due += draw.expovariate(per_second)
    await asyncio.gather(*tasks)


async def _request(address: Address, prompt: LoadPrompt, silence: float) -> Response:
    body = {
        "text" if isinstance(prompt.content, str) else "input_ids": prompt.content,
        "sampling_params": {"temperature": 0, "max_new_tokens": prompt.new_tokens, "ignore_eos": True},
        "stream": True,
    }
    answer = Response(sent=time.monotonic())
    output = _Output()
    clock = asyncio.get_running_loop().time
    last = clock() + silence * (1 + prompt.new_tokens / TOKENS_PER_SILENCE)
    lines = LINES_PER_TOKEN * prompt.new_tokens + SPARE_LINES
    try:
        async with (
            asyncio.timeout_at(clock() + silence) as patience,
            contextlib.aclosing(post_lines(address, "/generate", body)) as events,
        ):
            async for line in events:
                now = time.monotonic()
                lines -= 1
                if lines < 0:
                    raise ServerSays(f"floods: more lines than {prompt.new_tokens} tokens have events")
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    before = answer.tokens
                    _take(answer, output, _event(line[5:]), now)
                    if answer.tokens > prompt.new_tokens + OVERSHOOT:
                        raise ServerSays(f"lies: {answer.tokens:,} tokens where {prompt.new_tokens} were asked for")
                    if answer.tokens > before:  # only a token is a sign of life: comments keep nobody waiting
                        patience.reschedule(min(last, clock() + silence))
        answer.output = output.digest()
    except TimeoutError:
        dripping = clock() >= last
        answer.error = (
            f"drips: {answer.tokens} of {prompt.new_tokens} tokens in {time.monotonic() - answer.sent:.0f} s"
            if dripping
            else f"hangs: silent for {silence:g} s after {answer.tokens} tokens"
        )
    except ServerSays as says:
        answer.error = f"{says}"
    except OSError as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.done = answer.arrivals[-1][0] if answer.arrivals else time.monotonic()
    if answer.error is None and answer.tokens < prompt.new_tokens:
        answer.error = (
            f"ended after {answer.tokens} of {prompt.new_tokens} tokens: {answer.counters.finish or 'no reason given'}"
        )
    return answer


@dataclass(frozen=True)
class _Event:
    """One event of a stream, its kinds checked."""

    counters: Counters | None
    ids: list[Any]
    text: str


def _event(data: bytes) -> _Event:
    """Raises ServerSays for an event that reports an error, or is of a kind that the engine never sends."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ServerSays(f"sent an event that is no JSON ({shown(str(error))}): {shown(repr(data[:80]))}") from error
    if not isinstance(event, dict):
        raise ServerSays(f"sent an event that is no object: {shown(shortened(event))}")
    if "error" in event:
        raise ServerSays(f"the server reports: {shown(shortened(event['error']))}")
    return _Event(
        _counters(_kind(event, "meta_info", dict)),
        _kind(event, "output_ids", list) or [],
        _kind(event, "text", str) or "",
    )


def _counters(meta: dict[str, Any] | None) -> Counters | None:
    if not meta:
        return None
    names = ("spec_correct_drafts_histogram", "spec_accept_histogram")  # counts by accepted draft tokens
    histogram: list[Any] = next((found for name in names if (found := _kind(meta, name, list))), [])
    if len(histogram) > POSITIONS:
        raise ServerSays(f"sent a histogram of {len(histogram):,} positions")
    reason = meta.get("finish_reason")
    return Counters(
        _count(meta.get("completion_tokens", 0), "completion_tokens"),
        _count(meta.get("spec_verify_ct") or 0, "spec_verify_ct"),
        tuple(_count(each, "histogram") for each in histogram),
        shown(shortened(reason)) if reason else "",
    )


def _kind(holder: dict[str, Any], name: str, kind: type) -> Any:
    value = holder.get(name)
    if value is not None and not isinstance(value, kind):
        raise ServerSays(f"sent {name} that is no {kind.__name__}: {shown(shortened(value))}")
    return value


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < COUNT_LIMIT:
        raise ServerSays(f"sent {name} that is no count: {shown(shortened(value))}")
    return value


def _take(answer: Response, output: _Output, event: _Event, now: float) -> None:
    tokens = event.counters.tokens if event.counters else 0
    if tokens > answer.tokens:
        answer.tokens = tokens
        answer.arrivals.append((now, tokens))
    answer.counters = event.counters or answer.counters
    output.take(event, tokens)


class _Output:
    """What was generated, whether the server streams it whole or piece by piece; kept as a hash in the end."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.text = ""

    def take(self, event: _Event, tokens: int) -> None:
        if event.ids:
            self.ids = event.ids if len(event.ids) >= tokens else [*self.ids, *event.ids]
        elif event.text:
            self.text = event.text if event.text.startswith(self.text) else self.text + event.text
        if max(8 * len(self.ids), len(self.text)) > LINE_LIMIT:
            raise ServerSays(f"sent more than {LINE_LIMIT:,} bytes of answer")

    def digest(self) -> str:
        """Raises ServerSays when what came is no list of token ids."""
        if not all(type(each) is int for each in self.ids):
            raise ServerSays(f"sent output_ids that are no token ids: {shown(shortened(self.ids))}")
        told = json.dumps(self.ids) if self.ids else self.text
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[
            :16
        ]  # half a character is the server's
