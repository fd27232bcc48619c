"""Which boundaries a tree captures for given layer ids: its own rule, read from its source and evaluated.

The target's class is looked up as the engine does it, its setter is run on the ids, and its layer loop is
walked once: nothing here knows a release or a model by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specwire.preflight.interpreter import attributes, evaluate, execute
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    QUIET,
    UNKNOWN,
    ClassRef,
    Config,
    Function,
    NotUnderstood,
    Raised,
    Thing,
    TooMuch,
)
from specwire.preflight.plumbing import KEY, SETTER, Plumbing, read_plumbing
from specwire.preflight.residual import bare_capture

EAGLE3 = "EAGLE3"


@dataclass(frozen=True)
class Rule:
    """What one tree captures for one target and one list of layer ids.

    `captured`: boundaries in slot order; None when they could not be read. `problem` says why, or, where
    `stops` is true, why the engine would not come up; `absent` is true when this release has no such rule for
    the target at all; `endless` is where reading it takes too long, with whatever ids; `bare` is where the captured stream leaves out a residual that the layers hand on beside it.
    """

    release: str
    architecture: str
    layer_ids: list[int] | None
    num_layers: int | None
    captured: tuple[int, ...] | None = None
    where: str | None = None
    text: str = ""
    problem: str | None = None
    stops: bool = False
    absent: bool = False
    endless: bool = False
    assumptions: tuple[str, ...] = ()
    bare: str | None = None
    _again: Callable[[list[int] | None], Rule] | None = field(default=None, repr=False, compare=False)

    @property
    def understood(self) -> bool:
        """Whether it was read to its end: what is captured, that the engine stops, or that there is no rule."""
        return self.captured is not None or self.stops or self.absent

    def for_ids(self, layer_ids: list[int] | None) -> Rule | None:
        """The same rule for other ids (None: the defaults); None when there is no rule."""
        return self._again(layer_ids) if self._again else None

    def ids_for(self, boundaries: Sequence[int]) -> list[int] | None:
        """Layer ids that make this tree capture exactly `boundaries` in that order; None when none do.

        Candidates are tried by evaluating the rule, not by inverting a table.
        """
        if self._again is None:
            return None
        return next((ids for ids in candidates(boundaries) if self._again(ids).gives(boundaries)), None)

    def gives(self, boundaries: Sequence[int]) -> bool:
        """Whether the engine comes up and captures exactly these."""
        return self.captured == tuple(boundaries) and self.problem is None


def captured_boundaries(source: Source, config: Mapping[str, Any], layer_ids: list[int] | None) -> Rule:
    """The boundaries that the tree captures for the target with this config.json, given these layer ids.

    Raises SpecwireError when a source file cannot be parsed.
    """
    architectures = config.get("architectures") or []
    cls = source.model_class(architectures)
    architecture = cls.name if cls else next(iter(architectures), "")
    layers = Config.of(config).lookup("num_hidden_layers", None)
    base = Rule(source.release, architecture, layer_ids, layers if isinstance(layers, int) else None)
    if cls is None:
        why = f"no model class {architecture or '(config.json names none)'} in {base.release}"
        return replace(base, problem=why, absent=True, text=why)

    known: dict[tuple[int, ...] | None, Rule] = {}

    def again(ids: list[int] | None) -> Rule:
        key = None if ids is None else tuple(ids)
        if key not in known:
            known[key] = _evaluate(source, cls, config, replace(base, layer_ids=ids))
        return known[key]

    rule = again(layer_ids)
    rule = rule if rule.absent or rule.endless else replace(rule, _again=again)
    return replace(rule, text=rule.text or _sentence(rule))


def draft_rule(source: Source, target: Mapping[str, Any], draft: Mapping[str, Any]) -> tuple[Rule, Plumbing]:
    """The tree's rule for a target and a draft, both given as config.json, ids read as the tree reads them."""
    plumbing = read_plumbing(source, draft)
    rule = captured_boundaries(source, target, plumbing.layer_ids)
    if plumbing.wrong:
        text = f"the draft's config.json gives {KEY} as {plumbing.wrong}, where {rule.release} expects a list of whole numbers"
        return replace(rule, captured=None, problem=text, stops=True, text=text), plumbing
    if not plumbing.use_aux and plumbing.reads_config:
        text = "the draft's eagle_config has use_aux_hidden_state false: the target captures no layer"
        rule = replace(rule, captured=(), text=text)
    return rule, plumbing


