"""The draft's side of a capture, step by step: embedding, projection, layer, drafted token, each from
recorded inputs.

Each step is recomputed from what the engine itself gave to it, so that a fault shows in its own step only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.capture import Event
from specwire.diagnosis.distance import relative
from specwire.diagnosis.draft_reference import NotFinite, Reference, Variant
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.noise import ROUNDOFF
from specwire.diagnosis.scope import Part
from specwire.model_files import language_part, rope_theta
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.evidence import Evidence

PREFILLS, TOKENS = 4, 256
UNLIKE_THE_CHECKPOINT = (
    "quantization", "speculative_draft_model_quantization", "kv_cache_dtype", "speculative_token_map",
    "speculative_draft_window_size",
)  # fmt: skip
# How much better another explanation must fit than the configured one.
CLEARER = 2.0


@dataclass(frozen=True)
class Prefill:
    """What one prefill of the draft left behind. `last` is the draft's own state at each request's last
    token."""

    input: Event
    fc: Event | None
    last: Event | None
    next_tokens: tuple[int, ...]


@dataclass(frozen=True)
class DraftSide:
    """The first few prefills of the golden's prompts on the first rank, and the reference to hold against
    them."""

    reference: Reference
    prefills: tuple[Prefill, ...]
    target_theta: float | None
    target_tensors: Mapping[str, TensorFile]

    @property
    def scope(self) -> tuple[Part, ...]:
        """What of the draft's side is compared."""
        return (Part(name="draft", unit="prefills", seen=len(self.prefills), of=None, why="on the first rank"),)

    @cached_property
    def not_finite(self) -> tuple[bool, str] | None:
        """What holds NaN or infinity, and whether it is saved: a tensor that is computed with, else what it made."""
        for part in ("fc_errors", "layer_errors", "drafted", "embed_errors"):
            try:
                getattr(self, part)
            except NotFinite as error:
                return True, str(error)
            except NotSeen:
                continue
        for prefill in self.prefills:
            made = (
                ("the output of fc", prefill.fc, "output"),
                ("the state after the layer", prefill.last, "hidden_states"),
            )
            for what, event, name in made:
                if event and not _rows(event, name).isfinite().all():
                    return False, f"{what} holds NaN or infinity ({event.dtype}), the checkpoint's tensors hold none"
        return None

    @property
    def fc_run(self) -> str | None:
        """How the engine ran `fc`: "as configured", another way, or None when no way gives its output."""
        event = self._with("fc")[0].fc
        return self._explain(self.fc_errors, event.file.entry("output").torch_name, event.file.entry("input").shape[1])

    @property
    def layer_run(self) -> str | None:
        """How the engine ran the layer: "as configured", another way, or None when no way fits."""
        event = self._with("last")[0].last
        return self._explain(self.layer_errors, event.dtype, 4 * event.width)

    @cached_property
    def drafted(self) -> tuple[tuple[int, int, int], ...]:
        """(token drafted, the reference's, the reference's before mapping) after each prefill that a step
        follows.

        A token whose score is as good as the best one's, to within rounding, counts as the reference's.
        """
        found = []
        for prefill in self._with("last"):
            stream = _rows(prefill.last, "hidden_states")
            for row, token in enumerate(prefill.next_tokens):
                choice = self.reference.choose(
                    stream[row : row + 1], token, self._bound(prefill.last.dtype, prefill.last.width)
                )
                if choice is not None:
                    found.append((token, *choice))
        if not found:
            raise NotSeen(
                "no drafted token can be recomputed: no step of the draft after a prefill, or no lm_head in "
                "the checkpoint"
            )
        return tuple(found)

    @cached_property
    def embed_errors(self) -> dict[str, float]:
        """The worst relative error of the embeddings to each table that they may come from."""
        errors: dict[str, float] = {}
        for prefill in self.prefills:
            tokens, embeds = list(prefill.input.token_ids), _rows(prefill.input, "embeds")
            tables = {
                "the draft's own": self.reference.embeddings(tokens),
                "the target's": self._target_rows(tokens),
            }
            for name, rows in tables.items():
                if rows is not None and rows.shape == embeds.shape:
                    errors[name] = max(errors.get(name, 0.0), _worst(embeds, rows))
        if not errors:
            raise NotSeen("no embedding table to compare with: give --target as well")
        return errors

    def _target_rows(self, tokens: list[int]) -> torch.Tensor | None:
        table = next((name for name in self.target_tensors if name.endswith("embed_tokens.weight")), None)
        if table is None or max(tokens) >= self.target_tensors[table].entry(table).shape[0]:
            return None
        return self.target_tensors[table].pick(table, tokens).double()

    @cached_property
    def fc_errors(self) -> dict[str, float]:
        """The worst row's relative error of `fc`: as configured, with or without the norms before it, and without
        its bias."""
        runs: dict[str, dict[str, bool]] = {"as configured": {}}
        if self.reference.has_norms():
            runs |= {"with the norms": {"normed": True}, "without the norms": {"normed": False}}
        if self.reference.name("fc.bias"):
            runs["without its bias"] = {"biased": False}
        errors: dict[str, float] = {}
        for prefill in self._with("fc"):
            states, output = _rows(prefill.fc, "input"), _rows(prefill.fc, "output")
            for name, how in runs.items():
                made = self.reference.fc(states, **how)
                errors[name] = max(errors.get(name, 0.0), _worst(output, made))
        return errors

    @cached_property
    def layer_errors(self) -> dict[str, float]:
        """The relative error of the layer's output at the last token, for each way to run the layer."""
        errors: dict[str, float] = {}
        for variant in self.variants:
            found = self._errors(variant.theta, (variant.window,), variant.normed)
            errors[variant.name] = float(found.max())
        longest = max(count for prefill in self._with("last") for _, count, _ in prefill.input.requests)
        windows = [size for size in range(1, longest) if size != self.reference.window]
        if windows:
            worst = self._errors(self.reference.theta, windows, None).max(dim=0)
            best = int(worst.values.argmin())
            errors[_attention_to(windows[best])] = float(worst.values[best])
        return errors

    def _errors(self, theta: float | None, windows: Sequence[int | None], normed: bool | None) -> torch.Tensor:
        """[requests, windows]: how far the layer's outputs are from the reference's, run that way."""
        import torch

        errors = []
        for prefill in self._with("last"):
            event = prefill.input
            embeds, positions = _rows(event, "embeds"), _rows(event, "positions")
            states = _rows(prefill.fc, "output") if prefill.fc else self.reference.fc(_rows(event, "hidden_states"))
            for got, (first, count, _) in zip(_rows(prefill.last, "hidden_states"), event.requests, strict=True):
                mine = slice(first, first + count)
                stream = self.reference.last(embeds[mine], states[mine], positions[mine], theta, windows)
                made = self.reference.hidden_out(stream, normed)
                errors.append(relative(got.expand_as(made), made))
        return torch.tensor(errors, dtype=torch.float64).nan_to_num(nan=float("inf"))

    @property
    def variants(self) -> list[Variant]:
        """Ways to run the layer, but for windows that no config names."""
        own, window = self.reference.theta, self.reference.window
        others = {theta for theta in (self.target_theta, 10000.0, 500000.0, 1000000.0) if theta and theta != own}
        return [
            Variant("as configured", own, window),
            *(Variant(f"rope theta {theta:g}", theta, window) for theta in sorted(others)),
            Variant("without rotary embedding", None, window),
            *([Variant("attention to all tokens before", own)] if window else []),
            Variant("without the norm of its output", own, window, normed=False)
            if self.reference.norms_output
            else Variant("with a norm of its output", own, window, normed=True),
        ]

    def _bound(self, dtype: str, width: int) -> float:
        """What rounding may cost in one projection, or in one layer; derived, not measured."""
        return 16 * ROUNDOFF.get(dtype, 2.0**-8) / 2 + 4 * ROUNDOFF["float32"] * width**0.5

    def _explain(self, errors: dict[str, float], dtype: str, width: int) -> str | None:
        """The name of the run that the engine did: "as configured", another, or None when none fits."""
        bound = self._bound(dtype, width)
        best = min(errors, key=errors.get)
        own = errors["as configured"]
        if own <= bound and own <= CLEARER * errors[best] + bound / 30:
            return "as configured"
        return best if errors[best] <= bound and CLEARER * errors[best] < own else None

    def _with(self, part: str) -> list[Prefill]:
        found = [prefill for prefill in self.prefills if getattr(prefill, part) is not None]
        if not found:
            raise NotSeen(
                {
                    "fc": "no draft-fc event was captured",
                    "last": "no state of the draft's own was captured (concat-last)",
                }[part]
            )
        return found


