"""Everything that the checks read, gathered once: configs, headers, launch, the tree's rule, the golden's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specwire.errors import SpecwireError
from specwire.goldens.golden import open_golden
from specwire.goldens.labels import other_reading, wrong_labels
from specwire.goldens.log import LogGolden, is_log_golden, open_log_golden
from specwire.model_files import read_config, text_config, weight_files
from specwire.preflight.checkpoint import Checkpoint, open_checkpoint
from specwire.preflight.draft import DraftModel, read_draft
from specwire.preflight.interpreter.modules import Source
from specwire.preflight.launch import Launch
from specwire.preflight.options import Refusal
from specwire.preflight.plumbing import Plumbing
from specwire.preflight.resolution import Resolution
from specwire.preflight.rule import EAGLE3, Rule, draft_rule

ALIASES = {"NEXTN": "EAGLE"}
SHARED = ("embed_tokens.weight", "lm_head.weight")
EAGLE3_CLASS = "LlamaForCausalLMEagle3"
NESTED = "transformer_layer_config"  # where speculators keeps the draft's own sizes


@dataclass(frozen=True)
class Recorded:
    """What a golden's metadata says, or --trained alone: slots' boundaries, sizes, the target it was computed from.

    `assumed`: nobody gave these boundaries when the golden was built. `relabelled`: what an imported golden's
    boundaries would be by the convention that its ids were not read by, that convention, and what was done.
    `quantised`: how the checkpoint that it was computed from is quantised, empty for not at all; None when it does not say.
    """

    trained: tuple[int, ...] | None = None
    layers: int | None = None
    hidden: int | None = None
    target: str = ""
    where: str = "--trained"
    assumed: bool = False
    relabelled: tuple[tuple[int, ...], str, str] | None = None
    quantised: str | None = None


@dataclass(frozen=True)
class Facts:
    """`target` is the language model's part of the target's config, `target_config` all of it. `draft` is the
    draft's config, `weights` its checkpoint, `model` what the tree builds for both; `named` is what it builds for the
    architecture that the config names, where that is not the one that the tensors are of. `rule` is what the tree
    captures if it is launched with EAGLE3, whatever the launch says."""

    source: Source
    target_dir: Path
    target_config: Mapping[str, Any]
    target: Mapping[str, Any]
    target_weights: Checkpoint | None
    draft_dir: Path
    draft: Mapping[str, Any]
    weights: Checkpoint
    model: DraftModel | None
    named: DraftModel | None
    rule: Rule
    plumbing: Plumbing
    launch: Launch | None
    recorded: Recorded | None
    foreign: bool = False

    @property
    def release(self) -> str:
        return self.source.release

    @property
    def hidden(self) -> int:
        size: int = self.target["hidden_size"]
        return size

    @property
    def trained(self) -> tuple[int, ...] | None:
        return self.recorded.trained if self.recorded else None

    @property
    def assumed(self) -> bool:
        """Whether `trained` is what somebody would guess, rather than what somebody said."""
        return bool(self.recorded and self.recorded.assumed)

    @cached_property
    def resolution(self) -> Resolution:
        """What the tree makes of arguments once they are parsed."""
        return Resolution(self.source)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Why the engine would not start with this launch: by its parser, or by what it makes of the arguments."""
        if self.launch is None:
            return ()
        stages = self.launch.number("pp-size") or 1
        refused = self.resolution.refuses_pipeline(self.algorithm) if self.algorithm and stages > 1 else None
        if refused is None:
            return self.launch.refusals
        why = f"--pp-size {stages} with {self.algorithm}: {refused[0]} ({refused[1]})"
        return (*self.launch.refusals, Refusal(why, "--pp-size 1, and more ranks by --tp-size", "--pp-size"))

    @property
    def algorithm(self) -> str | None:
        """The algorithm that the launch asks for, aliases resolved; "" for none, None where that is not known."""
        if self.launch is None or self.launch.unknown("speculative-algorithm"):
            return None
        name = str(self.launch.get("speculative-algorithm") or "").upper()
        return ALIASES.get(name, name)

    @property
    def graphs(self) -> bool | None:
        """Whether the launch leaves CUDA graphs on; None where that is not known."""
        if self.launch is None or self.launch.unknown("disable-cuda-graph"):
            return None
        return not (self.launch.get("disable-cuda-graph") or self.launch.get("device") == "cpu")

    @property
    def kind(self) -> str | None:
        """EAGLE3 or EAGLE, by the draft's architecture, else by how many states `fc` takes; None when unclear."""
        name = str(self.draft["architectures"][0]).lower()
        columns, width = self.fc_in or 0, self.draft_hidden_in
        states = columns // width if width and columns % width == 0 else 0
        if "eagle3" in name or looks_eagle3(self.weights) or ("eagle" in name and states >= 3):
            return EAGLE3
        return "EAGLE" if "eagle" in name and states == 2 else None

    @property
    def misnamed(self) -> bool:
        """Whether the config names another class than the tensors, an EAGLE-3 draft's, are of."""
        return self.named is not None or self.model is None and looks_eagle3(self.weights)

    @property
    def skips_fc(self) -> bool:
        """Whether the draft's own width test leaves `fc` out: the states are as wide as the embedding."""
        width = self.concat_width
        return bool(self.model and self.model.fc_if_wider and width and width == self.draft.get("hidden_size"))

    @property
    def without_aux(self) -> bool:
        """Whether the draft is made for the last state alone: its config turns inner states off, and it has no `fc`."""
        return not self.plumbing.use_aux and self.plumbing.reads_config and self.fc is None and self.skips_fc

    @property
    def captured(self) -> tuple[int, ...] | None:
        """What will be captured as launched: nothing unless the algorithm is EAGLE3."""
        return self.rule.captured if self.algorithm in (EAGLE3, None) else ()

    @property
    def concat_width(self) -> int | None:
        """How wide the states are that reach the draft. With nothing captured it is the last state alone."""
        if self.captured is None:
            return None
        return (len(self.captured) or 1) * self.hidden

    @property
    def fc(self) -> tuple[int, ...] | None:
        """Shape of the draft's `fc.weight`: [out, in]."""
        return self.weights.shape(self.weights.find("fc.weight"))

    @property
    def fc_in(self) -> int | None:
        """How wide the states are that `fc` takes; None without an `fc` of two dimensions."""
        return self.fc[1] if self.fc and len(self.fc) == 2 else None

    @property
    def other_size(self) -> str | None:
        """That the draft was made for a target of another hidden size, by its config and by `fc` as well."""
        width, columns = self.draft_hidden_in, self.fc_in
        if not width or width == self.hidden or not columns or columns % width:
            return None
        if self.draft.get("target_hidden_size") is None and columns == self.slots * self.hidden:
            return None  # as many states of this target as there are slots: the config leaves out whose they are
        return (
            f"the draft is for a target of hidden size {width} (fc takes {columns} = {columns // width} x {width}), "
            f"this one has {self.hidden}"
        )

    @property
    def slots(self) -> int:
        """How many states the draft should be given: as many as it was trained on, else as many as are captured."""
        return len(self.trained or self.rule.captured or ()) or 3

    @property
    def draft_hidden_in(self) -> int | None:
        """The hidden size that the draft takes its target to have, by its config."""
        width = self.draft.get("target_hidden_size") or self.draft.get("hidden_size")
        return width if type(width) is int and width > 0 else None


