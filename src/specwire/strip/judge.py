"""Whether a whole statement, with all that is in it, does nothing but report."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from specwire.strip.binds import set_by
from specwire.strip.calls import report_kind
from specwire.strip.facts import MARKED, SWITCHED, UNGUARDED, Facts, one_time_flags
from specwire.strip.pure import binding_trouble, effect, is_tagged, manager_trouble, reports
from specwire.strip.words import is_flag

_DEBUGGERS = frozenset(("pdb", "ipdb", "pudb", "icecream"))


@dataclass(frozen=True)
class Judge:
    """`kept`: ids of statements that must stay, with the reason."""

    facts: Facts
    kept: dict[int, str]

    def whole(
        self, node: ast.stmt, guarded: int, loop: bool = False, asked: frozenset[str] = frozenset()
    ) -> tuple[ast.stmt, str] | None:
        """The first statement in `node` that does more than report, and what; None when there is none.

        `guarded`: how, as in `facts`; `asked`: flags that a condition around it asks for.
        """
        if id(node) in self.kept:
            return node, self.kept[id(node)]
        own, parts = self.own(node, guarded, loop)
        if own is None and isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            own = _not_a_flag(node, asked, guarded)
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

    def own(self, node: ast.stmt, guarded: int, loop: bool) -> tuple[str | None, list[tuple[list[ast.stmt], int]]]:
        """What is wrong with a statement's own line, and its blocks, each with how it is guarded."""
        facts = self.facts
        match node:
            case ast.Pass() | ast.Global() | ast.Nonlocal():
                return None, []
            case ast.Expr():
                return reports(node.value, facts, guarded), []
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                return binding_trouble(node, facts, guarded), []
            case ast.Import() | ast.ImportFrom():
                return None if guarded or debugger_import(node) else "imports outside a debug switch", []
            case ast.Delete():
                plain = all(isinstance(target, ast.Name) for target in node.targets)
                return None if plain and guarded else "deletes", []
            case ast.If():
                body = max(guarded, facts.guard(node.test, True), MARKED if self.once(node) else UNGUARDED)
                orelse = max(guarded, facts.guard(node.test, False))
                return effect(node.test, facts, guarded), [(node.body, body), (node.orelse, orelse)]
            case ast.For():
                why = None
                if guarded < SWITCHED and facts.evidence.uses_up(node.iter):
                    why = "loops over something that looping may use up"
                return why or effect(node.iter, facts, guarded), [(node.body, guarded), (node.orelse, guarded)]
            case ast.With():
                why = next((why for item in node.items if (why := manager_trouble(item, facts, guarded))), None)
                return why, [(node.body, guarded)]
            case ast.Try():
                blocks = [
                    node.body,
                    node.orelse,
                    node.finalbody,
                    *(handler.body for handler in node.handlers),
                ]
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

    def once(self, node: ast.If) -> bool:
        """A one-time guard: it asks for a debug flag, sets it, and all it says goes to the console or is tagged."""
        flags = set(one_time_flags(node.test))
        if not flags or node.orelse:
            return False
        inside = [part for statement in node.body for part in ast.walk(statement)]
        calls = [(report_kind(part, self.facts.names), part) for part in inside if isinstance(part, ast.Call)]
        said = [part for kind, part in calls if kind == "print" or (kind and is_tagged(part, self.facts))]
        sets = any(name in flags for part in inside for name in set_by(part)) or flags <= self.facts.counters
        return sets and bool(said) and all(kind != "logger" or part in said for kind, part in calls)


def debugger_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name in _DEBUGGERS for alias in node.names)
    return isinstance(node, ast.ImportFrom) and node.module in _DEBUGGERS


def _not_a_flag(node: ast.stmt, asked: frozenset[str], guarded: int) -> str | None:
    """Where it runs though no switch is set, only flags are debug code: those that are named so or asked for.

    Under a one-time guard local names are, too: who reads one of these can be seen.
    """
    if guarded == SWITCHED:
        return None
    names = [name for part in ast.walk(node) for name in set_by(part) if not guarded or name.startswith(".")]
    other = [name for name in names if not is_flag(name.lstrip(".")) and name not in asked]
    return f"binds {other[0].lstrip('.')}, and nothing says that it is debug code" if other else None
