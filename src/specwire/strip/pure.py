"""Whether a statement does nothing but report. The answer is a reason why not, or None."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from specwire.strip.binds import bound, flag_set_by
from specwire.strip.calls import CONVERTS, OPENS, looks_only, report_kind, waits
from specwire.strip.evidence import consumed, shows_tensor
from specwire.strip.facts import SWITCHED, UNGUARDED, Facts
from specwire.strip.words import is_flag

_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp,
    ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.ListComp,
    ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.keyword, ast.NamedExpr, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.Lambda, ast.arguments, ast.arg,
)  # fmt: skip
_MANAGERS = frozenset("torch.no_grad torch.inference_mode contextlib.suppress".split())


def effect(node: ast.AST, facts: Facts, guarded: int = UNGUARDED) -> str | None:
    """Why evaluating an expression might do more than look; None when it only looks. `guarded`: how, as in `facts`.

    What runs only while a switch is on may use up an iterator: then it is debug code that does not work.
    """
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:  # each is asked only where those before it hold
            if why := effect(value, facts, guarded):
                return why
            guarded = max(guarded, facts.guard(value, True))
        return None
    parts = list(_parts(node))
    for part in parts:
        if isinstance(part, ast.Call):
            if not _looks(part, facts):
                return f"calls {short(part.func)}(), which may do more than look"
        elif not isinstance(part, _PLAIN):
            return f"holds {type(part).__name__.lower()}"
    return None if guarded == SWITCHED else _change(parts, facts)


def _looks(call: ast.Call, facts: Facts) -> bool:
    if facts.is_switch(call) or facts.is_pure_helper(call) or facts.is_pure_question(call):
        return True
    if isinstance(call.func, ast.Attribute) and facts.runs_code(call.func, called=True):
        return False
    return looks_only(call, facts.names)


def _change(parts: list[ast.AST], facts: Facts) -> str | None:
    """What looking may change: an iterator that it uses up, a mapping that it adds to, a module that it converts."""
    evidence = facts.evidence
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    read_of = {id(part.value): part.attr for part in parts if isinstance(part, ast.Attribute)}
    for part in parts:
        for walked, lenient in consumed(part):
            if evidence.uses_up(walked, lenient):
                return f"walks over {short(walked)}, which that may use up"
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") in ("hasattr", "getattr") and part.args:
            if owner := facts.watched(part.args[0]):
                return f"asks for an attribute, which the class {owner} may see"
        if isinstance(part, ast.Subscript) and evidence.inserts(part):
            return f"reads {short(part)}, which may add it"
        if isinstance(part, ast.Attribute) and id(part) not in called and facts.runs_code(part, called=False):
            return f"asks for {short(part)}, which may do more than look"
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in CONVERTS:
            if not evidence.is_tensor(part.func.value) and not shows_tensor(read_of.get(id(part), "")):
                return f"calls {short(part.func)}(), which converts a module in place"
    return None


def reports(call: ast.expr, facts: Facts, guarded: int) -> str | None:
    """Why a statement that is this expression alone may not go. `guarded`: how, as in `facts`."""
    if isinstance(call, ast.Constant):
        return None if guarded else "is not known to be debug code"
    if (parts := short_guard(call)) is not None:  # `DEBUG and print(...)`, `print(...) if DEBUG else None`
        test, said = parts
        return effect(test, facts, guarded) or reports(said, facts, max(guarded, facts.guard(test, True)))
    if not isinstance(call, ast.Call):
        return effect(call, facts, guarded) if guarded else "is not known to be debug code"
    if (set_here := flag_set_by(call)) is not None:
        noticed = _noticed(set_here.lstrip("."), call.args[0], facts) if guarded < SWITCHED else None
        return noticed or effect(call.args[2], facts, guarded)
    helper = facts.is_report_helper(call)
    kind = report_kind(call, facts.names)
    if kind is None and not helper:
        return f"calls {short(call.func)}(), which may do more than report"
    if not guarded and kind != "breakpoint" and not helper and not is_tagged(call, facts):
        return "reports, but nothing says that it is debug code"
    if kind == "dump" and guarded < SWITCHED and not (guarded and (waits(call) or _says_debug(call))):
        return "writes a file though no debug switch is set"
    for keyword in call.keywords:
        if keyword.arg == "file" and not _is_console(keyword.value, facts):
            return f"writes to {short(keyword.value)}, which others may read"
    return _arguments(call, facts, guarded)


def short_guard(node: ast.expr) -> tuple[ast.expr, ast.Call] | None:
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


def binding_trouble(
    statement: ast.Assign | ast.AnnAssign | ast.AugAssign, facts: Facts, guarded: int = UNGUARDED
) -> str | None:
    """Why an assignment may do more than bind names that belong to the debug code."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    parts = [part for target in targets for part in ast.walk(target)]
    if why := next((why for part in parts if (why := _target_trouble(part, facts, guarded))), None):
        return why
    if isinstance(statement, ast.AugAssign) and not facts.evidence.counts(statement.target):
        return f"may change the object {short(statement.target)} in place"
    if guarded < SWITCHED:
        attributes = [part for part in parts if isinstance(part, ast.Attribute)]
        if why := next((why for part in attributes if (why := _noticed(part.attr, part.value, facts))), None):
            return why
        unpacked = any(isinstance(target, (ast.Tuple, ast.List)) for target in targets)
        if unpacked and value is not None and facts.evidence.uses_up(value):
            return f"walks over {short(value)}, which that may use up"
    if isinstance(value, ast.Call) and facts.names.dotted(value.func) in OPENS:
        names = {name for target in targets for name in bound(target)}
        return _arguments(value, facts, guarded) if names <= facts.names.handles else "opens a file"
    return effect(value, facts, guarded) if value is not None else None


