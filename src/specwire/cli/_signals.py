"""Ctrl-C, a request to terminate and a hang-up end a command alike: everything is put away first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")

_received: list[int] = []


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Within the block each of these signals raises KeyboardInterrupt, once: putting away is not interrupted.

    One that is ignored, as under nohup, stays so; so does one that somebody else handles.
    """
    _received.clear()
    before = {}
    for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # only the main thread may: others end with it
                before[number] = signal.signal(number, _raise_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code() -> int:
    """What a shell gives for a process that was ended by the signal that came."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def _raise_once(number: int, frame: object) -> None:
    _received.append(number)
    if len(_received) == 1:
        raise KeyboardInterrupt
