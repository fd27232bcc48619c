"""The draft's side of a capture: embedding, projection, layer, drafted tokens, each from recorded inputs.

Each part is recomputed from what the engine itself gave to it, so that a fault shows in its own part only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.capture import Event
from specwire.diagnosis.distance import relative
from specwire.diagnosis.draft_layer import AS_CONFIGURED, CLEARER, TOKENS, Layer, Run, far, rounding, states_made
from specwire.diagnosis.draft_ranks import STATES
from specwire.diagnosis.draft_reference import NotFinite, Reference
from specwire.diagnosis.draft_rounds import EXTEND, PREFILL, STEP, Forward, Rounds
from specwire.diagnosis.draft_tokens import Proposal, Tokens
from specwire.diagnosis.finding import NotSeen
from specwire.diagnosis.scope import Part
from specwire.model_files import language_part, rope_theta
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    import torch

    from specwire.diagnosis.evidence import Evidence

UNLIKE_THE_CHECKPOINT = (
    "quantization", "speculative_draft_model_quantization", "kv_cache_dtype", "speculative_token_map",
    "speculative_draft_window_size",
)  # fmt: skip
FORWARDS = 64  # of which embeddings and projections are looked at


# What the head's tokens can come from, beside the configured input.
BARE_HEAD, BRANCH_HEAD = "the states without their norm", "the MLP's branch alone"
NORMED_HEAD = "the norm of the states, which were handed on without it"
OTHER_HEAD, OTHER_CHOICE, UNMAPPED = "another head", "another choice", "ids of the draft's own"
FEW = 2  # tokens that must be wrong alike
NEAR = 5  # a token among so many best is of this head, and was chosen badly


@dataclass(frozen=True)
class HeadRun:
    """How drafted tokens came about: as configured, or of what else. `explained` of the `wrong` ones come of it."""

    name: str
    wrong: int
    compared: int
    explained: int
    first: Proposal | None


@dataclass(frozen=True)
class DraftSide:
    """The first requests of one rank, and the reference to hold against what the draft made of them. `mixed` says why
    no rank's own rows made its states, where that is so."""

    reference: Reference
    rounds: Rounds
    target_theta: float | None
    target_tensors: Mapping[str, TensorFile]
    mixed: str = ""

    @property
    def scope(self) -> tuple[Part, ...]:
        """What of the draft's side is compared."""
        made = self.layer.made if self.rounds.forwards and not self.mixed else ()
        kinds = {
            kind: len({one.forward.number for one in made if one.kind == kind}) for kind in (PREFILL, EXTEND, STEP)
        }
        every = {kind: sum(forward.kind == kind for forward in self.rounds.forwards) for kind in kinds}
        words = {PREFILL: ("draft", "prefills"), EXTEND: ("verified rows", "forwards"), STEP: ("draft steps", "steps")}
        return tuple(
            Part(
                name=words[kind][0],
                unit=words[kind][1],
                seen=kinds[kind],
                of=every[kind],
                why=self.mixed if every[kind] else "the run has none: it ended before",
            )
            for kind in kinds
        )

    @cached_property
    def layer(self) -> Layer:
        if self.mixed:
            raise NotSeen(self.mixed)
        return Layer(self.reference, tuple(states_made(self.rounds)), self.target_theta)

    @cached_property
    def tokens(self) -> Tokens:
        if self.mixed:
            raise NotSeen(self.mixed)
        return Tokens(self.reference, self.rounds)

    @property
    def layer_run(self) -> str | None:
        """How the engine ran the layer: "as configured", another way, or None when no way fits."""
        return self.layer.run.name

    @cached_property
    def not_finite(self) -> tuple[bool, str] | None:
        """What holds NaN or infinity, and whether it is saved: a tensor that is computed with, else what it made."""
        for look in (
            lambda: self.fc_errors,
            lambda: self.layer.errors,
            lambda: self.tokens.wrong,
            lambda: self.embed_errors,
        ):
            try:
                look()
            except NotFinite as error:
                return True, str(error)
            except NotSeen:
                continue
        for forward in self.looked_at:
            made = (
                ("the output of fc", forward.fc, "output"),
                ("the state after the layer", forward.made, "hidden_states"),
            )
            for what, event, name in made:
                if event and not _rows(event, name).isfinite().all():
                    return False, f"{what} holds NaN or infinity ({event.dtype}), the checkpoint's tensors hold none"
        return None

    @cached_property
    def looked_at(self) -> tuple[Forward, ...]:
        """The forwards whose embeddings and projections are looked at: those of few enough rows, the first ones."""
        small = [
            forward
            for forward in self.rounds.forwards
            if forward.input.rows <= TOKENS and "embeds" in forward.input.file.tensors
        ]
        return tuple(small[:FORWARDS])

    @property
    def fc_run(self) -> str | None:
        """How the engine ran `fc`: "as configured", another way, or None when no way gives its output."""
        event = self._projected[0].fc
        bound = rounding(event.file.entry("output").torch_name, event.file.entry("input").shape[1])
        best = min(self.fc_errors, key=self.fc_errors.__getitem__)
        own = self.fc_errors[AS_CONFIGURED]
        if own <= bound and own <= CLEARER * self.fc_errors[best] + bound / 30:
            return AS_CONFIGURED
        return best if self.fc_errors[best] <= bound and CLEARER * self.fc_errors[best] < own else None

    @cached_property
    def head(self) -> HeadRun:
        """What drafted tokens that are not the configured head's choice come from instead."""
        wrong = self.tokens.wrong
        if not wrong:
            return HeadRun(AS_CONFIGURED, 0, self.tokens.compared, 0, None)
        if all(one.drafted == one.own != one.choice for one in wrong):
            return HeadRun(UNMAPPED, len(wrong), self.tokens.compared, len(wrong), wrong[0])
        numbers = sorted({one.states for one in wrong} | {number for _, number in self.tokens.of_chains})
        explained = {name: self._explained(scores, wrong) for name, scores in self._other_scores(numbers).items()}
        best = max(explained, key=explained.__getitem__, default="")
        found = explained.get(best, 0)
        if found >= (1 if best == NORMED_HEAD else FEW):
            return HeadRun(best, len(wrong), self.tokens.compared, found, wrong[0])
        return HeadRun(self._selection(wrong), len(wrong), self.tokens.compared, 0, wrong[0])

    def _selection(self, wrong: Sequence[Proposal]) -> str:
        """Whether the tokens are another head's, or this one's and badly chosen: near the top, or right at other depths."""
        at = Counter(one.depth for one in wrong)
        right_elsewhere = any(count > at[depth] for depth, count in self.tokens.depths.items())
        near = all(one.rank is not None and one.rank < NEAR for one in wrong)
        return OTHER_CHOICE if right_elsewhere or near or len(wrong) < FEW else OTHER_HEAD

    def _other_scores(self, numbers: Sequence[int]) -> dict[str, tuple[list[int], torch.Tensor]]:
        """What else may have chosen: the target's head, the draft's of the states as they are, or of the norm of the MLP's
        branch alone; each by its scores, with the numbers of the states that it is known for."""
        import torch

        found: dict[str, tuple[list[int], torch.Tensor]] = {}
        states = self.tokens.handed[list(numbers)]
        theirs = next((name for name in self.target_tensors if name.endswith("lm_head.weight")), None)
        if theirs and self.reference.name("lm_head.weight"):
            scores = self.reference.scores_by(self.reference.head_input(states), theirs, self.target_tensors[theirs])
            if scores is not None:
                found[OTHER_HEAD] = list(numbers), scores
        if self.reference.norms_output:
            found[NORMED_HEAD] = list(numbers), self.reference.scores(self.reference.normed(states))
        else:
            found[BARE_HEAD] = list(numbers), self.reference.scores(states)
        try:
            branches = self.layer.streams[1]
        except NotSeen:
            return found
        places = {(one.forward.number, one.recorded): i for i, one in enumerate(self.layer.made)}
        keys = [(forward.number, row) for forward, row in self.tokens.places]
        known = [number for number in numbers if keys[number] in places]
        if known:
            rows = torch.stack([branches[places[keys[number]]] for number in known])
            found[BRANCH_HEAD] = known, self.reference.scores(self.reference.normed(rows))
        return found

    def _explained(self, by: tuple[list[int], torch.Tensor], wrong: Sequence[Proposal]) -> int:
        """How many drafted tokens these scores choose; 0 when it is not all of those that they can tell, the right ones
        too, or they tell none of the wrong ones."""
        numbers, scores = by
        told = {(one.drafted, one.states) for one in wrong if one.states in numbers}
        every = told | {(token, number) for token, number in self.tokens.of_chains if number in numbers}
        right = sum(self.tokens.chosen(token, scores[numbers.index(number)]) for token, number in every)
        return right if told and right == len(every) else 0

    @cached_property
    def _projected(self) -> tuple[Forward, ...]:
        found = tuple(
            forward
            for forward in self.looked_at
            if forward.fc is not None and forward.fc.about.get("fc_ran") and forward.fc.states == "input"
        )
        if not found:
            raise NotSeen("no draft-fc event was captured in which fc ran")
        return found

    @cached_property
    def fc_errors(self) -> dict[str, float]:
        """The worst row's relative error of `fc`: as configured, with or without the norms before it, and without
        its bias."""
        import torch

        runs: dict[str, dict[str, bool]] = {AS_CONFIGURED: {}}
        if self.reference.has_norms():
            runs |= {"with the norms": {"normed": True}, "without the norms": {"normed": False}}
        if self.reference.name("fc.bias"):
            runs["without its bias"] = {"biased": False}
        states = torch.cat([_rows(forward.fc, "input") for forward in self._projected])
        output = torch.cat([_rows(forward.fc, "output") for forward in self._projected])
        return {name: _worst(output, self.reference.fc(states, **how)) for name, how in runs.items()}

    @cached_property
    def embed_errors(self) -> dict[str, float]:
        """The worst relative error of the embeddings to each table that they may come from."""
        errors: dict[str, float] = {}
        for forward in self.looked_at:
            tokens, embeds = list(forward.input.token_ids or ()), _rows(forward.input, "embeds")
            tables = {
                "the draft's own": self.reference.embeddings(tokens) if tokens else None,
                "the target's": self._target_rows(tokens) if tokens else None,
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


def draft_side(evidence: Evidence) -> DraftSide:
    """The draft's side; NotSeen when the checkpoint was not given or nothing of the draft was captured."""
    context = evidence.context
    if not context.draft_tensors or context.draft is None:
        raise NotSeen("the draft's directory was not given (--draft), or holds no safetensors")
    launch = context.launch
    changed = [name for name in UNLIKE_THE_CHECKPOINT if launch.gives(name) and launch.get(name) != "auto"]
    if changed:
        raise NotSeen(f"launched with {changed[0]}, the draft computes other than its checkpoint alone says")
    rounds = evidence.rounds
    if not any(forward.kind == PREFILL and "embeds" in forward.input.file.tensors for forward in rounds.forwards):
        raise NotSeen("no prefill of the draft was captured")
    return DraftSide(
        Reference(context.draft_tensors, context.draft, _shared_head(evidence)),
        rounds,
        rope_theta(language_part(context.target or {})),
        context.target_tensors,
        _mixed(evidence),
    )


def _mixed(evidence: Evidence) -> str:
    """Ranks share a layer and a head: where they were given different states, what each makes is of all of them."""
    try:
        differences = evidence.draft_ranks.differences
    except NotSeen:
        return ""
    given = [one for one in differences if one.what == STATES and one.event.site in ("draft-input", "draft-fc")]
    return f"rank {given[0].rank} was given other states than the first, and ranks share the layer" if given else ""


def _shared_head(evidence: Evidence) -> tuple[str, TensorFile] | None:
    """The target's head, which a draft without a vocabulary of its own is given."""
    from specwire.diagnosis.head import head_of

    if (evidence.context.draft or {}).get("draft_vocab_size") is not None:
        return None
    try:
        found = head_of(evidence.context)
    except NotSeen:
        return None
    return found.weight, found.tensors[found.weight]


def _worst(rows: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst row's relative error."""
    return max(far(error) for error in relative(rows, wanted))


def _rows(event: Event, name: str) -> torch.Tensor:
    return event.file.rows(name).double()


__all__ = ["DraftSide", "Run", "draft_side"]
