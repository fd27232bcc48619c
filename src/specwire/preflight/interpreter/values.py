"""What the interpreter computes with: Python's own plain values, and stand-ins for the rest."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specwire.model_files import LANGUAGE_PARTS
from specwire.preflight.interpreter.module import Module


class _Unknown:
    """One of the two values that stand for "cannot be known from the source"."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


UNKNOWN = _Unknown("UNKNOWN")
# Whatever comes from the batch at hand. Its flags are read as not set: a plain text batch, with
# no images, no two-batch overlap, nothing idle.
QUIET = _Unknown("QUIET")


class Raised(Exception):
    """The interpreted code raised: `kind` is the exception's name, `where` its `file:line`."""

    def __init__(self, kind: str, detail: str = "", where: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail, self.where = kind, detail, where


class NotUnderstood(Exception):
    """The interpreter met something that it does not know and must not guess."""


class TooMuch(NotUnderstood):
    """The source takes more steps or larger values than any model's: reading it with other ids would, too."""


@dataclass(frozen=True)
class ClassRef:
    """A class of the tree: the module that defines it and its node."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class External:
    """A name from outside the tree, or one that is not followed, such as `torch.nn.Linear`."""

    name: str


@dataclass(eq=False)
class Frame:
    """One function's scope. `owner` is the class that defines the function, for `super()`."""

    module: Module
    names: dict[str, Any]
    closure: Frame | None = None
    owner: ClassRef | None = None
    this: Any = None


@dataclass(eq=False)
class Thing:
    """An instance. Of a class of the tree (built when first looked into), or of an external one.

    `layer` is its index when it is one of a model's layers; `maybe` that it may not be there at all.
    """

    cls: ClassRef | External
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    built: bool = False
    layer: int | None = None
    maybe: bool = False

    @property
    def class_name(self) -> str:
        return self.cls.name.rpartition(".")[2]


@dataclass(eq=False)
class Function:
    """A function of the tree, with the scope it was defined in and what it is bound to."""

    module: Module
    node: ast.FunctionDef | ast.Lambda
    closure: Frame | None = None
    bound: Thing | ClassRef | None = None
    owner: ClassRef | None = None


@dataclass(eq=False)
class Method:
    """A method of one of our stand-ins or of a plain value, not yet called."""

    of: Any
    name: str


@dataclass(eq=False)
class Builtin:
    name: str


@dataclass(eq=False)
class Sink:
    """The container that a model collects its captured states in. `expected`: how many it was made for,
    where it refuses to be emptied with another count."""

    expected: int | None = None
    count: int = 0


class LayerList(list[Any]):
    """What the `make_layers` helpers return: the layers, and on request the first and last index."""


class Config:
    """A `config.json` as the engine sees it: attributes, keys and `.get`, one object.

    The tree's code may write into `data`, so that is a copy (`of`). `defaults` are what the config's class sets; `never`
    are names that no class sets.
    """

    @classmethod
    def of(cls, data: Mapping[str, Any], defaults: dict[str, Any] | None = None, never: tuple[str, ...] = ()) -> Config:
        """Of a config that stays as it is, whatever the tree's code writes into this one."""
        return cls(copy.deepcopy(dict(data)), defaults, never)

    def __init__(
        self, data: dict[str, Any], defaults: dict[str, Any] | None = None, never: tuple[str, ...] = ()
    ) -> None:
        self.data = data
        self.defaults = defaults or {}
        self.never = never

    def has(self, name: str) -> bool:
        return self.lookup(name, _MISSING) is not _MISSING

    def lookup(self, name: str, default: Any) -> Any:
        for place in (self.data, self.defaults, *self._nested()):
            if name in place:
                value = place[name]
                nested = isinstance(value, dict) and name.endswith("_config") and name != "eagle_config"
                return Config(value) if nested else value
        return default

    def _nested(self) -> list[dict[str, Any]]:
        return [self.data[name] for name in LANGUAGE_PARTS if isinstance(self.data.get(name), dict)]


_MISSING = object()


def truth(value: Any) -> bool | None:
    """Python's truth of a value, or None when it cannot be known."""
    if value is QUIET:
        return False
    if value is UNKNOWN or isinstance(value, External):
        return None
    if isinstance(value, Sink):
        return value.count > 0
    if isinstance(value, Thing):
        return None if isinstance(value.cls, External) else True
    if isinstance(value, (ClassRef, Function, Method, Builtin, Config)):
        return True
    return bool(value)


def known(*values: Any) -> bool:
    return all(value is not UNKNOWN and value is not QUIET for value in values)
