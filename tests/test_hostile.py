"""Inputs from anywhere, made to hurt: thousands from a seed, each read in a process of its own.

None may end in a traceback, take more than two GB or thirty seconds, or touch anything outside. A sample is run each
time; `SPECWIRE_FUZZ=2500` makes as many of each group, which takes an hour or two.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile
import preflight_models as models
import pytest
from captures import make_golden, make_states, write_batch
from hostile import command, damaged, spoil, value, wrong_with
from lying_server import HEAD, LyingServer, body, event, events, repeated

pytestmark = pytest.mark.slow
COUNT = int(os.environ.get("SPECWIRE_FUZZ", "40"))
SEED = int(os.environ.get("SPECWIRE_FUZZ_SEED", "7"))
SLICES = Path(__file__).parent.parent / "fixtures" / "slices" / "boundaries"
PROMPTS = [[4, 5, 6, 7], [9, 5, 8]]
Input = tuple[str, Callable[[], int | None]]  # what it is, and what reads it


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A golden, a capture of it, a log of it, a target, a draft and a tree; and a folder that is nobody's business."""
    import torch

    torch.set_num_threads(1)  # or a fork waits for threads that it has not
    for module in WARM:  # once, and not in each fork
        importlib.import_module(module)
    place = tmp_path_factory.mktemp("hostile")
    states = make_states(PROMPTS)
    make_golden(place / "golden.safetensors", PROMPTS, states)
    concat = [torch.cat([one[k] for k in (1, 3, 5)], dim=-1) for one in states]
    write_batch(place / "capture", 0, 0, [(PROMPTS[0], 0, 4), (PROMPTS[1], 0, 3)], concat)
    answers = {
        "schema": "specwire.answers/1",
        "ranks": 1,
        "answers": [{"prompt": [4, 5], "output": [6], "logprobs": [None, -1.0, -2.0], "accepted": [1, 2], "batch": 0}],
    }
    (place / "answers.json").write_text(json.dumps(answers))
    (place / "log").write_text("".join(map(line_of, PROMPTS, states)))
    models.target(place / "target")
    models.draft(place / "draft")
    shutil.copytree(SLICES, place / "tree")
    (place / "outside").mkdir()
    (place / "outside" / "precious").write_text("precious")
    return place


def line_of(ids: list[int], states) -> str:
    shown = [[float(f"{x:.6g}") for x in states[k][0][:5].tolist()] for k in (1, 3, 5)]
    return (
        f"[EAGLE3-DEBUG] site=draft-input rank=0 step=0 mode=EXTEND shape=[{len(ids)}, 48] dtype=float32 norm=1 "
        f"hs_first5={shown[0]} token={ids[1]} position=0 slots={json.dumps(shown)}\n"
    )


