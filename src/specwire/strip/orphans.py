"""What only the removed code had a use for: imports, constants, flags, helpers. They go too, where that is safe."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from specwire.strip.binds import FUNCTIONS, flag_set_by, set_by
from specwire.strip.comments import Comment, marked
from specwire.strip.facts import Facts, one_time_flags
from specwire.strip.judge import Judge
from specwire.strip.pure import binding_trouble, effect
from specwire.strip.readers import Elsewhere, conflicts, loads
from specwire.strip.select import Root, Selector
from specwire.strip.text import Text
from specwire.strip.words import is_flag

# Importing these does nothing that anybody could miss.
_QUIET = sys.stdlib_module_names | {"torch", "numpy"}


@dataclass(frozen=True)
class _Candidate:
    node: ast.stmt
    owner: ast.AST
    field: str
    kind: str
    names: frozenset[str]
    only_told: str = ""  # a reason to say that it is left without a use, and to leave it
    fills: frozenset[str] = frozenset()  # lists that a loop does nothing but fill


def orphans(
    text: Text,
    facts: Facts,
    roots: list[Root],
    elsewhere: Elsewhere,
    held: dict[int, str],
    comments: dict[int, Comment],
) -> tuple[list[Root], list[tuple[ast.stmt, str]]]:
    """`roots` with what they leave without a use, and notes on what is left so but has to stay, as do those `held`."""
    notes: dict[int, tuple[ast.stmt, str]] = {}
    candidates = [candidate for candidate in _candidates(text, facts, comments) if candidate.names]
    while True:
        gone = _ids(roots)
        used = _used(text.tree, gone)
        found = None
        for candidate in candidates:
            if id(candidate.node) in gone or id(candidate.node) in notes or not candidate.names & used:
                continue
            if id(candidate.node) in conflicts(text.tree, gone | _ids_below(candidate.node), Elsewhere()):
                continue  # something that stays reads it
            if any(next(loads(text.tree, name, gone | _ids_below(candidate.node)), None) for name in candidate.fills):
                continue
            why = held.get(id(candidate.node)) or _reason_to_stay(candidate, text, facts, gone, used, elsewhere)
            if why is None:
                found = candidate
                break
            notes[id(candidate.node)] = (candidate.node, why)
        if found is None:
            if (counter := _counter(text, facts, gone, elsewhere, held)) is None:
                return _outermost(roots), list(notes.values())
            roots = [*roots, *(Root((node,), "counter") for node in counter)]
            continue
        roots = [*roots, Root((found.node,), "unused " + found.kind)]


def _counter(
    text: Text, facts: Facts, gone: set[int], elsewhere: Elsewhere, held: dict[int, str]
) -> list[ast.stmt] | None:
    """The statements that do nothing but count with a debug flag that nothing else asks for any more."""
    counts: dict[str, list[tuple[ast.AST, str, ast.stmt]]] = {}
    for owner, field, node in _statements(text.tree):
        if id(node) not in gone and (name := _counts_with(node, facts)) is not None:
            counts.setdefault(name, []).append((owner, field, node))
    for places in counts.values():
        nodes = [node for _, _, node in places]
        outer = [place for place in places if not any(_is_below(place[2], node) for node in nodes)]
        if not any(isinstance(node, ast.AugAssign) for node in nodes) or any(id(node) in held for node in nodes):
            continue
        below = gone.union(*map(_ids_below, nodes))
        found = conflicts(text.tree, below, elsewhere)
        selector = Selector(text, Judge(facts, {}))
        if any(id(part) in found for node in nodes for part in ast.walk(node)):
            continue
        if any(
            selector.trouble(owner, field, [node]) or all(id(each) in below for each in getattr(owner, field))
            for owner, field, node in outer
        ):
            continue
        return [node for _, _, node in outer]
    return None


def _counts_with(node: ast.stmt, facts: Facts) -> str | None:
    """The debug flag that a statement sets to a number or adds one to, or makes sure of, and nothing else."""
    if isinstance(node, ast.If) and not node.orelse and len(flags := set(one_time_flags(node.test))) == 1:
        inside = {_counts_with(part, facts) for part in node.body}
        return flags.pop() if inside == flags and effect(node.test, facts) is None else None
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or not isinstance(node.value, ast.Constant):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) != 1:
        return None
    names = list(set_by(targets[0]))
    flagged = len(names) == 1 and is_flag(names[0].lstrip("."))
    return names[0] if flagged and binding_trouble(node, facts) is None else None


def _is_below(node: ast.stmt, other: ast.stmt) -> bool:
    return node is not other and any(part is node for part in ast.walk(other))


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
    """Each statement with the block that it stands in."""
    for owner in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(owner, field, None)
            for node in block if isinstance(block, list) else ():
                yield owner, field, node


def _reason_to_stay(
    candidate: _Candidate, text: Text, facts: Facts, gone: set[int], used: set[str], elsewhere: Elsewhere
) -> str | None:
    if candidate.only_told:
        return candidate.only_told
    if candidate.fills:
        used = used | candidate.names
    if others := sorted(name.lstrip(".") for name in candidate.names - used):
        return f"also binds {', '.join(others)}"
    trouble = Selector(text, Judge(facts, {})).trouble(candidate.owner, candidate.field, [candidate.node])
    if trouble:
        return trouble
    block = getattr(candidate.owner, candidate.field)
    if not isinstance(candidate.owner, ast.Module) and all(
        id(node) in gone or node is candidate.node for node in block
    ):
        return "is all that its block holds, and that block has to stay"
    below = gone | _ids_below(candidate.node)
    found = conflicts(text.tree, below, elsewhere)
    return next((why for node in ast.walk(candidate.node) if (why := found.get(id(node)))), None)


def _candidates(text: Text, facts: Facts, comments: dict[int, Comment]) -> Iterator[_Candidate]:
    package = os.path.basename(text.name) == "__init__.py"
    for owner, field, node in _statements(text.tree):
        names = frozenset(_names(node, owner))
        found = _classify(node, owner, facts, package)
        if isinstance(node, (ast.For, ast.Assign)) and comments and marked(text, comments, node):
            filled = _filled(node, facts) if isinstance(node, ast.For) else frozenset()
            if filled:
                yield _Candidate(node, owner, field, "loop", names | filled, fills=filled)
                continue
            if found is not None and found[1] == _UNSAID and isinstance(node, ast.Assign):
                found = found[0], effect(node.value, facts) or ""
        if found is not None:
            yield _Candidate(node, owner, field, found[0], names, found[1])


def _classify(node: ast.stmt, owner: ast.AST, facts: Facts, package: bool) -> tuple[str, str] | None:
    """(kind, reason to leave it or nothing) for a statement that may be there for the debug code alone."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return "import", _import_trouble(node, package and isinstance(owner, ast.Module))
        case ast.Global():
            return "declaration", ""
        case ast.Expr() if flag_set_by(node.value):
            return "flag", ""
        case ast.FunctionDef() if isinstance(owner, ast.Module):
            known = node.name in facts.report_helpers or node.name + "()" in facts.switches
            if not known and node.name not in facts.pure_helpers:
                return None
            return "helper", "" if known or _own(node.name) else _PUBLIC
        case ast.Assign() | ast.AnnAssign() if node.value is not None:
            return _assigned(node, node.value, owner, facts)
    return None


