"""Whether a statement does nothing but report. The answer is a reason why not, or None."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from specwire.strip.binds import bound, flag_set_by
from specwire.strip.calls import OPENS, looks_only, report_kind, waits
from specwire.strip.facts import SWITCHED, Facts
from specwire.strip.words import is_flag

_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp,
    ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.ListComp,
    ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.keyword, ast.NamedExpr, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.Lambda, ast.arguments, ast.arg,
)  # fmt: skip
_MANAGERS = frozenset("torch.no_grad torch.inference_mode contextlib.suppress".split())


def effect(node: ast.AST, facts: Facts) -> str | None:
    """Why evaluating an expression might do more than look; None when it only looks."""
    for part in _parts(node):
        if isinstance(part, ast.Call):
            if not looks_only(part, facts.names) and not facts.is_switch(part) and not facts.is_pure_helper(part):
                return f"calls {_short(part.func)}(), which may do more than look"
        elif not isinstance(part, _PLAIN):
            return f"holds {type(part).__name__.lower()}"
    return None


def reports(call: ast.expr, facts: Facts, guarded: int) -> str | None:
    """Why a statement that is this expression alone may not go. `guarded`: how, as in `facts`."""
    if isinstance(call, ast.Constant):
        return None if guarded else "is not known to be debug code"
    if (short := short_guard(call)) is not None:  # `DEBUG and print(...)`, `print(...) if DEBUG else None`
        test, said = short
        return effect(test, facts) or reports(said, facts, max(guarded, facts.guard(test, True)))
    if not isinstance(call, ast.Call):
        return effect(call, facts) if guarded else "is not known to be debug code"
    if flag_set_by(call) is not None:
        return effect(call.args[2], facts)
    helper = facts.is_report_helper(call)
    kind = report_kind(call, facts.names)
    if kind is None and not helper:
        return f"calls {_short(call.func)}(), which may do more than report"
    if not guarded and kind != "breakpoint" and not helper and not is_tagged(call, facts):
        return "reports, but nothing says that it is debug code"
    if kind == "dump" and guarded < SWITCHED and not (guarded and (waits(call) or _says_debug(call))):
        return "writes a file though no debug switch is set"
    for keyword in call.keywords:
        if keyword.arg == "file" and not _is_console(keyword.value, facts):
            return f"writes to {_short(keyword.value)}, which others may read"
    return _arguments(call, facts)


def short_guard(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(condition, call) for a call that is made under a condition within one expression."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) and isinstance(node.values[-1], ast.Call):
        tests = node.values[:-1]
        return (tests[0] if len(tests) == 1 else ast.BoolOp(node.op, tests)), node.values[-1]
    if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Call) and isinstance(node.orelse, ast.Constant):
        return node.test, node.body
    return None


def is_tagged(call: ast.Call, facts: Facts) -> bool:
    """Whether a message among the arguments begins like a debug message: `[EAGLE3-DEBUG] ...`."""
    return any(facts.is_tag(part) for argument in call.args for part in ast.walk(argument))


def binding_trouble(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, facts: Facts) -> str | None:
    """Why an assignment may do more than bind names that belong to the debug code."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Subscript):
                return f"changes what {_short(part.value)} holds"
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                if not isinstance(part.value, ast.Name) and not (
                    is_flag(part.attr) and effect(part.value, facts) is None
                ):
                    return f"sets an attribute of {_short(part.value)}"
                if not part.attr.startswith("_") and not is_flag(part.attr):
                    return f"sets {_short(part)}, which others may read"
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        if not is_flag(statement.target.id) and not isinstance(statement.value, ast.Constant):
            return f"may change the object {statement.target.id} in place"
    value = statement.value
    if isinstance(value, ast.Call) and facts.names.dotted(value.func) in OPENS:
        names = {name for target in targets for name in bound(target)}
        return _arguments(value, facts) if names <= facts.names.handles else "opens a file"
    return effect(value, facts) if value is not None else None


def manager_trouble(item: ast.withitem, facts: Facts, guarded: int) -> str | None:
    """Why a `with` item does more than a report needs."""
    call = item.context_expr
    if isinstance(call, ast.Call):
        name = facts.names.dotted(call.func)
        if name in _MANAGERS:
            return None
        if name in OPENS and (guarded == SWITCHED or guarded and _says_debug(call)):
            names = set(bound(item.optional_vars)) if item.optional_vars is not None else set()
            if names <= facts.names.handles:
                return _arguments(call, facts)
    return f"enters {_short(call)}"


def _says_debug(call: ast.Call) -> bool:
    """Whether the name of what a call writes says that it is for debugging."""
    texts = (part.value for part in ast.walk(call) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return any(re.search(r"debug|dbg|dump|eagle|trace|^/tmp/", text, re.I) for text in texts)


def _arguments(call: ast.Call, facts: Facts) -> str | None:
    return next((why for part in (*call.args, *call.keywords) if (why := effect(part, facts))), None)


def _is_console(node: ast.expr, facts: Facts) -> bool:
    if isinstance(node, ast.Name) and node.id in facts.names.handles:
        return True
    return facts.names.dotted(node) in ("sys.stderr", "sys.stdout", "sys.__stderr__", "sys.__stdout__")


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _parts(child)


def _short(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