def goldens(rng: random.Random, place: Path) -> Input:
    """Header and metadata of a golden changed, its bytes damaged; shown, or compared with."""
    raw = (place / "golden.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    file, kind = place / "changed.safetensors", rng.randrange(5)
    if kind == 0:
        file.write_bytes(damaged(rng, raw))
    elif kind == 1:
        spoil(rng, header)
    elif kind == 2:
        key = rng.choice(sorted(header["__metadata__"]))
        header["__metadata__"][key] = rng.choice(
            (str(value(rng))[:200_000], json.dumps(value(rng)), rng.choice(hostile.TEXTS))
        )
    elif kind == 3:
        header[rng.choice(sorted(header))] = value(rng)
    else:
        file = place / "golden.json"
        log = {
            "schema": "specwire.golden/1",
            "kind": "log",
            "slots": [[1, 2, 3, 4, 5]],
            "hidden_size": 16,
            "dtype": "float32",
            "concat_shape": [4, 48],
            "trained_boundaries": [1],
            "num_layers": 6,
        }
        spoil(rng, log)
        file.write_text(json.dumps(log))
    if kind in (1, 2, 3):
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    how = rng.choice(
        (
            ("golden", "show", file),
            ("golden", "show", file, "--json"),
            ("check", "--golden", file, "--log", place / "log"),
            ("check", "--golden", file, "--capture", place / "capture"),
        )
    )
    return f"golden {kind} {how[:2]}", command(*how)


def configs(rng: random.Random, place: Path) -> Input:
    """A target's or a draft's config with wrong values."""
    folder = place / "configs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / "target", folder / "target")
    shutil.copytree(place / "draft", folder / "draft")
    role = rng.choice(("target", "draft"))
    file = folder / role / "config.json"
    document = json.loads(file.read_text())
    if rng.random() < 0.2:
        document[rng.choice(("eagle_config", "text_config", "rope_parameters", "quantization_config"))] = value(rng)
    if rng.random() < 0.2:
        document["num_hidden_layers"] = rng.choice((1000, 100_000, 10**8))
    spoil(rng, document)
    file.write_bytes(damaged(rng, file.read_bytes()) if rng.random() < 0.1 else json.dumps(document).encode())
    launch = (
        f"--model-path {folder}/target --speculative-algorithm EAGLE3 --speculative-draft-model-path {folder}/draft"
    )
    return f"config of the {role}", command(
        "preflight",
        "--target",
        folder / "target",
        "--draft",
        folder / "draft",
        "--tree",
        place / "tree",
        "--launch",
        launch,
    )


def logs(rng: random.Random, place: Path) -> Input:
    """A tap's line with other fields, words without end, damaged bytes; answers.json and blind.jsonl of a capture."""
    kind = rng.randrange(5)
    if kind == 4:
        folder = place / "captured"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place / "capture", folder)
        document = json.loads((place / "answers.json").read_text())
        spoil(rng, document)
        (folder / "answers.json").write_text(json.dumps(document))
        (folder / "rank0" / "blind.jsonl").write_text(
            json.dumps(value(rng)) + "\n" + json.dumps({"site": value(rng), "reason": value(rng)})
        )
        return "answers and blind", command("check", "--golden", place / "golden.safetensors", "--capture", folder)
    text = (place / "log").read_text()
    if kind < 3:
        import re

        for _ in range(rng.randrange(1, 3)):
            fields = re.findall(r"(\w+)=(\[\[.*?\]\]|\[.*?\]|\S+)", text)
            name, held = rng.choice(fields)
            new = rng.choice(
                (
                    json.dumps(value(rng)),
                    str(rng.choice(hostile.NUMBERS)),
                    rng.choice(hostile.TEXTS),
                    "[" * rng.choice((1, 1000, 100_000)),
                    "[1e999, -1e999, nan, inf, 0]",
                    f"[4, {rng.choice((1, 48, 47, 96, 16 << 10, 1 << 20, 1 << 40))}]",
                )
            )
            text = text.replace(f"{name}={held}", f"{name}={new}", 1)
        text += rng.choice(("", "x" * 100_000, " a=[" * 10_000))
    data = text.encode("utf-8", "replace")
    (place / "changed.log").write_bytes(damaged(rng, data) if kind == 3 else data)
    return f"log {kind}", command("check", "--golden", place / "golden.safetensors", "--log", place / "changed.log")


WORDS = (
    "--tp",
    "8",
    "--speculative-algorithm",
    "EAGLE3",
    "EAGLE",
    "--model-path",
    "x",
    "--page-size=1",
    "--json-model-override-args",
    "'{\"a\": [1]}'",
    "--config",
    "c.yaml",
    "$A",
    '"$A$A"',
    "${A:-x}",
    "$(id)",
    "`id`",
    "'",
    '"',
    "\\",
    "\n",
    ";",
    "&&",
    "|",
    ">",
    "<",
    "<<EOF",
    "#",
    "A=1",
    "export A=2",
    "for",
    "in",
    "do",
    "done",
    "{1..9}",
    "{a,b}",
    "*",
    "~",
    "\0",
    "\u202e",
    "é",
    "--",
    "-",
    "exec",
    "env",
    "docker run",
    "if",
    "then",
    "fi",
    "()",
    "{",
    "}",
)


