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


@dataclass(frozen=True)
class Options:
    """All options of a tree by what they are written as."""

    by_name: dict[str, Option]

    def find(self, name: str, source: str) -> Option | None:
        """The option that `name` means: exactly, or as a prefix that fits one option alone, as argparse does.

        Raises SpecwireError when a prefix fits several.
        """
        if name in self.by_name:
            return self.by_name[name]
        fits = {option.name: option for written, option in self.by_name.items() if written.startswith(name)}
        if len(fits) > 1:
            written = sorted(option.names[0] for option in fits.values())
            raise SpecwireError(f"{source}: {name} could mean {', '.join(written[:4])}. Write it out.")
        return next(iter(fits.values()), None)


def read_options(source: Source) -> Options:
    """The tree's options. Raises SpecwireError when its argument definitions are not found."""
    found: dict[str, Option] = {}
    names = [PLACES[0]]
    if source.tree.path(PLACES[1]).is_dir():
        names += source.tree.python_files(PLACES[1])
    for module in filter(None, map(source.module, names)):
        nodes = list(ast.walk(module.node))
        options = [option for node in nodes if isinstance(node, ast.ClassDef) for option in _fields(module, node)]
        options += [option for node in nodes if _is_add_argument(node) for option in _argument(module, node)]
        found |= {written: option for option in options for written in option.names}
    if "--speculative-algorithm" not in found:
        raise SpecwireError(
            f"no --speculative-algorithm among the options in {source.tree.path(PLACES[0])}: this SGLang is too "
            "old for EAGLE-3, or its argument definitions moved. Name another tree with --tree."
        )
    return Options(found)


def _is_add_argument(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def _argument(module: Module, node: ast.Call) -> list[Option]:
    """The option of an `add_argument` call; none when it has no long name."""
    written = [_constant(argument) for argument in node.args]
    names = tuple(name for name in written if isinstance(name, str) and name.startswith("--"))
    if not names:
        return []
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    dest = _constant(keywords.get("dest")) or names[0].lstrip("-").replace("-", "_")
    kind, names = _kind(module, keywords, names)
    return [Option(str(dest), names, kind, ast.unparse(keywords["type"]) if "type" in keywords else "str")]


def _kind(module: Module, keywords: dict[str, ast.expr], names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
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
    defaults = dict(zip([argument.arg for argument in spec.args][len(spec.args) - len(spec.defaults) :], spec.defaults))
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
        call = next((part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}
        if _constant(keywords.get("no_cli")):
            continue
        written = _constant(keywords.get("cli_name")) or f"--{item.target.id.replace('_', '-')}"
        aliases = keywords.get("aliases")
        more = tuple(_constant(alias) for alias in aliases.elts) if isinstance(aliases, ast.List) else ()
        kind, names = _kind(module, keywords, (written, *more))
        base = ast.unparse(parts[0]).removeprefix("Optional[").removesuffix("]")
        if kind == "value" and "type_parser" not in keywords:
            kind = "flag" if base == "bool" else "many" if base.startswith(("List[", "list[")) else kind
        found.append(Option(item.target.id, names, kind, base))
    return found


def _constant(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
