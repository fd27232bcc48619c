"""Python's own operators, functions and methods on plain values, each within bounds.

A step of the interpreter is cheap, but what Python does in one operator is as long as its operands, and what it makes
may be as large as memory. So nothing here is done before its operands are counted, and nothing is made that would be
larger than any model's lists, names and numbers.
"""

from __future__ import annotations

import ast
import operator
import re
import string
from collections.abc import Callable
from typing import Any

from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.values import UNKNOWN, Function, Raised, TooMuch, known

# Longer than any list of layers, heads or tensors that is walked here.
ITEMS = 100_000
TEXT = 100_000  # characters
BITS = 4096  # of a whole number

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "max": max,
    "min": min,
    "sum": sum,
    "any": any,
    "all": all,
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "abs": abs,
    "reversed": reversed,
    "enumerate": enumerate,
    "zip": zip,
    "range": range,
    "set": set,
    "frozenset": set,
    "dict": dict,
}
BUILTINS = {*_FUNCTIONS, "getattr", "hasattr", "setattr", "isinstance", "super", "type", "print", "callable"}
_METHODS: dict[type, set[str]] = {
    str: {
        *(
            "replace",
            "startswith",
            "endswith",
            "split",
            "rsplit",
            "partition",
            "rpartition",
            "strip",
            "lstrip",
            "rstrip",
        ),
        *("lower", "upper", "format", "join", "removeprefix", "removesuffix", "find", "isdigit", "count"),
    },
    list: {"index", "count", "copy", "append", "extend", "insert", "pop", "remove", "sort", "reverse", "clear"},
    tuple: {"index", "count"},
    dict: {"get", "items", "keys", "values", "copy", "update", "setdefault", "pop"},
    set: {
        "union",
        "intersection",
        "difference",
        "isdisjoint",
        "issubset",
        "copy",
        "add",
        "update",
        "discard",
        "remove",
    },
}
# A pattern that `re` cannot spend long on: letters, escapes, classes and groups, with one repetition at most, of a single
# letter or class. SGLang's are `^model\.`, `\.qscale_act$`, `^layers\.0\.`, and the like.
_ATOM = r"(?:[A-Za-z0-9_ ./,:=^$-]|\\[A-Za-z.\\/$^-]|\[[^\[\]\\]+\]|\((?:\?:)?|\))"
_PLAIN_PATTERN = re.compile(rf"{_ATOM}*+")
_REPETITION = re.compile(r"(?<!\\)[*+?]|(?<!\\)\{")
# `{}`, `{0}`, `{name}`, and widths of up to three digits: no attributes, no width that is itself a field.
_PLAIN_SPEC = re.compile(r"[<>^+ 0-]{0,3}[0-9]{0,3}(?:\.[0-9]{1,2})?[a-zA-Z%]?")
_PLAIN_PERCENT = re.compile(r"%(?:\([A-Za-z_]\w*\))?[-+ 0#]{0,3}[0-9]{0,3}(?:\.[0-9]{1,2})?[a-zA-Z%]")


def binary(machine: Machine, op: ast.operator, left: Any, right: Any, where: str) -> Any:
    """`left op right` of plain values; UNKNOWN for anything else, and for products and texts that grow out of hand."""
    plain = (int, float, str, list, tuple, set, dict)
    if not (isinstance(left, plain) and isinstance(right, plain) and type(op) in _BINARY):
        return UNKNOWN
    if isinstance(op, ast.Mult) and not _small_product(left, right):
        return UNKNOWN
    if isinstance(op, ast.Mod) and isinstance(left, str) and not _plain_percent(left):
        return UNKNOWN
    machine.count(left, right)
    return _checked(_guarded(lambda: _BINARY[type(op)](left, right), where), machine)


def compare(machine: Machine, op: ast.cmpop, left: Any, right: Any) -> Any:
    """`left op right` as Python orders and equates plain values; UNKNOWN where it does not."""
    if type(op) not in _COMPARE:
        return UNKNOWN
    machine.count(left, right)
    try:
        return _COMPARE[type(op)](left, right)
    except TypeError:
        return UNKNOWN


