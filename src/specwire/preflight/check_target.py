"""Is the target that is served the one that the golden and the draft are about, and the draft the one given?"""

from __future__ import annotations

from pathlib import Path

from specwire.model_files import config_hash, quantised_as, read_config, target_name
from specwire.preflight.facts import Facts, Recorded
from specwire.preflight.hub import is_hub_id
from specwire.preflight.outcome import Check, fault, ok, skipped, suspected

_SERVE = "serve the target that the draft was trained for"


def check(facts: Facts) -> list[Check]:
    found = _golden(facts) or _draft(facts) or _served(facts)
    if found is None:
        known = [facts.recorded.where] if facts.recorded and facts.recorded.target else []
        found = ok("wrong-target", "sizes and records agree" + (f" ({known[0]} names it)" if known else ""))
    return [found, _other_draft(facts)]


def _golden(facts: Facts) -> Check | None:
    """Sizes and the config's hash as the golden recorded them."""
    said = facts.recorded
    if said is None:
        return None
    for name, have, want in (
        ("layers", facts.target["num_hidden_layers"], said.layers),
        ("hidden size", facts.hidden, said.hidden),
    ):
        if want is not None and have != want:
            return fault("wrong-target", f"the target has {name} {have}, {said.where} was made with {want}", _SERVE)
    if "sha256:" in said.target and said.target.rpartition("sha256:")[2] != config_hash(facts.target_dir):
        return fault(
            "wrong-target",
            f"{said.where} was made from {said.target}, the target here is "
            f"{target_name(facts.target_dir)}: their config.json differ",
            _SERVE,
            "likely",
        )
    mine = quantised_as(facts.target_config)
    if said.quantised not in (None, mine):
        return suspected(
            "wrong-target",
            f"{said.where} was made from a checkpoint {_quantised(said.quantised)}, the target here is {_quantised(mine)}: they "
            "are one model only as far as their numbers are the same",
            "serve a copy of the numbers that the golden was made from, or build it from what is served: specwire golden build",
        )
    return None


def _quantised(method: str) -> str:
    return f"quantised as {method}" if method else "that is not quantised"


def _draft(facts: Facts) -> Check | None:
    """What the draft's config says about its target."""
    vouched = facts.recorded is not None and facts.recorded.hidden == facts.hidden
    if facts.other_size and not vouched:  # else it is the draft that is the wrong one: fc-width
        return fault("wrong-target", facts.other_size, _SERVE)
    vocabulary = facts.draft.get("vocab_size")
    if type(vocabulary) is int and not fits(vocabulary, facts.target["vocab_size"]):
        return fault(
            "wrong-target",
            f"the draft is for a vocabulary of {vocabulary}, the target has {facts.target['vocab_size']}",
            _SERVE,
            "likely",
        )
    speculators = facts.draft.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    named = verifier.get("architectures") if isinstance(verifier, dict) else None
    mine = facts.target_config.get("architectures") or []
    if named and mine and not set(named) & set(mine):
        return fault(
            "wrong-target",
            f"the draft names a verifier of {named[0]}, the target is {mine[0]}",
            _SERVE,
            "likely",
        )
    return None


def fits(vocabulary: int, served: int) -> bool:
    """A target's vocabulary may be padded beyond the draft's by a little."""
    return vocabulary == served or 0.99 * served <= vocabulary < served


def _served(facts: Facts) -> Check | None:
    """The launch's model path, when it is a directory here."""
    if facts.launch and facts.launch.unknown("model-path"):
        return skipped("wrong-target", "which target the launch serves is not known here", needed=True)
    name = facts.launch.get("model-path") if facts.launch else None
    place = facts.launch.path("model-path") if facts.launch and name else None
    if name and place is None and not _named(name, facts.target_dir, facts.recorded):
        return _not_here("wrong-target", f"the launch serves {name}", name, facts.target_dir)
    if place is None or _same(place, facts.target_dir):
        return None
    if config_hash(place) == config_hash(facts.target_dir):
        served, mine = quantised_as(read_config(place)), quantised_as(facts.target_config)
        return None if served == mine else suspected(
            "wrong-target",
            f"the launch serves {place}, {_quantised(served)}, and {facts.target_dir} is {_quantised(mine)}",
            f"--model-path {facts.target_dir}, or give the served one as --target",
        )  # fmt: skip
    return fault(
        "wrong-target",
        f"the launch serves {place}, whose config.json is not that of {facts.target_dir}",
        f"--model-path {facts.target_dir}, or give the served one as --target",
    )


def _other_draft(facts: Facts) -> Check:
    """The launch's draft path, when it is a directory here."""
    if facts.launch and facts.launch.unknown("speculative-draft-model-path"):
        return skipped("wrong-draft", "which draft the launch loads is not known here", needed=True)
    if facts.launch is None or not facts.launch.get("speculative-draft-model-path"):
        return skipped("wrong-draft", "the launch names no draft")
    name, place = facts.launch.get("speculative-draft-model-path"), facts.launch.path("speculative-draft-model-path")
    if place is None and _named(name, facts.draft_dir):
        return ok("wrong-draft", f"the launch loads {name}, and {facts.draft_dir} is named so")
    if place is None:
        return _not_here("wrong-draft", f"the launch loads {name}", name, facts.draft_dir)
    if _same(place, facts.draft_dir):
        return ok("wrong-draft", f"the launch loads {place}")
    if config_hash(place) == config_hash(facts.draft_dir):
        return ok("wrong-draft", f"the launch loads {place}, whose config.json is the same")
    return fault(
        "wrong-draft",
        f"the launch loads {place}, not {facts.draft_dir}: their config.json differ",
        f"--speculative-draft-model-path {facts.draft_dir}, or give the loaded one as --draft",
    )


def _not_here(check: str, does: str, name: str, directory: Path) -> Check:
    """A model that cannot be compared. A hub's name is what anyone would write for a copy: noted, and no bar."""
    if is_hub_id(name):
        return skipped(check, f"{does}, which is not in the local cache: taken to be {directory}")
    return skipped(check, f"{does}, no directory here to compare, and nothing says that {directory} is it", needed=True)


def _named(name: str, directory: Path, recorded: Recorded | None = None) -> bool:
    """Whether a path of elsewhere, or a hub's name, is by its last part that of the directory, of the hub's
    snapshot that it is, or of the target that the golden was made from."""
    mine = [directory.name, directory.resolve().name]
    mine += [part.rpartition("--")[2] for part in directory.absolute().parts if part.startswith("models--")]
    mine += [recorded.target.partition(" sha256:")[0]] if recorded else []
    return Path(name).name.casefold() in {Path(each).name.casefold() for each in mine}


def _same(one: Path, two: Path) -> bool:
    return one.exists() and two.exists() and one.samefile(two)
