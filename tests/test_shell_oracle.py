"""Scripts read as bash runs them: bash itself is asked, with an engine that only says which words it was given.

`SPECWIRE_EXAMPLES=5000 pytest tests/test_shell_oracle.py` runs that many scripts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from specwire.errors import SpecwireError
from specwire.preflight.launch import in_file
from specwire.preflight.shell import is_open, shown

EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", "60"))
BASH = shutil.which("bash")
ENGINE = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$SAID"
printf '\\1' >> "$SAID"
"""
STARTER = '#!/bin/bash\nwhile [ $# -gt 0 ]; do case "$1" in python3|sglang|bash) exec "$@";; esac; shift; done\n'

OPTIONS = (
    ("--model-path", "m"), ("--tp", "2"), ("--speculative-algorithm", "EAGLE3"), ("--served-model-name", "my model"),
    ("--json-model-override-args", '{"a": 1}'), ("--trust-remote-code",),
)  # fmt: skip
NAMES = ("A", "B", "MODEL", "TP", "ARGS", "EXTRA")
PLAIN = ("m", "2", "/m/t", "a b", "$A", "x${B}", "$TP", "${MODEL}", '{"k": 1}')
ODD = (
    "${B:-5}", "${TP:=7}", "--tp 2", "$(echo 3)", "`echo 4`", "$((1+2))", "~/m", "*.zzz", "a#b", "${A%/*}", "${#A}",
    "${A:+z}", "", "$1", "$UNSET", "a;b", "a&b", "$$", "a=b", "[x]", "!", "a'b", "${ARR[0]}", "${ARR[*]}", "<m>", "${A-}",
)  # fmt: skip
CONDITIONS = ('[ -n "$A" ]', "[[ $A == m ]]", '[ "${TP:-1}" -gt 1 ]', "true", "false", "(( 1 > 0 ))")
ASIDE = (
    "set -eo pipefail", "cd /tmp", 'echo "of $MODEL"', "# python3 -m sglang.launch_server \\", "unset B", "A=1 B=2",
    'trap "echo bye" EXIT', "echo hi > /dev/null 2>&1", "true; false || true", "declare -a OTHER", "TS=$(date +%s)",
    "cat > f.yaml <<EOF\nmodel-path: $MODEL\nit's\nEOF", "cat <<-'END' | cat >&2\n\tit's $A\n\tEND",
)  # fmt: skip
COMMANDS = (
    "python3 -m sglang.launch_server", "sglang serve", "$PY -m sglang.launch_server", "exec python3 -m sglang.launch_server",
    "nohup python3 -m sglang.launch_server", "CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server",
    "env X=1 python3 -m sglang.launch_server", "srun -n 1 python3 -m sglang.launch_server",
)  # fmt: skip
SPREAD = ('"${ARR[@]}"', "$ARGS", '"$@"', "${ARR[@]}", "$EXTRA", '"${ARR[*]}"', "${UNSET:+--tp 2}", "${ARR[@]:0:1}")
TAILS = (
    "", " > log 2>&1 &\nwait", " 2>&1 | tee log", " &\nPID=$!\nwait $PID", " || exit 1", "; echo done", " # the server",
    " >log", " &>> log", " < /dev/null",
)  # fmt: skip


class Person(Random):
    """Half of them write nothing that only a running shell can know."""

    @property
    def plain(self) -> bool:
        return self.random() < self.soberness

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.soberness = (0.6, 1.0)[seed % 2]


def word(some: Person) -> str:
    """A value in quotes of one kind or none, as a person would have to write it."""
    value = some.choice(
        (PLAIN[:-1] if some.soberness < 1 else ("m", "2", "/m/t", "a b", '{"k": 1}')) if some.plain else ODD
    )
    way = some.random()
    if way < 0.2:
        return shlex.quote(value)
    if way < 0.25:
        return some.choice(("$'x y'", "$'a\\tb'", "$'it\\'s'"))
    bare = not set(" ;&\"'<>{}[]()*!`") & set(value) or value.startswith(("$(", "${"))
    return value if way > 0.6 and bare and value else '"' + value.replace('"', '\\"') + '"'


def option(some: Person) -> str:
    name, *values = some.choice(OPTIONS)
    if not values:
        return name
    return name + some.choice(" =") + (shlex.quote(values[0]) if some.random() < 0.5 else word(some))


def setting(some: Person) -> str:
    name = some.choice(NAMES)
    return some.choice(
        (
            f"{name}={word(some)}",
            f"export {name}={word(some)}",
            f": ${{{name}:={some.choice(('x', '5', 'a b'))}}}",
            f'{name}="${{{name}:-{some.choice(("x", "$A", "5"))}}}"',
            f"{name}+={word(some)}",
            'ARGS="' + " ".join(" ".join(one) for one in some.sample(OPTIONS[:3], some.randint(0, 2))) + '"',
            'ARGS="$ARGS ' + " ".join(some.choice(OPTIONS[:3])) + '"',
        )
    )


