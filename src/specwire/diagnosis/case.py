"""Make-believe systems for the checks' own cases: what a faulty engine would record of a small target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.capture import open_capture
from specwire.capture_write import write_event, write_prefill
from specwire.diagnosis.case_draft import write_draft_run
from specwire.diagnosis.case_said import write_said
from specwire.diagnosis.case_world import LAYERS, NOISE, PROMPTS, SEQUENCE, TRAINED, World, heard, states_of
from specwire.diagnosis.context import Context, make_context
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.gather import gather
from specwire.goldens.golden import Noise, open_golden
from specwire.goldens.write import States, write_golden
from specwire.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Case:
    """One system: which boundary is in which slot, and what happens to the rows on their way.

    `alter(states, world)` takes and gives the concat of one prompt, [n, slots * hidden]; `per_rank(rank, states,
    world)` likewise, for each rank. `known` and `residuals` say what the golden holds, `golden` changes its
    boundaries (of each prompt, by number) beforehand. `id_shift` is by how much the draft's token ids are shifted,
    `positions(ids)` gives other positions than 0, 1, ..., `forward_end` is metadata of such an event. `draft_run`
    says how a small draft is run, see `specwire.diagnosis.case_draft`; `said` how the target's end is told, see
    `specwire.diagnosis.case_said`. `context` is for `make_context`; in it `draft` is a config and `draft_weights`
    maps names to shapes.
    """

    name: str
    slots: Sequence[int | str] = TRAINED
    trained: Sequence[int] = TRAINED
    alter: Callable[[torch.Tensor, World], torch.Tensor] | None = None
    per_rank: Callable[[int, torch.Tensor, World], torch.Tensor] | None = None
    ranks: int = 1
    dtype: str = "float32"
    known: Sequence[int] | None = None
    residuals: bool = True
    id_shift: int = 1
    golden: Callable[[dict[int, torch.Tensor]], dict[int, torch.Tensor]] | None = None
    positions: Callable[[Sequence[int]], Sequence[int]] | None = None
    forward_end: Mapping[str, Any] | None = None
    draft_run: Mapping[str, Any] | None = None
    said: Mapping[str, Any] | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


def evidence_of(case: Case, folder: Path) -> Evidence:
    """Write the case's golden and capture into `folder` and gather the evidence from these files."""
    golden, capture = folder / "golden.safetensors", folder / "capture"
    write_case_golden(golden, case)
    for rank in range(case.ranks):
        for prompt, ids in enumerate(PROMPTS):
            world = World(prompt, heard(prompt, NOISE[case.dtype]))
            positions = case.positions(ids) if case.positions else range(len(ids))
            states = concat(case, world, rank)
            if case.draft_run is not None:
                write_draft_run(folder, capture, rank, prompt, ids, states, case.draft_run)
                continue
            write_prefill(capture, rank, case.ranks, SEQUENCE * prompt + 1, ids, states, case.id_shift, positions)
        if case.forward_end:
            write_event(
                capture,
                rank,
                SEQUENCE * len(PROMPTS),
                "forward-end",
                {"hidden_states": world["final_norm"]},
                **case.forward_end,
            )
    if case.said is not None:
        worlds = [World(prompt, heard(prompt, NOISE[case.dtype])) for prompt in range(len(PROMPTS))]
        write_said(folder, capture, worlds, case.ranks, case.dtype, LAYERS, case.said)
    return gather(open_golden(golden), open_capture(capture), context_of(case, folder))


def context_of(case: Case, folder: Path) -> Context:
    """`draft` and `target` in a case's context are configs; they become directories, the draft's with weights."""
    import torch

    options = dict(case.context)
    weights = {name: torch.zeros(shape) for name, shape in options.pop("draft_weights", {}).items()}
    if case.draft_run is not None:
        options |= {"draft": folder / "draft", "target": folder / "target"}
        return make_context(**options)
    if case.said is not None:
        return make_context(**options, target=folder / "target")
    for role in options.keys() & {"draft", "target"}:
        place = folder / role
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(options[role]))
        if weights and role == "draft":
            write_tensors(place / "model.safetensors", weights, {})
        options[role] = place
    return make_context(**options)


def concat(case: Case, world: World, rank: int = 0) -> torch.Tensor:
    """What the draft gets for one prompt: [n, slots * hidden]."""
    import torch

    states = torch.cat([world[what] for what in case.slots], dim=-1)
    if case.alter:
        states = case.alter(states, world)
    if case.per_rank:
        states = case.per_rank(rank, states, world)
    return states if states.dtype in (torch.float16, torch.float64) else states.to(getattr(torch, case.dtype))


def write_case_golden(path: Path, case: Case) -> None:
    import torch

    dtype = getattr(torch, case.dtype)
    level = NOISE[case.dtype]
    prompts = [
        States(
            ids,
            (case.golden or dict)(
                {k: world[k].to(dtype) for k in (range(LAYERS + 1) if case.known is None else case.known)}
            ),
            world["final_norm"].to(dtype),
            {k: world[f"residual.{k}"].to(dtype) for k in case.trained if k and case.residuals},
        )
        for ids, world in zip(PROMPTS, states_of(seed=0), strict=True)
    ]
    noise = {case.dtype: {k: Noise(level, 1.3 * level, 0.0) for k in range(LAYERS + 1)}}
    write_golden(
        path,
        prompts,
        trained=case.trained,
        layers=LAYERS,
        dtype=case.dtype,
        target="make-believe",
        source="case",
        noise=noise,
    )
