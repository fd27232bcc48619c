"""Progress on stderr: a bar with share and time left on a terminal, else a line now and then; a wait is never silent."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO


class Shown:
    """A `Progress` that is shown until it is left, as a context. Lines and bar say the same.

    `first_after`: seconds of silence at the start, for work that is mostly quicker. `every`: seconds between two
    lines at least. `still`: seconds after which a line is said again, with the time since, when nothing new came.
    `lines`: lines on a terminal too, for work whose milestones are worth keeping on the screen.
    """

    def __init__(
        self,
        quiet: bool,
        *,
        first_after: float = 2.0,
        every: float = 1.0,
        still: float = 10.0,
        lines: bool = False,
        file: TextIO | None = None,
    ) -> None:
        self._file = file or sys.stderr
        self._sink: _Nothing | _Lines | _Bar
        if quiet:
            self._sink = _Nothing()
        elif _is_terminal(self._file) and not lines:
            self._sink = _Bar(self._file, first_after)
        else:
            self._sink = _Lines(self._file, first_after, every, still)

    def __call__(self, text: str, share: float | None = None) -> None:
        self._sink.show(text, share)

    def __enter__(self) -> Shown:
        self._sink.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.end()


class _Nothing:
    def begin(self) -> None: ...

    def show(self, text: str, share: float | None) -> None: ...

    def end(self) -> None: ...


class _Lines:
    """A line for what is new, at most one `every` second, and the last one again while nothing new comes."""

    def __init__(
        self, file: TextIO, first_after: float, every: float, still: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._clock = file, clock
        self._first_after, self._every, self._still = first_after, every, still
        self._begun = self._said_at = self._new_at = clock()
        self._text, self._said = "", ""
        self._share: float | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def show(self, text: str, share: float | None) -> None:
        with self._lock:
            if _words(text) != _words(self._text):
                self._new_at = self._clock()
            self._text, self._share = text, share
            self._say()

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            with self._lock:
                self._say()

    def _say(self) -> None:
        now = self._clock()
        same = _words(self._text) == _words(self._said)
        if not self._text or self._ended.is_set() or now - self._begun < self._first_after:
            return
        if self._said and now - self._said_at < (self._still if same else self._every):
            return
        waited = f" ({now - self._new_at:.0f} s)" if same and self._text == self._said else ""
        self._said, self._said_at = self._text, now
        left = _left(self._share, now - self._begun)
        try:
            print(f"{self._text}{waited}{left}", file=self._file, flush=True)
        except (OSError, ValueError):  # nobody reads it any more: no reason to end the work
            self._ended.set()


class _Bar:
    """One line that rich draws anew; gone when the work is done."""

    def __init__(self, file: TextIO, first_after: float) -> None:
        self._file, self._first_after, self._begun = file, first_after, time.monotonic()
        self._drawn: Any = None
        self._task: Any = None
        self._timer: threading.Timer | None = None
        self._latest: tuple[str, float | None] = ("working", None)
        self._lock = threading.Lock()

    def begin(self) -> None:
        self._timer = threading.Timer(self._first_after, self._draw)
        self._timer.daemon = True
        self._timer.start()

    def show(self, text: str, share: float | None) -> None:
        with self._lock:
            self._latest = (text, share)
            if self._drawn is not None:
                self._update()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            if self._drawn is not None:
                self._drawn.stop()
            self._drawn, self._timer = None, None

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._timer is None:
                return
            self._drawn = Progress(
                SpinnerColumn(), BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._file), transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._task = self._drawn.add_task("", total=None)
            self._update()
            self._drawn.start()

    def _update(self) -> None:
        text, share = self._latest
        clean = "".join(char if char.isprintable() else "?" for char in text)
        if share is None:
            self._drawn.update(self._task, description=clean, total=None)
        else:
            self._drawn.update(self._task, description=clean, total=1.0, completed=min(1.0, share))


def _is_terminal(file: TextIO) -> bool:
    return file.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _words(text: str) -> str:
    """A text without the seconds at its end, which alone make it nothing new."""
    return text.rsplit(" (", 1)[0]


def _left(share: float | None, elapsed: float) -> str:
    """How much is done and about how long the rest takes: nothing where that is not known."""
    if share is None or not 0 < share < 1:
        return ""
    rest = elapsed * (1 - share) / share
    shown = f"{rest:.0f} s" if rest < 120 else f"{rest / 60:.0f} min"
    return f", {share:.0%}, about {shown} left"
