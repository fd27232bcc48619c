"""Small changes to specwire's own core, each of which a quick test should notice.

    python tests/run_mutation.py [--count 200] [--seed 0] [--jobs 1] [--floor 90] [--again] [PATH...]

Which test reaches which line is recorded once, in a copy of the tree, which takes as long as the quick tests under
coverage. Then every mutant, drawn by seed from the lines that tests reach, meets the tests that reach its line,
the fastest first, until one fails. The work tree is never touched; a stopped run goes on where it was. `--again`
takes the survivors of the seed once more, with the tests as they are now; `--record` renews the recording.

Exit code 1 when fewer than `--floor` percent were killed. A survivor is a hole in the tests, or changes nothing
that anyone can see: only reading tells.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import itertools
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "mutation"
QUICK = "not engine and not release and not slow"
CORE = ("src/specwire", "checks", "codemods")
# Words for people, and what only an engine runs.
OUTSIDE = (
    "src/specwire/cli/",
    "src/specwire/engine/",
    "src/specwire/report/",
    "src/specwire/__",
    "src/specwire/codemod.py",
)
HEAVY = ("pytest", "torch", "numpy", "hypothesis", "libcst", "click", "safetensors.torch", "yaml", "jsonschema")

SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "startswith": "endswith", "sorted": "list"}


@dataclass(frozen=True)
class Mutant:
    """Bytes `start` to `end` of `file` become `new`; `line` is that of the statement, which tests reach."""

    file: str
    line: int
    start: int
    end: int
    new: str


NONE = Mutant("README.md", 0, 0, 0, "")


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """All changes of one file, in the order of its syntax tree; sentences, annotations and cases stay."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def made(line: int, node: ast.AST, *texts: str) -> Iterator[Mutant]:
        for text in texts:
            if source[slice(*span(node))].decode() != text:
                yield Mutant(file, line, *span(node), text)

    def between(line: int, left: ast.AST, right: ast.AST, new: str) -> Iterator[Mutant]:
        start, end = span(left)[1], span(right)[0]
        found = re.fullmatch(rb"([\s)]*)([-+*/%<>=!]+|is\s+not|not\s+in|is|in|and|or)([\s(]*)", source[start:end])
        if found:
            yield Mutant(file, line, start + found.start(2), start + found.end(2), new)

    def walk(node: ast.AST, line: int) -> Iterator[Mutant]:
        line = node.lineno if isinstance(node, ast.stmt) else line
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPS:
                yield from between(line, left, right, SWAPS[type(op)])
            case ast.BoolOp(op=op, values=values):
                for left, right in zip(values, values[1:]):
                    yield from between(line, left, right, SWAPS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS and not _text(left) and not _text(right):
                yield from between(line, left, right, SWAPS[type(op)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield Mutant(file, line, span(node)[0], span(operand)[0], "")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield from made(line, test, "True", "False")
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from made(line, test, "True")
            case ast.While(test=test):
                yield from made(line, test, "False")
            case ast.Constant(value=bool(value)):
                yield from made(line, node, str(not value))
            case ast.Constant(value=int(value)):
                yield from made(line, node, str(value + 1))
            case ast.Constant(value=float(value)):
                yield from made(line, node, repr(value * 2))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield from made(line, value, "None")
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
                yield from made(line, node, "pass")
            case ast.Continue() | ast.Break():
                yield from made(line, node, "break" if isinstance(node, ast.Continue) else "continue")
            case ast.Call(func=ast.Name(id=name) as called) if name in NAMES:
                yield from made(line, called, NAMES[name])
            case ast.Call(func=ast.Attribute(attr=name) as called) if name in NAMES:
                yield Mutant(file, line, span(called)[1] - len(name), span(called)[1], NAMES[name])
        for field, inner in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list") or (isinstance(node, ast.Raise) and field == "exc"):
                continue
            for each in inner if isinstance(inner, list) else [inner]:
                if isinstance(each, ast.AST) and not isinstance(each, ast.JoinedStr) and not _cases(each):
                    yield from walk(each, line)

    yield from walk(ast.parse(source), 1)


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _cases(node: ast.AST) -> bool:
    """Whether this is a catalogue file's own test data."""
    names = {each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)}
    return bool(names & {"CAUGHT", "CLEAN", "CASES", "__all__"}) or getattr(node, "arg", None) == "cases"


class Recorder:
    """A pytest plugin: a coverage context for each test, and how long each that passed took."""

    def __init__(self, path: str) -> None:
        self.path, self.seconds = path, defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import coverage

        if measured := coverage.Coverage.current():
            measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] += report.duration if report.outcome != "failed" else float("inf")

    def pytest_sessionfinish(self) -> None:
        import coverage

        if "PYTEST_XDIST_WORKER" in os.environ and (measured := coverage.Coverage.current()):
            measured.stop()  # a worker ends without any of the ends that coverage waits for
            measured.save()
        else:
            Path(self.path).write_text(json.dumps(self.seconds))


def pytest_configure(config) -> None:
    """Register the recorder: this file is a plugin while recording."""
    if path := os.environ.get("MUTATION_SECONDS"):
        config.pluginmanager.register(Recorder(path))


def copy_tree(source: Path, tree: Path) -> None:
    """Make `tree` what `source` is now, with an environment of its own in which specwire is that copy."""
    names = _names(source)
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if not (tree / name).exists() or (tree / name).read_bytes() != (source / name).read_bytes():
            shutil.copy(source / name, tree / name)
    for path in tree.glob("*/**/*.py"):
        if path.relative_to(tree).as_posix() not in names and ".venv" not in path.parts:
            path.unlink()
    if (tree / ".venv").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    ours = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    (own,) = (tree / ".venv" / "lib").glob("python3*/site-packages")
    # As plain lines of a .pth: their packages are found, but not their own editable installs.
    measure = 'import os; os.environ.get("COVERAGE_PROCESS_CONFIG") and __import__("coverage").process_startup()'
    (own / "outer.pth").write_text("".join(f"{path}\n" for path in [*ours, measure]))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(tree / ".venv/bin/python"), "install", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--no-index", "-e", tree], check=True)


def _names(source: Path) -> set[str]:
    """The project's files, by name: what git lists and does not ignore."""
    if source != ROOT:
        folders = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
        return {name.as_posix() for name in folders if not {".venv", ".cache", "__pycache__"} & set(name.parts)}
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def record(tree: Path, into: Path, jobs: int) -> None:
    """Write which tests reach which lines, and what each takes, by running the quick tests under coverage."""
    data, seconds = into.parent / "coverage", into.parent / "seconds.json"
    for old in into.parent.glob("coverage*"):
        old.unlink()
    settings = into.parent / "rc.coveragerc"
    settings.write_text(
        f"[run]\ndata_file = {data}\nparallel = True\npatch = subprocess\ncontext = ${{PYTEST_CURRENT_TEST-}}\n"
        f"source = {', '.join(str(tree / folder) for folder in CORE)}\ndisable_warnings = no-data-collected\n"
    )
    command = [tree / ".venv/bin/python", "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
    command += [
        "-n",
        str(jobs),
        "--dist",
        "worksteal",
        "-m",
        QUICK,
        "-p",
        "run_mutation",
        "-p",
        "no:cacheprovider",
    ]
    env = _env(tree) | {"MUTATION_SECONDS": str(seconds), "PYTHONPATH": str(tree / "tests")}
    subprocess.run(command, cwd=tree, env=env)
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"], check=True, cwd=tree)
    import coverage

    took = {test: spent for test, spent in json.loads(seconds.read_text()).items() if spent != float("inf")}
    measured, lines = coverage.CoverageData(str(data)), {}
    measured.read()
    for path in measured.measured_files():
        name, own = Path(path).relative_to(tree).as_posix(), defaultdict(list)
        for line, contexts in measured.contexts_by_lineno(path).items():
            tests = {context.rsplit("|", 1)[-1].split(" (")[0] for context in contexts}
            own[line] = sorted(tests & took.keys(), key=took.get)
        lines[name] = own
    files = {name: _digest(tree / name) for name in {*lines, *(test.split("::")[0] for test in took)}}
    into.write_text(json.dumps({"files": files, "seconds": took, "lines": lines}))


def _env(tree: Path) -> dict[str, str]:
    return os.environ | {"PATH": f"{tree / '.venv/bin'}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def drawn(tree: Path, recorded: dict, count: int, seed: int, under: tuple[str, ...]) -> list[Mutant]:
    """`count` mutants that compile, by seed, of the lines that a test reaches."""
    found = []
    for file, lines in sorted(recorded["lines"].items()):
        if file.startswith(under) and not file.startswith(OUTSIDE):
            found += [each for each in mutants(file, (tree / file).read_bytes()) if str(each.line) in lines]
    print(f"{len(found)} mutants of {len({each.file for each in found})} files can be drawn", file=sys.stderr)
    random.Random(seed).shuffle(found)
    return list(itertools.islice((each for each in found if _compiles(_changed(tree, each))), count))


def _changed(tree: Path, mutant: Mutant) -> bytes:
    source = (tree / mutant.file).read_bytes()
    return source[: mutant.start] + mutant.new.encode() + source[mutant.end :]


def _compiles(source: bytes) -> bool:
    try:
        return bool(compile(source, "mutant", "exec"))
    except (SyntaxError, ValueError):
        return False


def tests_for(recorded: dict, mutant: Mutant, new: Collection[str] = ()) -> list[str]:
    """Test ids, the fastest first; of test files that are `new` since the recording all, before the others."""
    lines = recorded["lines"][mutant.file]
    tests = lines[str(mutant.line)]
    if not tests:  # run at import: any test of the file may notice
        tests = sorted({test for each in lines.values() for test in each}, key=recorded["seconds"].get)
    return [*sorted(new), *(test for test in tests if test.split("::")[0] not in new)]


def moved(mutant: Mutant, before: Path, now: Path) -> Mutant | None:
    """The same change in the file as it is now; None where its lines are no longer there, or there twice."""
    old, new = (before / mutant.file).read_bytes(), (now / mutant.file).read_bytes()
    start, end = old.rfind(b"\n", 0, mutant.start) + 1, old.find(b"\n", mutant.end)
    if new.count(old[start:end]) != 1:
        return None if old != new else mutant
    return replace(mutant, start=mutant.start + (by := new.index(old[start:end]) - start), end=mutant.end + by)


def serve() -> None:
    """Try mutants one by one, in children of a process that holds the heavy imports: JSON lines in, JSON lines out."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            __import__(name)
    out, tree = os.fdopen(os.dup(1), "w"), Path.cwd()
    for line in sys.stdin:
        task = json.loads(line)
        mutant, path = Mutant(**task["mutant"]), tree / task["mutant"]["file"]
        before, begun = path.read_bytes(), time.monotonic()
        path.write_bytes(_changed(tree, mutant))
        try:
            code, text = _tried(task["tests"], task["limit"])
        finally:
            path.write_bytes(before)
        by = re.search(r"^(?:FAILED|ERROR) (\S.*)", text, re.M)
        outcome = {0: "survived", 1: "killed", 2: "killed", 3: "killed", 4: "killed"}.get(
            code, "timeout" if code < 0 else "error"
        )
        said = {
            "outcome": outcome,
            "by": by[1][:200] if by else text[-200:],
            "seconds": round(time.monotonic() - begun, 1),
        }
        print(json.dumps(task["mutant"] | said), file=out, flush=True)


def _tried(tests: list[str], limit: float) -> tuple[int, str]:
    """pytest's exit code (negative: stopped by its limits) and output, of a child."""
    words, output = Path(".mutation-tests").resolve(), Path(".mutation-output").resolve()
    words.write_text("\n".join(tests))
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        import pytest

        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", QUICK, f"@{words}"]
        code = 3
        with contextlib.suppress(BaseException):
            code = int(pytest.main(options))
        sys.stdout.flush()
        os._exit(code)
    waited = 0.0
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.1)
        waited += 0.1
        if waited > 20 * limit:
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests left behind
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.read_text(errors="replace")


@contextlib.contextmanager
def served(tree: Path, recorded: dict) -> Iterator[Callable[[Mutant | None, Sequence[str]], dict]]:
    """Gives a function that tries one mutant, or none, in this tree with these tests, and returns what came of it."""
    server = subprocess.Popen(
        [tree / ".venv/bin/python", tree / "tests/run_mutation.py", "--serve"],
        cwd=tree, env=_env(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def tried(mutant: Mutant | None, tests: Sequence[str]) -> dict:
        limit = 60 + 5 * sum(recorded["seconds"].get(test, 20) for test in tests)
        task = {"mutant": asdict(mutant or NONE), "tests": tests, "limit": limit}
        print(json.dumps(task), file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())

    with server:
        yield tried


def work(tree: Path, recorded: dict, todo: queue.SimpleQueue, results: Path, new: Collection[str]) -> None:
    """Try what is to do, and write each answer down at once."""
    with served(tree, recorded) as tried:
        with contextlib.suppress(queue.Empty):
            while True:
                mutant, here = todo.get_nowait()
                result = tried(here, tests_for(recorded, mutant, new)) | asdict(mutant)
                with results.open("a") as file:
                    print(json.dumps(result), file=file)
                print(line(result), flush=True)
                if result["outcome"] == "survived":
                    print(diff(tree, here), flush=True)


def line(result: dict) -> str:
    """A result in one line."""
    return f"{result['outcome']:8}  {result['seconds']:6.1f} s  {result['file']}:{result['line']}  {result['by'][:90].strip()!r}"


def diff(tree: Path, mutant: Mutant) -> str:
    """The change as a patch of three lines or so."""
    pair = [(tree / mutant.file).read_text(), _changed(tree, mutant).decode()]
    return "\n".join(
        difflib.unified_diff(*(text.splitlines() for text in pair), mutant.file, mutant.file, "", "", 2, "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a copy of the tree")
    parser.add_argument("--floor", type=float, default=90, help="percent that must be killed")
    parser.add_argument("under", nargs="*", metavar="PATH", default=[""], help="only files whose names begin so")
    parser.add_argument(
        "--again", action="store_true", help="try the seed's survivors again, with the tests as they are"
    )
    parser.add_argument("--record", action="store_true", help="record anew which tests reach which lines")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    first, recording = FOLDER / "tree0", FOLDER / "recorded.json"
    if options.record or not recording.exists():
        copy_tree(ROOT, first)
        record(first, recording, os.cpu_count() or 1)
    recorded = json.loads(recording.read_text())
    trees = [FOLDER / f"{'now' if options.again else 'tree'}{number}" for number in range(1, options.jobs + 1)]
    for tree in trees:
        copy_tree(ROOT if options.again else first, tree)
    results = FOLDER / f"seed-{options.seed}.jsonl"
    known, new = _read(results), set()
    chosen = drawn(first, recorded, options.count, options.seed, tuple(options.under))
    pairs = [(mutant, mutant) for mutant in chosen if mutant not in known]
    if options.again:
        chosen = [mutant for mutant in chosen if known.get(mutant, {}).get("outcome") == "survived"]
        pairs = [(mutant, here) for mutant in chosen if (here := moved(mutant, first, trees[0]))]
        new = {path.relative_to(trees[0]).as_posix() for path in (trees[0] / "tests").rglob("test_*.py")}
        new = {name for name in new if recorded["files"].get(name) != _digest(trees[0] / name)}
        with served(trees[0], recorded) as tried:
            for name in sorted(new):
                if tried(None, [name])["outcome"] != "survived":
                    print(f"{name} does not pass without a mutant, and is left out")
                    new.remove(name)
    todo = queue.SimpleQueue()
    for pair in pairs:
        todo.put(pair)
    threads = [threading.Thread(target=work, args=(tree, recorded, todo, results, new)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = _read(results)
    outcomes = [known[mutant]["outcome"] for mutant in chosen if mutant in known]
    killed = sum(outcome in ("killed", "timeout") for outcome in outcomes)
    print(f"seed {options.seed}: {killed} of {len(outcomes)} killed, {100 * killed / max(1, len(outcomes)):.1f} %")
    return int(not outcomes or 100 * killed < options.floor * len(outcomes))


def _read(results: Path) -> dict[Mutant, dict]:
    """What is known of each mutant; the last word counts."""
    rows = [json.loads(row) for row in results.read_text().splitlines()] if results.exists() else []
    return {Mutant(**{key: row[key] for key in ("file", "line", "start", "end", "new")}): row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