def launches(rng: random.Random, place: Path) -> Input:
    """A script of words that mean something to a shell, variables that grow, words without end."""
    words = [
        rng.choice(WORDS) if rng.random() < 0.9 else str(value(rng))[:2000] for _ in range(rng.choice((3, 10, 40)))
    ]
    text = "python -m sglang.launch_server " * (rng.random() < 0.8) + " ".join(words)
    if rng.random() < 0.15:
        text = "A=aaaaaaaaaa\n" + rng.choice(('A="$A$A"\n', "A=$A$A\n", 'A="${A}x${A}"\n')) * 60 + text + " $A"
    if rng.random() < 0.05:
        text += rng.choice((" --x", " x", ' "a"', " \\\n", " {a,b}")) * rng.choice((1000, 100_000))
    (place / "run.sh").write_text(text, "utf-8", "surrogatepass")
    (place / "c.yaml").write_text(str(value(rng))[:10_000].encode("utf-8", "replace").decode())
    return "launch", command(
        "preflight",
        "--target",
        place / "target",
        "--draft",
        place / "draft",
        "--tree",
        place / "tree",
        "--launch-file",
        place / "run.sh",
    )


def answers(rng: random.Random) -> bytes | Callable:
    """What a server may send for a request."""
    kind = rng.randrange(8)
    if kind == 0:
        return damaged(rng, events(spec_verify_ct=1, spec_accept_histogram=[0, 1]))
    if kind == 1:
        return HEAD + b"".join(event(json.dumps(value(rng)).encode()) for _ in range(rng.randrange(1, 5)))
    if kind == 2:
        fields = {
            "output_ids": [1, 2, 3, 4],
            "text": "abcd",
            "meta_info": {
                "completion_tokens": 4,
                "spec_verify_ct": 1,
                "spec_accept_histogram": [0, 1],
                "finish_reason": {"type": "length"},
            },
        }
        spoil(rng, fields)
        return HEAD + event(json.dumps(fields).encode())
    if kind == 3:
        return body(json.dumps(value(rng)).encode()[:100_000], rng.choice((200, 204, 400, 500, 503)))
    if kind == 4:
        header = rng.choice((b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"X"))
        return (
            b"HTTP/1.1 200 OK\r\n"
            + header
            + b": "
            + rng.choice((b"abc", b"-1", b"chunked", b"gzip", b"9" * 400, b"", b"x" * 100_000))
            + b"\r\n\r\n"
            + events()[len(HEAD) :]
        )
    if kind == 5:
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + damaged(
            rng, b"5\r\ndata:\r\n1\r\n\n\r\n0\r\n\r\n"
        )
    if kind == 6:
        return repeated(
            rng.choice((b"a" * 65536, b"\n" * 65536, b": x\n", event(meta_info={"completion_tokens": 1}))),
            times=rng.choice((1, 100, 10_000)),
        )
    return rng.choice((b"", bytes(rng.randrange(256) for _ in range(rng.randrange(200))), HEAD))


def servers(rng: random.Random, place: Path) -> Input:
    """A server that sends what it should not, somewhere."""
    lies = {
        path: answers(rng)
        for path in rng.sample(
            ("/generate", "/server_info", "/get_server_info", "/flush_cache", "/health"), rng.choice((1, 1, 2))
        )
    }

    def work() -> int:
        from specwire.bench import server
        from specwire.bench.client import Load, LoadPrompt
        from specwire.bench.points import Patience, Setting, Workload, measure

        server.INFO_SECONDS = server.HEALTH_SECONDS = 1.0
        prompts = (LoadPrompt((3, 4, 5), 4),)
        load = Workload(
            prompts=prompts,
            warm_up=prompts,
            loads=((Load("closed", 1), 1),),
            repeats=1,
            seed=0,
            patience=Patience(silent_request=1.0),
        )
        with LyingServer(lies) as lying:
            found = measure(None, Setting("lying", url=lying.url), load, place / "point", lambda text: None)
        json.dumps(found, allow_nan=False)
        assert found["state"] == "ok" or len(found["error"]["why"]) < 1000
        assert found["state"] == "ok" or found["error"]["stage"] != "preparation", found["error"]
        return 0

    return f"server {sorted(lies)}", work