def graph_order(rule: Rule, plumbing: Plumbing) -> tuple[tuple[int, ...], str] | None:
    """What verification hands on when it runs as a CUDA graph, and why, where that is not what the rule captures."""
    default = rule.for_ids(None) if plumbing.early else None
    if default is None or rule.captured is None or default.captured in (None, rule.captured):
        return None
    return default.captured, (
        f"{plumbing.early} sets the default boundaries {list(default.captured)} before CUDA graphs are captured, and "
        "the configured ones come after: with graphs on, verification hands on the defaults"
    )


def advice(rule: Rule, wanted: Sequence[int]) -> str:
    """What to write into the draft's config so that this tree captures `wanted`, the boundaries in slot order."""
    ids = rule.ids_for(wanted)
    if ids is None and rule.num_layers is not None and max(wanted, default=0) > rule.num_layers:
        return (
            f"The target has {rule.num_layers} layers, so there is no boundary {max(wanted)}: serve the target that the draft "
            "was trained for, or correct the list of trained boundaries."
        )
    if ids is None:
        return (
            f"No layer ids make {rule.release} capture {list(wanted)} for {rule.architecture}: serve it with a release that "
            "does (preflight --tree A --tree B compares them), or a draft that was trained on boundaries that this one captures."
        )
    said = f"Write eagle_config.{KEY} = {ids} for {rule.release}."
    if rule.layer_ids and [value + 1 for value in rule.layer_ids] == list(wanted) != list(rule.captured or []):
        said += (
            f" {rule.layer_ids} names outputs of layers: right where the engine adds 1 to every id, as SGLang"
            " 0.5.5 to 0.5.10 (0.5.9 among them) do for DeepSeek, and not here."
        )
    return said


def candidates(boundaries: Sequence[int]) -> Iterator[list[int]]:
    """Ids worth trying: shifted by little, then rotated, for rules that look at the first or the last id."""
    for turn in range(len(boundaries)):
        turned = [*boundaries[turn:], *boundaries[:turn]]
        for shift in (0, -1, 1, -2):
            ids = [boundary + shift for boundary in turned]
            if min(ids) >= 0:
                yield ids
    for shift in (-1, -2):
        yield [boundary + shift for boundary in boundaries]


def _evaluate(source: Source, cls: ClassRef, config: Mapping[str, Any], base: Rule) -> Rule:
    """Run the target's setter on the rule's ids, then its forward."""
    machine = evaluate.machine_for(source)
    root = Thing(cls, [Config.of(config)])
    where = cls.module.where(cls.node)
    try:
        with machine.reading(where):
            return _read(machine, root, base)
    except Raised as error:
        return replace(base, problem=f"the engine would stop with {error} ({error.where})", stops=True)
    except TooMuch as error:
        return replace(base, problem=f"not understood: {error}", endless=True)
    except NotUnderstood as error:
        return replace(base, problem=f"not understood: {error}")


def _read(machine: Machine, root: Thing, base: Rule) -> Rule:
    setter = attributes.get_attribute(machine, root, SETTER)
    if not isinstance(setter, Function):
        where = root.cls.module.where(root.cls.node)
        why = f"{base.release} has no {SETTER} for {base.architecture} ({where})"
        return replace(base, problem=why, absent=True, text=why, where=where)
    base = replace(base, where=setter.module.where(setter.node))
    machine.written.clear()
    takes = len(setter.node.args.args) > 1
    ids = None if base.layer_ids is None else list(base.layer_ids)
    execute.call(machine, setter, [ids] if takes else [], {})
    owner, name, where = _owner(machine)
    if owner is not None:
        held = owner.attrs.get(name)
        if held is UNKNOWN or (isinstance(held, list) and any(each is UNKNOWN for each in held)):
            return replace(base, where=where, problem=f"not understood: what {SETTER} sets {name} to ({where})")
        rule = _walk(machine, owner, replace(base, where=where))
        return replace(rule, assumptions=tuple(machine.assumptions))
    if name := _never_read(machine, setter):
        why = f"{SETTER} ({base.where}) sets {name}, which nothing in {base.release} reads: it captures nothing"
        return replace(base, captured=(), problem=why)
    return replace(base, problem=f"not understood: {SETTER} ({base.where}) reaches no model that is read here")


