"""Generated programs of one to three modules, run before and after `strip`: with no switch set nobody notices it.

Each program is put together from scenes: a class with a debug flag among its fields, an iterator that debug code walks
over, a mapping that grows when it is read, a method that only sounds like a question, a module that is converted, an
error that is answered, a namespace that is read whole. SPECWIRE_EXAMPLES=5000 makes it a long run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import sys

import pytest

from specwire.strip.files import plans
from specwire.strip.words import Words

EXAMPLES = int(os.environ.get("SPECWIRE_EXAMPLES", 600))
HEAD = "import dataclasses, os, sys, collections, enum, typing\n\nDEBUG = os.environ.get('EAGLE3_DEBUG') == '1'\n"


class Program:
    """Modules of a package `q`: `a` holds the code under test, `u` what it uses from elsewhere, `b` runs it."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.modules = {"a": [HEAD], "u": [HEAD], "b": [HEAD]}
        self.calls: list[str] = []
        self.count = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def flag(self) -> str:
        return self.fresh(self.choose.choice(["_debug_done", "_dbg_n", "debug_seen", "_eagle3_debug_once"]))

    def report(self, *values: str) -> str:
        """An unguarded debug message that shows these."""
        shown = ", ".join(values)
        forms = [f"print('[EAGLE3-DEBUG]', {shown})", f"print('[EAGLE3-DEBUG]', {shown}, file=sys.stderr)"]
        if len(values) == 1 and not shown.startswith("*"):
            forms.append(f"sys.stderr.write(f'[EAGLE3-DEBUG] {{{shown}}}')" if not set("'{") & set(shown) else forms[0])
        return self.choose.choice(forms)

    def guarded(self, lines: list[str], switched: bool | None = None) -> list[str]:
        """Debug lines as people guard them: not at all, once, or by the switch."""
        kind = "switch" if switched else self.choose.choice(["none", "none", "once", "switch", "plain if"])
        if kind == "none":
            return lines
        if kind == "plain if":
            return ["if len('x') == 1:", *("    " + line for line in lines)]
        if kind == "switch":
            return ["if DEBUG:", *("    " + line for line in lines)]
        flag = self.flag()
        once = [f"    sys.{flag} = True", "    print('[EAGLE3-DEBUG] once')"]
        return [f"if not hasattr(sys, {flag!r}):", *("    " + line for line in lines), *once]

    def function(self, name: str, arguments: str, body: list[str], module: str = "a") -> None:
        self.modules[module].append(f"def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body))

    def run(self, call: str) -> None:
        self.calls.append(call)

    def texts(self) -> dict[str, str]:
        imports = "from q import u\nfrom q.u import *\n"
        main = "def main():\n    return [" + ", ".join(self.calls) + "]\n"
        if self.choose.random() < 0.5:
            texts = {"a": [self.modules["a"][0], imports, *self.modules["a"][1:], *self.modules["b"][1:], main]}
            return {"u": "\n\n".join(self.modules["u"]), "a": "\n\n".join(texts["a"]), "b": "from q.a import main\n"}
        return {
            "u": "\n\n".join(self.modules["u"]),
            "a": "\n\n".join([self.modules["a"][0], imports, *self.modules["a"][1:]]),
            "b": "\n\n".join([HEAD, "from q import a\nfrom q.a import *\n" + imports, *self.modules["b"][1:], main]),
        }


ITERATORS = [
    "iter([1, 2, 3])", "(v for v in (1, 2, 3))", "zip([1, 2], [3, 4])", "map(abs, [1, -2])", "enumerate([4, 5])",
    "reversed([1, 2])", "iter({1: 2}.items())", "filter(None, [1, 0, 2])",
]  # fmt: skip
WALKS = [
    "list({0})", "len(list({0}))", "sorted({0}, key=repr)", "[v for v in {0}]", "[*{0}]", "*{0}", "set(map(repr, {0}))",
    "max({0}, key=repr)", "7 in list({0})", "any(v == 1 for v in {0})", "dict(enumerate({0}))", "tuple({0})[:2]",
    "'-'.join(map(repr, {0}))", "list(zip({0}, 'ab'))", "{{repr(v) for v in {0}}}", "next(iter(list({0})), None)",
]  # fmt: skip


def walking(program: Program) -> None:
    """An iterator, wherever it is kept, that the functional code walks over after the debug code."""
    choose, name, source = program.choose, program.fresh("walk"), program.choose.choice(ITERATORS)
    if choose.random() < 0.2:
        maker = program.fresh("make")
        program.function(maker, "", ["yield 1", "yield 2"], choose.choice("au"))
        source = f"{maker}()"
    place = choose.choice(["local", "parameter", "attribute", "global", "helper", "alias", "element"])
    holder = {"attribute": "self.rows", "global": f"ROWS_{name}", "element": "kept[0]"}.get(place, "rows")
    lines = [program.report(choose.choice(WALKS).format(holder))]
    if choose.random() < 0.2:
        lines = [f"for v in {holder}:", "    print('[EAGLE3-DEBUG]', v)"]
    if choose.random() < 0.1:
        flag = program.flag()
        lines = [f"{flag}, *{flag}_rest = {holder}", program.report(flag)]
    lines = program.guarded(lines)
    end = [f"return list({holder})"]
    if place == "attribute":
        body = [f"self.rows = {source}", *lines, *end]
        text = "".join(f"        {line}\n" for line in body)
        program.modules["a"].append(f"class C_{name}:\n    def go(self):\n{text}")
        program.run(f"C_{name}().go()")
    elif place == "parameter":
        program.function(name, "rows", [*lines, *end])
        program.run(f"{name}({source})")
    elif place == "global":
        program.modules["a"].append(f"{holder} = {source}\n")
        program.function(name, "", [*lines, *end])
        program.run(f"{name}()")
    elif place == "helper":
        helper = program.fresh("_show")
        walk = choose.choice([walk for walk in WALKS if walk[0] != "*"]).format("given")
        program.function(helper, "given", [f"return {walk}"], choose.choice("aau"))
        program.modules["a"].append("")
        lines = program.guarded([program.report(f"{helper}(rows)")])
        program.function(name, "", [f"rows = {source}", *lines, *end])
        program.run(f"{name}()")
    else:
        first = {"alias": [f"kept = {source}", "rows = kept"], "element": [f"kept = [{source}]"]}
        program.function(name, "", [*first.get(place, [f"rows = {source}"]), *lines, *end])
        program.run(f"{name}()")


def growing(program: Program) -> None:
    """A mapping that an item is added to when it is asked for."""
    choose, name = program.choose, program.fresh("grow")
    kind = program.fresh("Store")
    program.modules[choose.choice("au")].append(
        f"class {kind}(dict):\n    def __missing__(self, key):\n        self[key] = 0\n        return 0\n"
    )
    source = choose.choice(["collections.defaultdict(list)", "collections.defaultdict(int)", f"{kind}()"])
    key = choose.choice(["'r1'", "key", "key", "('a', 1)", "f'{key}'"])
    shown = choose.choice(["{0}[{1}]", "len([{0}[{1}]])", "repr({0}[{1}])", "[{0}[{1}] for _ in '12']"])
    place = choose.choice(["local", "parameter", "attribute"])
    holder = "self.store" if place == "attribute" else "store"
    lines = program.guarded([program.report(shown.format(holder, key))])
    end = [f"return sorted({holder}, key=repr)"]
    if place == "attribute":
        text = "".join(f"        {line}\n" for line in [f"self.store = {source}", *lines, *end])
        program.modules["a"].append(f"class C_{name}:\n    def go(self, key):\n{text}")
        program.run(f"C_{name}().go('k')")
    elif place == "parameter":
        program.function(name, "store, key", [*lines, *end])
        program.run(f"{name}({source}, 'k')")
    else:
        program.function(name, "key", [f"store = {source}", *lines, *end])
        program.run(f"{name}('k')")


def asking(program: Program) -> None:
    """Methods and properties that sound as if they only looked, and some that do."""
    choose, name, kind = program.choose, program.fresh("ask"), program.fresh("Batch")
    method = choose.choice(["is_done", "has_next", "is_idle_now", "get_size", "has_rows", "next_id", "size_now"])
    method = f"{method}_{kind.lower()}"
    pure = choose.random() < 0.4
    as_property = method.startswith(("next", "size"))
    does = "return len(self.rows)" if pure else "self.rows.append(len(self.rows)); return len(self.rows)"
    head = "    @property\n" if as_property else ""
    program.modules[choose.choice("au")].append(
        f"class {kind}:\n    def __init__(self):\n        self.rows = [1]\n{head}    def {method}(self):\n        {does}\n"
    )
    asked = f"batch.{method}" + ("" if as_property else "()")
    if choose.random() < 0.3:
        lines = [f"if {asked}:", f"    {program.report('batch')}"]
    else:
        lines = [program.report(choose.choice([asked, f"[{asked}]", f"batch and {asked}"]))]
    program.function(name, "batch", [*program.guarded(lines), "return batch.rows"])
    program.run(f"{name}({kind}())")


def converting(program: Program) -> None:
    """A module that another type is asked of: it is converted, not copied."""
    choose, name, kind = program.choose, program.fresh("convert"), program.fresh("Linear")
    methods = "".join(
        f"    def {each}(self, *_):\n        self.kind = {each!r}\n        return self\n"
        for each in ("half", "float", "to", "cpu", "double", "bfloat16", "cuda")
    )
    program.modules["u"].append(
        f"class {kind}:\n    def __init__(self):\n        self.kind = 'as made'\n"
        f"    def __call__(self, x):\n        return x\n{methods}"
    )
    holder = choose.choice(["self.fc", "self.model.head", "head"])
    call = choose.choice(["half()", "float()", "to('cpu')", "cpu()", "double()", "bfloat16()"])
    lines = program.guarded([program.report(f"{holder}.{call}")])
    used = [f"{holder}(1)"] if choose.random() < 0.5 else []
    made = {
        "self.fc": f"self.fc = {kind}()", "self.model.head": f"self.model = self; self.head = {kind}()", "head": f"head = {kind}()"
    }[holder]  # fmt: skip
    text = "".join(f"        {line}\n" for line in [made, *lines, *used, f"return {holder}.kind"])
    program.modules["a"].append(f"class C_{name}:\n    def go(self):\n{text}")
    program.run(f"C_{name}().go()")


CLASSES = {
    "dataclass": ("@dataclasses.dataclass\n", ""),
    "unsafe hash": ("@dataclasses.dataclass(unsafe_hash=True)\n", ""),
    "named tuple": ("", "(typing.NamedTuple)"),
    "plain": ("", ""),
    "decorated": ("@marked\n", ""),
    "base": ("", "(Fields)"),
    "child": ("@dataclasses.dataclass\n", "(Parent)"),
}
MARKED = """def marked(cls):
    cls.names = sorted(name for name in cls.__dict__ if not name.startswith('__'))
    return cls


class Fields:
    def __init_subclass__(cls):
        cls.names = sorted(name for name in vars(cls) if not name.startswith('__'))


@dataclasses.dataclass
class Parent:
    first: int = 1
"""


def fields(program: Program) -> None:
    """A class with a debug flag among its fields, made and read in many ways."""
    choose, name, flag = program.choose, program.fresh("step"), program.flag()
    kind = choose.choice(sorted(CLASSES))
    decorator, base = CLASSES[kind]
    if MARKED not in program.modules["u"]:
        program.modules["u"].append(MARKED)
    place = choose.choice("aau")
    lines = [f"rows: int = 3\n    {flag}: bool = False", f"{flag}: int = 0\n    rows: int = 3"]
    cls = program.fresh("State")
    program.modules[place].append(f"{decorator}class {cls}{base}:\n    {choose.choice(lines)}\n    scale: int = 2\n")
    mutable = kind != "named tuple"
    body = [program.report("s.rows", f"s.{flag}")]
    if mutable:
        body += choose.choice([[f"s.{flag} = True"], [f"s.{flag} += 1"], [f"setattr(s, {flag!r}, True)"], []])
    guard = choose.choice([f"if not s.{flag}:", f"if DEBUG and not s.{flag}:", f"if not getattr(s, {flag!r}, 0):"])
    program.function(name, "s", [guard, *("    " + line for line in body), "return s.rows * s.scale"])
    fielded = kind in ("dataclass", "unsafe hash", "named tuple", "child")
    made = choose.choice(["{0}()", "{0}({1}=False)", "{0}(rows=4)", "{0}(1, 2, 3)"] if fielded else ["{0}()"])
    reads = ["0", "sorted(vars(type(s)))", "sorted(s.__dict__)", "[n for n in dir(s) if 'd' in n and n[:2] != '__']"]
    reads += ["repr(sorted(vars(s).items()))", "repr(sorted(s.__dict__.items()))", "getattr(type(s), 'names', 0)"]
    if kind == "named tuple":
        reads = ["0", "list(s)", "s._asdict()", "s._fields", f"s._replace({flag}=5)", "repr(s)", "len(s)"]
    elif fielded:
        reads += [
            "dataclasses.asdict(s)",
            "dataclasses.astuple(s)",
            f"repr(dataclasses.replace(s, {flag}=1))",
            "repr(s)",
        ]
        reads += ["[f.name for f in dataclasses.fields(s)]", "s == type(s)()", "repr(dataclasses.replace(s, rows=5))"]
    read = choose.choice(reads)
    if choose.random() < 0.3:
        reader = program.fresh("dump")
        program.function(reader, "s", [f"return {read}"], "u")
        read = f"{reader}(s)"
    use = program.fresh("use")
    program.function(use, "", [f"s = {made.format(cls, flag)}", f"return {name}(s), str({read})"], "b")
    program.run(f"{use}()")


def watching(program: Program) -> None:
    """Classes that see each attribute that is set, or list what may be."""
    choose, name, flag, cls = program.choose, program.fresh("watch"), program.flag(), program.fresh("Seen")
    kind = choose.choice(["setattr", "slots", "property", "enum", "getattr"])
    body = {
        "setattr": "    log = 0\n    def __setattr__(self, name, value):\n        type(self).log += 1\n        object.__setattr__(self, name, value)\n",
        "slots": f"    __slots__ = ('x', {flag!r})\n    log = 0\n    def __init__(self):\n        self.x = 1\n",
        "property": f"    log = 0\n    @property\n    def {flag}(self):\n        type(self).log += 1\n        return False\n"
        f"    @{flag}.setter\n    def {flag}(self, value):\n        type(self).log += 10\n",
        "enum": f"    A = enum.auto()\n    {flag} = enum.auto()\n    log = enum.auto()\n",
        "getattr": "    log = 0\n    def __getattr__(self, name):\n        type(self).log += 1\n        raise AttributeError(name)\n",
    }[kind]
    program.modules[choose.choice("au")].append(f"class {cls}{'(enum.IntEnum)' if kind == 'enum' else ''}:\n{body}")
    if kind == "enum":
        program.function(name, "", [program.report(f"{cls}.{flag}"), f"return [int(each) for each in {cls}]"])
    else:
        guard = choose.choice([f"if not hasattr(s, {flag!r}):", f"if not getattr(s, {flag!r}, False):"])
        lines = [f"s = {cls}()", guard, "    print('[EAGLE3-DEBUG] once')", f"    s.{flag} = True", "return s.log"]
        program.function(name, "", lines)
    program.run(f"{name}()")


ANSWERED = {
    "KeyError": "{}['x']", "IndexError": "[][0]", "ZeroDivisionError": "1 / (x - x)", "ValueError": "int('x' * x)",
    "AttributeError": "x.missing", "LookupError": "[][x]", "TypeError": "{}[[x]]", "Exception": "[][x]",
    "(KeyError, ValueError)": "{}[x]", "OSError": "open('/nowhere/at/all')", "NameError": "missing_name",
}  # fmt: skip


def answering(program: Program) -> None:
    """Debug code that raises what the functional code answers."""
    choose, name = program.choose, program.fresh("answer")
    error = choose.choice(sorted(ANSWERED))
    lines = program.guarded([program.report(ANSWERED[error].replace("'", '"'))])
    if choose.random() < 0.4:
        lines = ["if x:", *("    " + line for line in lines), "    y = 5"]
    body = [
        "y = 1",
        "try:",
        *("    " + line for line in lines),
        "    y = 2",
        f"except {error}:",
        "    y = 3",
        "return y",
    ]
    if choose.random() < 0.2:
        body = ["import contextlib", "y = 1", f"with contextlib.suppress({error.strip('()')}):"]
        body += [*("    " + line for line in lines), "    y = 2", "return y"]
    program.function(name, "x", body)
    program.run(f"{name}(1)")


def aliasing(program: Program) -> None:
    """A debug name for something functional, which is then changed under that name."""
    choose, name, flag = program.choose, program.fresh("alias"), program.flag()
    once = program.flag()
    change = choose.choice([f"{flag} += [1]", f"{flag} += x", f"{flag}[0] = 9", f"{flag}.append(1)", f"{flag} = x"])
    body = ["out = [0]", f"{flag} = out", f"if not hasattr(sys, {once!r}):", "    print('[EAGLE3-DEBUG] rows')"]
    body += [f"    {change}", f"    sys.{once} = True", "return out, x"]
    program.function(name, "x", body)
    program.run(f"{name}([1, 2])")


def names(program: Program) -> None:
    """A module's debug names, read from the outside by name, by text, or all at once."""
    choose, name, flag = program.choose, program.fresh("name"), program.flag()
    program.modules["a"].append(f"{flag} = {choose.choice(['0', 'False', 'DEBUG', 'None'])}\n")
    program.function(
        name, "", [f"global {flag}", f"if not {flag}:", "    print('[EAGLE3-DEBUG] x')", f"    {flag} = 1", "return 1"]
    )
    reads = [
        f"sys.modules['q.a'].{flag}",
        f"getattr(sys.modules['q.a'], {flag!r}, 'gone')",
        f"hasattr(sys.modules['q.a'], {flag!r})",
    ]
    reads += [
        f"{flag[:4]!r} in ' '.join(vars(sys.modules['q.a']))",
        f"getattr(sys.modules['q.a'], {flag[:6]!r} + {flag[6:]!r}, 'gone')",
    ]
    own = ["sorted(n for n in globals() if n[0] in 'd_')", f"globals().get({flag!r}, 'gone')", f"{flag!r} in globals()"]
    use = program.fresh("read")
    if choose.random() < 0.4:
        program.function(use, "", [f"return str({choose.choice(own)})"], "a")
    else:
        program.function(use, "", [f"return str({choose.choice(reads)})"], "b")
    program.run(f"{name}()")
    program.run(f"{use}()")


def ordinary(program: Program) -> None:
    """Debug code as it should be, which goes."""
    choose, name, flag = program.choose, program.fresh("plain"), program.flag()
    forms = [
        ["if DEBUG:", "    print(x)"],
        ["print('[EAGLE3-DEBUG]', x)"],
        ["if os.environ.get('EAGLE3_DEBUG'):", "    for v in range(3):", "        print(v, x)"],
        [f"if not hasattr(sys, {flag!r}):", "    print('[EAGLE3-DEBUG]', len(str(x)))", f"    sys.{flag} = True"],
        ["if x > 1:", "    print('[EAGLE3-DEBUG] more', x)"],
    ]
    program.function(name, "x", [*choose.choice(forms), "x = x + 1", *choose.choice(forms), "return x"])
    program.run(f"{name}({choose.choice('123')})")


SCENES = [walking, growing, asking, converting, fields, fields, watching, answering, aliasing, names, ordinary]


def generated(seed: int) -> dict[str, str]:
    choose = random.Random(seed)
    program = Program(choose)
    for scene in choose.choices(SCENES, k=choose.choice([1, 1, 2, 3, 4])):
        scene(program)
    return program.texts()


def result(folder) -> str:
    for name in [name for name in sys.modules if name == "q" or name.startswith("q.")]:
        del sys.modules[name]
    for name in [name for name in vars(sys) if "debug" in name or "dbg" in name]:
        delattr(sys, name)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return repr(importlib.import_module("q.b").main())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(str(folder))


def broken(seeds: range, folder, monkeypatch) -> tuple[list[str], int]:
    """The programs that `strip` changes, as far as they can tell, and how many statements it took out of all."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("EAGLE3_DEBUG", raising=False)
    package = folder / "q"
    package.mkdir()
    (package / "__init__.py").write_text("")
    found, gone = [], 0
    for seed in seeds:
        texts = generated(seed)
        for name, text in texts.items():
            (package / f"{name}.py").write_text(text)
        before = result(folder)
        assert not before.startswith("SyntaxError"), (seed, before)
        for plan in plans([str(package)], Words()):
            (package / os.path.basename(plan.name)).write_bytes(plan.after)
            gone += len(plan.gone)
        if (after := result(folder)) != before:
            found.append(f"seed {seed}: {before}\n    is now {after}")
    return found, gone


def test_a_few_programs(tmp_path, monkeypatch):
    found, gone = broken(range(80), tmp_path, monkeypatch)
    assert not found, "\n".join(found)
    assert gone > 40  # it did take something out


@pytest.mark.slow
def test_many_programs(tmp_path, monkeypatch):
    found, gone = broken(range(1000, 1000 + EXAMPLES), tmp_path, monkeypatch)
    assert not found, "\n".join(found[:20])
    assert gone > EXAMPLES / 2
