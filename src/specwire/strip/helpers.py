"""A file's own small functions: those that only look at their arguments, and those that only report them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from specwire.strip.binds import FUNCTIONS, bound, plain_body
from specwire.strip.calls import report_kind
from specwire.strip.classes import fields, watches
from specwire.strip.facts import MARKED, Facts
from specwire.strip.judge import Judge
from specwire.strip.pure import effect, is_tagged
from specwire.strip.readers import Elsewhere
from specwire.strip.text import Text
from specwire.strip.words import is_flag, is_own_name


def with_helpers(text: Text, facts: Facts, elsewhere: Elsewhere = Elsewhere()) -> Facts:
    """`facts` with the helpers of the file. One helper may call another, so this goes on until no more turn up."""
    facts = _with_classes(text, replace(facts, elsewhere=elsewhere, fields=fields(text.tree, elsewhere.plain)))
    functions = [
        node
        for node in text.tree.body
        if isinstance(node, ast.FunctionDef) and node.name in facts.single and not node.decorator_list
    ]
    while True:
        pure = {node.name for node in functions if only_looks(node, facts)}
        judge = Judge(replace(facts, pure_helpers=frozenset(pure)), {})
        said = {node.name for node in functions if node.name not in pure and _is_report(node, judge)}
        if pure == facts.pure_helpers and said == facts.report_helpers:
            return facts
        facts = replace(facts, pure_helpers=frozenset(pure), report_helpers=frozenset(said))


def _with_classes(text: Text, facts: Facts) -> Facts:
    """`facts` with what the file's classes and wrappers do when they are asked."""
    classes = [node for node in ast.walk(text.tree) if isinstance(node, ast.ClassDef)]
    methods = [node for owner in classes for node in owner.body if isinstance(node, FUNCTIONS)]
    spoken = {node.id for node in ast.walk(text.tree) if isinstance(node, ast.Name) and node.id[:1].isupper()}
    facts = replace(
        facts,
        watching=_watching(classes, facts.elsewhere),
        spoken_of=tuple(sorted(spoken)),
        carriers=dict(_carriers(text.tree)),
        around={id(node): owner.name for owner in classes for node in ast.walk(owner) if isinstance(node, ast.Name)},
    )
    impure = {node.name for node in methods if not only_looks(node, facts)}
    return replace(
        facts,
        defined=frozenset(node.name for node in methods),
        properties=frozenset(node.name for node in methods if is_property(node)),
        pure_methods=frozenset(node.name for node in methods) - impure,
    )


def _watching(classes: list[ast.ClassDef], elsewhere: Elsewhere) -> frozenset[str]:
    """Classes that see each attribute that is set on their objects, by themselves or through what they build on."""
    found = {owner.name for owner in classes if watches(owner)}
    while more := {
        owner.name
        for owner in classes
        if owner.name not in found and any(base in found or elsewhere.watches(base) for base in map(_last, owner.bases))
    }:
        found |= more
    return frozenset(found)


def _carriers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions that stand around other code: what a decorator gives, and what `with` enters."""
    decorators = {_last(each) for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())}
    for outer in ast.walk(tree):
        if not isinstance(outer, FUNCTIONS):
            continue
        if any(_last(each).endswith("contextmanager") for each in outer.decorator_list):
            yield id(outer), outer.name
        given = {
            node.value.id for node in outer.body if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
        }
        for inner in outer.body:
            if isinstance(inner, FUNCTIONS) and inner.name in given:
                if outer.name in decorators or is_flag(outer.name) or is_own_name(outer.name):
                    yield id(inner), outer.name


def only_looks(function: ast.FunctionDef | ast.AsyncFunctionDef, facts: Facts) -> bool:
    """Whether calling a function reads and returns, and does nothing else."""
    known = {"property", "staticmethod", "classmethod", "cached_property", "lru_cache", "cache"}
    plain = all(_last(decorator) in known for decorator in function.decorator_list)
    return plain and isinstance(function, ast.FunctionDef) and _looks(plain_body(function), facts)


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_last(decorator) in ("property", "cached_property") for decorator in function.decorator_list)


def _last(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _looks(block: list[ast.stmt], facts: Facts) -> bool:
    return all(_look(node, facts) for node in block)


def _look(node: ast.stmt, facts: Facts) -> bool:
    match node:
        case ast.Return():
            return node.value is None or effect(node.value, facts) is None
        case ast.Assign():
            names = [name for target in node.targets for name in bound(target)]
            return all(name.isidentifier() for name in names) and effect(node.value, facts) is None
        case ast.If():
            return effect(node.test, facts) is None and _looks(node.body, facts) and _looks(node.orelse, facts)
        case ast.For():
            known = not facts.evidence.uses_up(node.iter) and effect(node.iter, facts) is None
            return known and _looks(node.body, facts) and _looks(node.orelse, facts)
    return isinstance(node, ast.Pass)


def _is_report(function: ast.FunctionDef, judge: Judge) -> bool:
    """A function that reports and nothing else, and of which something says that it is debug code."""
    facts = judge.facts
    known = any(
        isinstance(part, ast.expr)
        and (
            facts.is_switch(part)
            or (isinstance(part, ast.Call) and report_kind(part, facts.names) and is_tagged(part, facts))
        )
        for part in ast.walk(function)
    )
    return known and _reports(plain_body(function), judge, MARKED)


def _reports(block: list[ast.stmt], judge: Judge, guarded: int) -> bool:
    """Whether a block of such a function does nothing but report. `guarded`: how, as in `facts`."""
    for node in block:
        if not _report(node, judge, guarded):
            return False
        if isinstance(node, ast.If) and any(isinstance(part, ast.Return) for part in node.body):
            guarded = max(guarded, judge.facts.guard(node.test, False))  # what follows runs with the switch on
    return True


def _report(node: ast.stmt, judge: Judge, guarded: int) -> bool:
    if isinstance(node, ast.Return):
        return node.value is None
    if isinstance(node, ast.If):
        plain = effect(node.test, judge.facts, guarded) is None
        body = max(guarded, judge.facts.guard(node.test, True))
        orelse = max(guarded, judge.facts.guard(node.test, False))
        return plain and _reports(node.body, judge, body) and _reports(node.orelse, judge, orelse)
    return judge.whole(node, guarded) is None
