"""Who reads what the statements that go have bound: in the same file, and in the rest of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from specwire.strip import flow
from specwire.strip.binds import FUNCTIONS, binds, in_scope, set_by

_ANNOTATION = re.compile(r"[\w.]+(?:[\[.|][\w.,|\[\] ]+)?")
_ASKED_BY_NAME = frozenset(("getattr", "hasattr", "setattr", "delattr"))
_PEEKERS = frozenset(("locals", "vars", "eval", "exec"))
# What reads, copies or shows all attributes of a thing at once.
_WHOLE = frozenset(
    "vars asdict astuple replace fields dir getmembers __dict__ __getstate__ __reduce__ _replace _asdict".split()
)
WHOLE = re.compile(
    rb"\b(?:vars|asdict|astuple|getmembers|_replace|_asdict)\(|\b__(?:dict|getstate|reduce)__\b|=\s*(?:vars|asdict)\b"
    rb"|(?:(?<![.\w])|\b(?:dataclasses|copy|structs|attrs?)\.)(?:replace|dir|fields)\("
)


class Elsewhere:
    """What the files around the one that is stripped say of its names. This one knows of no other file."""

    def reader(self, kind: str, name: str) -> str | None:
        """Where another file reads the `attribute` or `global` of this name."""
        return None

    def whole(self, classes: frozenset[str], holder: str) -> str | None:
        """Where another file reads all attributes at once: one that speaks of these classes, or of a thing so named."""
        return None

    def hands_on(self) -> frozenset[str]:
        """Functions of other files that read all attributes of what they are given."""
        return frozenset()

    def whole_module(self) -> str | None:
        """Where another file reads all names of the module at once."""
        return None

    def looks(self, method: str) -> bool:
        """Whether a method of this name is defined in another file, and only looks wherever it is."""
        return False

    def alters(self, attribute: str) -> bool:
        """Whether another file has a property of this name that does more than look."""
        return False

    def plain(self, name: str) -> bool:
        """Whether a class of this name is defined in another file, and its body means no more than attributes."""
        return False

    def watches(self, name: str) -> bool:
        """Whether a class of this name in another file sees each attribute that is set on its objects, or asked for."""
        return False

    def field(self, name: str) -> str | None:
        """The class of another file, with its place, that this is a field of."""
        return None


@dataclass(frozen=True)
class Binding:
    """One thing that a statement binds; `scope` is the module, class or function whose name it is."""

    name: str
    statement: ast.stmt
    scope: ast.AST
    declared: bool  # a `global` or `nonlocal` statement, which only says whose name it is
    owner: str = ""  # of an attribute: the class or the name that it is set on


def conflicts(tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> dict[int, str]:
    """Statements in `gone` whose bindings something outside `gone` may read: id -> reason."""
    found: dict[int, str] = {}
    known: dict[tuple[int, str, bool, str], str | None] = {}
    for binding in bindings(tree, gone):
        key = id(binding.scope), binding.name, binding.declared, binding.owner
        if key not in known:
            known[key] = _read_by(binding, tree, gone, elsewhere)
        if reader := known[key]:
            found.setdefault(id(binding.statement), reader)
    return found


def docstrings_made(tree: ast.Module, gone: set[int]) -> dict[int, str]:
    """Statements in `gone` without which a string would become a docstring: a change that no syntax tree shows."""
    found = {}
    for node in outside(tree, gone):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and node.body and id(node.body[0]) in gone:
            first = next((at for at, each in enumerate(node.body) if id(each) not in gone), 0)
            value = getattr(node.body[first], "value", None)
            if isinstance(node.body[first], ast.Expr) and isinstance(getattr(value, "value", None), str) and first:
                found[id(node.body[first - 1])] = "stands before a string that would become the docstring"
    return found


def bindings(tree: ast.Module, gone: set[int]) -> Iterator[Binding]:
    """All that statements in `gone` bind, scope by scope."""
    yield from _bindings(tree, tree, None, gone)


def loads(tree: ast.AST, name: str, gone: set[int]) -> Iterator[ast.AST]:
    """Nodes outside `gone` that read `name`: a plain name, or an `.attribute` by its name or by a string."""
    for node in outside(tree, gone):
        if name.startswith("."):
            if isinstance(node, ast.Attribute) and node.attr == name[1:] and not isinstance(node.ctx, ast.Store):
                yield node
            elif isinstance(node, ast.AugAssign) and getattr(node.target, "attr", None) == name[1:]:
                yield node
            elif isinstance(node, ast.Constant) and node.value == name[1:]:
                yield node
            elif made_up(node, name[1:]):
                yield node
        elif isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", None) == name:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_in(node.value, name):
            yield node
        elif made_up(node, name):
            yield node


def outside(tree: ast.AST, gone: set[int]) -> Iterator[ast.AST]:
    if id(tree) in gone:
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from outside(child, gone)


def _read_by(binding: Binding, tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> str | None:
    name, scope = binding.name, binding.scope
    if binding.declared:
        used = next((node for node in outside(scope, gone) if getattr(node, "id", None) == name), None)
        return f"declares {name}, which line {_line(used)} uses" if used is not None else None
    if name.startswith("."):
        return _elsewhere("attribute", name, tree, gone, elsewhere) or _whole(binding, tree, gone, elsewhere)
    if isinstance(scope, FUNCTIONS):
        declared = {
            named for node in ast.walk(scope) if isinstance(node, (ast.Global, ast.Nonlocal)) for named in node.names
        }
        if name not in declared:
            return _read_in(scope, name, gone)
    if isinstance(scope, ast.ClassDef):
        return (
            _elsewhere("attribute", "." + name, tree, gone, elsewhere)
            or _at(next(loads(scope, name, gone), None), name)
            or _at(next((node for node in outside(tree, gone) if _passes(node, name)), None), name)
            or _whole(binding, tree, gone, elsewhere)
        )
    if (whole := _module_read_whole(tree, gone)) is not None:
        return f"binds {name}, and line {whole.lineno} reads all names of the module"
    through = (node for node in outside(tree, gone) if _through_module(node, name))
    if found := _elsewhere("global", name, tree, gone, elsewhere) or _at(next(through, None), name):
        return found
    place = elsewhere.whole_module()
    return f"binds {name}, and {place} may read all names of the module" if place else None


def _through_module(node: ast.AST, name: str) -> bool:
    """`sys.modules[...].name`, where it is the module that may be asked, and no object of a class."""
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, (ast.Subscript, ast.Call))


def _passes(node: ast.AST, name: str) -> bool:
    """Whether a keyword argument or a pattern has the name of an attribute."""
    if isinstance(node, ast.keyword):
        return node.arg == name
    return isinstance(node, ast.MatchClass) and name in node.kwd_attrs


def _whole(binding: Binding, tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> str | None:
    """Who reads all attributes at once of what may be the thing that one is set on."""
    name, owner = binding.name.lstrip("."), binding.owner
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    around = {id(part): each.name for each in classes for part in ast.walk(each)}
    family = _family(owner, classes)
    for node, read in wholes(tree, gone):
        if read in ("self", "cls") and family and around.get(id(node)) not in family:
            continue  # another class's own
        return f"binds {name}, and line {node.lineno} reads all attributes at once"
    if any(_last(base) == "Module" for each in classes if each.name in family for base in each.bases):
        return None  # torch walks over its modules' own registers
    handing = elsewhere.hands_on()
    for each in outside(tree, gone) if handing else ():
        if isinstance(each, ast.Call) and _last(each.func) in handing:
            return f"binds {name}, and line {each.lineno} hands something to what reads all attributes at once"
    bases = {base for each in classes if each.name in family for base in map(_last, each.bases) if base not in _COMMON}
    classes_meant = (family or {each.name for each in classes}) | bases
    place = elsewhere.whole(frozenset(classes_meant), "" if family else owner)
    return f"binds {name}, and {place} may read all attributes at once" if place else None


_COMMON = frozenset(("object", "Module", "ABC"))


def _family(owner: str, classes: list[ast.ClassDef]) -> set[str]:
    """A class, and those of the file that it builds on or that build on it; nothing for what is no class."""
    found = {each.name for each in classes if each.name == owner}
    while (
        more := {
            other
            for each in classes
            for other in (each.name, *map(_last, each.bases))
            if found & {each.name, *map(_last, each.bases)} and any(other == one.name for one in classes)
        }
        - found
    ):
        found |= more
    return found


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def wholes(tree: ast.AST, gone: set[int]) -> Iterator[tuple[ast.expr, str]]:
    """Where all attributes of something are read at once, and what that is called: `vars(x)`, `replace(x, rows=1)`."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, parent = stack.pop()
        if id(node) in gone:
            continue
        stack.extend((child, node) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Attribute) and node.attr in _WHOLE and node.attr.startswith("_"):
            read = None if _one_by_name(node, parent) else _last(node.value)
        elif isinstance(node, ast.Call) and _last(node.func) in _WHOLE and node.args:
            plain = not isinstance(node.func, ast.Attribute) or _last(node.func.value) in _MODULES
            read = _last(node.args[0]) if plain else None
        elif isinstance(node, ast.Name) and node.id in ("vars", "asdict") and isinstance(node.ctx, ast.Load):
            called = isinstance(parent, ast.Call) and parent.func is node
            read = None if called else ""  # handed on: `json.dumps(x, default=vars)`
        else:
            continue
        if read is not None and not read.lower().endswith(("config", "args")):
            yield node, read


