"""What stays and looks like debug code, though nothing was said about it: so that it is named, and never passed over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from specwire.strip.binds import FUNCTIONS, set_by
from specwire.strip.calls import report_kind, waits
from specwire.strip.facts import Facts, one_time_flags
from specwire.strip.pure import effect, is_tagged
from specwire.strip.words import is_own_name, names_itself

Trace = tuple[ast.stmt, str, str]  # the statement, its kind, and why it stays

_TRACE = "is no form of debug code that strip takes out"
_NAMED = "has a name that says that it is debug code"
_ONCE = "is a one-time guard whose body does more than report"
_SHOWS = "shows hidden states, and nothing says that it is debug code"
_PRINTS = "changes how every tensor is printed from here on, and nothing says that it is debug code"
_ENGINE = ("SGLANG_", "SGL_")  # a message that begins with a switch of SGLang's own, as in Qwen 3.5 of 0.5.19
_STATES = re.compile(r"(?:\w+_)?hidden_states?(?:_list)?|hs|aux_hidden\w*")
_SIZES = frozenset(
    ("dtype", "device", "stride", "ndim", "dim", "is_contiguous")
)  # what the engine's own messages say of the states


def traces(tree: ast.Module, facts: Facts, gone: set[int], known: set[int]) -> Iterator[Trace]:
    """Statements outside `gone` and not on the lines `known` that are or hold debug code by their looks."""
    helpers = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and any(_reports(part, facts) for part in ast.walk(node))
    }
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, function = stack.pop()
        if id(node) in gone:
            continue
        if isinstance(node, ast.stmt) and node.lineno not in known:
            if (trace := _trace(node, function, facts, helpers)) is not None:
                yield node, *trace
        inner = node.name if isinstance(node, FUNCTIONS) else function
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))


def _trace(node: ast.stmt, function: str, facts: Facts, helpers: set[str]) -> tuple[str, str] | None:
    for part in (node, *_own_parts(node)):
        if isinstance(part, ast.expr) and facts.is_switch(part):
            return "trace", _TRACE
        if isinstance(part, ast.Call) and is_tagged(part, facts):
            return "trace", _TRACE
        if any(is_own_name(name) for name in _names(part)):
            return "trace", _NAMED
    if any(name in facts.constants for name in set_by(node) or _targets(node)):
        return "switch", _TRACE
    if isinstance(node, ast.If) and _once(node, facts, helpers):
        return "one-time guard", _ONCE
    if id(node) in facts.fields.statements and any(re.match(r"_(?:debug|dbg)_", name) for name in _targets(node)):
        return "field", facts.fields.statements[id(node)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _shown(node.value, function, facts)
    return None


def _once(node: ast.If, facts: Facts, helpers: set[str]) -> bool:
    calls = [part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Call)]
    dumps = any(report_kind(call, facts.names) == "dump" and not waits(call) for call in calls)
    if any(one_time_flags(node.test)):
        binds = (ast.Assign, ast.AugAssign)
        quiet = all(isinstance(part, binds) and effect(part.value, facts) is None for part in node.body)
        return dumps or quiet or any(_reports(call, facts) or _last(call.func) in helpers for call in calls)
    asked = set(one_time_flags(node.test, any_name=True))
    sets = {name for statement in node.body for part in ast.walk(statement) for name in set_by(part)}
    return dumps and bool(asked & sets)


def _shown(call: ast.Call, function: str, facts: Facts) -> tuple[str, str] | None:
    """Whether a report shows hidden states, or is written to a file whose name says what it is."""
    kind = report_kind(call, facts.names)
    if kind == "dump" and _last(call.func) == "set_printoptions":
        return kind, _PRINTS
    if kind not in ("print", "logger", "dump") or waits(call):
        return None
    values = [part for given in (*call.args, *call.keywords) for part in ast.walk(given)]
    texts = [part.value for part in values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if any(text.startswith(_ENGINE) for text in texts):
        return None
    forward = function.lstrip("_").startswith(("forward", "verify", "draft", "capture"))
    if kind == "dump" and any(names_itself(text) or (forward and text.startswith("/tmp/")) for text in texts):
        return kind, "writes a file though no debug switch is set"
    sizes = _sizes(values, whole_shapes=kind == "logger" and not forward)
    states = (part for part in values if isinstance(part, (ast.Name, ast.Attribute)) and _STATES.fullmatch(_last(part)))
    return (kind, _SHOWS) if any(id(part) not in sizes for part in states) else None


def _sizes(values: list[ast.AST], whole_shapes: bool) -> set[int]:
    """Ids of what a message only says the type, the device or the number of rows of, as the engine's own messages do."""
    shapes = {id(part): id(part.value) for part in values if isinstance(part, ast.Attribute) and part.attr == "shape"}
    sizes = {id(part.value) for part in values if isinstance(part, ast.Attribute) and part.attr in _SIZES}
    for part in values:
        if isinstance(part, ast.Subscript) and id(part.value) in shapes:
            sizes.add(shapes[id(part.value)])  # `hidden_states.shape[0]`
        if isinstance(part, ast.Call) and _last(part.func) == "len":
            sizes.update(map(id, part.args))
    return sizes | set(shapes.values()) if whole_shapes else sizes


def _reports(node: ast.AST, facts: Facts) -> bool:
    if not isinstance(node, ast.Call):
        return False
    kind = report_kind(node, facts.names)
    return kind in ("print", "dump") or (kind is not None and is_tagged(node, facts))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.arg, ast.keyword)):
        yield node.arg or ""
    elif isinstance(node, ast.alias):
        yield node.asname or node.name


def _targets(node: ast.stmt) -> tuple[str, ...]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def _own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a statement itself, and to no statement inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from _own_parts(child)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