def contains(machine: Machine, holder: Any, item: Any) -> Any:
    """`item in holder`, True or False; UNKNOWN where Python would refuse, or where an unknown item may be it."""
    if isinstance(holder, range) and not isinstance(item, int):
        return UNKNOWN  # Python would go through it one by one
    machine.count(holder, item)
    try:
        found = item in holder
    except TypeError:
        return UNKNOWN
    if not found and not isinstance(holder, (str, range)) and not known(*holder):
        return UNKNOWN
    return found


def item_of(machine: Machine, of: Any, index: Any, where: str) -> Any:
    machine.count(index)
    try:
        return of[index]
    except (KeyError, IndexError, TypeError) as error:
        raise Raised(type(error).__name__, f"{index!r}"[:80] if isinstance(index, (str, int)) else "", where) from error


def slice_of(machine: Machine, of: Any, parts: list[Any], where: str) -> Any:
    machine.charge(len(of))
    return _guarded(lambda: of[slice(*parts)], where)


def text_of(machine: Machine, parts: list[str | int | float]) -> str:
    """The parts of an f-string, put together."""
    texts = [str(_checked(part, machine)) for part in parts]
    _length(machine, sum(map(len, texts)), TEXT)
    return "".join(texts)


def iterable(machine: Machine, of: Any) -> list[Any] | None:
    """The items of a value, or None when they are not known, or are more than any model has."""
    if isinstance(of, range) and not _short(of):
        return None
    if isinstance(of, (list, tuple, set, range, dict)) and len(of) <= ITEMS:
        machine.charge(len(of))
        return list(of)
    return None


