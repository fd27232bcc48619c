"""Chooses the statements that go: what is debug code by its looks, as far as it does nothing but report.

Whether anybody reads what such a statement binds is not asked here: `plan` asks it, and passes the statements
that must stay as `kept`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from specwire.patching.marks import LITERAL as MARK
from specwire.strip.binds import FUNCTIONS
from specwire.strip.calls import report_kind
from specwire.strip.facts import UNGUARDED, Facts
from specwire.strip.judge import Judge, debugger_import
from specwire.strip.pure import is_tagged, short_guard
from specwire.strip.raising import answered, caught_by
from specwire.strip.text import Text
from specwire.syntax import last_line

ALLOWED = "is allowed by the comment on it"


@dataclass(frozen=True)
class Root:
    """Statements that go together as whole lines; `else_line` goes with the last of its block."""

    nodes: tuple[ast.stmt, ...]
    kind: str
    else_line: int | None = None


@dataclass
class Selection:
    roots: list[Root] = field(default_factory=list)
    # line -> what stays, its kind, and why
    left: dict[int, tuple[ast.stmt, str, str]] = field(default_factory=dict)

    def leave(self, node: ast.stmt, kind: str, why: str) -> None:
        self.left.setdefault(node.lineno, (node, kind, why))


@dataclass(frozen=True)
class Selector:
    text: Text
    judge: Judge

    @property
    def facts(self) -> Facts:
        return self.judge.facts

    def select(self) -> Selection:
        chosen = Selection()
        self._block(self.text.tree, "body", UNGUARDED, frozenset(), chosen)
        return chosen

    def _kind(self, node: ast.stmt, guarded: int) -> str | None:
        """What sort of debug code a statement is by its looks; None when nothing says that it is any."""
        if isinstance(node, ast.If):
            if self.facts.polarity(node.test) is not None or self.facts.mentions_switch(node.test):
                return "guard"
            if self.judge.once(node):
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
        if (
            isinstance(node, (ast.Assign, ast.AnnAssign))
            and node.value is not None
            and (self.facts.is_switch(node.value) or self._constant(node))
        ):
            return "switch"
        if isinstance(node, (ast.If, ast.For, ast.With, ast.Try)) and self._debug_inside(node):
            return "block"
        return None

    def _constant(self, node: ast.Assign | ast.AnnAssign) -> bool:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(target, ast.Name) and target.id in self.facts.constants for target in targets)

    def _debug_inside(self, node: ast.stmt) -> bool:
        kinds = ((report_kind(part, self.facts.names), part) for part in ast.walk(node) if isinstance(part, ast.Call))
        return any(kind == "breakpoint" or (kind and is_tagged(part, self.facts)) for kind, part in kinds)

    def _block(self, owner: ast.AST, field: str, guarded: int, caught: frozenset[str], chosen: Selection) -> None:
        """Choose among the statements of one block; all of them only if the block itself can go.

        `caught`: the errors that something around the block answers.
        """
        roots: list[Root] = []
        for group in _groups(getattr(owner, field)):
            kinds = [self._kind(node, guarded) for node in group]
            failed = [self.judge.whole(node, guarded) for node in group]
            trouble = self.trouble(owner, field, group)
            if all(kinds) and not trouble:
                trouble = next((why for node in group if (why := self._answered(node, caught, guarded))), None)
            if kinds[0] and all(kinds) and not any(failed) and not trouble:
                roots.append(Root(tuple(group), kinds[0]))
                continue
            for node, kind, fail in zip(group, kinds, failed, strict=True):
                if kind and kind != "block":
                    chosen.leave(
                        node,
                        kind,
                        self._because(node, fail) if fail else trouble or "shares its line with other code",
                    )
                self._inside(node, guarded, caught, chosen)
        self._close(owner, field, roots, chosen)

    def _answered(self, node: ast.stmt, caught: frozenset[str], guarded: int) -> str | None:
        error = answered(node, caught, self.facts, guarded, self.judge)
        return f"may raise {error}, which is answered around it" if error else None

    def trouble(self, owner: ast.AST, field: str, group: list[ast.stmt]) -> str | None:
        """Why the lines of a group cannot go, whatever the statements do."""
        if MARK in self.text.data:
            lines = (self.text.lines[number - 1] for node in group for number in self.text.span(node))
            if any(MARK in line for line in lines):
                return "holds a line of specwire's own: take that out with `specwire remove` first"
        if self.text.allowed(group):
            return ALLOWED
        if fields := self.facts.fields.statements:
            inside = (part for node in group for part in ast.walk(node))
            if field_of := next((fields[id(part)] for part in inside if id(part) in fields), None):
                return field_of
        if _asks(owner, field) and any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in group):
            return "may be there to find out whether it can be imported"
        return self.text.trouble(group[0], group[-1])

    def _close(self, owner: ast.AST, field: str, roots: list[Root], chosen: Selection) -> None:
        """Take the roots, unless that would empty a block that has to stay: nothing is ever put in their place."""
        block: list[ast.stmt] = getattr(owner, field)
        if roots and (carrier := self.facts.carriers.get(id(owner))):
            going = {id(node) for root in roots for node in root.nodes}
            if all(_passes_on(node) for node in block if id(node) not in going):
                for root in roots:
                    for node in root.nodes:
                        chosen.leave(node, root.kind, f"is all that {carrier} is there for: take both out by hand")
                return
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

    def _inside(self, node: ast.stmt, guarded: int, caught: frozenset[str], chosen: Selection) -> None:
        """Go on in the blocks of a statement that stays."""
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            guarded, caught = UNGUARDED, frozenset()
        known = self.judge.own(node, guarded, False)[1] if isinstance(node, ast.If) else []
        under = {id(block): inner for block, inner in known}
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                here = caught | caught_by(node) if name == "body" else caught
                self._block(node, name, under.get(id(block), guarded), here, chosen)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._block(part, "body", guarded, caught, chosen)

    def _because(self, node: ast.stmt, fail: tuple[ast.stmt, str]) -> str:
        at, why = fail
        if isinstance(node, ast.If) and at is not node and self.facts.polarity(node.test) is False:
            why += " (and runs while the switch is off)"
        return why if at is node else f"line {at.lineno} {why}"


def _passes_on(node: ast.stmt) -> bool:
    """Whether a statement of a wrapper does no more than call what is wrapped."""
    if isinstance(node, (ast.Return, ast.Nonlocal, ast.Global)):
        return True
    return isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)) and isinstance(
        node.value, (ast.Call, ast.Yield, ast.Await, ast.Constant)
    )


def _asks(owner: ast.AST, field: str) -> bool:
    """Whether an error in a block is somebody's answer."""
    if isinstance(owner, (ast.With, ast.AsyncWith)):
        return any("suppress" in ast.unparse(item.context_expr) for item in owner.items)
    return isinstance(owner, (ast.Try, ast.TryStar)) and field == "body" and bool(owner.handlers)


def _groups(block: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Neighbours that share a line stand and fall together."""
    groups: list[list[ast.stmt]] = []
    for node in block:
        if groups and last_line(groups[-1][-1]) >= node.lineno:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _head(owner: ast.AST) -> str:
    line = getattr(owner, "lineno", None)
    return f"the {type(owner).__name__.lower()} at line {line}" if line else f"a {type(owner).__name__}"
