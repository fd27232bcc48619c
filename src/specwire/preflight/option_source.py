"""Reads the options that a tree's server takes from its own argument definitions. Runs nothing of the tree.

Two shapes of definition exist: `parser.add_argument("--name", "--alias", type=int, default=...)`, and record fields
`name: A[int, Arg(aliases=[...])] = default`. Choices and defaults are evaluated, action classes tried on a stand-in.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specwire.errors import SpecwireError
from specwire.preflight.interpreter import evaluate, execute
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    Builtin,
    ClassRef,
    External,
    Frame,
    Function,
    NotUnderstood,
    Raised,
    Thing,
)
from specwire.preflight.options import Merger, Option, Options, Serve, Unread

PLACES = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields")
EXPRESSION_STEPS, STEPS = 20_000, 1_000_000  # of one expression, and of all: SGLang's take 600 and 3,000 at most
MERGERS = ("sglang/srt/server_args_config_parser.py", "sglang/srt/utils/server_args_config_parser.py")


def read_options(source: Source) -> Options:
    """The tree's options. Raises SpecwireError when its argument definitions are not found."""
    names = [PLACES[0]]
    if source.tree.path(PLACES[1]).is_dir():
        names += source.tree.python_files(PLACES[1])
    modules = [module for name in names if (module := source.module(name)) is not None]
    reader = _Reader(source)
    for module in modules:
        for node in ast.walk(module.node):
            if isinstance(node, ast.ClassDef):
                reader.fields(module, node)
    found = list(reader.declared.values())
    for module in modules:
        found += reader.calls(module)
    by_name = {written: option for option in found for written in option.names}
    if "--speculative-algorithm" not in by_name:
        raise SpecwireError(
            f"no --speculative-algorithm among the options in {source.tree.path(PLACES[0])}: this SGLang is too "
            "old for EAGLE-3, or its argument definitions moved. Name another tree with --tree."
        )
    return Options(by_name, tuple(found), _merger(source), _serve(source))


def _text(source: Source, name: str) -> str:
    try:
        return source.tree.read(name).decode("utf-8", "replace")
    except OSError:
        return ""


def _merger(source: Source) -> Merger | None:
    """How the tree reads `--config`; None when it never does."""
    text = next(filter(None, (_text(source, name) for name in MERGERS)), "")
    caller = _text(source, PLACES[0])
    if not text or "ConfigArgumentMerger" not in caller:
        return None
    # Some releases have a merger that knows flags, and give it an empty list of them instead of the parser.
    told = "ConfigArgumentMerger(parser" in caller
    knows = "store_true_actions" in text
    return Merger(
        strict=told and "unsupported_actions" in text,
        true_as="flag" if not knows else "known" if told else "value",
        spellings="_config_keys" in text,
        nested="json.dumps" in text,
    )


def _serve(source: Source) -> Serve | None:
    """How the tree's `sglang serve` reads its words; None when it has none."""
    text = _text(source, "sglang/cli/serve.py")
    if not text:
        return None
    both = '"--model"' in _text(source, "sglang/cli/utils.py")
    return Serve(
        positional="_normalize_positional_model_path" in text,
        model_type="--model-type" in text,
        models=("--model-path", "--model") if both else ("--model-path",),
    )


