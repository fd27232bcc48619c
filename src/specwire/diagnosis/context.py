"""What is known beside the numbers: how the engine was started, with which draft, and what its source would
do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwire.errors import SpecwireError
from specwire.model_files import checkpoint, draft_layer_ids, read_config, target_name
from specwire.preflight.launch import Given, Launch, typed
from specwire.tensorfile import TensorFile

if TYPE_CHECKING:
    from specwire.preflight.options import Options
    from specwire.preflight.outcome import Check
    from specwire.trees.tree import Tree

Rule = Callable[[Sequence[int] | None], Sequence[int] | None]


@dataclass(frozen=True)
class Context:
    """Every part may be missing; a check that needs a missing part says that it was skipped.

    `rule` maps a draft's layer ids (None: no ids given) to the boundaries that the tree captures for them.
    """

    launch: Launch = field(default_factory=Launch)
    target_dir: Path | None = None
    draft_dir: Path | None = None
    target: Mapping[str, Any] | None = None
    draft: Mapping[str, Any] | None = None
    version: str | None = None
    rule: Rule | None = None
    accept_length: float | None = None
    tree: Tree | None = None
    beside: tuple[Path, ...] = ()  # captures of other runs of the same system, on other ranks
    trained: tuple[int, ...] | None = None  # the boundaries that the draft was trained on, whatever the golden says

    @property
    def algorithm(self) -> str | None:
        named: str | None = self.launch.get("speculative-algorithm")
        return named

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return max(1, self.launch.number("pp-size") or 1)

    @property
    def layer_ids(self) -> list[int] | None:
        return draft_layer_ids(dict(self.draft)) if self.draft else None

    @cached_property
    def draft_tensors(self) -> dict[str, TensorFile]:
        """The draft checkpoint's tensors by name; none when no directory was given, or it holds no
        safetensors."""
        return checkpoint(self.draft_dir) if self.draft_dir else {}

    @property
    def fc_in(self) -> int | None:
        """How wide the states are that the draft's `fc` takes, by its checkpoint; None when that is not known."""
        name = next((name for name in ("fc.weight", "model.fc.weight") if name in self.draft_tensors), None)
        shape = self.draft_tensors[name].entry(name).shape if name else ()
        return shape[1] if len(shape) == 2 else None

    @cached_property
    def target_tensors(self) -> dict[str, TensorFile]:
        """The target checkpoint's tensors by name, likewise."""
        return checkpoint(self.target_dir) if self.target_dir else {}

    @property
    def static(self) -> dict[str, Check]:
        """What preflight finds wrong without a run, by id; it needs target, draft and tree."""
        return {check.id: check for check in self._static if check.state == "fault"}

    @property
    def suspected(self) -> list[str]:
        """What preflight holds for possible and no run can tell, each a sentence."""
        return [
            f"{check.id} ({check.confidence}): {check.why}; {check.fix}" for check in self._static if check.suspicion
        ]

    @cached_property
    def _static(self) -> list[Check]:
        if not (self.tree and self.target_dir and self.draft_dir):
            return []
        return static_checks(self.tree, self.target_dir, self.draft_dir, self.launch)

    @property
    def aux_off(self) -> bool:
        """Whether the draft's config says that it takes no inner states."""
        nested = (self.draft or {}).get("eagle_config")
        return isinstance(nested, dict) and nested.get("use_aux_hidden_state") is False

    @property
    def target_name(self) -> str | None:
        return target_name(self.target_dir) if self.target_dir else None

    @cached_property
    def release(self) -> str:
        """What a sentence calls the tree that ran."""
        if self.tree is not None:
            from specwire.gate.pristine import release_name

            return release_name(self.tree)
        return f"SGLang {self.version}" if self.version else "this release"

    def ids_for(self, boundaries: Sequence[int]) -> list[int] | None:
        """The layer ids that this tree turns into `boundaries`; None when its rule is not known or gives no
        way."""
        if self.rule is None:
            return None
        from specwire.preflight.rule import candidates

        return next((ids for ids in candidates(boundaries) if list(self.rule(ids) or ()) == list(boundaries)), None)


def make_context(
    *,
    target: Path | str | None = None,
    draft: Path | str | None = None,
    launch: str | Given | None = None,
    version: str | None = None,
    rule: Rule | None = None,
    accept_length: float | None = None,
    tree: Tree | None = None,
    beside: Sequence[Path] = (),
    trained: Sequence[int] | None = None,
) -> Context:
    """Read the configs that were named; SpecwireError when one of them cannot be read.

    A tree gives its version and, with a target, its layer-id rule, unless these are given. The launch is read by the
    tree's options, without a tree as far as words go.
    """
    given = typed(launch) if isinstance(launch, str) else launch
    if tree is not None:
        version = version or tree.version
        rule = rule or (tree_rule(tree, Path(target)) if target else None)
    return Context(
        given.read(_options(tree)) if given else Launch(),
        Path(target) if target else None,
        Path(draft) if draft else None,
        read_config(target) if target else None,
        read_config(draft) if draft else None,
        version,
        rule,
        accept_length,
        tree,
        tuple(beside),
        None if trained is None else tuple(trained),
    )


def _options(tree: Tree | None) -> Options | None:
    """The options that a tree takes; None without one, or where they cannot be read."""
    from specwire.preflight.interpreter.modules import Source
    from specwire.preflight.option_source import read_options

    try:
        return read_options(Source(tree)) if tree else None
    except SpecwireError:
        return None


def tree_rule(tree: Tree, target: Path) -> Rule | None:
    """Which boundaries `tree` captures for given layer ids of this target, read from its source; None when it
    cannot be read."""
    from specwire.preflight.interpreter.modules import Source
    from specwire.preflight.rule import captured_boundaries

    config = read_config(target)
    try:
        found = captured_boundaries(Source(tree), config, None)
    except SpecwireError:
        return None

    def rule(ids: Sequence[int] | None) -> Sequence[int] | None:
        again = found.for_ids(None if ids is None else list(ids))
        return again.captured if again and again.problem is None else None

    return rule


def static_checks(tree: Tree, target: Path, draft: Path, launch: Launch) -> list[Check]:
    """Preflight's checks of the draft's own files, as launched, without those that only predict what is captured."""
    from specwire.preflight import check_serving, check_vocabulary, check_weights, check_widths
    from specwire.preflight.facts import gather
    from specwire.preflight.interpreter.modules import Source

    facts = gather(Source(tree), target, draft, launch if launch.words else None, None)
    modules = (check_widths, check_vocabulary, check_weights, check_serving)
    return [found for module in modules for found in module.check(facts) if not found.predicts]