def call_function(machine: Machine, name: str, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    """A builtin function that needs nothing but plain values."""
    if name not in _FUNCTIONS or not known(*args, *kwargs.values()):
        return UNKNOWN
    if name != "range" and any(isinstance(given, range) and not _short(given) for given in args):
        return UNKNOWN
    if not all(isinstance(given, (int, float, str, list, tuple, set, dict, range, Function)) for given in args):
        if None in args and name not in ("str",):
            raise Raised("TypeError", f"{name}() of None", where)
        return UNKNOWN
    reached = machine.count(*args)
    if name in ("any", "all", "max", "min", "sum", "sorted") and args and not known(*_flat(args)):
        return UNKNOWN
    if name == "sum":
        machine.charge(
            len(_flat(args)) * reached if not all(isinstance(one, (int, float)) for one in _flat(args)) else 0
        )
    if name == "str" and not all(_is_simple(given) for given in args):
        return UNKNOWN
    if name == "range" and not all(_narrow(given) for given in args):
        return UNKNOWN
    made = _guarded(lambda: _FUNCTIONS[name](*args, **{key: kwargs[key] for key in kwargs if key != "key"}), where)
    return _checked(list(made) if name in ("enumerate", "zip", "reversed") and made is not UNKNOWN else made, machine)


def call_method(machine: Machine, of: Any, name: str, args: list[Any], kwargs: dict[str, Any], where: str) -> Any:
    """A method of a text or a container."""
    kind = next((kind for kind in _METHODS if isinstance(of, kind)), None)
    if kind is not None and not hasattr(of, name):
        raise Raised("AttributeError", f"{kind.__name__} has no attribute {name!r}", where)
    if kind is None or name not in _METHODS[kind]:
        return UNKNOWN
    if kind is str and not all(isinstance(given, (str, int, list, tuple)) for given in args):
        return UNKNOWN
    if kind is str and name == "format" and not _plain_format(of, [*args, *kwargs.values()]):
        return UNKNOWN
    if name in ("append", "insert", "add", "setdefault", "get", "copy", "items", "keys", "values", "pop", "clear"):
        machine.charge(len(of) if name in ("copy", "items", "keys", "values", "insert", "pop") else 0)
        if kind in (dict, set) and args:
            machine.count(args[0])  # it is hashed
    else:
        machine.count(of, *args, *kwargs.values())
    if name == "replace" and len(args) > 1 and all(isinstance(given, str) for given in args[:2]):
        _length(machine, len(of) + of.count(args[0]) * len(args[1]), TEXT)
    if name == "join" and args and isinstance(args[0], (list, tuple)):
        _length(machine, sum(len(of) + len(part) for part in args[0] if isinstance(part, str)), TEXT)
    if name == "extend" and args and isinstance(args[0], (list, tuple, set, dict, range, str)):
        _length(machine, len(of) + len(args[0]), ITEMS)
    made = _guarded(lambda: getattr(of, name)(*args, **kwargs), where)
    return _checked(list(made) if name in ("items", "keys", "values") else made, machine)


def substituted(machine: Machine, pattern: str, replacement: str, text: str, where: str) -> Any:
    """`re.sub` of a pattern that takes no longer than the text is long; UNKNOWN for any other pattern."""
    bare = _REPETITION.sub("", pattern, count=2)
    repeats_one = not re.search(r"\)[*+?{]|\{", pattern) and len(pattern) - len(bare) <= 1
    if len(pattern) > 200 or not repeats_one or not _PLAIN_PATTERN.fullmatch(bare):
        return UNKNOWN
    if len(text) * (len(replacement) + 1) > TEXT or "\\g" in replacement:
        return UNKNOWN
    machine.charge(len(text) ** 2)
    try:
        return re.sub(pattern, replacement, text)
    except re.error:
        return UNKNOWN


def _checked(value: Any, machine: Machine) -> Any:
    """The value, if it is no larger than any model's."""
    if isinstance(value, int) and value.bit_length() > BITS:
        raise TooMuch(f"{machine.here}: a number of more than {BITS} bits; stopped reading here")
    if isinstance(value, str):
        _length(machine, len(value), TEXT)
    elif isinstance(value, (list, tuple, set, dict)):
        _length(machine, len(value), ITEMS)
    return value


def _length(machine: Machine, length: int, limit: int) -> None:
    if length > limit:
        raise TooMuch(f"{machine.here}: {length:,} items or characters in one value; stopped reading here")


def _small_product(left: Any, right: Any) -> bool:
    """Whether a product is of numbers, or repeats a sequence to a length that is not beyond all use."""
    lengths = [len(part) for part in (left, right) if isinstance(part, (str, list, tuple))]
    counts = [part for part in (left, right) if isinstance(part, int)]
    return not lengths or all(count <= ITEMS and count * max(lengths) <= ITEMS for count in counts)


def _short(of: range) -> bool:
    return (of.stop - of.start) // of.step <= ITEMS


def _narrow(value: Any) -> bool:
    """Whether a range's bound is one that `len` can count to."""
    return not isinstance(value, int) or abs(value) < 1 << 62


def _is_simple(value: Any) -> bool:
    """Whether a value is shown without looking into anything but plain values."""
    if isinstance(value, (list, tuple, set)):
        return all(_is_simple(item) for item in value)
    return value is None or isinstance(value, (str, int, float, range))


def _plain_format(template: str, given: list[Any]) -> bool:
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return True  # Python says what is wrong with it
    return all(isinstance(value, (str, int, float)) for value in given) and all(
        re.fullmatch(r"\w*", name or "") and _PLAIN_SPEC.fullmatch(spec or "") for _, name, spec, _ in fields
    )


def _plain_percent(template: str) -> bool:
    return "%" not in _PLAIN_PERCENT.sub("", template)


def _flat(args: list[Any]) -> list[Any]:
    return [item for given in args for item in (given if isinstance(given, (list, tuple, set, dict)) else [given])]


def _guarded(make: Callable[[], Any], where: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise Raised(type(error).__name__, str(error)[:160], where) from error
