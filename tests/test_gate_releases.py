"""No false alarm on any release as it was published, and RECORD's word for every one of its files."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from specwire.cli import gate, strip
from specwire.strip.plan import plan

_spec = importlib.util.spec_from_file_location("releases", Path(__file__).with_name("releases.py"))
releases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(releases)


@pytest.mark.release
@pytest.mark.parametrize("version", releases.sample())
def test_a_release_is_clean(version):
    tree = str(releases.release_tree(version))
    found = CliRunner().invoke(gate.command, [tree, "--pristine", "--json"], standalone_mode=False)
    document = json.loads(found.stdout)
    assert (found.return_value, document["findings"], document["inconclusive"]) == (0, [], [])
    assert document["files"] > 300
    assert CliRunner().invoke(strip.command, [tree, "--check"], standalone_mode=False).return_value == 0


BLOCKS = [
    ['print(f"[EAGLE3-DEBUG] here {1 + 1}", flush=True)'],
    [
        'if not hasattr(print, "_debug_done"):',
        '    print("[EAGLE3-DEBUG] once")',
        "    print._debug_done = True",
    ],
    [
        'if __import__("os").environ.get("EAGLE3_DEBUG") == "1":',
        "    for _ in range(2):",
        '        print("x", _)',
    ],
]
FILES = ["models/llama_eagle3.py", "models/qwen2.py", "models/apertus.py", "layers/logits_processor.py"]


@pytest.mark.release
@pytest.mark.parametrize("version", releases.sample()[-1:])
@pytest.mark.parametrize("file", FILES)
def test_debug_code_before_every_statement_goes_without_a_trace(version, file):
    """In real files, CRLF ones among them: every statement with a debug block above it, and all of them out again."""
    before = (releases.release_tree(version) / "sglang" / "srt" / file).read_bytes()
    lines = before.splitlines(keepends=True)
    end = b"\r\n" if lines[0].endswith(b"\r\n") else b"\n"
    for count, (number, indent) in enumerate(reversed(_statements(before))):
        block = BLOCKS[count % len(BLOCKS)]
        lines[number - 1 : number - 1] = [indent + line.encode() + end for line in block]
    found = plan(b"".join(lines), file)
    assert found.after == before and len(found.gone) == count + 1 > 30 and not found.left


def _statements(data: bytes) -> list[tuple[int, bytes]]:
    """(line, indentation) of every statement inside a function that has its line for itself, docstrings left out."""
    lines = data.splitlines()
    found = {}
    for function in ast.walk(ast.parse(data)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function and not isinstance(node, ast.FunctionDef):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    continue
                head = lines[node.lineno - 1][: node.col_offset]
                elif_ = lines[node.lineno - 1][node.col_offset :].startswith(b"elif")
                if not head.strip() and not elif_ and not lines[node.lineno - 2].endswith(b"\\"):
                    found[node.lineno] = head
    return sorted(found.items())