ATOMS = (
    "0",
    "1",
    "-1",
    "3",
    "ids",
    "self",
    "self.config",
    "self.model",
    "None",
    "True",
    "'a'",
    "''",
    "[]",
    "{}",
    "()",
    "[0] * 9999",
    "'x' * 9999",
    "range(99999)",
    "9 * 10",
    "a",
    "b",
    "c",
    "torch",
    "nobody",
    "self.config.num_hidden_layers",
    "self.model.layers",
    "lambda x: x",
    "f",
    "range(10 ** 3)",
    "re.sub('(a+)+$', '', 'a' * 40)",
)
SHAPES = (
    "[{0}, {1}]",
    "({0}, {1})",
    "{{{0}: {1}}}",
    "{0} + {1}",
    "{0} * {1}",
    "{0} % {1}",
    "{0} // {1}",
    "{0} - {1}",
    "{0} == {1}",
    "{0} in {1}",
    "{0} is {1}",
    "{0} < {1}",
    "{0} and {1}",
    "{0} or not {1}",
    "{0}[{1}]",
    "{0}[{1}:]",
    "{0}[::{1}]",
    "str({0})",
    "list({0})",
    "sorted({0})",
    "sum({0}, {1})",
    "max({0})",
    "dict({0})",
    "set({0})",
    "len({0})",
    "int({0})",
    "zip({0}, {1})",
    "enumerate({0})",
    "isinstance({0}, {1})",
    "getattr({0}, {1})",
    "hasattr({0}, 'x')",
    "({0}).replace({1}, {0})",
    "({0}).join({1})",
    "({0}).format({1})",
    "({0}).append({1})",
    "({0}).extend({1})",
    "({0}).get({1})",
    "({0}).update({1})",
    "({0}).x",
    "({0}).layers",
    "f'{{{0}}}{{{1}}}'",
    "[x for x in {0} if {1}]",
    "{{x: {1} for x in {0}}}",
    "({0} if {1} else {0})",
    "f({0}, {1})",
    "({0})(*{1})",
    "-{0}",
    "[*{0}, *{1}]",
    "(z := {0})",
)
STATEMENTS = (
    "a = {0}",
    "b = {0}",
    "c = {0}",
    "a, b = {0}",
    "a += {0}",
    "self.layers = {0}",
    "self.model.layers_to_capture = {0}",
    "self.x = {0}",
    "a[{0}] = {0}",
    "if {0}:\n    a = {0}\nelse:\n    b = {0}",
    "for i in {0}:\n    a = {0}",
    "for i in range(999):\n    a = {0}\n    b = [a, b]",
    "def f(x={0}, *y, **z):\n    return {0}",
    "try:\n    a = {0}\nexcept Exception:\n    b = {0}",
    "raise ValueError({0})",
    "return {0}",
    "with {0}:\n    a = {0}",
    "{0}",
    "aux = []\naux.append({0})",
)


def expression(rng: random.Random, depth: int = 0) -> str:
    if depth > 3 or rng.random() < 0.4:
        return rng.choice(ATOMS)
    return rng.choice(SHAPES).format(expression(rng, depth + 1), expression(rng, depth + 1))


def rules(rng: random.Random, place: Path) -> Input:
    """Statements of any kind at the begin of a setter, some of them over and over."""
    import ast
    import textwrap

    lines: list[str] = []
    while len(lines) < rng.choice((2, 6, 20)):
        template = rng.choice(STATEMENTS)
        statement = (
            template.replace("{0}", "@").replace("@", expression(rng))
            if rng.random() < 0.5
            else template.format(expression(rng))
        )
        try:
            ast.parse(f"def f():\n{textwrap.indent(statement, ' ')}")
        except (SyntaxError, ValueError):
            continue
        lines += [statement] * (rng.choice((1, 1, 40)) if "\n" not in statement else 1)
    tree = place / "rules"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(place / "tree", tree)
    name = rng.choice(("def set_eagle3_layers_to_capture(self, ids=None):\n",))
    file = tree / "sglang" / "srt" / "models" / "llama.py"
    text = file.read_text().replace(name, name + textwrap.indent("\n".join(lines), " " * 8) + "\n")
    file.write_bytes(damaged(rng, text.encode()) if rng.random() < 0.05 else text.encode())
    return "rule: " + " ; ".join(lines)[:600], command(
        "preflight", "--target", place / "target", "--draft", place / "draft", "--tree", tree, "--json"
    )