def statement(some: Person, depth: int = 0) -> str:
    items = [option(some) for _ in range(some.randint(0, 3))]
    made: list[Callable[[], str]] = [
        *[lambda: setting(some)] * 4,
        lambda: "ARR=(" + some.choice((" ", "\n  ")).join(items) + some.choice(("", " # some\n")) + ")",
        lambda: f"ARR+=({' '.join(items)})",
        lambda: f"set -- {' '.join(items)}",
        lambda: f"{some.choice(CONDITIONS)} {some.choice(('&&', '||'))} {setting(some)}",
        lambda: f"f() {{\n  {setting(some)}\n}}",
        lambda: f"( {setting(some)} )",
        lambda: f"{{ {setting(some)}; }}",
        lambda: some.choice(ASIDE),
    ]
    if depth < 2:
        made += [
            lambda: (
                f"if {some.choice(CONDITIONS)}; then\n  {statement(some, depth + 1)}\n"
                + some.choice(("", f"else\n  {statement(some, depth + 1)}\n"))
                + "fi"
            ),
            lambda: f"for i in a b; do\n  {statement(some, depth + 1)}\ndone",
            lambda: f'case "$A" in\n  m) {setting(some)} ;;\n  *) {setting(some)} ;;\nesac',
        ]
    return some.choice(made)()


def launch(some: Person) -> str:
    command = some.choice(COMMANDS)
    words = [option(some) for _ in range(some.randint(1, 5))]
    for spread in SPREAD if some.soberness < 1 else SPREAD[:1]:
        if some.random() < (0.15 if not some.plain else 0.05):
            words.insert(some.randint(0, len(words)), spread)
    line = some.choice((" ", " \\\n  ", " \\\n")).join([command, *words])
    ended, plain = line + some.choice(TAILS), command.startswith(("python3", "sglang"))
    ways = [
        ended,
        ended,
        f"serve() {{\n  {ended}\n}}\nserve",
        f"( {line} )",
        f"if true; then\n  {ended}\nfi",
        f"bash <<'EOF'\n{line}\nEOF",
    ]
    if "'" not in line:
        ways.append(f"bash -c '{line}'")
    if plain:
        ways.append("CMD=(\n" + "\n".join([command, *words]) + '\n)\n"${CMD[@]}"')
    if plain and not {'"', "'", "\n"} & set(line):
        ways.append(
            f'CMD="{line}"\n' + some.choice(("$CMD", "eval $CMD", 'eval "$CMD"', "exec $CMD", 'bash -c "$CMD"'))
        )
    return ("PY=python3\n" if "$PY" in command else "") + some.choice(ways)


def script(some: Person) -> str:
    lines = [statement(some) for _ in range(some.randint(0, 5))]
    return "\n".join(["#!/bin/bash", *lines, launch(some)]) + "\n"


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> Callable[[str], list[list[str]]]:
    """What engines a script starts, by their arguments; it is run by bash with stand-ins for all that it starts."""
    place = tmp_path_factory.mktemp("bash")
    (place / "bin").mkdir()
    stands_in = {"python3": ENGINE, "sglang": ENGINE, "srun": STARTER, "nohup": STARTER}
    for name, text in stands_in.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    said = place / "said"
    environment = {"PATH": f"{place}/bin:/usr/bin:/bin", "SAID": str(said), "HOME": os.path.expanduser("~")}

    def ask(text: str) -> list[list[str]]:
        said.write_text("")
        (place / "script.sh").write_text(text)
        run = subprocess.run(
            [BASH, "script.sh"], cwd=place, env=environment, capture_output=True, text=True, timeout=60
        )
        assert "syntax error" not in run.stderr and "unexpected EOF" not in run.stderr, (text, run.stderr)
        given = [one.split("\0")[:-1] for one in said.read_text().split("\1")[:-1]]
        return [one[2:] if one[0] == "-m" else one[1:] for one in given]

    return ask


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_a_script_starts_what_bash_starts(asked, tmp_path):
    tally: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.integers(0, 2**32))
    def compare(seed):
        text = script(Person(seed))
        started = asked(text)
        if len(started) != 1:
            tally["none started"] += 1  # a branch that was not taken, or a command before that failed
            return
        (tmp_path / "script.sh").write_text(text)
        try:
            words = in_file(tmp_path / "script.sh").found.words
        except SpecwireError as error:
            raise AssertionError(f"{error}\n{text}") from error
        assert fits(words, started[0]), f"{text}\nbash: {started[0]}\nread: {list(map(shown, words))}"
        tally["open" if any(map(is_open, words)) else "whole"] += 1

    compare()
    print(dict(tally))
    assert tally["whole"] > EXAMPLES * 0.1 and tally["none started"] < EXAMPLES * 0.1


def fits(read: list[str], given: list[str]) -> bool:
    """Whether the words are those that bash gave, where an open one may be any words or none."""
    if not read or not given:
        return not given and all(map(is_open, read))
    if is_open(read[0]):
        return any(fits(read[1:], given[count:]) for count in range(len(given) + 1))
    return os.path.expanduser(read[0]) == os.path.expanduser(given[0]) and fits(read[1:], given[1:])
