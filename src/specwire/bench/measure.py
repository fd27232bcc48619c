"""From answers to figures: rates, times, acceptance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from specwire.bench.client import Response
from specwire.bench.profile import acceptance
from specwire.bench.statistics import mean, rounded, spread


def figures(answers: Sequence[Response]) -> dict[str, Any]:
    """One run's figures. Times in milliseconds, rates per second of the time from first sent to last done.

    `itl_ms` is the time between tokens, those that come together sharing their wait alike; `per_user` is
    what one request sees between its first token and its last, and `decoding` when these were, in monotonic seconds.
    """
    good = [answer for answer in answers if answer.error is None]
    begin, end = min(answer.sent for answer in answers), max(answer.done for answer in answers)
    seconds = max(end - begin, 1e-9)
    tokens = sum(answer.tokens for answer in good)
    return {
        "begin": rounded(begin, 12),
        "end": rounded(end, 12),
        "seconds": rounded(seconds),
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "errors": [
            f"{count} x {error}"
            for error, count in Counter(each.error for each in answers if each.error).most_common(3)
        ],
        "output_tokens": tokens,
        "tokens_per_second": rounded(tokens / seconds),
        "requests_per_second": rounded(len(good) / seconds),
        "per_user": rounded(mean([rate for answer in good if (rate := _own_rate(answer))])),
        "ttft_ms": spread([1000 * (answer.arrivals[0][0] - answer.sent) for answer in good if answer.arrivals]),
        "itl_ms": spread([1000 * gap for answer in good for gap in _gaps(answer)]),
        "decode_ms": spread([1000 * (answer.done - answer.arrivals[0][0]) for answer in good if answer.arrivals]),
        "decoding": [
            [rounded(answer.arrivals[0][0], 12), rounded(answer.done, 12)] for answer in good if answer.arrivals
        ],
        "e2e_ms": spread([1000 * (answer.done - answer.sent) for answer in good]),
        "acceptance": engine_acceptance(good),
        "outputs": [answer.output for answer in answers],
    }


def engine_acceptance(answers: Sequence[Response]) -> dict[str, Any] | None:
    """Acceptance by the engine's own counters, of all requests together; None without speculation.

    `length` counts the bonus token: tokens that one verify of the target yields. `engine_length` is the
    engine's figure, which also counts the token that the prefill yields.
    """
    told_of = [answer.counters for answer in answers if answer.counters.verifies]
    if not told_of:
        return None
    verifies = sum(each.verifies for each in told_of)
    tokens = sum(each.tokens for each in told_of)
    counts: Counter[int] = Counter()
    for each in told_of:
        for drafts, count in enumerate(each.histogram):
            counts[drafts + 1] += count
    told = acceptance(+counts) or {
        "cycles": verifies,
        "length": rounded((tokens - len(told_of)) / verifies),
        "by_position": None,
    }
    return {
        **told,
        "engine_length": rounded(tokens / verifies),
        "by": "spec histogram" if counts else "spec_verify_ct",
    }


def _own_rate(answer: Response) -> float | None:
    if len(answer.arrivals) < 2:
        return None
    (first, had), (last, have) = answer.arrivals[0], answer.arrivals[-1]
    return (have - had) / (last - first) if last > first else None


def _gaps(answer: Response) -> list[float]:
    gaps = []
    for (before, had), (now, have) in zip(answer.arrivals, answer.arrivals[1:], strict=False):
        gaps += [(now - before) / (have - had)] * (have - had)
    return gaps
