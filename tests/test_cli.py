"""What holds for every command: an example, a place in the README, and exit codes that no crash can fake."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from small_trees import FILES, make_tree

from specwire.cli import specwire

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
CONTEXT = click.Context(specwire)
COMMANDS = specwire.list_commands(CONTEXT)


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from specwire.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_and_is_in_the_readme(name):
    assert "Example:" in specwire.get_command(CONTEXT, name).help
    assert f"`{name}`" in README


def test_the_readme_s_commands_are_all_there_and_no_other():
    table = README.partition("| command | does |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall(r"`([a-z-]+)`", row)) == COMMANDS


@pytest.mark.parametrize("words", [("apply",), ("apply", "/nowhere"), ("no-such-command",), ("status", "--nonsense")])
def test_bad_usage_is_no_finding(words):
    done = run(*words)
    assert done.returncode == 2 and done.stderr and not done.stdout


OUT_FILES = [
    "golden build --target T --out",
    "golden import DATA --target T --out",
    "check --golden G --capture C --html",
    "verify TREE --target T --draft D --golden G --html",
    "report RESULT --out",
    "report RESULT --markdown",
]


@pytest.mark.parametrize("words", OUT_FILES)
def test_a_file_that_cannot_be_written_is_told_before_the_work(words, tmp_path):
    (tmp_path / "folder").mkdir()
    for name, why in (("none/file", f"there is no directory {tmp_path / 'none'}"), ("folder", "is a directory")):
        done = run(*words.split(), str(tmp_path / name))
        assert done.returncode == 2 and why in done.stderr and not done.stdout


@pytest.mark.parametrize("words", OUT_FILES)
def test_a_file_that_is_there_is_replaced_only_by_force(words, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    for path, why in ((file, "replace it with --force"), (Path("/dev/null"), "that is no file")):
        done = run(*words.split(), str(path))
        assert done.returncode == 2 and f"{path} is there already" in done.stderr and why in done.stderr
    forced = run(*words.split(), str(file), "--force")
    assert forced.returncode == 2 and "already" not in forced.stderr, "it went on, and missed what else is named"
    assert file.read_bytes() == b"weights" and os.listdir(tmp_path) == [file.name]


def test_a_report_of_no_name_replaces_none_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.html").write_text("mine")
    done = run("report", "nowhere")
    assert done.returncode == 2 and "report.html is there already" in done.stderr
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "old"),
    [
        ("run TREE --target T --draft D --out", "capture/rank0/000000.forward-begin.safetensors"),
        ("verify TREE --target T --draft D --out", "capture/rank0/000000.forward-begin.safetensors"),
        ("verify TREE --target T --draft D --out", "verify.json"),
        ("run TREE --target T --draft D --out", "engine.log"),
        ("bench TREE --target T --draft D --out", "bench.json"),
    ],
)
def test_results_of_an_earlier_run_are_not_written_over(words, old, tmp_path):
    (tmp_path / old).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / old).write_text("earlier")
    done = run(*words.split(), str(tmp_path))
    assert done.returncode == 2 and "is of an earlier run" in done.stderr and old.split("/")[0] in done.stderr
    assert (tmp_path / old).read_text() == "earlier"


def test_a_job_that_never_began_leaves_no_folder(tmp_path, monkeypatch):
    make_tree(tmp_path / "tree", FILES)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    done = run("verify", str(tmp_path / "tree"), "--target", "/nowhere", "--draft", "/nowhere", "--golden", "/nowhere")
    assert done.returncode == 2 and "/nowhere" in done.stderr and "Kept" not in done.stderr
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "golden build --target T --out golden --prompts nowhere",
        "golden build --target nowhere --out golden",
        "report nowhere",
        "sweep tree --target T --draft draft --grid nowhere --out out --dry-run",
        "ship tree --target T --draft D --launch x --verify nowhere",
        "gate tree --pristine --record nowhere",
    ],
)
def test_a_missing_file_is_named_once_and_without_a_number(words, tmp_path, monkeypatch):
    make_tree(tmp_path / "tree", FILES)
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    monkeypatch.chdir(tmp_path)
    done = run(*words.split())
    assert done.returncode == 2 and "nowhere" in done.stderr
    assert "Errno" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["bench", "bench installed", "bench --target T", "sweep --grid G --draft D --out O"])
def test_a_server_needs_a_tree_and_a_target(words):
    done = run(*words.split())
    assert done.returncode == 2 and "a tree and a target are needed" in done.stderr


def test_a_crash_is_no_finding():
    code = "import specwire.trees.tree, specwire.cli as c; specwire.trees.tree.Tree.find = lambda *a: 1 / 0; c.main(['status', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("words", ["--help", "probes --json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirection", "code"),
    [("| true", 141), (">/dev/full", 2), (">&-", 0), (">/dev/null 2>&-", 0)],
    ids=["nobody reads", "disk full", "stdout closed", "stderr closed"],
)
def test_output_that_cannot_be_written_is_no_finding(words, unbuffered, redirection, code):
    ours = f"sleep 0.1; {sys.executable} -c 'from specwire.cli import main; main()' {words}"
    done = subprocess.run(
        ["bash", "-c", f"({ours}; echo code $? >&3) 3>&2 {redirection}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert f"code {code}\n" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("probes",), ("status", "--help")])
def test_static_commands_load_neither_torch_nor_sglang_nor_libcst(words):
    code = (
        f"import sys\ntry:\n    from specwire.cli import main; main({list(words)!r})\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'sglang', 'libcst'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith("[]"), done.stderr
