"""A file's own small functions: those that only look at their arguments, and those that only report them."""

from __future__ import annotations

import ast
from dataclasses import replace

from specwire.strip.binds import bound, plain_body
from specwire.strip.calls import report_kind
from specwire.strip.facts import SWITCHED, Facts
from specwire.strip.judge import Judge
from specwire.strip.pure import effect, is_tagged
from specwire.strip.text import Text


def with_helpers(text: Text, facts: Facts) -> Facts:
    """`facts` with the helpers of the file. One helper may call another, so this goes on until no more turn up."""
    functions = [
        node
        for node in text.tree.body
        if isinstance(node, ast.FunctionDef) and node.name in facts.single and not node.decorator_list
    ]
    while True:
        pure = {node.name for node in functions if _looks(plain_body(node), facts)}
        judge = Judge(replace(facts, pure_helpers=frozenset(pure)), {})
        said = {node.name for node in functions if node.name not in pure and _is_report(node, judge)}
        if pure == facts.pure_helpers and said == facts.report_helpers:
            return facts
        facts = replace(facts, pure_helpers=frozenset(pure), report_helpers=frozenset(said))


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
            return effect(node.iter, facts) is None and _looks(node.body, facts) and _looks(node.orelse, facts)
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
    return known and _reports(plain_body(function), judge)


def _reports(block: list[ast.stmt], judge: Judge) -> bool:
    return all(_report(node, judge) for node in block)


def _report(node: ast.stmt, judge: Judge) -> bool:
    if isinstance(node, ast.Return):
        return node.value is None
    if isinstance(node, ast.If):
        plain = effect(node.test, judge.facts) is None
        return plain and _reports(node.body, judge) and _reports(node.orelse, judge)
    return judge.whole(node, SWITCHED) is None