def _one_by_name(node: ast.Attribute, parent: ast.AST) -> bool:
    """Whether `x.__dict__` is asked for one attribute only, whose name stands there: `loads` sees that."""
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.slice, ast.Constant)
    if isinstance(parent, ast.Compare):
        return isinstance(parent.left, ast.Constant)
    return isinstance(parent, ast.Attribute) and parent.attr in ("get", "pop", "setdefault")


_MODULES = frozenset("dataclasses copy inspect attr attrs msgspec structs builtins".split())


def _module_read_whole(tree: ast.AST, gone: set[int]) -> ast.expr | None:
    """`globals()` that is walked over, or handed on; with a string behind it, `loads` looks at it."""
    for node in outside(tree, gone):
        for child in () if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in _NAMESPACES and not child.args:
                by_name = isinstance(node, ast.Attribute) and node.attr in ("get", "setdefault", "pop")
                asked = isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant)
                if not by_name and not asked:
                    return child
    return next((node for node, read in wholes(tree, gone) if not read), None)


_NAMESPACES = frozenset(("globals", "dir", "vars"))


def _read_in(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, gone: set[int]) -> str | None:
    """The same for a function's local name, with regard to the order of its statements."""
    stays = list(outside(function, gone))
    for node in stays:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PEEKERS:
            return f"binds {name}, and line {node.lineno} calls {node.func.id}()"
    alive = {id(node) for node in stays}
    own = (node for statement in function.body for node in in_scope(statement) if id(node) in alive)
    if name not in _parameters(function) and not any(name in binds(node) for node in own):
        return _at(next((node for node in stays if _is_read(node, name)), None), name)
    return _at(flow.reader(function, name, gone), name)


