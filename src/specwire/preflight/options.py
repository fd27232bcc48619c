"""The options that a tree's server takes, read from its own argument definitions.

Two shapes exist: `parser.add_argument("--name", "--alias", type=int, default=...)`, and record fields
`name: A[int, Arg(aliases=[...])] = default`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from specwire.errors import SpecwireError
from specwire.preflight.interpreter.modules import Module, Source
from specwire.preflight.interpreter.values import ClassRef

PLACES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields")


@dataclass(frozen=True)
class Option:
    """`name` is the destination, such as `tp_size`. `kind`: value, flag, many (a list), optional (or alone)."""

    name: str
    names: tuple[str, ...]
    kind: str = "value"
    type: str = "str"
    default: Any = None


@dataclass(frozen=True)
class Options:
    """All options of a tree by what they are written as. `where` says what was read."""

    by_name: dict[str, Option]
    where: str

    def find(self, name: str, source: str) -> Option | None:
        """The option that `name` means: exactly, or as a prefix that fits one option alone, as argparse does.

        Raises SpecwireError when a prefix fits several.
        """
        if name in self.by_name:
            return self.by_name[name]
        fits = {option.name: option for written, option in self.by_name.items() if written.startswith(name)}
        if len(fits) > 1:
            raise SpecwireError(
                f"{source}: {name} could mean {', '.join(sorted(self._written(fits))[:4])}. Write it out."
            )
        return next(iter(fits.values()), None)

    def default(self, name: str) -> Any:
        return next((option.default for option in self.by_name.values() if option.name == name), None)

    @staticmethod
    def _written(fits: dict[str, Option]) -> list[str]:
        return [option.names[0] for option in fits.values()]


def read_options(source: Source) -> Options:
    """The tree's options. Raises SpecwireError when its argument definitions are not found."""
    found: dict[str, Option] = {}
    names = [PLACES[0]]
    if source.tree.path(PLACES[1]).is_dir():
        names += source.tree.python_files(PLACES[1])
    defaults: dict[str, Any] = {}
    for name in names:
        module = source.module(name)
        if module is None:
            continue
        for node in ast.walk(module.node):
            if isinstance(node, ast.ClassDef):
                defaults |= _field_defaults(node)
                found |= {written: option for option in _fields(module, node) for written in option.names}
        for node in ast.walk(module.node):
            option = _argument(module, node, defaults)
            if option is not None:
                found |= {written: option for written in option.names}
    if "--speculative-algorithm" not in found:
        raise SpecwireError(
            f"no --speculative-algorithm among the options in {source.tree.path(PLACES[0])}: this SGLang is too "
            "old for EAGLE-3, or its argument definitions moved. Name another tree with --tree."
        )
    return Options(found, ", ".join(name for name in PLACES if source.tree.path(name).exists()))


def _argument(module: Module, node: ast.AST, defaults: dict[str, Any]) -> Option | None:
    """An `add_argument` call with a long name."""
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
    ):
        return None
    names = tuple(
        value for value in (_constant(argument) for argument in node.args) if isinstance(value, str)
    )
    names = tuple(name for name in names if name.startswith("--"))
    if not names:
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    dest = _constant(keywords.get("dest")) or names[0].lstrip("-").replace("-", "_")
    kind, names = _kind(module, keywords, names)
    default = _constant(keywords.get("default"))
    if default is None and isinstance(keywords.get("default"), ast.Attribute):
        default = defaults.get(keywords["default"].attr)
    kept = ast.unparse(keywords["type"]) if "type" in keywords else "str"
    return Option(str(dest), names, kind, kept, default)


def _kind(
    module: Module, keywords: dict[str, ast.expr], names: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    if "BooleanOptionalAction" in action:
        return "flag", (*names, *(f"--no-{name[2:]}" for name in names))
    if "store_true" in action or "store_false" in action or "store_const" in action:
        return "flag", names
    nargs = _constant(keywords.get("nargs"))
    if nargs == 0 or ("nargs" not in keywords and _takes_nothing(module, action)):
        return "flag", names
    if nargs in ("+", "*") or isinstance(nargs, int):
        return "many", names
    return ("optional" if nargs == "?" else "value"), names


def _takes_nothing(module: Module, action: str) -> bool:
    """Whether an action class of the tree is made for options without a value: its `nargs` defaults to 0."""
    found = module.source.resolve(module, action) if action.isidentifier() else None
    init = module.source.attribute(found, "__init__") if isinstance(found, ClassRef) else None
    if init is None:
        return False
    spec = init[1].args
    defaults = dict(
        zip([argument.arg for argument in spec.args][len(spec.args) - len(spec.defaults) :], spec.defaults)
    )
    return _constant(defaults.get("nargs")) == 0


def _fields(module: Module, node: ast.ClassDef) -> list[Option]:
    """Options declared as annotated fields of a record."""
    found = []
    for item in node.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        note = item.annotation
        if not (isinstance(note, ast.Subscript) and ast.unparse(note.value) in ("A", "Annotated")):
            continue
        parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        call = next(
            (part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None
        )
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}
        if _constant(keywords.get("no_cli")):
            continue
        written = _constant(keywords.get("cli_name")) or f"--{item.target.id.replace('_', '-')}"
        aliases = keywords.get("aliases")
        more = tuple(_constant(alias) for alias in aliases.elts) if isinstance(aliases, ast.List) else ()
        kind, names = _kind(module, keywords, (written, *more))
        base = ast.unparse(parts[0]).removeprefix("Optional[").removesuffix("]")
        if kind == "value" and base == "bool" and "type_parser" not in keywords:
            kind = "flag"
        elif kind == "value" and _is_list(base) and "type_parser" not in keywords:
            kind = "many"
        found.append(Option(item.target.id, names, kind, base, _constant(item.value)))
    return found


def _is_list(base: str) -> bool:
    return base.startswith(("List[", "list["))


def _field_defaults(node: ast.ClassDef) -> dict[str, Any]:
    return {
        item.target.id: _constant(item.value)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
    }


def _constant(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
