"""The state of one interpretation: frames, captured boundaries, and a way back to before a branch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specwire.errors import SpecwireError, shortened
from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    UNKNOWN,
    Frame,
    NotUnderstood,
    Raised,
    Sink,
    Thing,
    TooMuch,
    known,
)

STEPS = 250_000
DEPTH = 40
ITEMS_PER_STEP = 16  # what Python does by itself with so many values takes about as long as one step here
REACHED = 1_000_000  # values within values, shared ones counted each time

Expression = Callable[["Machine", Any, Frame], Any]


@dataclass(eq=False)
class Machine:
    """`limit` is how many steps it may take, STEPS by default. `captures` are the boundaries captured so far in order,
    `position` the boundary that the stream is at: how many layers were called. `written` holds every attribute that was
    set, and where;
    `here` is the statement that runs, as `file:line`. `assumptions` are the tests that were decided without
    being known, `crashes` says where a capture would stop the engine, `broken` which models would not build.

    `expressions` gives the value of each kind of expression: the parts of this package that need values ask the
    machine, and so none of them needs the others.

    `on_call(machine, node, function, args, kwargs, frame)` may answer a call in place of the interpreter, with
    anything but None.
    """

    source: Source
    expressions: Mapping[type, Expression]
    steps: int = 0
    limit: int | None = None
    depth: int = 0
    position: int = 0
    captures: list[int] = field(default_factory=list)
    written: list[tuple[Thing, str, str]] = field(default_factory=list)
    here: str = ""
    assumptions: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    undo: list[tuple[Any, str, Any, Callable[[Any], None]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    building: int = 0
    on_call: Callable[..., Any] | None = None

    def value(self, node: ast.expr | None, frame: Frame) -> Any:
        """Evaluate one expression. Raises Raised where Python would, NotUnderstood when out of steps."""
        if node is None:
            return None
        self.tick(node, frame.module)
        handler = self.expressions.get(type(node))
        return handler(self, node, frame) if handler else UNKNOWN

    def tick(self, node: ast.AST, module: Module) -> None:
        self.steps += 1
        if self.steps > (self.limit or STEPS):
            raise TooMuch(f"{module.where(node)}: too many steps; stopped reading here")

    def charge(self, items: int) -> None:
        """Count as steps what Python is about to do with so many values at once."""
        self.steps += items // ITEMS_PER_STEP
        if self.steps > (self.limit or STEPS):
            raise TooMuch(f"{self.here}: too many values; stopped reading here")

    def count(self, *values: Any) -> int:
        """How many values are in these, shared ones counted as often as Python would look at them. Counted as steps."""
        reached, left = 0, list(values)
        while left:
            value = left.pop()
            reached += 1
            if isinstance(value, str):
                reached += len(value) >> 5
            elif isinstance(value, (list, tuple, set)):
                left += value
            elif isinstance(value, dict):
                left += value
                left += value.values()
            if reached + len(left) > REACHED:
                raise TooMuch(f"{self.here}: values within values without end; stopped reading here")
        self.charge(reached)
        return reached

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """Whatever the tree's source makes Python do here is not understood, with the place; never a crash.

        The source may hold anything: circles, depths beyond Python's own, operations that only a real engine could do.
        """
        self.here = self.here or where
        try:
            yield
        except (Raised, NotUnderstood, SpecwireError):
            raise
        except RecursionError:
            raise TooMuch(f"{self.here}: nested too deeply") from None
        except MemoryError:
            raise TooMuch(f"{self.here}: larger than fits here") from None
        except Exception as error:
            raise NotUnderstood(f"{self.here}: {type(error).__name__}: {shortened(str(error))}") from error

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEPTH:
            self.depth -= 1
            raise NotUnderstood(f"{self.here}: calls nested too deeply")
        try:
            yield
        finally:
            self.depth -= 1

    def capture(self, sink: Sink) -> None:
        """Note that the stream, as it is now, was put into a container."""
        sink.count += 1
        self.undo.append((sink, "count", sink.count - 1, lambda old: setattr(sink, "count", old)))
        self.captures.append(self.position)

    def assume(self, text: str) -> None:
        """Note a choice between two ways; how a model is built does not decide what it captures."""
        if text not in self.assumptions and not self.building:
            self.assumptions.append(text)

    def set_name(self, frame: Frame, name: str, value: Any) -> None:
        self._record(frame, name, frame.names)
        frame.names[name] = value

    def set_attr(self, thing: Thing, name: str, value: Any) -> None:
        self._record(thing, name, thing.attrs)
        thing.attrs[name] = value
        self.written.append((thing, name, self.here))

    def _record(self, holder: Any, name: str, places: dict[str, Any]) -> None:
        def restore(old: Any) -> None:
            if old is _ABSENT:
                places.pop(name, None)
            else:
                places[name] = old

        self.undo.append((holder, name, places.get(name, _ABSENT), restore))

    def trial(self, run: Callable[[], tuple[str, Any]]) -> Trial:
        """Run something, note what it changed, and put everything back."""
        mark, start, position = len(self.undo), len(self.captures), self.position
        outcome = run()
        changes: dict[tuple[int, str], Change] = {}
        for holder, name, old, restore in reversed(self.undo[mark:]):
            key = (id(holder), name)
            new = changes[key].new if key in changes else _current(holder, name)
            changes[key] = Change(holder, name, restore, old, new)
            restore(old)
        del self.undo[mark:]
        done = Trial(outcome, self.captures[start:], self.position, changes)
        del self.captures[start:]
        self.position = position
        return done

    def merge(self, first: Trial, second: Trial, chosen: Trial) -> None:
        """Take over what two trials agree on, and what only one of them knows."""
        for key, change in (first.changes | second.changes).items():
            one = first.changes[key].new if key in first.changes else change.old
            two = second.changes[key].new if key in second.changes else change.old
            self.undo.append((change.holder, change.name, change.old, change.restore))
            change.restore(self._agreed(one, two, part=isinstance(change.holder, Thing)))
        self.captures += chosen.captures
        self.position = chosen.position

    def _agreed(self, one: Any, two: Any, part: bool) -> Any:
        """One value for what two branches gave. A model that is built beats one that is left out; it may be missing
        if it is a `part` of something, not if only one branch has a name for it."""
        if one is two:
            return one
        for value, other in ((one, two), (two, one)):
            if isinstance(value, (Thing, list)) and (other is None or other is _ABSENT or not known(other)):
                for thing in value if isinstance(value, list) else [value]:
                    if part and isinstance(thing, Thing):
                        thing.maybe = True
                return value
            if other is _ABSENT:
                return value
        if type(one) is not type(two):
            return UNKNOWN
        self.count(one, two)
        return one if one == two else UNKNOWN


@dataclass(frozen=True)
class Change:
    """One name or attribute that a branch changed: `restore` sets it to a value."""

    holder: Any
    name: str
    restore: Callable[[Any], None]
    old: Any
    new: Any


@dataclass(frozen=True)
class Trial:
    """What a branch did: how it ended, what it captured, where the stream stood, what it changed."""

    outcome: tuple[str, Any]
    captures: list[int]
    position: int
    changes: dict[tuple[int, str], Change]


_ABSENT = object()


def _current(holder: Any, name: str) -> Any:
    if isinstance(holder, Frame):
        return holder.names.get(name, _ABSENT)
    if isinstance(holder, Thing):
        return holder.attrs.get(name, _ABSENT)
    return getattr(holder, name)
