"""What leaves is clean: nothing steers a terminal or turns the reading direction, and an error is one sentence."""

import io
import json
import os
import pty
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_trees import make_tree

from specwire import outgoing
from specwire.outgoing import Outlet, printable, sentence, write_text

GOLDEN = Path(__file__).parents[2] / "golden" / "llama" / "float32.safetensors"
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x1b[31m\u202e\u2028\x9b\r\x00\ud800"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@given(st.text())
def test_nothing_that_is_printed_steers(text):
    file = io.StringIO()
    Outlet(file).write(text)
    assert all(char.isprintable() or char in "\n\t" for char in file.getvalue())
    assert printable(text) == text or not all(char.isprintable() or char in "\n\t" for char in text)


def test_colours_stay_on_a_terminal_and_nothing_else():
    file = Terminal()
    Outlet(file).write(f"\x1b[32mMATCH\x1b[0m {HOSTILE}")
    shown = file.getvalue()
    assert shown.startswith("\x1b[32mMATCH\x1b[0m ") and "\x1b]" not in shown and "\x1b[2J" not in shown
    assert all(char not in shown for char in "\x07\u202e\u2028\x9b\r\x00\ud800")


def test_a_bar_is_drawn_on_stderr_alone():
    bar = "\r\x1b[2K\x1b[1A\x1b[?25l"
    drawn, kept = Terminal(), io.StringIO()
    Outlet(drawn, drawn=True).write(bar)
    Outlet(kept, drawn=True).write(bar)
    assert drawn.getvalue() == bar and "\x1b" not in kept.getvalue()


@pytest.mark.parametrize("length", [0, 1999, 2000, 2001, 4_000_000])
def test_a_sentence_has_an_end(length):
    text = "a" * length + "The end says what to do."
    shown = sentence(text)
    assert len(shown) < 2100 and shown.endswith("what to do.") and (shown == text) == (len(text) <= 2000)


def test_an_excerpt_has_few_lines_and_short_ones():
    assert outgoing.excerpt("a\nb\n", 2) == "a\nb\n" and outgoing.excerpt("a\nb", 2) == "a\nb"
    assert outgoing.excerpt("a\nb\nc\n", 2) == "a\nb\n[...]\n" and outgoing.excerpt("", 2) == ""
    long = outgoing.excerpt("x" * 400_000 + "\n", 2)
    assert long.startswith("x" * 300 + " [... 399,600 characters left out ...] x") and long.endswith("x\n")


PIECES = ["x", "X", "1", " ", "\n", "-", "_", "=", ":", "'", '"', "\\", "[", "{", "/", ".", "@", "://", "x ", "x-", "a.", "--x", "eyJ-", "eyJaaaaaaaa.", "sk-", "bearer ", "x=", "x: "]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_secrets_are_looked_for_in_time_that_grows_with_the_text(monkeypatch, piece):
    """Half a million characters, whatever they are; what looks at a word from each of its letters takes minutes."""
    monkeypatch.setattr(outgoing, "_known", set())
    text = piece * (500_000 // len(piece)) + " --api-key 7h1s-1s-s3cr3t \n\n y@"
    begun = time.process_time()
    outgoing.know_text(text)
    outgoing.know_words([text, text[: 1 << 14]])
    shown = outgoing.clean(f"it is 7h1s-1s-s3cr3t {text[:1000]}")
    assert time.process_time() - begun < 10
    assert "7h1s" not in shown or piece in ("'", '"', "\\")  # an open quote, or the blank before it, takes it in


def test_a_written_page_is_clean(tmp_path):
    write_text(tmp_path / "page", HOSTILE + "ü\n")
    text = (tmp_path / "page").read_bytes().decode("utf-8")
    assert all(char.isprintable() or char == "\n" for char in text) and text.endswith("ü\n")


def run(*words, cwd=None, env=None, stdout=subprocess.PIPE):
    command = [sys.executable, "-m", "specwire", *map(os.fspath, words)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=stdout, stderr=subprocess.PIPE, timeout=120
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def odd(place: Path, kind: str) -> None:
    """Something in a module's place."""
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "zero":
        place.symlink_to("/dev/zero")
    elif kind == "loop":
        place.symlink_to(place.name)
    elif kind == "nowhere":
        place.symlink_to("/nowhere/at/all")
    elif kind == "directory":
        place.mkdir()
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(16 << 30)
    elif kind == "secret place":
        place.symlink_to("/proc/self/mem")


COMMANDS = {
    "status": ["status", "tree"],
    "apply": ["apply", "tree", "--dry-run"],
    "remove": ["remove", "tree", "--dry-run"],
    "gate": ["gate", "tree"],
    "strip": ["strip", "tree", "--check"],
    "probes": ["probes", "--coverage", "tree"],
    "overlay": ["apply", "tree", "--overlay", "view"],
}
KINDS = ["pipe", "zero", "loop", "nowhere", "directory", "sparse", "secret place"]


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS[:1],
        "loop",
        *(pytest.param(each, marks=pytest.mark.slow) for each in KINDS if each not in ("pipe", "loop")),
    ],
)
@pytest.mark.parametrize(
    "name", ["sglang/srt/models/x.py", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sglang/version.py", "sglang/srt/models/draft_eagle3.py"))]
)  # fmt: skip
def test_an_odd_thing_in_a_file_s_place(tmp_path, kind, name):
    """One sentence or a verdict, at once, whatever a tree has where a module is looked for."""
    tree = make_tree(tmp_path / "tree")
    tree.path(name).unlink(missing_ok=True)
    odd(tree.path(name), kind)
    for command, words in COMMANDS.items():
        done = run(*words, cwd=tmp_path)
        assert done.returncode in (0, 1, 2, 3), (command, done)
        assert done.returncode != 2 or len(done.stderr) + len(done.stdout) > 20


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
def test_names_that_are_hostile_in_every_format(tmp_path, form):
    for name in ("a\u202eb", "a\u2028b", "a\x1b[2Jb", "a\rb", "a\nb", "a%0Ab::c", "a\udc80b"):
        (tmp_path / f"{name}.py").write_bytes(b"breakpoint()\n")
    done = run("gate", ".", "--format", form, cwd=tmp_path)
    text = done.stdout.decode("utf-8")
    assert done.returncode == 1 and all(char.isprintable() or char == "\n" for char in text)
    if form in ("json", "sarif"):
        json.loads(text)
    elif form == "junit":
        xml.fromstring(text)
    elif form == "github":
        assert text.count("::error ") == len(text.splitlines()) == 7


@pytest.mark.parametrize(
    "words", [["golden", "show"], ["report"], ["gate"], ["status"], ["strip"], ["profile"]], ids=" ".join
)
@pytest.mark.parametrize(
    "name",
    ["x" + HOSTILE[:-1].replace("\x00", ""), "n" * 5000, "n" * 300 + "/x"],
    ids=["steering", "long", "long part"],
)
def test_a_name_in_an_error(tmp_path, words, name):
    done = run(*words, name, cwd=tmp_path)
    assert done.returncode == 2
    said = done.stderr.decode("utf-8")
    assert said.startswith("specwire: ") or said.startswith("Usage: ")
    assert len(said) < 3000 and all(char.isprintable() or char == "\n" for char in said)


@pytest.mark.parametrize(
    "words",
    [["status", "tree", "--\x1b]0;x\x07"], ["stat\x1b[2Jus"], ["bench", "--rate", "\x1b[2J"]],
    ids=["option", "command", "value"],
)
def test_what_was_typed_is_shown_clean(tmp_path, words):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and b"\x1b" not in done.stderr


def test_on_a_real_terminal(tmp_path):
    """Colour belongs there, what a name brings along does not."""
    master, slave = pty.openpty()
    try:
        done = subprocess.Popen(
            [sys.executable, "-m", "specwire", "golden", "show", "x\x1b]0;pwned\x07"],
            stdout=slave,
            stderr=slave,
            cwd=tmp_path,
        )
        assert done.wait(60) == 2
        said = os.read(master, 100_000)
    finally:
        os.close(master)
        os.close(slave)
    assert b"\\x1b]0;pwned\\x07" in said and b"\x1b" not in said


@pytest.fixture
def full(tmp_path):
    """A directory on a disk without room, where this machine lets us make one."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", place]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    (place / "fill").write_bytes(bytes(4096))
    yield place
    subprocess.run(["umount", place], check=True)


def test_no_room_for_a_page(tmp_path, full):
    from results import bench, point

    (tmp_path / "bench.json").write_text(json.dumps(bench(point("baseline", 1, 2), point("draft", 1, 2, draft="d"))))
    done = run("report", tmp_path / "bench.json", "--out", full / "r.html")
    assert done.returncode == 2 and b"No space left on device. Make room" in done.stderr and b"r.html" in done.stderr
    assert sorted(os.listdir(full)) == ["fill"]


def test_nobody_reads(tmp_path):
    with open("/dev/full", "wb") as stdout:
        assert run("probes", stdout=stdout).returncode == 2
    assert outgoing.clean("") == ""


@given(st.lists(st.text("ab [],.-", max_size=30), max_size=20), st.integers(80, 130))
def test_folding_breaks_between_words_and_loses_none(words, width):
    line = "  ".join(words)
    shown = outgoing.folded(line, width)
    assert "".join(shown.split()) == "".join(line.split())
    assert all(len(each) <= width or " " not in each[5:].strip() for each in shown.split("\n"))


def test_what_is_folded_hangs_below_its_own_column():
    line = f"boundary-offset  cause  {'every slot holds the boundary ' * 4}"
    first, *more = outgoing.folded(line, 80).split("\n")
    assert all(each.startswith(" " * 24) and each[24] != " " and len(each) <= 80 for each in more) and len(more) == 2
    path = "/" + "x" * 200
    assert outgoing.folded(f"wrote {path} and more", 80).split() == ["wrote", path, "and", "more"]
    coloured = "slot 0  " + "\x1b[31mmismatch\x1b[0m " * 8
    assert [len(outgoing._COLOUR.sub("", each)) for each in outgoing.folded(coloured, 80).split("\n")] == [80]


def test_tables_fit_a_terminal_of_eighty_columns():
    """As one sees them: on a pseudo terminal."""
    for words in (["explain"], ["probes"], ["env"], ["golden", "show", str(GOLDEN)], ["gate", "--help"]):
        shown, width = on_a_terminal(words), 80
        wide = [each for each in shown.splitlines() if len(each) > width and " " in each[4:].strip()]
        assert shown.count("\n") > 5 and not wide, wide


def on_a_terminal(words: list[str]) -> str:
    pid, handle = pty.fork()
    if not pid:
        termios.tcsetwinsize(1, (40, 80))
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        os.execve(sys.executable, [sys.executable, "-m", "specwire", *words], {**env, "TERM": "xterm", "NO_COLOR": "1"})
    shown = b""
    with os.fdopen(handle, "rb", 0) as terminal:
        try:
            while part := terminal.read(1 << 16):
                shown += part
        except OSError:  # the other end is closed
            pass
    os.waitpid(pid, 0)
    return shown.decode().replace("\r\n", "\n")
