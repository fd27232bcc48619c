"""Progress: lines where nobody watches, a bar on a terminal, and never a silent wait."""

import io
import os
import pty
import subprocess
import sys
import time

import pytest

from specwire.cli._progress import Shown, _left, _Lines


class Clock:
    """Time that passes when a test says so. The watching thread is not started: its turn is `turn`."""

    def __init__(self, **settings):
        self.now, self.file = 0.0, io.StringIO()
        settings = {"first_after": 2.0, "every": 1.0, "still": 10.0} | settings
        self.lines = _Lines(self.file, **settings, clock=lambda: self.now)

    def at(self, seconds, text=None, share=None):
        self.now = seconds
        if text is None:
            self.lines._say()
        else:
            self.lines.show(text, share)

    @property
    def said(self):
        return self.file.getvalue().splitlines()


def test_quick_work_is_silent():
    clock = Clock()
    clock.at(0.5, "reading")
    clock.at(1.9, "comparing")
    assert clock.said == []


def test_at_most_one_line_a_second_and_the_last_one_is_not_lost():
    clock = Clock(first_after=0.0)
    clock.at(0.0, "one")
    clock.at(0.2, "two")
    clock.at(0.4, "three")
    clock.at(1.1)
    assert clock.said == ["one", "three"]


def test_a_wait_is_said_again_with_its_seconds():
    clock = Clock(first_after=0.0)
    clock.at(0.0, "shutting down")
    clock.at(5.0)
    clock.at(10.0)
    clock.at(21.0)
    assert clock.said == ["shutting down", "shutting down (10 s)", "shutting down (21 s)"]


def test_seconds_of_the_work_s_own_are_nothing_new():
    clock = Clock(first_after=0.0)
    for second in range(0, 12, 2):
        clock.at(float(second), f"loading weights ({second} s)")
    assert clock.said == ["loading weights (0 s)", "loading weights (10 s)"]


def test_share_and_time_left():
    clock = Clock(first_after=0.0)
    clock.at(10.0, "reading 1/4", 0.25)
    assert clock.said == ["reading 1/4, 25%, about 30 s left"]
    assert _left(0.5, 600.0) == ", 50%, about 10 min left"
    assert _left(None, 5.0) == _left(0.0, 5.0) == _left(1.0, 5.0) == ""


def test_quiet_says_nothing():
    file = io.StringIO()
    with Shown(True, first_after=0.0, file=file) as progress:
        progress("anything", 0.5)
    assert file.getvalue() == ""


def test_nothing_is_said_after_the_end():
    file = io.StringIO()
    with Shown(False, first_after=0.0, still=0.1, file=file) as progress:
        progress("work")
    said = file.getvalue()
    time.sleep(0.8)
    assert said == file.getvalue() == "work\n"


def test_a_stream_that_is_gone_ends_no_work():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with Shown(False, first_after=0.0, file=Gone()) as progress:
        progress("one")
        progress("two")


@pytest.mark.parametrize("term, bar", [("xterm", True), ("dumb", False)])
def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(term, bar):
    code = (
        "import sys, time; from specwire.cli._progress import Shown\n"
        "with Shown(False, first_after=0.0) as progress:\n"
        "    for part in range(4): progress(f'reading {part}/4 a\\x1b[31mb', part / 4); time.sleep(0.3)\n"
        "print('done')"
    )
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": term, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], stderr=follower, stdout=subprocess.PIPE, text=True, env=env)
    os.close(follower)
    shown = b""
    while True:
        try:
            shown += os.read(leader, 65536)
        except OSError:
            break
        if not shown:
            break
    os.close(leader)
    assert done.stdout == "done\n" and done.returncode == 0
    assert ("━".encode() in shown) is bar and b"reading" in shown


def test_rich_is_not_loaded_before_a_bar_is_drawn():
    code = (
        "import sys; from specwire.cli._progress import Shown\n"
        "with Shown(False) as progress: progress('x')\nprint('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