ODD_LINES = (
    b"if _specwire.on: _specwire.embedding(self, hidden_states)  # specwire:embedding-capture 0123456789ab\n",
    b"import _specwire  # specwire:import\n",
    b"# specwire:\n",
    b"x = " + b"+".join([b"1"] * 900) + b"\n",
    b"x = " + b"-" * 5000 + b"1\n",
    b"x = " + b"(" * 300 + b"\n",
    b"    print('[EAGLE3-DEBUG]', hidden_states)\n",
    b"EAGLE3_DEBUG = False\n",
    b"    if EAGLE3_DEBUG:\n        breakpoint()\n",
    b"import os; os.system('touch precious')\n",
    b"def f(x=f()):\n    return f\n",
    b"class A(A):\n    A = A\n",
    b"\xef\xbb\xbf# -*- coding: rot13 -*-\n",
    b"# -*- coding: utf-16 -*-\n",
    b"\x0c\x00\xff\r\r\n\xe2\x80\xa8\n",
    b"match x:\n    case {'a': [*_]}: pass\n",
    b"'''\n",
    b"async def g(): return [await x async for x in y if (z := 1)]\n",
    b"type X[T] = list[T]\n",
    b"x = f'{x!r:{y}}'\n",
    b"self.layers_to_capture = []\n",
    b"#" * 200_000 + b"\n",
    b"x = 1\n" * 20_000,
)
JOURNAL = {
    "schema": "specwire.journal/1",
    "token": "abcd",
    "replace_links": False,
    "files": [{"name": "sglang/srt/models/llama.py", "before": None, "after": "0" * 64}],
}
JOURNALS = (".specwire-journal.json", ".specwire-journal.done", ".specwire-journal.draft")
APPLY = (("apply",), ("apply", "--probe", "hidden-state-dump"), ("apply", "--group", "debug"))
COMMANDS = (
    *APPLY,
    ("apply", "--dry-run"),
    ("apply", "--diff"),
    ("status",),
    ("remove",),
    ("remove", "--force"),
    ("strip",),
    ("strip", "--diff"),
    ("gate",),
    ("gate", "--format", "github"),
    ("gate", "--pristine"),
    ("probes", "--coverage"),
)
NAMES = ("odd.py", "llama.py", "_specwire.py", "\x1b]0;x\x07.py", "caf\xe9\u202e.py", "a b.py", "x" * 250 + ".py")


def odd_file(rng: random.Random, place: Path, tree: Path) -> str:
    """Put something into the tree that is no module, or none that anybody has written; says what."""
    kind, name = rng.randrange(10), rng.choice(NAMES)
    if kind == 9:
        return odd_journal(rng, place, tree)
    at = tree / "sglang" / "srt" / rng.choice(("models", "models", "layers", ".")) / name
    at.parent.mkdir(exist_ok=True)
    if at.is_dir():
        return "nothing"
    at.unlink(missing_ok=True)
    if kind == 0:
        os.mkfifo(at)
    elif kind == 1:
        to = (place / "outside" / "precious", at, "/dev/zero", "/proc/self/mem", "/nowhere", "..", place / "outside")
        at.symlink_to(rng.choice(to))
    elif kind == 2:
        at.mkdir()
    elif kind == 3:
        with open(at, "wb") as file:
            file.truncate(rng.choice((0, 1 << 20, 9 << 20, 1 << 34)))
    elif kind == 4:
        at.write_bytes(rng.randbytes(rng.choice((0, 1, 100, 10_000))))
    else:
        at.write_bytes(b"".join(rng.choices(ODD_LINES, k=rng.randrange(1, 6))))
    return f"{kind} as {name[:20]!r}"


def odd_journal(rng: random.Random, place: Path, tree: Path) -> str:
    """The journal of a change that was cut off, spoilt; or one that would have a file outside deleted."""
    document = json.loads(json.dumps(JOURNAL))
    spoil(rng, document)
    innocent = tree / "sglang" / "innocent.py"
    if rng.random() < 0.5 and not innocent.is_symlink():
        innocent.symlink_to(place / "outside" / "precious")
        digest = hashlib.sha256(b"precious").hexdigest()
        document = {**JOURNAL, "files": [{"name": "innocent.py", "before": None, "after": digest}]}
    (tree / "sglang" / rng.choice(JOURNALS)).write_text(json.dumps(document))
    return "a journal"


