"""Reads a file's facts off its syntax tree: imports, strings, and which names hold debug switches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from specwire.strip import evidence
from specwire.strip.binds import FUNCTIONS, bound, plain_body
from specwire.strip.calls import OPENS, Names
from specwire.strip.facts import Facts
from specwire.strip.words import Words, is_flag


def gather(tree: ast.Module, words: Words) -> Facts:
    """Read a file's facts off its syntax tree."""
    bindings = list(_bindings(tree))
    modules = {name: value for name, value in bindings if isinstance(value, str)}
    rebound = frozenset(name for name, value in bindings if not isinstance(value, str))
    values: dict[str, list[ast.AST | str | None]] = {}
    for name, value in bindings:
        values.setdefault(name, []).append(value)
    handles = {name for name, all_ in values.items() if all(_is_open(value) for value in all_)}
    names = Names(modules, rebound, frozenset(handles))
    dotted = (names.dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    called = {name for name in dotted if name is not None}
    single = {name: all_[0] for name, all_ in values.items() if len(all_) == 1}
    facts = Facts(words, replace(names, called=frozenset(called)), evidence=evidence.gather(tree))
    facts.single = frozenset(single)
    texts = {name: value.value for name, value in single.items() if isinstance(value, ast.Constant)}
    facts.texts = {name: text for name, text in texts.items() if isinstance(text, str)}
    facts.values = {name: value for name, value in single.items() if isinstance(value, ast.expr)}
    facts.counters = frozenset(
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign) and facts.evidence.counts(node.target)
        for name in bound(node.target)
        if is_flag(name.lstrip("."))
    )
    _find_switches(tree, facts, values)
    return facts


def _find_switches(tree: ast.Module, facts: Facts, values: dict[str, list[ast.AST | str | None]]) -> None:
    """Switches may be made of switches, so this goes on until nothing new turns up."""
    facts.constants = frozenset(
        name
        for name, all_ in values.items()
        if facts.words.is_constant(name) and all(isinstance(value, ast.Constant) for value in all_)
    )
    facts.switches |= facts.constants
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    before = None
    while before != (len(facts.switches), len(facts.reads)):
        before = len(facts.switches), len(facts.reads)
        for owner in classes:
            facts.reads |= _attribute_reads(facts, owner)
        for name, all_ in values.items():
            if all(isinstance(value, ast.AST) and _is_switch_value(facts, value) for value in all_):
                facts.switches.add(name + "()" if isinstance(all_[0], FUNCTIONS) else name)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST | str | None]]:
    """Every binding of the file: (name or `.attribute`, its value's node, the import's dotted name, or None)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                single = isinstance(target, (ast.Name, ast.Attribute))
                for name in bound(target):
                    yield name, node.value if single else None
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                for name in bound(node.target):
                    yield name, node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            for name in bound(node.optional_vars):
                yield name, node.context_expr
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.arg):
            yield node.arg, None
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)):
            for name in bound(node.target):
                yield name, None
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, None


def _attribute_reads(facts: Facts, owner: ast.ClassDef) -> set[int]:
    """Nodes of a class that read `self.X`, for each X that the class sets from a debug switch and nothing else."""
    values: dict[str, list[ast.AST | None]] = {}
    reads: list[tuple[str, ast.expr]] = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in bound(target):
                    values.setdefault(name, []).append(node.value if isinstance(target, ast.Attribute) else None)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            values.setdefault("." + node.target.attr, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            values.setdefault("." + node.target.attr, []).append(None)
        elif isinstance(node, ast.Attribute) and _of_self(node) and isinstance(node.ctx, ast.Load):
            reads.append(("." + node.attr, node))
        elif isinstance(node, ast.Call) and facts.names.dotted(node.func) == "getattr" and len(node.args) > 1:
            if (
                isinstance(node.args[0], ast.Name)
                and node.args[0].id == "self"
                and isinstance(node.args[1], ast.Constant)
                and isinstance(node.args[1].value, str)
            ):
                reads.append((f".{node.args[1].value}", node))
    held = {
        name
        for name, all_ in values.items()
        if all(value is not None and _is_switch_value(facts, value) for value in all_)
    }
    return {id(node) for name, node in reads if name in held}


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_switch_value(facts: Facts, value: ast.AST) -> bool:
    if isinstance(value, FUNCTIONS):
        body = plain_body(value)
        given = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
        return given is not None and not ast.unparse(value.args) and facts.is_switch(given)
    return isinstance(value, ast.expr) and facts.is_switch(value)


def _is_open(value: ast.AST | str | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in OPENS
