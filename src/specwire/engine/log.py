"""Reads the engine's log: what it is busy with, and what went wrong."""

from __future__ import annotations

import re

PHASES = (
    (re.compile(r"Init (?:parallel|torch distributed) begin"), "starting the ranks"),
    (re.compile(r"Load weight begin"), "loading weights"),
    (re.compile(r"KV Cache is allocated|Memory pool end"), "setting up the cache"),
    (re.compile(r"specwire: engine up"), "engine up"),
    (re.compile(r"Prefill batch"), "prefill"),
    (re.compile(r"Decode batch"), "decode"),
    (re.compile(r"specwire: done"), "shutting down"),
)
RANK_UP = re.compile(r"max_total_num_tokens=")
RANK = re.compile(r"^\[[^\]]*\bTP(\d+)")

# What ranks and parents say when another one has died: never the cause.
CONSEQUENCES = re.compile(
    r"^(?:EOFError|KeyboardInterrupt|SystemExit|BrokenPipeError|Connection\w*Error|ChildProcessError)\b"
    r"|scheduler.* died|initialization failed|Connection (?:closed|reset) by peer|Child process unexpectedly"
    r"|Timed out waiting \d+ms for (?:send|recv)"
)
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
USAGE_ERROR = re.compile(r"^\S.*?: error: (?P<what>.+)")


class BootProgress:
    """Fed with log lines, says in a few words how far the engine is."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.phase = "importing the engine"
        self._up: set[str] = set()

    def feed(self, line: str) -> None:
        for pattern, phase in PHASES:
            if pattern.search(line):
                self.phase = phase
        if RANK_UP.search(line):
            rank = RANK.match(line)
            self._up.add(rank[1] if rank else "0")

    def __str__(self) -> str:
        if self._up and self.phase not in ("engine up", "prefill", "decode", "shutting down"):
            return f"{len(self._up)} of {self.ranks} ranks up"
        return self.phase


def last_error(log: str) -> str | None:
    """The engine's last error that is not the echo of another one, on one line; None when there is none."""
    found: str | None = None
    echo: str | None = None
    in_traceback = False
    for line in log.splitlines():
        if TRACEBACK.search(line):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            in_traceback = False
            if CONSEQUENCES.search(line):
                echo = line
            else:
                found = line
        elif usage := USAGE_ERROR.match(line):
            found = usage["what"]
    return found or echo
