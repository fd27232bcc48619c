"""Files that came from anywhere: nothing in a file's place is waited for, and nothing endless is read."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from captures import concat, make_golden, make_states, write_batch
from click.testing import CliRunner

from specwire.cli.check import command
from specwire.errors import SpecwireError


@pytest.fixture
def made(tmp_path):
    prompts = [[4, 5, 6, 7]]
    states = make_states(prompts)
    make_golden(tmp_path / "golden.safetensors", prompts, states)
    write_batch(tmp_path / "capture", 0, 0, [(prompts[0], 0, 4)], [concat(states[0], (1, 3, 5))])
    return tmp_path


@pytest.fixture(autouse=True)
def never_wait():
    """A pipe that is waited for ends the test, not the run."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("still waiting"))
    signal.alarm(60)
    yield
    signal.alarm(0)


def check(made: Path, **other) -> tuple[int, str]:
    """(exit code, what was said) of `check`."""
    given = {"golden": made / "golden.safetensors", "capture": made / "capture"} | other
    words = [str(word) for name, path in given.items() if path for word in (f"--{name}", path)]
    result = CliRunner().invoke(command, words, standalone_mode=False)
    if isinstance(result.exception, SpecwireError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def test_as_made(made):
    assert check(made)[0] == 0


@pytest.mark.parametrize("place", ["golden", "event", "blind", "config"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_no_regular_file(made, place, kind):
    model = made / "model"
    model.mkdir()
    at = {
        "golden": made / "other.safetensors",
        "event": made / "capture" / "rank0" / "000001.draft-input.safetensors",
        "blind": made / "capture" / "rank0" / "blind.jsonl",
        "config": model / "config.json",
    }[place]
    os.mkfifo(at) if kind == "pipe" else at.symlink_to("/dev/zero")
    other = {"golden": {"golden": at}, "config": {"draft": model}}.get(place, {})
    code, said = check(made, **other)
    assert code == 2 and "no regular file" in said


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_no_log(made, device):
    code, said = check(made, capture=None, log=device)
    assert code == 2 and "a device, no log" in said


def test_a_line_without_an_end_is_no_log(made):
    with (made / "log").open("wb") as file:
        file.truncate(64 << 20)
    code, said = check(made, capture=None, log=made / "log")
    assert code == 2 and "it is no log" in said


def test_a_log_from_a_pipe(made):
    """As with `--log <(ssh HOST cat server.log)`."""
    line = "[EAGLE3-DEBUG] site=draft-input rank=0 mode=EXTEND shape=[4, 48] dtype=float32 token=9 hs_first5=[1, 2]"
    reading, writing = os.pipe()
    os.write(writing, line.encode())
    os.close(writing)
    code, said = check(made, capture=None, log=f"/dev/fd/{reading}")
    assert code == 3 and "no draft-input line of a prefill of the golden's prompts" in said
    os.close(reading)


def test_lines_of_any_kind_in_the_list_of_what_taps_could_not_see(made):
    shutil.rmtree(made / "capture" / "rank0")
    (made / "capture" / "rank0").mkdir()
    lines = [b"[1]", b'"x"', b"null", b'{"site": {"a": [1]}, "reason": []}', b"\xff\xfe", b"[" * 100_000, b'{"cut']
    (made / "capture" / "rank0" / "blind.jsonl").write_bytes(b"\n".join(lines))
    assert check(made)[0] == 3