def _owner(machine: Machine) -> tuple[Thing | None, str, str]:
    """The model whose layers are to be captured, the name of its list of them, and where that was set."""
    rows = [row for row in machine.written if row[1].endswith("layers_to_capture") and row[0].layer is None]
    return rows[-1] if rows else (None, "", "")


def _never_read(machine: Machine, setter: Function) -> str | None:
    """A list that the setter leaves on a model under a name that stands nowhere in the tree but in the setter."""
    own = ast.unparse(setter.node)
    for thing, name, _ in machine.written:
        written = len(re.findall(rf"\b{re.escape(name)}\b", own))
        if isinstance(thing.attrs.get(name), list) and written and machine.source.mentions(name) == written:
            return name
    return None


def _walk(machine: Machine, owner: Thing, base: Rule) -> Rule:
    """Run the owner's forward on a plain batch, of which nothing is known, and see what is captured."""
    forward = attributes.get_attribute(machine, owner, "forward")
    if not isinstance(forward, Function):
        return replace(base, problem=f"not understood: {owner.class_name} has no forward to read")
    where = forward.module.where(forward.node)
    given = dict.fromkeys(("input_embeds", "pp_proxy_tensors", "input_deepstack_embeds"))
    given |= {"forward_batch": QUIET}
    names = {argument.arg for argument in forward.node.args.args}
    machine.captures.clear()
    machine.position = 0
    stopped = []
    try:
        execute.call(machine, forward, [], {name: value for name, value in given.items() if name in names})
    except Raised as error:
        stopped = [f"{error} ({error.where})"]
    layers = attributes.get_attribute(machine, owner, "layers")
    if machine.position == 0 or (isinstance(layers, list) and machine.position < len(layers)):
        return replace(base, problem=f"not understood: the layer loop of {owner.class_name}.forward ({where})")
    problem, crashes = None, [*machine.crashes, *stopped]
    if crashes:
        problem = f"the engine would stop with {crashes[0]}"
    elif not machine.captures and base.layer_ids != []:
        problem = f"{owner.class_name}.forward ({where}) never captures: it does not look at what {SETTER} set"
    return replace(
        base,
        captured=tuple(machine.captures),
        problem=problem,
        stops=bool(crashes),
        bare=bare_capture(forward.module, forward.node),
    )


def _sentence(rule: Rule) -> str:
    """The rule in one sentence, found by trying it on ids that tell its branches apart."""
    if rule._again is None or rule.num_layers is None or rule.num_layers < 8:
        return f"{rule.release} captures {_listed(rule.captured)} for layer ids {rule.layer_ids}"
    last = rule.num_layers
    usual = _shift(rule, [3, last // 2, last - 2])
    said = {None: "follows no single shift", 0: "takes layer ids as boundaries"}.get(
        usual, f"adds {usual} to every layer id"
    )
    for ids, when in (
        ([1, last // 2, last - 2], "first id is 1"),
        ([3, last // 2, last], "largest id is the layer count"),
    ):
        other = _shift(rule, ids)
        if other is not None and other != usual:
            said += f" (but {'takes them as they are' if other == 0 else f'adds {other}'} when the {when})"
    ids = "no ids given" if rule.layer_ids is None else f"ids {rule.layer_ids}"
    return f"{rule.release} {said} for {rule.architecture} ({rule.where}): {ids} capture {_listed(rule.captured)}"


def _shift(rule: Rule, ids: list[int]) -> int | None:
    captured = rule._again(ids).captured
    if captured is None or len(captured) != len(ids):
        return None
    shifts = {boundary - given for boundary, given in zip(captured, ids)}
    return shifts.pop() if len(shifts) == 1 else None


def _listed(captured: tuple[int, ...] | None) -> str:
    return "what could not be read" if captured is None else f"boundaries {list(captured)}"