def _is_read(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _elsewhere(kind: str, name: str, tree: ast.Module, gone: set[int], elsewhere: Elsewhere) -> str | None:
    here = next(loads(tree, name, gone), None)
    if here is not None:
        return _at(here, name)
    place = elsewhere.reader(kind, name.lstrip("."))
    return f"binds {name.lstrip('.')}, which {place} reads" if place else None


def _at(node: ast.AST | None, name: str) -> str | None:
    return f"binds {name.lstrip('.')}, which line {_line(node)} reads" if node is not None else None


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))  # all that reads a name stands on a line


def _names_in(text: str, name: str) -> bool:
    """Whether a string names a thing: an entry of `__all__`, a key for `getattr`, an annotation in quotes."""
    return text == name or (bool(_ANNOTATION.fullmatch(text)) and name in re.split(r"[^\w]+", text))


def made_up(node: ast.AST, name: str) -> bool:
    """Whether this asks for a name that is put together as it runs, and could be this one: `getattr(x, f"_buf_{n}")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _ASKED_BY_NAME and len(node.args) > 1:
        asked = node.args[1]
    elif isinstance(node, ast.Subscript) and _is_namespace(node.value):
        asked = node.slice
    else:
        return False
    parts = _pattern(asked)
    return len(parts.replace(".*", "")) > 1 and re.fullmatch(parts, name, re.S) is not None


def _is_namespace(node: ast.expr) -> bool:
    called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
    return called in ("globals", "locals", "vars") or getattr(node, "attr", None) == "__dict__"


def _pattern(text: ast.expr) -> str:
    """A regular expression for what a string can be; `.*` for what is not known of it."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return re.escape(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(map(_pattern, text.values))
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return _pattern(text.left) + _pattern(text.right)
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Mod):
        return re.sub(r"%\\?[-0-9.]*[a-z]", ".*", _pattern(text.left))
    if isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute) and text.func.attr == "format":
        return re.sub(r"\\\{[^{}]*\\\}", ".*", _pattern(text.func.value))
    return ".*"


def _owner(node: ast.AST, name: str, around: str) -> str:
    """The class or the name that an attribute is set on."""
    if not name.startswith("."):
        return around
    last = (
        _last(node.value if isinstance(node, ast.Attribute) else node.args[0])
        if isinstance(node, (ast.Attribute, ast.Call))
        else ""
    )
    return around if last in ("self", "cls", "") else last


def _bindings(
    node: ast.AST, scope: ast.AST, statement: ast.stmt | None, gone: set[int], owner: str = ""
) -> Iterator[Binding]:
    if isinstance(node, ast.stmt) and (id(node) in gone):
        statement = node
    if statement is not None:
        for name in set_by(node):
            yield Binding(
                name, statement, scope, isinstance(node, (ast.Global, ast.Nonlocal)), _owner(node, name, owner)
            )
    inner = node if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else scope
    owner = node.name if isinstance(node, ast.ClassDef) else owner
    for child in ast.iter_child_nodes(node):
        parts: tuple[ast.AST, ...]
        if isinstance(child, ast.comprehension):
            parts = (child.iter, *child.ifs)
        elif isinstance(child, ast.Lambda):
            parts = ()
        else:
            parts = (child,)
        for part in parts:
            yield from _bindings(part, inner, statement, gone, owner)
