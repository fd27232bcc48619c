"""How a tree carries the layer ids from the draft's config to the target, read from its model runner.

Releases differ: some ignore the config, most read `eagle_config`, some also set the defaults once more
without ids before the CUDA graphs are captured.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specwire.preflight.interpreter import evaluate, execute
from specwire.preflight.interpreter.machine import Machine
from specwire.preflight.interpreter.module import Module
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.interpreter.values import (
    Config,
    External,
    Frame,
    NotUnderstood,
    Raised,
    Thing,
    known,
)

RUNNER = "sglang/srt/model_executor"
KEY = "eagle_aux_hidden_state_layer_ids"
SETTER = "set_eagle3_layers_to_capture"


@dataclass(frozen=True)
class Plumbing:
    """`layer_ids` are what the setter is called with (None: its defaults); `use_aux` whether it is
    called at all. `reads_config` is False for releases that never look. `early` is where the setter is
    called without ids before CUDA graphs are captured, though the configured call comes later. `wrong` is what
    stands where the ids should, if it is no list of whole numbers."""

    layer_ids: list[int] | None
    use_aux: bool
    reads_config: bool
    where: str | None
    early: str | None
    problem: str | None = None
    wrong: str | None = None


def read_plumbing(source: Source, draft: Mapping[str, Any]) -> Plumbing:
    """What this tree makes of a draft's config. `problem` says so where it could not be read."""
    modules = list(_runner_modules(source))
    calls = [(module, node) for module in modules for node in _calls(module.node, SETTER)]
    if not calls:
        return Plumbing(None, False, False, None, None, f"no call of {SETTER} in {RUNNER}")
    configured = [(module, node) for module, node in calls if node.args or node.keywords]
    bare = [(module, node) for module, node in calls if not (node.args or node.keywords)]
    module, node = configured[0] if configured else next((row for row in bare if "graph" not in row[0].name), bare[0])
    where = module.where(node)
    early = _before_graphs(module, node, bare) if configured else None
    reader = _reader(modules)
    if reader is None or not configured:
        return Plumbing(None, True, False, where, early)
    try:
        ids, use_aux = _evaluate(source, *reader, draft)
    except (Raised, NotUnderstood) as error:
        return Plumbing(None, True, True, where, early, f"{reader[0].where(reader[1])}: {error}")
    where = reader[0].where(reader[1])
    if ids is None or (isinstance(ids, list) and all(type(one) is int for one in ids)):
        return Plumbing(ids, use_aux, True, where, early)
    return Plumbing(None, use_aux, True, where, early, wrong=json.dumps(ids)[:60])


def _runner_modules(source: Source) -> Iterator[Module]:
    for name in source.tree.python_files(RUNNER):
        data = source.tree.read(name)
        if KEY.encode() in data or SETTER.encode() + b"(" in data:
            module = source.module(name)
            if module is not None:
                yield module


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    return [
        found
        for found in ast.walk(node)
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr == name
    ]


def _before_graphs(module: Module, configured: ast.Call, bare: list[tuple[Module, ast.Call]]) -> str | None:
    """Where a graph runner sets the defaults, if the configured call comes after the graphs are made."""
    graphs = [(other, node) for other, node in bare if "graph" in other.name]
    for function in ast.walk(module.node):
        if not isinstance(function, ast.FunctionDef) or configured not in ast.walk(function):
            continue
        made = [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.startswith("init_")
            and node.func.attr.endswith("_graphs")
        ]
        if graphs and made and min(made) < configured.lineno:
            return graphs[0][0].where(graphs[0][1])
    return None


def _reader(modules: list[Module]) -> tuple[Module, ast.If] | None:
    """The innermost `if` around the `try` that reads the ids: (module, node)."""
    for module in modules:
        for node in ast.walk(module.node):
            if isinstance(node, ast.If) and any(_reads_ids(child) for child in node.body):
                return module, node
    return None


def _reads_ids(node: ast.stmt) -> bool:
    return isinstance(node, ast.Try) and any(
        isinstance(part, ast.Constant) and part.value == KEY for part in ast.walk(node)
    )


def _evaluate(source: Source, module: Module, node: ast.If, draft: Mapping[str, Any]) -> tuple[Any, bool]:
    """Run that block on the draft's config: (ids, whether aux states are used)."""
    read = Thing(External("ModelConfig"), attrs={"hf_config": Config.of(draft)})
    holder = Thing(External("holder"))

    def draft_config(machine: Machine, call: ast.Call, *_: Any) -> Thing | None:
        """Whatever builds a model's config for the draft gives the draft's."""
        return read if any(keyword.arg == "is_draft_model" for keyword in call.keywords) else None

    machine = evaluate.machine_for(source, draft_config)
    frame = Frame(module, {"draft_model_config": read, "self": holder, "config": holder})
    with machine.reading(module.where(node)):
        execute.block(machine, node.body, frame)
    found = {**frame.names, **holder.attrs}
    ids = [value for name, value in found.items() if name.endswith(KEY)]
    use = [value for name, value in found.items() if name.endswith("use_aux_hidden_state")]
    if len(ids) != 1 or not known(ids[0]):
        raise NotUnderstood("the layer ids were not found where they are read")
    return ids[0], bool(use[0]) if use and known(use[0]) else True
