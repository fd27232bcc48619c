"""The tokens that the draft proposes, at each of its steps, beside those that its head gives for the recorded states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from specwire.diagnosis.draft_layer import rounding
from specwire.diagnosis.draft_reference import Reference
from specwire.diagnosis.draft_rounds import Forward, Round, Rounds
from specwire.diagnosis.finding import NotSeen

if TYPE_CHECKING:
    import torch

ROUNDS, STATES = 24, 256  # that are looked into
# Below this an engine's product of probabilities, in float32, comes to zero, and one branch is as good as another.
UNDERFLOW = -80.0


@dataclass(frozen=True)
class Proposal:
    """One token that was drafted where another is the head's choice. `depth` counts from 1, the token that follows the
    last one that was said. `own` is the choice as the draft's own id, `rank` the place of the drafted one in the head's
    order of scores (0 is the first), None where the draft cannot say it."""

    one: Round
    depth: int
    drafted: int
    choice: int
    own: int
    rank: int | None
    states: int  # the number, among the tokens' states, of the one that it was drafted from


@dataclass(frozen=True)
class Tokens:
    """The proposals of the first few rounds."""

    reference: Reference
    rounds: Rounds

    @cached_property
    def compared(self) -> int:
        """How many proposed tokens were held against the head."""
        return self._found[1]

    @cached_property
    def of_chains(self) -> list[tuple[int, int]]:
        """(token, number of its state) of every token that a chain's round drafted, right or wrong."""
        numbers = {(forward.number, row): i for i, (forward, row) in enumerate(self.places)}
        found = []
        for one, levels in self._levels:
            for depth, level in enumerate(levels, 1):
                token = _token_at(one, depth) if one.chain and len(level) == 1 else None
                if token is not None and (level[0][0].number, level[0][1]) in numbers:
                    found.append((token, numbers[level[0][0].number, level[0][1]]))
        return found

    @cached_property
    def wrong(self) -> list[Proposal]:
        """Drafted tokens that are not the head's choice, as far as rounding can tell."""
        return self._found[0]

    @cached_property
    def depths(self) -> Counter[int]:
        """How many tokens were compared at each depth."""
        return self._found[2]

    @cached_property
    def handed_on(self) -> list[tuple[Round, int, int, int]]:
        """(round, depth, drafted, verified): tokens of a chain that the target was given otherwise than drafted."""
        found = []
        for one in self.rounds.rounds:
            if one.verified is None or not one.chain:
                continue
            for depth, (forward, block) in enumerate(one.steps, 1):
                ids = forward.input.token_ids
                if (
                    block.rows == 1
                    and ids
                    and depth < len(one.verified[0])
                    and ids[block.first] != one.verified[0][depth]
                ):
                    found.append((one, depth, ids[block.first], one.verified[0][depth]))
        return found

    @cached_property
    def _chosen(self) -> list[Round]:
        """Rounds that propose something, each request's first ones before its later ones."""
        able = [one for one in self.rounds.rounds if one.seed is not None and (one.steps or one.verified)]
        turn = {id(one): one.request.rounds.index(one) for one in able}
        return sorted(able, key=lambda one: turn[id(one)])[:ROUNDS]

    @cached_property
    def _levels(self) -> list[tuple[Round, list[list[tuple[Forward, int]]]]]:
        """For each round the states that each of its levels proposes from: the seed's, then each step's rows."""
        found = []
        for one in self._chosen:
            forward, block, row = one.seed
            recorded = forward.made_row(block, row)
            levels = [] if recorded is None else [[(forward, recorded)]]
            for step, theirs in one.steps if levels else ():
                rows = [step.made_row(theirs, theirs.first + i) for i in range(theirs.rows)]
                if None in rows:
                    break
                levels.append([(step, each) for each in rows])
            if levels:
                found.append((one, levels))
        return found

    @cached_property
    def places(self) -> list[tuple[Forward, int]]:
        """The states that tokens are drafted from: (forward, row of its `made`)."""
        every = [place for _, levels in self._levels for level in levels for place in level]
        return list({(forward.number, row): (forward, row) for forward, row in every}.values())[:STATES]

    @cached_property
    def handed(self) -> torch.Tensor:
        """Those states, [states, hidden], float64."""
        import torch

        return torch.stack(
            [forward.made.file.rows("hidden_states", row, 1)[0] for forward, row in self.places]
        ).double()

    @cached_property
    def scores(self) -> torch.Tensor:
        """The head's scores for each of those states."""
        return self.reference.scores(self.reference.head_input(self.handed))

    def slack(self, scores: torch.Tensor) -> float:
        """By how much rounding may move a score."""
        event = self.places[0][0].made
        return rounding(event.dtype, event.width) * float(scores.abs().max())

    @cached_property
    def _found(self) -> tuple[list[Proposal], int, Counter[int]]:
        numbers = {(forward.number, row): i for i, (forward, row) in enumerate(self.places)}
        wrong: list[Proposal] = []
        depths: Counter[int] = Counter()
        if not self.places:
            raise NotSeen("no state that tokens are drafted from was captured (concat-last), or no step after it")
        for one, levels in self._levels:
            if any((forward.number, row) not in numbers for level in levels for forward, row in level):
                continue
            rows = [[numbers[forward.number, row] for forward, row in level] for level in levels]
            if not self.handed[sorted({number for level in rows for number in level})].isfinite().all():
                continue  # nothing is the best of NaN
            narrow = all(block.rows == 1 for _, block in one.steps) and one.chain
            (self._chain if narrow else self._tree)(one, rows, wrong, depths)
        if not depths:
            raise NotSeen("no drafted token can be recomputed: no step of the draft followed its states")
        return wrong, sum(depths.values()), depths

    def _chain(self, one: Round, levels: Sequence[Sequence[int]], wrong: list[Proposal], depths: Counter[int]) -> None:
        """Each token is the best by the state before it."""
        for depth, (number,) in enumerate(levels, 1):
            token = _token_at(one, depth)
            if token is None:
                return
            depths[depth] += 1
            if proposal := self._judge(one, depth, token, number):
                wrong.append(proposal)

    def _judge(self, one: Round, depth: int, token: int, number: int) -> Proposal | None:
        scores = self.scores[number]
        best = int(scores.argmax())
        own = self._own(token)
        if own is not None and scores[own] >= scores[best] - self.slack(scores):
            return None
        rank = None if own is None else int((scores > scores[own]).sum())
        return Proposal(one, depth, token, self._target_id(best), best, rank, number)

    def _tree(self, one: Round, levels: Sequence[Sequence[int]], wrong: list[Proposal], depths: Counter[int]) -> None:
        """The branches are the best by the product of probabilities along them, as many at each depth as there are
        rows; which branch a row goes on from, its state tells."""
        width = one.steps[0][1].rows if one.steps else 1
        along = {levels[0][0]: 0.0}
        parents = [levels[0][0]] * width
        candidates: list[list[tuple[float, int, int]]] = []
        for depth, (step, block) in enumerate(one.steps, 1):
            if block.rows != width or not step.input.token_ids:
                return
            ids = step.input.token_ids[block.first : block.first + width]
            if depth > 1:
                parents = self._parents(step, block.first, ids, levels[depth - 1], along)
            logp = {number: self.scores[number].log_softmax(dim=-1) for number in set(parents) | set(along)}
            every = [(along[number] + logp[number]).topk(min(width, logp[number].numel())).values for number in along]
            least = max(_nth(every, width), UNDERFLOW)
            total = {}
            for i, (token, parent) in enumerate(zip(ids, parents, strict=True)):
                own = self._own(token)
                score = float("-inf") if own is None else max(along[parent] + float(logp[parent][own]), UNDERFLOW)
                depths[depth] += 1
                if score < least - depth * self.slack(self.scores[parent]):
                    best = int(self.scores[parent].argmax())
                    rank = None if own is None else int((self.scores[parent] > self.scores[parent][own]).sum())
                    wrong.append(Proposal(one, depth, token, self._target_id(best), best, rank, parent))
                    return
                if depth < len(levels):
                    total[levels[depth][i]] = score
            candidates.append(self._candidates(along, width))
            along = total
        if along:
            candidates.append(self._candidates(along, width))
            self._verified_tree(one, candidates, wrong, depths)

    def _candidates(self, along: dict[int, float], width: int) -> list[tuple[float, int, int]]:
        """What one level proposes: (score, token, state it is of), the best of each state."""
        found = []
        for number, score in along.items():
            best = self.scores[number].log_softmax(dim=-1).topk(min(width, self.scores.shape[1]))
            found += [
                (score + value, self._target_id(own), number)
                for value, own in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        return found

    def _verified_tree(
        self,
        one: Round,
        candidates: Sequence[Sequence[tuple[float, int, int]]],
        wrong: list[Proposal],
        depths: Counter[int],
    ) -> None:
        """The target is given the best of all candidates, whatever their depth."""
        if one.verified is None:
            return
        ids, positions = one.verified
        every = sorted((score for level in candidates for score, *_ in level), reverse=True)
        least = every[min(len(ids) - 1, len(every)) - 1] if every else 0.0
        if least <= UNDERFLOW + 1:
            return
        left = [list(level) for level in candidates]
        for token, position in zip(ids[1:], positions[1:], strict=True):
            depth = position - positions[0]
            level = left[depth - 1] if 0 < depth <= len(left) else []
            slack = (depth + 1) * self.slack(self.scores[level[0][2]]) if level else 0.0
            fits = [each for each in level if each[1] == token and each[0] >= least - slack]
            depths[depth] += 1
            if not fits:
                score, choice, number = max(level, default=(0.0, -1, 0))
                own = int(self.scores[number].argmax())
                wrong.append(Proposal(one, depth, token, choice, own, None, number))
                return
            level.remove(max(fits))

    def _parents(
        self, step: Forward, first: int, ids: Sequence[int], before: Sequence[int], along: dict[int, float]
    ) -> list[int]:
        """The states of the step before that the rows go on from: those that they were given. Of states that are alike
        the likeliest is taken that has not said the same token yet."""
        given = step.input.file.rows("hidden_states", first, len(ids)).double()
        held = self.handed[list(before)]
        found: list[int] = []
        for row, token in zip(given, ids, strict=True):
            away = (held - row).norm(dim=-1)
            alike = [before[i] for i in (away == away.min()).nonzero().flatten().tolist()]
            free = [one for one in alike if (one, token) not in zip(found, ids)] or alike
            found.append(max(free, key=along.__getitem__))
        return found

    def chosen(self, token: int, scores: torch.Tensor) -> bool:
        """Whether a token is the choice of these scores, as far as rounding can tell."""
        own = self._own(token)
        return own is not None and float(scores[own]) >= float(scores.max()) - self.slack(scores)

    def _target_id(self, own: int) -> int:
        mapped = self.reference.mapped
        return own if mapped is None else int(mapped[own])

    def _own(self, token: int) -> int | None:
        """A token of the target's as the draft's own; None when the draft cannot say it."""
        mapped = self.reference.mapped
        if mapped is None:
            return token if token < self.scores.shape[1] else None
        found = (mapped == token).nonzero().flatten().tolist()
        return found[0] if found and found[0] < self.scores.shape[1] else None


def _token_at(one: Round, depth: int) -> int | None:
    """What a chain's round proposes at a depth: what its next step was given, else what the target was."""
    if depth <= len(one.steps):
        forward, block = one.steps[depth - 1]
        ids = forward.input.token_ids
        return ids[block.first] if ids else None
    return one.verified[0][depth] if one.verified and depth < len(one.verified[0]) else None


def _nth(parts: Sequence[torch.Tensor], count: int) -> float:
    import torch

    joined = torch.cat(list(parts))
    return float(joined.topk(min(count, len(joined))).values[-1])