def draft_side(evidence: Evidence) -> DraftSide:
    """The draft's side; NotSeen when the checkpoint was not given or nothing of the draft was captured."""
    context = evidence.context
    if not context.draft_tensors or context.draft is None:
        raise NotSeen("the draft's directory was not given (--draft), or holds no safetensors")
    launch = context.launch
    changed = [name for name in UNLIKE_THE_CHECKPOINT if launch.gives(name) and launch.get(name) != "auto"]
    if changed:
        raise NotSeen(f"launched with {changed[0]}, the draft computes other than its checkpoint alone says")
    prefills = tuple(_prefills(evidence))
    if not prefills:
        raise NotSeen("no prefill of the draft was captured")
    return DraftSide(
        Reference(context.draft_tensors, context.draft),
        prefills,
        rope_theta(language_part(context.target or {})),
        context.target_tensors,
    )


def _prefills(evidence: Evidence) -> list[Prefill]:
    if evidence.site != "draft-input" or not evidence.pieces or evidence.capture is None:
        return []
    rank = evidence.pieces[0].event.rank
    events = [event for event in evidence.capture.events if event.rank == rank]
    known = {id(piece.event) for piece in evidence.pieces}
    found = []
    for place, event in enumerate(events):
        whole = id(event) in known and event.token_ids and len(event.token_ids) == event.rows <= TOKENS
        if not whole or any(prefix for _, _, prefix in event.requests) or "embeds" not in event.file.tensors:
            continue
        after = _until_next(events[place + 1 :])
        fc = next((one for one in after if one.site == "draft-fc" and one.prefill and one.about.get("fc_ran")), None)
        last = next(
            (one for one in after if one.site == "concat-last" and one.prefill and one.rows == len(event.requests)),
            None,
        )
        found.append(Prefill(event, fc, last, _drafted(events[place + 1 :], len(event.requests))))
    return found[:PREFILLS]


def _attention_to(window: int) -> str:
    return "attention to itself alone" if window == 1 else f"attention to the last {window} tokens alone"


def _until_next(events: Sequence[Event]) -> list[Event]:
    stop = next((place for place, event in enumerate(events) if event.site == "draft-input"), len(events))
    return list(events[:stop])


def _drafted(events: Sequence[Event], requests: int) -> tuple[int, ...]:
    """The first tokens that were drafted after a prefill: the ids of the draft's next step, if it is a decode
    of as many rows."""
    step = next((event for event in events if event.site == "draft-input"), None)
    if step is None or step.mode != "DECODE" or not step.token_ids or len(step.token_ids) != requests:
        return ()
    return tuple(step.token_ids)


def _worst(rows: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst row's relative error; a row that is not finite is as far off as can be."""
    return max(error if error == error else float("inf") for error in relative(rows, wanted))


def _rows(event: Event, name: str) -> torch.Tensor:
    return event.file.rows(name).double()