def _target_trouble(part: ast.AST, facts: Facts, guarded: int) -> str | None:
    """Why a part of an assignment's target is more than a name or a debug attribute."""
    if isinstance(part, ast.Subscript):
        return f"changes what {short(part.value)} holds"
    if not isinstance(part, ast.Attribute) or not isinstance(part.ctx, ast.Store):
        return None
    ours = is_flag(part.attr)
    if not isinstance(part.value, ast.Name) and not (ours and effect(part.value, facts, guarded) is None):
        return f"sets an attribute of {short(part.value)}"
    if not part.attr.startswith("_") and not ours:
        return f"sets {short(part)}, which others may read"
    return None


def _noticed(name: str, holder: ast.expr, facts: Facts) -> str | None:
    """Who notices that an attribute is set: a field is copied and shown, a property or `__setattr__` runs."""
    if owner := facts.fields.names.get(name) or facts.elsewhere.field(name):
        return f"sets {name}, which belongs to the class {owner}"
    if name in facts.defined or facts.elsewhere.alters(name):
        return f"sets {name}, which is a property"
    if owner := facts.watched(holder):
        return f"sets {name}, which the class {owner} may see"
    return None


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
                return _arguments(call, facts, guarded)
    return f"enters {short(call)}"


def _says_debug(call: ast.Call) -> bool:
    """Whether the name of what a call writes says that it is for debugging."""
    texts = (part.value for part in ast.walk(call) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return any(re.search(r"debug|dbg|dump|eagle|trace|^/tmp/", text, re.I) for text in texts)


def _arguments(call: ast.Call, facts: Facts, guarded: int) -> str | None:
    return next((why for part in (*call.args, *call.keywords) if (why := effect(part, facts, guarded))), None)


def _is_console(node: ast.expr, facts: Facts) -> bool:
    if isinstance(node, ast.Name) and node.id in facts.names.handles:
        return True
    return facts.names.dotted(node) in ("sys.stderr", "sys.stdout", "sys.__stderr__", "sys.__stdout__")


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _parts(child)


def short(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
