"""Whether a value that removed statements give to a local name could be read by one that stays.

A walk over one function's statements in the order in which they run, with one bit: the name may hold what a
removed statement gave it. Where the walk cannot be sure (handlers, nested functions, generators) it says yes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from specwire.strip.binds import (
    COMPREHENSIONS,
    FUNCTIONS,
    SCOPES,
    binds,
    bound,
    imported,
    own_names,
)


def reader(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, gone: set[int]) -> ast.AST | None:
    """A node outside `gone` (ids of removed statements) that may read what `gone` bound to `name` in `function`."""
    walk = _Walk(name, gone)
    try:
        walk.block(function.body, False)
    except _Found as found:
        return found.node
    return None


class _Found(Exception):
    def __init__(self, node: ast.AST) -> None:
        self.node = node


@dataclass
class _Walk:
    name: str
    gone: set[int]
    exits: list[bool] = field(default_factory=list)  # one per loop around: a `break` or `continue` saw the bit set

    def block(self, statements: list[ast.stmt], bit: bool | None) -> bool | None:
        """The bit after the block; None when control never gets there."""
        for statement in statements:
            if bit is None:
                # Not reached by this way of counting; another way in (a handler) may still get here.
                bit = self._sets(statements)
            bit = self._statement(statement, bit)
        return bit

    def _statement(self, node: ast.stmt, bit: bool) -> bool | None:
        if id(node) in self.gone:
            return bit or self._sets([node])
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._escapes(node)
            return False if node.name == self.name else bit
        match node:
            case ast.For() | ast.AsyncFor():
                self._read(node.iter, bit)
                return self._loop(node, bit, self.name in set(bound(node.target)))
            case ast.While():
                self._read(node.test, bit)
                after = self._loop(node, bit, False)
                self._read(node.test, bool(after))
                return after
            case ast.If():
                self._read(node.test, bit)
                return _join(self.block(node.body, bit), self.block(node.orelse, bit))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._read(item.context_expr, bit)
                    if item.optional_vars is not None and self.name in set(bound(item.optional_vars)):
                        bit = False
                return self.block(node.body, bit)
            case ast.Try() | ast.TryStar():
                return self._try(node, bit)
            case ast.Match():
                self._read(node.subject, bit)
                taken: bool | None = bit
                for case in node.cases:
                    self._read(case.pattern, bit)
                    if case.guard is not None:
                        self._read(case.guard, bit)
                    taken = _join(taken, self.block(case.body, bit))
                return taken
            case ast.Break() | ast.Continue():
                if self.exits:
                    self.exits[-1] = self.exits[-1] or bit
                return None
            case ast.Return() | ast.Raise():
                self._read(node, bit)
                return None
        return self._simple(node, bit)

    def _simple(self, node: ast.stmt, bit: bool) -> bool:
        self._read(node, bit)
        if isinstance(node, ast.AugAssign) and self.name in set(bound(node.target)) and bit:
            raise _Found(node)
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [getattr(node, "target", None)]
        names = {name for target in targets if target is not None for name in bound(target)}
        if isinstance(node, ast.AnnAssign) and node.value is None:
            names = set()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = set(imported(node))
        return bit and self.name not in names

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, bit: bool, rebinds: bool) -> bool:
        self.exits.append(False)
        start = bit
        for _ in range(2):  # twice: what the first round leaves, the second one meets
            end = self.block(node.body, False if rebinds else start)
            start = start or bool(end) or self.exits[-1]
        bit = start
        self.exits.pop()
        return bool(_join(self.block(node.orelse, bit), bit))

    def _try(self, node: ast.Try | ast.TryStar, bit: bool) -> bool | None:
        anywhere = bit or self._sets(node.body)
        after = self.block(node.body, bit)
        if after is not None:
            after = self.block(node.orelse, after)
        for handler in node.handlers:
            if handler.type is not None:
                self._read(handler.type, anywhere)
            after = _join(after, self.block(handler.body, anywhere and handler.name != self.name))
        if node.finalbody:
            everything = [
                *node.body,
                *node.orelse,
                *(part for handler in node.handlers for part in handler.body),
            ]
            final = self.block(node.finalbody, bit or self._sets(everything))
            return None if final is None or after is None else after or final
        return after

    def _sets(self, nodes: list[ast.stmt]) -> bool:
        """Whether a removed statement among or below `nodes` may give the name a value."""
        for node in nodes:
            for part in ast.walk(node):
                if id(part) in self.gone and any(_binds(inner, self.name) for inner in ast.walk(part)):
                    return True
        return False

    def _read(self, node: ast.AST, bit: bool) -> None:
        if isinstance(node, SCOPES):
            self._escapes(node)
        elif isinstance(node, COMPREHENSIONS) and self.name in _targets(node):
            self._read(node.generators[0].iter, bit)  # the rest sees the comprehension's own name
        elif bit and isinstance(node, ast.Name) and node.id == self.name and not isinstance(node.ctx, ast.Store):
            raise _Found(node)
        else:
            for child in ast.iter_child_nodes(node):
                self._read(child, bit)

    def _escapes(self, node: ast.AST) -> None:
        """A nested scope may run at any time, so that a read in it always counts, unless the name is its own."""
        if id(node) in self.gone:
            return
        if isinstance(node, ast.GeneratorExp) and self.name in _targets(node):
            return self._read(node.generators[0].iter, True)
        if isinstance(node, (*FUNCTIONS, ast.Lambda)) and self.name in own_names(node):
            for part in (
                *getattr(node, "decorator_list", ()),
                *node.args.defaults,
                *filter(None, node.args.kw_defaults),
            ):
                self._read(part, True)
            return
        if isinstance(node, ast.Name) and node.id == self.name and isinstance(node.ctx, ast.Load):
            raise _Found(node)
        for child in ast.iter_child_nodes(node):
            self._escapes(child)


def _binds(node: ast.AST, name: str) -> bool:
    return name in binds(node)


def _targets(node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) -> set[str]:
    return {name for part in node.generators for name in bound(part.target)}


def _join(one: bool | None, other: bool | None) -> bool | None:
    if one is None or other is None:
        return other if one is None else one
    return one or other
