"""Chooses the statements that go: what is debug code by its looks, as far as it does nothing but report.

Whether anybody reads what such a statement binds is not asked here: `plan` asks it, and passes the statements
that must stay as `kept`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from specwire.marks import LITERAL as MARK
from specwire.strip.calls import report_kind
from specwire.strip.facts import FUNCTIONS, Facts, one_time_flags
from specwire.strip.pure import binding_trouble, effect, flag_set_by, imported, is_tagged, manager_trouble, reports, short_guard
from specwire.strip.text import Text
from specwire.strip.words import is_flag

_DEBUGGERS = frozenset(("pdb", "ipdb", "pudb"))


@dataclass(frozen=True)
class Root:
    """Statements that go together as whole lines; `else_line` goes with the last of its block."""

    nodes: tuple[ast.stmt, ...]
    kind: str
    else_line: int | None = None


@dataclass
class Selection:
    roots: list[Root] = field(default_factory=list)
    left: dict[int, tuple[ast.stmt, str, str]] = field(default_factory=dict)  # line -> what stays, its kind, and why

    def leave(self, node: ast.stmt, kind: str, why: str) -> None:
        self.left.setdefault(node.lineno, (node, kind, why))


@dataclass(frozen=True)
class Selector:
    text: Text
    facts: Facts
    kept: dict[int, str]  # id of a statement that must stay -> why

    def select(self) -> Selection:
        chosen = Selection()
        self._block(self.text.tree, "body", False, chosen)
        return chosen

    def whole(
        self, node: ast.stmt, guarded: bool, loop: bool = False, asked: frozenset[str] = frozenset()
    ) -> tuple[ast.stmt, str] | None:
        """The first statement in `node` that does more than report, and what; None when there is none.

        `guarded`: under a debug switch; `asked`: flags that a condition around it asks for.
        """
        if id(node) in self.kept:
            return node, self.kept[id(node)]
        own, parts = self._own(node, guarded, loop)
        if own is None and isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and not guarded:
            own = _not_a_flag(node, asked)
        if own:
            return node, own
        loop = loop or isinstance(node, ast.For)
        if isinstance(node, ast.If):
            asked |= frozenset(one_time_flags(node.test, any_name=True))
        for block, inner in parts:
            for statement in block:
                if (found := self.whole(statement, inner, loop, asked)) is not None:
                    return found
        return None

    def _own(self, node: ast.stmt, guarded: bool, loop: bool) -> tuple[str | None, list[tuple[list[ast.stmt], bool]]]:
        """What is wrong with a statement's own line, and its blocks, each with whether it is under a switch."""
        facts = self.facts
        match node:
            case ast.Pass() | ast.Global() | ast.Nonlocal():
                return None, []
            case ast.Expr():
                return reports(node.value, facts, guarded), []
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                return binding_trouble(node, facts), []
            case ast.Import() | ast.ImportFrom():
                return None if guarded or debugger_import(node) else "imports outside a debug switch", []
            case ast.Delete():
                plain = all(isinstance(target, ast.Name) for target in node.targets)
                return None if plain and guarded else "deletes", []
            case ast.If():
                on = facts.polarity(node.test)
                body, orelse = guarded or on is True or self._once(node), guarded or on is False
                return effect(node.test, facts), [(node.body, body), (node.orelse, orelse)]
            case ast.For():
                why = None if guarded or _is_range(node.iter) else "loops over something that looping may use up"
                return why or effect(node.iter, facts), [(node.body, guarded), (node.orelse, guarded)]
            case ast.With():
                why = next((why for item in node.items if (why := manager_trouble(item, facts, guarded))), None)
                return why, [(node.body, guarded)]
            case ast.Try():
                blocks = [node.body, node.orelse, node.finalbody, *(handler.body for handler in node.handlers)]
                return None, [(block, guarded) for block in blocks]
            case ast.Break() | ast.Continue():
                return None if loop else "changes which statement comes next", []
            case ast.Return() | ast.Raise():
                return "changes which statement comes next", []
            case ast.Assert():
                return "stops the program when it does not hold", []
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return f"defines {node.name}", []
        return f"is a {type(node).__name__.lower()} statement", []

    def _once(self, node: ast.If) -> bool:
        """A one-time guard: it asks for a debug flag, sets it, and all it says goes to the console or is tagged."""
        flags = set(one_time_flags(node.test))
        if not flags or node.orelse:
            return False
        inside = [part for statement in node.body for part in ast.walk(statement)]
        calls = [(report_kind(part, self.facts.names), part) for part in inside if isinstance(part, ast.Call)]
        said = [part for kind, part in calls if kind == "print" or (kind and is_tagged(part, self.facts))]
        sets = any(name in flags for part in inside for name in set_by(part))
        return sets and bool(said) and all(kind != "logger" or part in said for kind, part in calls)

    def _kind(self, node: ast.stmt, guarded: bool) -> str | None:
        """What sort of debug code a statement is by its looks; None when nothing says that it is any."""
        if isinstance(node, ast.If):
            if self.facts.polarity(node.test) is not None or self.facts.mentions_switch(node.test):
                return "guard"
            if self._once(node):
                return "one-time guard"
        if isinstance(node, ast.Expr) and (short := short_guard(node.value)) is not None:
            if self.facts.mentions_switch(short[0]) or is_tagged(short[1], self.facts):
                return "guard"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            kind = "call" if self.facts.is_report_helper(call) else report_kind(call, self.facts.names)
            if kind in ("call", "breakpoint") or is_tagged(call, self.facts):
                return kind or "call"
            return kind if guarded else None
        if debugger_import(node):
            return "debugger"
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and self.facts.is_switch(node.value):
            return "switch"
        if isinstance(node, (ast.If, ast.For, ast.With, ast.Try)) and self._debug_inside(node):
            return "block"
        return None

    def _debug_inside(self, node: ast.stmt) -> bool:
        kinds = ((report_kind(part, self.facts.names), part) for part in ast.walk(node) if isinstance(part, ast.Call))
        return any(kind == "breakpoint" or (kind and is_tagged(part, self.facts)) for kind, part in kinds)

    def _block(self, owner: ast.AST, field: str, guarded: bool, chosen: Selection) -> None:
        """Choose among the statements of one block; all of them only if the block itself can go."""
        roots: list[Root] = []
        for group in _groups(getattr(owner, field)):
            kinds = [self._kind(node, guarded) for node in group]
            failed = [self.whole(node, guarded) for node in group]
            trouble = self.trouble(owner, field, group)
            if all(kinds) and not any(failed) and not trouble:
                roots.append(Root(tuple(group), kinds[0]))
                continue
            for node, kind, fail in zip(group, kinds, failed, strict=True):
                if kind and kind != "block":
                    chosen.leave(node, kind, self._because(node, fail) if fail else trouble or "shares its line with other code")
                self._inside(node, guarded, chosen)
        self._close(owner, field, roots, chosen)

    def trouble(self, owner: ast.AST, field: str, group: list[ast.stmt]) -> str | None:
        """Why the lines of a group cannot go, whatever the statements do."""
        lines = (self.text.lines[number - 1] for node in group for number in self.text.span(node))
        if any(MARK in line for line in lines):
            return "holds a line of specwire's own: take that out with `specwire remove` first"
        block = getattr(owner, field)
        after = block.index(group[-1]) + 1
        if block[0] is group[0] and after < len(block) and isinstance(owner, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            value = getattr(block[after], "value", None)
            if isinstance(block[after], ast.Expr) and isinstance(getattr(value, "value", None), str):
                return "stands before a string that would become the docstring"  # no syntax tree shows that change
        return self.text.trouble(group[0], group[-1])

    def _close(self, owner: ast.AST, field: str, roots: list[Root], chosen: Selection) -> None:
        """Take the roots, unless that would empty a block that has to stay: nothing is ever put in their place."""
        block: list[ast.stmt] = getattr(owner, field)
        gone = sum(len(root.nodes) for root in roots)
        if not roots or gone < len(block) or isinstance(owner, ast.Module):
            chosen.roots += roots
            return
        if isinstance(owner, ast.If) and field == "orelse":
            line = None if self.text.is_elif(block[0]) else self.text.else_line(owner.body[-1], block[0])
            if line is not None or self.text.is_elif(block[0]):
                chosen.roots += [Root(roots[0].nodes, roots[0].kind, line), *roots[1:]]
                return
        for root in roots:
            for node in root.nodes:
                chosen.leave(node, root.kind, f"is all that a block holds ({_head(owner)}), and that block has to stay")

    def _inside(self, node: ast.stmt, guarded: bool, chosen: Selection) -> None:
        """Go on in the blocks of a statement that stays."""
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            guarded = False
        known = self._own(node, guarded, False)[1] if isinstance(node, ast.If) else []
        under = {id(block): inner for block, inner in known}
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                self._block(node, field, under.get(id(block), guarded), chosen)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._block(part, "body", guarded, chosen)

    def _because(self, node: ast.stmt, fail: tuple[ast.stmt, str]) -> str:
        at, why = fail
        if isinstance(node, ast.If) and at is not node and self.facts.polarity(node.test) is False:
            why += " (and runs while the switch is off)"
        return why if at is node else f"line {at.lineno} {why}"


def set_by(node: ast.AST) -> tuple[str, ...]:
    """The name or `.attribute` that this very node binds, `setattr` of a debug flag included."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return (node.id,)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return ("." + node.attr,)
    if isinstance(node, ast.Call) and (name := flag_set_by(node)):
        return (name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return tuple(imported(node))
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return tuple(node.names)
    if isinstance(node, ast.ExceptHandler) and node.name:
        return (node.name,)
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        return (node.name,)
    return ()


def _not_a_flag(node: ast.stmt, asked: frozenset[str]) -> str | None:
    """Outside a debug switch only flags are debug code: those that are named so or that the condition asks for."""
    names = [name for part in ast.walk(node) for name in set_by(part)]
    other = [name for name in names if not is_flag(name.lstrip(".")) and name not in asked]
    return f"binds {other[0].lstrip('.')}, and nothing says that it is debug code" if other else None


def debugger_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name in _DEBUGGERS for alias in node.names)
    return isinstance(node, ast.ImportFrom) and node.module in _DEBUGGERS


def _groups(block: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Neighbours that share a line stand and fall together."""
    groups: list[list[ast.stmt]] = []
    for node in block:
        if groups and groups[-1][-1].end_lineno >= node.lineno:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _is_range(node: ast.expr) -> bool:
    """An iterable that can be walked again: `range`, a literal, a mapping's views, or `enumerate` of such."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Constant)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "keys", "values")


def _head(owner: ast.AST) -> str:
    line = getattr(owner, "lineno", None)
    return f"the {type(owner).__name__.lower()} at line {line}" if line else f"a {type(owner).__name__}"