def gather(source: Source, target: Path, draft: Path, launch: Launch | None, recorded: Recorded | None) -> Facts:
    """Read all files once. Raises SpecwireError for the first one that is missing or wrong."""
    target_config, draft_config = _config(target, "target"), _config(draft, "draft")
    weights = open_checkpoint(draft, "draft")
    foreign = foreign_format(source, draft_config)
    if foreign:
        draft_config = {**draft_config, **draft_config[NESTED], "architectures": [EAGLE3_CLASS]}
    rule, plumbing = draft_rule(source, target_config, draft_config)
    model, named = _draft_models(source, draft_config, weights)
    return Facts(
        source=source,
        target_dir=target,
        target_config=target_config,
        target=text_config(target_config),
        target_weights=_target_weights(target),
        draft_dir=draft,
        draft=draft_config,
        weights=weights,
        model=model,
        named=named,
        rule=rule,
        plumbing=plumbing,
        launch=launch,
        recorded=recorded,
        foreign=foreign,
    )


def foreign_format(source: Source, config: Mapping[str, Any]) -> bool:
    """Whether a draft's config is in speculators' own layout, which this tree has no reader for."""
    nested = config.get(NESTED)
    return isinstance(nested, dict) and source.mentions(NESTED) == 0


def looks_eagle3(weights: Checkpoint) -> bool:
    """Whether a checkpoint's tensors are those of an EAGLE-3 draft, whatever its config calls it."""
    return bool(weights.find("d2t") or (weights.find("fc.weight") and weights.find("hidden_norm.weight")))


def eagle3_class(source: Source, name: str) -> str:
    """The architecture to write for EAGLE-3 tensors under the name of another class."""
    return f"{name}3" if source.model_class([f"{name}3"]) else EAGLE3_CLASS


def _draft_models(
    source: Source, config: Mapping[str, Any], weights: Checkpoint
) -> tuple[DraftModel | None, DraftModel | None]:
    """What the tree builds for the draft, and, where the config names another class than the tensors are of, what it
    builds for that one."""
    named = read_draft(source, config, weights.tensors)
    name = str(config["architectures"][0])
    built = named.shape("fc.weight") if named else None
    if "eagle3" in name.lower() or not looks_eagle3(weights) or built == weights.shape(weights.find("fc.weight")):
        return named, None
    meant = read_draft(source, {**config, "architectures": [eagle3_class(source, name)]}, weights.tensors)
    if meant is None or meant.problem or (named is not None and built is not None and built[1] != 2 * built[0]):
        return named, None
    return meant, named or DraftModel("", name, "", problem=f"{source.release} has no model class {name}")


def _config(directory: Path, role: str) -> dict[str, Any]:
    if not directory.is_dir():
        raise SpecwireError(f"no {role} in {directory}: there is no such directory. Give the one with config.json.")
    config = read_config(directory)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SpecwireError(f"{directory}/config.json names no architecture: is it a {role} model's directory?")
    return config


def _target_weights(target: Path) -> Checkpoint | None:
    """The headers of what a draft can share; None when only the target's config is here, which will do."""
    if not weight_files(target):
        return None
    return open_checkpoint(target, "target", only=SHARED)


def golden_words(path: Path) -> Recorded:
    """What a golden, or a log golden, records. Raises SpecwireError when it is neither."""
    golden = open_log_golden(path) if is_log_golden(path) else open_golden(path)
    known = tuple(k for k in golden.trained if k is not None)
    trained = known if len(known) == len(golden.trained) else None
    metadata = {} if isinstance(golden, LogGolden) else golden.file.metadata
    other = other_reading(metadata, trained, golden.layers) if trained and golden.layers else None
    relabelled = (other[1], other[0], wrong_labels(metadata, other[0])) if other else None
    return Recorded(
        trained, golden.layers, golden.hidden, golden.target, str(path), golden.assumed is not None, relabelled,
        metadata.get("quantised"),
    )  # fmt: skip
