"""Runs a command in a fork on an input that was made to hurt, and says what was wrong with how it took it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 30  # of processor time
MEGABYTES = 2048

NUMBERS = (
    0,
    -1,
    1,
    2,
    5,
    2**31,
    2**63,
    10**18,
    10**400,
    -(10**400),
    0.5,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
)
TEXTS = (
    "",
    "x",
    "0",
    "-1",
    "nan",
    "9" * 400,
    "9" * 5000,
    "x" * 100_000,
    "\x1b[2J\x07",
    "\u202e",
    "\u2028",
    "\ud800",
    "\0",
    "../../x",
    "%s%n",
    "{}",
)


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value: too large, too deep, of the wrong kind, or harmless."""
    kind = rng.randrange(10 if depth < 3 else 6)
    if kind < 2:
        return rng.choice((None, True, False, *NUMBERS))
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 7:
        return {rng.choice(TEXTS[:8]): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 8:
        return [rng.choice(NUMBERS[:6])] * rng.choice((10, 1000, 100_000))
    nested: Any = 1
    for _ in range(rng.choice((10, 200, 500))):
        nested = [nested]
    return nested


def places(document: Any, path: tuple = ()) -> list[tuple]:
    """The way to each leaf and branch of a JSON document."""
    found = [path] if path else []
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, inner in list(items)[:50] if len(path) < 8 else ():
        found += places(inner, (*path, key))
    return found


def spoil(rng: random.Random, document: Any) -> None:
    """Change, take away or add one to three things of a JSON document."""
    for _ in range(rng.randrange(1, 4)):
        *way, last = rng.choice(places(document))
        holder = document
        try:
            for key in way:
                holder = holder[key]
            if rng.random() < 0.15:
                del holder[last]
            else:
                holder[last] = value(rng)
        except (KeyError, IndexError, TypeError):
            continue


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some of them changed, cut off, or said twice."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    if rng.random() < 0.3:
        del changed[rng.randrange(len(changed) + 1) :]
    if rng.random() < 0.1:
        changed += bytes(changed)
    return bytes(changed)


def wrong_with(work: Callable[[], int | None], codes: tuple[int, ...] = (0, 1, 2, 3)) -> list[str]:
    """What was wrong with the work, done in a process of its own: a crash, another exit code, too much time or memory."""
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        sys.stderr.flush()
        began, pid = time.monotonic(), os.fork()
        if not pid:
            _done(work, output.fileno())
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            if time.monotonic() - began > 20 * SECONDS:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        _, status, usage = ended
        output.seek(0)
        said = output.read(1 << 20).decode("utf-8", "replace")
    code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    wrong = [said[-1500:]] if "Traceback (most recent call last)" in said else []
    wrong += [f"exit code {code}: {said[-300:]}"] if code not in codes else []
    wrong += [f"{seconds:.0f} s"] if seconds > SECONDS else []
    wrong += [f"{usage.ru_maxrss >> 10} MB"] if usage.ru_maxrss >> 10 > MEGABYTES else []
    wrong += ["no word of why"] if code == 2 and not said.strip() else []
    wrong += [f"{len(said):,} characters"] if code == 2 and len(said) > 20_000 else []
    return wrong


def _done(work: Callable[[], int | None], output: int) -> None:
    """The child's whole life."""
    code = 99
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS + 1))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False, errors="backslashreplace") for number in (1, 2))
        code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def command(*words: Any) -> Callable[[], int | None]:
    """A command line to run."""

    def work() -> int | None:
        from specwire.cli import main

        return main(list(map(str, words)))

    return work


def fingerprint(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