def _assigned(
    node: ast.Assign | ast.AnnAssign, value: ast.expr, owner: ast.AST, facts: Facts
) -> tuple[str, str] | None:
    names = _names(node, owner)
    switch = facts.is_switch(value)
    ours = switch or facts.is_tag(value) or all(is_flag(name.lstrip(".")) for name in names)
    if any(isinstance(part, ast.Subscript) for target in _targets(node) for part in ast.walk(target)):
        return None
    why = effect(value, facts) or ""
    if isinstance(owner, ast.Module):
        return "constant", why or ("" if ours or all(_own(name) for name in names) else _PUBLIC)
    if ours:
        return ("switch" if switch else "flag"), why
    if any(name.startswith(".") for name in names) or isinstance(owner, ast.ClassDef):
        return None
    return "value", _UNSAID


def _filled(node: ast.For, facts: Facts) -> frozenset[str]:
    """The lists, made by this file's own displays, that a loop fills; nothing when it does anything else."""
    filled = set()
    for statement in node.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return frozenset()
        holder = call.func.value
        if not isinstance(holder, ast.Name) or call.func.attr not in ("append", "extend", "add"):
            return frozenset()
        if not facts.evidence.made_here(holder) or any(effect(part, facts) for part in call.args):
            return frozenset()
        filled.add(holder.id)
    walked = facts.evidence.uses_up(node.iter) or effect(node.iter, facts)
    return frozenset() if node.orelse or walked else frozenset(filled)


_UNSAID = "is now read by nothing, but nothing says that it is debug code"
_PUBLIC = "has a public name, which other packages may read"


def _import_trouble(node: ast.Import | ast.ImportFrom, exported: bool) -> str:
    if exported:
        return "stands in an __init__.py, where imports are what the package offers"
    if isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__" or node.names[0].name == "*"):
        return "imports from its own package, which may do more than bind a name"
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    loud = [module for module in modules if module.partition(".")[0] not in _QUIET]
    return f"imports {loud[0]}, which may do more than bind a name" if loud else ""


def _names(node: ast.stmt, owner: ast.AST) -> list[str]:
    """What a statement binds; what a class's body binds are attributes."""
    names = [name for part in _shallow(node) for name in set_by(part)]
    return ["." + name if isinstance(owner, ast.ClassDef) and name.isidentifier() else name for name in names]


def _own(name: str) -> bool:
    return name.startswith("_")


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _shallow(node: ast.stmt) -> Iterator[ast.AST]:
    """The statement, without the inside of a function."""
    if isinstance(node, FUNCTIONS):
        yield node
    else:
        yield from ast.walk(node)


def _used(tree: ast.Module, gone: set[int]) -> set[str]:
    """Names and `.attributes` that the removed statements read, and those whose flags they set."""
    used: set[str] = set()
    for statement in ast.walk(tree):
        if id(statement) not in gone:
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add("." + node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                used.add("." + node.value)
    return used


def _outermost(roots: list[Root]) -> list[Root]:
    """Roots that are not inside another one's statements."""
    inside = {number for root in roots for node in root.nodes for number in _ids_below(node) - {id(node)}}
    return [root for root in roots if not any(id(node) in inside for node in root.nodes)]


def _ids(roots: list[Root]) -> set[int]:
    return {number for root in roots for node in root.nodes for number in _ids_below(node)}


def _ids_below(node: ast.stmt) -> set[int]:
    return {id(part) for part in ast.walk(node) if isinstance(part, ast.stmt)}