@dataclass
class _Reader:
    """Reads option definitions. `defaults` are those of the record's fields, by name."""

    source: Source
    defaults: dict[str, Any] = field(default_factory=dict)
    declared: dict[str, Option] = field(default_factory=dict)
    steps: int = 0

    def value(self, module: Module, node: ast.expr | None, names: Mapping[str, Any] | None = None) -> Any:
        """What an expression gives when the module is imported; UNKNOWN where that cannot be told."""
        return _plain(self._raw(module, node, names or {}))

    def _raw(self, module: Module, node: ast.expr | None, names: Mapping[str, Any]) -> Any:
        if node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("set", "frozenset") and len(node.args) == 1:
            return self._raw(module, node.args[0], names)
        if isinstance(node, ast.Set):
            return [self.value(module, item, names) for item in node.elts]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in names:
            holder = self.source.resolve(module, node.value.id)
            if isinstance(holder, ClassRef) and (found := self.source.attribute(holder, node.attr)):
                return self._of_class(*found)
        if isinstance(node, ast.Name) and node.id not in names:
            bound = self.source.resolve(module, node.id)
            if isinstance(bound, (ast.Assign, ast.AnnAssign)):
                return self._raw(self._home(module, node.id), bound.value, {})
        if isinstance(node, ast.ListComp):
            members = _members(self.source, self._raw(module, node.generators[0].iter, names))
            if members is not None:
                first = ast.comprehension(node.generators[0].target, ast.Name("0"), node.generators[0].ifs, 0)
                node = ast.copy_location(ast.ListComp(node.elt, [first, *node.generators[1:]]), node)
                names = {**names, "0": members}
        try:
            with self._machine(module.where(node), self._on_call) as machine:
                return machine.value(node, Frame(module, dict(names)))
        except (Raised, NotUnderstood):
            return UNKNOWN

    @contextlib.contextmanager
    def _machine(self, where: str, on_call: Callable[..., Any]) -> Iterator[Machine]:
        """A machine for one expression. What all of them may take together is bounded."""
        machine = evaluate.machine_for(self.source, on_call)
        machine.limit = max(1, min(EXPRESSION_STEPS, STEPS - self.steps))
        try:
            with machine.reading(where):
                yield machine
        finally:
            self.steps += machine.steps

    def _home(self, module: Module, name: str) -> Module:
        """The module whose own statement binds a name that may be imported."""
        for _ in range(6):
            row = module.binding(name)
            if row is None or not isinstance(row[1], ast.ImportFrom) or row[1].level:
                return module
            other = self.source.dotted(row[1].module or "")
            if other is None:
                return module
            module, name = other, row[2]
        return module

    def _of_class(self, ref: ClassRef, node: ast.stmt) -> Any:
        """A class attribute, whose expression may name the class's other attributes."""
        names = {
            item.targets[0].id: item.value.value
            for item in ref.node.body
            if isinstance(item, ast.Assign)
            and isinstance(item.targets[0], ast.Name)
            and isinstance(item.value, ast.Constant)
        }
        return self._raw(ref.module, getattr(node, "value", None), names)

    def _imported(self, module: Module, node: ast.ImportFrom, name: str) -> Any:
        """What a function's own import binds."""
        other = self.source.dotted(node.module or "") if not node.level else None
        bound = self.source.imported(module, node, name)
        return self._raw(other, ast.Name(name), {}) if isinstance(bound, ast.stmt) and other else bound

    def _on_call(
        self, machine: Machine, node: ast.Call, function: Any, args: list[Any], kwargs: Any, frame: Frame
    ) -> Any:
        if isinstance(function, Builtin) and function.name in ("list", "tuple", "sorted", "set", "frozenset"):
            return list(args[0]) if args and isinstance(args[0], list) else _members(self.source, *args[:1])
        if not isinstance(function, Function) or function.bound is not None:
            return None
        if not isinstance(function.node, ast.FunctionDef):
            return None
        if function.node.name == "_declared_default" and args and isinstance(args[0], str):
            return self.defaults.get(args[0], UNKNOWN)
        # A function without arguments that gives a list: what stands at its end, past what it asks of the process.
        names: dict[str, Any] = {}
        for statement in function.node.body:
            if isinstance(statement, ast.ImportFrom):
                names |= {
                    one.asname or one.name: self._imported(function.module, statement, one.name)
                    for one in statement.names
                }
        last = function.node.body[-1]
        return self._raw(function.module, last.value, names) if isinstance(last, ast.Return) and not args else UNKNOWN

    def fields(self, module: Module, node: ast.ClassDef) -> None:
        """Note the options that a record declares as annotated fields, and its fields' defaults."""
        record = node.name == "ServerArgs" or any("_NS_PATH" in ast.unparse(item) for item in node.body)
        for item in node.body:
            if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
                continue
            default = self._default(module, item.value)
            if record or _annotated(item) is not None:
                self.defaults.setdefault(item.target.id, default)
            if (parts := _annotated(item)) and (
                option := self._field(module, item.target.id, parts, item.value, default)
            ):
                self.declared[option.name] = option  # a field that is declared twice counts as it stands last

    def _default(self, module: Module, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if "default_factory" in keywords:
                made = ast.unparse(keywords["default_factory"])
                if isinstance(keywords["default_factory"], ast.Lambda):
                    return self.value(module, keywords["default_factory"].body)
                return {"list": [], "dict": {}}.get(made, UNKNOWN)
            return self.value(module, keywords.get("default"))
        return self.value(module, node)

    def _field(
        self, module: Module, name: str, parts: list[ast.expr], default_node: ast.expr | None, default: Any
    ) -> Option | None:
        call = next((part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None)
        if call is None and not any(isinstance(part, (ast.Constant, ast.JoinedStr, ast.BinOp)) for part in parts[1:]):
            return None
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}
        if self.value(module, keywords.get("no_cli")):
            return None
        written = self.value(module, keywords.get("cli_name")) or f"--{name.replace('_', '-')}"
        names = (written, *(self.value(module, keywords.get("aliases")) or []))
        base, annotation = _optional(parts[0])
        option = Option(name, names, default=default, required=default_node is None)
        if "action" in keywords:
            given = self.value(module, keywords.get("action_kwargs")) or {}
            option = self._acts(
                module, replace(option, required=False), keywords["action"], given, keywords.get("action_kwargs")
            )
            return option
        if base in ("Literal",):
            listed = [self.value(module, part) for part in _elements(annotation)]
            given = self.value(module, keywords.get("choices")) or listed
            kind = type(listed[0]).__name__ if listed and isinstance(listed[0], (int, float)) else "str"
            option = replace(option, choices=given, type=self._type(keywords.get("type_parser"), kind), required=False)
        elif base in ("List", "list") and "type_parser" not in keywords:
            element = _elements(annotation)
            kind = ast.unparse(element[0]) if element else "str"
            option = replace(
                option,
                nargs=self.value(module, keywords.get("nargs")) or "+",
                type=kind if kind in ("int", "float") else "str",
                choices=self.value(module, keywords.get("choices")) or None,
                required=False,
            )
        elif base == "bool":
            return replace(option, action="set", nargs=0, const=True, required=False, made_by="_StoreTrueAction")
        else:
            kind = base if base in ("int", "float") else "str"
            wanted = self.value(module, keywords.get("required"))
            option = replace(
                option,
                type=self._type(keywords.get("type_parser"), kind),
                choices=self.value(module, keywords.get("choices")) or None,
                nargs=self.value(module, keywords.get("nargs")) or None,
                required=wanted is True or (wanted is None and default_node is None),
            )
        return replace(option, const=self.value(module, keywords.get("const")))

    def _type(self, node: ast.expr | None, otherwise: str) -> str:
        return ast.unparse(node).removeprefix("common.") if node is not None else otherwise

    def calls(self, module: Module) -> Iterator[Option]:
        """The options of the module's `add_argument` calls, in their order."""
        for function in ast.walk(module.node):
            if not isinstance(function, ast.FunctionDef) or not any(map(_is_add_argument, ast.walk(function))):
                continue
            names: dict[str, Any] = {}
            for node in _in_order(function.body):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    names[node.targets[0].id] = self.value(module, node.value, names)
                elif isinstance(node, ast.ImportFrom):
                    names |= {one.asname or one.name: self._imported(module, node, one.name) for one in node.names}
                elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_add_argument(node.value):
                    yield from self._argument(module, node.value, names)

    def _argument(self, module: Module, node: ast.Call, names: Mapping[str, Any]) -> Iterator[Option]:
        written = [self.value(module, argument, names) for argument in node.args]
        options = tuple(name for name in written if isinstance(name, str) and name.startswith("-"))
        if not any(name.startswith("--") for name in options):
            return
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        spread = next((keyword.value for keyword in node.keywords if keyword.arg is None), None)
        if spread is not None:  # add_cli_args_from_dataclass itself: its options are the fields
            return
        first = next(name for name in options if name.startswith("--"))
        dest = self.value(module, keywords.get("dest"), names) or first.lstrip("-").replace("-", "_")
        default = self.value(module, keywords.get("default"), names)
        if "default" in keywords and default is UNKNOWN and str(dest) in self.defaults:
            default = self.defaults[str(dest)]
        if "default" in keywords and ast.unparse(keywords["default"]).endswith("SUPPRESS"):
            default = UNKNOWN if str(dest) not in self.defaults else self.defaults[str(dest)]
        choices = self.value(module, keywords.get("choices"), names) if "choices" in keywords else None
        option = Option(
            str(dest),
            options,
            nargs=self.value(module, keywords.get("nargs"), names),
            type=ast.unparse(keywords["type"]) if "type" in keywords else "str",
            choices=list(choices) if isinstance(choices, (list, tuple, set, dict)) else choices,
            default=default,
            const=self.value(module, keywords.get("const"), names),
            required=self.value(module, keywords.get("required"), names) is True,
        )
        if "action" in keywords:
            given = {name: self.value(module, part, names) for name, part in keywords.items()}
            option = self._acts(module, option, keywords["action"], given, None)
        yield option

    def _acts(
        self, module: Module, option: Option, action: ast.expr, given: Mapping[str, Any], also: ast.expr | None
    ) -> Option:
        """An option with an `action`: one of argparse's own, or a class of the tree, whose `__call__` is run."""
        word = str(action.value) if isinstance(action, ast.Constant) else ast.unparse(action).rpartition(".")[2]
        if word in ("store_true", "store_false"):
            default = option.default if "default" in given else word == "store_false"
            made_by = "_StoreTrueAction" if word == "store_true" else "_StoreFalseAction"
            return replace(option, action="set", nargs=0, const=word == "store_true", default=default, made_by=made_by)
        if word == "store_const":
            return replace(option, action="set", nargs=0, made_by="_StoreConstAction")
        if word == "append":
            return replace(option, action="append", made_by="_AppendAction")
        if word == "BooleanOptionalAction":
            names = (*option.names, *(f"--no-{name[2:]}" for name in option.names if name.startswith("--")))
            return replace(option, action="boolean", nargs=0, names=names, made_by=word)
        if word == "store":
            return option
        cls = self.source.resolve(module, word) if word.isidentifier() else None
        if not isinstance(cls, ClassRef):
            return replace(option, action="unread", made_by=word)
        return self._custom(option, cls, given)

    def _custom(self, option: Option, cls: ClassRef, given: Mapping[str, Any]) -> Option:
        """What an action class of the tree does, by running its `__call__` on a stand-in for a parser."""
        attrs: dict[str, Any] = {}
        if (init := self.source.method(cls, "__init__")) is not None:
            spec = init[1].args
            names = [argument.arg for argument in spec.args]
            defaults = zip(names[len(names) - len(spec.defaults) :], spec.defaults)
            attrs = {name: self.value(init[0].module, node) for name, node in defaults}
        attrs |= {name: value for name, value in given.items() if name != "action"}
        nargs = attrs.get("nargs") if "nargs" not in given else given["nargs"]
        default = option.default if option.default is not None else attrs.get("default")
        instead = attrs.get("new_flag")
        option = replace(
            option,
            nargs=nargs,
            default=default,
            made_by=cls.name,
            deprecated=instead if isinstance(instead, str) else None,
        )
        called = self.source.method(cls, "__call__")
        if called is None:
            return replace(option, action="unread")
        this = Thing(cls, attrs={**attrs, "dest": option.name}, built=True)
        namespace, parser, text = Thing(External("Namespace")), Thing(External("Parser")), Unread("")
        function = Function(called[0].module, called[1], bound=this, owner=called[0])

        def stop(machine: Machine, node: ast.Call, callee: Any, *rest: Any) -> Any:
            if isinstance(node.func, ast.Attribute) and node.func.attr == "error":
                raise Raised("SystemExit", ast.unparse(node))
            return None

        try:
            with self._machine(function.module.where(function.node), stop) as machine:
                execute.call(machine, function, [parser, namespace, text], {"option_string": option.names[0]})
        except Raised:
            said = attrs.get("error_message") or attrs.get("help")
            return replace(option, action="refused", const=said if isinstance(said, str) else "no longer taken")
        except NotUnderstood:
            return replace(option, action="unread")
        if option.name not in namespace.attrs:
            return replace(option, action="none")
        stored = namespace.attrs[option.name]
        if stored is text:
            return replace(option, action="store")
        if stored is UNKNOWN or isinstance(stored, (list, Thing)):
            return replace(option, action="unread")
        return replace(option, action="set", const=_plain(stored))


def _annotated(item: ast.AnnAssign) -> list[ast.expr] | None:
    """The parts of a field's `A[...]` annotation."""
    note = item.annotation
    if not (isinstance(note, ast.Subscript) and ast.unparse(note.value) in ("A", "Annotated")):
        return None
    return list(note.slice.elts) if isinstance(note.slice, ast.Tuple) else [note.slice]


def _optional(node: ast.expr) -> tuple[str, ast.expr]:
    """An annotation's outermost name without Optional or `| None`, and the annotation itself."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Optional":
        return _optional(node.slice)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [part for part in (node.left, node.right) if ast.unparse(part) != "None"]
        return _optional(parts[0]) if len(parts) == 1 else ("Union", node)
    outer = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(outer).rpartition(".")[2], node


def _elements(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return []
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """A function's statements in order, those inside `if`, `with` and `try` too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield from _in_order(getattr(node, part, []))


def _is_add_argument(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def _members(source: Source, of: Any = None) -> Any:
    """The members of an enumeration, with `name` and `value`; None for anything else."""
    if not isinstance(of, ClassRef) or not any(ast.unparse(base).endswith("Enum") for base in of.node.bases):
        return None
    return [
        Thing(
            External(of.name),
            attrs={
                "name": item.targets[0].id,
                "value": item.value.value if isinstance(item.value, ast.Constant) else UNKNOWN,
            },
        )
        for item in of.node.body
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    ]


def _plain(value: Any) -> Any:
    """A value of Python's own plain types throughout; UNKNOWN for all else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, External) and value.name == "sys.maxsize":
        return sys.maxsize
    if isinstance(value, (list, tuple, set)):
        made = [_plain(item) for item in value]
        return UNKNOWN if any(item is UNKNOWN for item in made) else made
    if isinstance(value, dict):
        by_key = {key: _plain(item) for key, item in value.items()}
        return by_key if all(_plain(key) is not UNKNOWN for key in by_key) else UNKNOWN
    return UNKNOWN