def odd_line(rng: random.Random, file: Path) -> str:
    lines = file.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines) + 1)
    new = [*lines[:at], rng.choice(ODD_LINES), *lines[at + rng.randrange(3) :]]
    file.write_bytes(damaged(rng, b"".join(lines)) if rng.random() < 0.3 else b"".join(new))
    return f"line {at} of {file.name}"


def trees(rng: random.Random, place: Path) -> Input:
    """A tree of odd files and lines, which leads out of itself or has a journal: tapped, cleaned, looked at.

    Removing gives back what was there, and what is refused has written nothing.
    """
    tree = place / "trees"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(place / "tree", tree)
    files = sorted((tree / "sglang").rglob("*.py"))
    done = [odd_line(rng, file) for file in rng.sample(files, rng.randrange(3))]
    done += [odd_file(rng, place, tree) for _ in range(rng.randrange(3))]
    first, *more = (rng.choice(APPLY) if rng.random() < 0.5 else rng.choice(COMMANDS), rng.choice(COMMANDS))

    def run(words: tuple[str, ...]) -> int:
        from specwire.cli import main

        try:
            main([*words, str(tree)])
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def work() -> int:
        run(("status",))  # which puts right what a journal tells of
        was = held_by(tree)
        code = run(first)
        if first in APPLY and code in (0, 3):
            assert run(("remove",)) == 0, "what was applied cannot be removed"
            assert held_by(tree) == was, "removing does not give back what was there"
        elif code == 2:
            assert held_by(tree) == was, "refused, and yet something was written"
        return max(code, *map(run, more))

    return f"tree with {done}: {first} {more}", work


def held_by(tree: Path) -> dict[str, bytes]:
    """What the files of a tree hold; too large ones are too large for everybody."""
    found = (path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in found if path.stat().st_size < 1 << 22}


WARM = (
    "specwire.cli.check",
    "specwire.cli.golden",
    "specwire.cli.preflight",
    "specwire.bench.points",
    "specwire.diagnosis.log_check",
    "specwire.diagnosis.self_check",
    "specwire.diagnosis.html",
    "specwire.goldens.show",
    "specwire.preflight.verdict",
    "specwire.preflight.render",
    "specwire.cli.apply",
    "specwire.cli.gate",
    "specwire.cli.strip",
    "specwire.patching.surgery",
    "specwire.strip.plan",
)
GROUPS = {each.__name__: each for each in (goldens, configs, logs, launches, servers, rules, trees)}


def inputs(group: str, place: Path) -> Iterator[tuple[int, Input]]:
    for number in range(COUNT):
        yield number, GROUPS[group](random.Random(f"{SEED} {group} {number}"), place)


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_ends_in_a_traceback_or_takes_too_much(group, place, monkeypatch):
    monkeypatch.chdir(place / "outside")
    before = hostile.fingerprint(place / "outside")
    wrong = []
    for number, (what, work) in inputs(group, place):
        if found := wrong_with(work):
            wrong.append(f"{group} {number} ({what}): {'; '.join(found)}")
    assert hostile.fingerprint(place / "outside") == before
    assert not wrong, f"{len(wrong)} of {COUNT}:\n" + "\n".join(wrong[:20])


def test_the_judge_sees_what_is_wrong():
    """A crash, a wrong code, a flood and too much memory are seen; a command that is refused is not one of them."""

    def grow() -> int:
        held = bytearray((hostile.MEGABYTES + 200) << 20)
        for at in range(0, len(held), 4096):
            held[at] = 1
        return 0

    assert "ZeroDivisionError" in wrong_with(lambda: 1 // 0)[0]
    assert "exit code 7" in wrong_with(lambda: 7)[0]
    assert wrong_with(lambda: (print("x" * 30_000), 2)[1]) == ["30,001 characters"]
    assert wrong_with(lambda: 2) == ["no word of why"]
    assert wrong_with(grow)[-1].endswith("MB")
    assert wrong_with(command("golden", "show", "/nowhere")) == []
