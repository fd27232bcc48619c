"""Does the concatenation fit `fc`, as the checkpoint has it and as this tree builds it?"""

from __future__ import annotations

from specwire.preflight.facts import Facts
from specwire.preflight.outcome import Check, fault, ok, skipped
from specwire.preflight.rule import EAGLE3


def check(facts: Facts) -> list[Check]:
    if facts.kind != EAGLE3:
        return [skipped("fc-width", "the draft is no EAGLE-3 draft", needed=True)]
    if facts.without_aux:
        said = "the config turns inner states off, and the last state is as wide as the embedding: fc is not run"
        return [ok("fc-width", said)]
    if facts.fc is None:
        return [skipped("fc-width", f"no fc.weight in {facts.draft_dir}", needed=True)]
    if len(facts.fc) != 2:
        return [fault("fc-width", f"fc.weight has shape {list(facts.fc)}, not [out, in]", "export the draft again")]
    found = _config(facts) or _tree(facts) or _captured(facts) or _left_out(facts) or _bias(facts)
    if found:
        return [found]
    if facts.rule.captured is None:
        return [skipped("fc-width", "how many states are captured was not read", needed=True)]
    rows, columns = facts.fc
    return [ok("fc-width", f"fc takes {columns} = {columns // facts.hidden} x {facts.hidden} and gives {rows}")]


def _config(facts: Facts) -> Check | None:
    """The checkpoint against its own config, and the config's hidden size against the target's."""
    rows, columns = facts.fc
    hidden, width = facts.draft.get("hidden_size"), facts.draft_hidden_in
    if type(hidden) is not int or type(width) is not int:
        return fault(
            "fc-width",
            f"{facts.draft_dir}/config.json gives hidden_size as {hidden!r}",
            "correct hidden_size",
        )
    if rows != hidden:
        return fault(
            "fc-width",
            f"fc.weight gives {rows}, config.json has hidden_size {hidden}",
            f'"hidden_size": {rows} in the draft\'s config.json, or export the draft again',
        )
    if facts.other_size:
        return fault("fc-width", facts.other_size, "use the draft that was trained for this target")
    if width != facts.hidden and columns % facts.hidden:
        name = "target_hidden_size" if facts.draft.get("target_hidden_size") else "hidden_size"
        return fault(
            "fc-width",
            f"fc takes {columns}, no multiple of the target's hidden size {facts.hidden}; "
            f"the draft's {name} is {width}",
            "serve the target that the draft was trained for",
        )
    return None


def _tree(facts: Facts) -> Check | None:
    """The checkpoint against the `fc` that this tree builds for this config."""
    built = facts.model.shape("fc.weight") if facts.model else None
    if built is None or built == facts.fc:
        return None
    given = len(facts.plumbing.layer_ids or ())
    if given and facts.fc[0] == built[0] and built[1] == given * facts.hidden and not facts.fc_in % facts.hidden:
        count = facts.fc_in // facts.hidden
        return fault(
            "fc-width",
            f"{given} layer id{'s' * (given > 1)} make {facts.release} build fc as {list(built)} ({facts.model.where}); the "
            f"checkpoint's takes {facts.fc_in} = {count} x {facts.hidden}",
            f"give {count} layer ids in eagle_config, each within the target's layers",
        )
    if facts.draft.get("target_hidden_size") is None and facts.fc_in == facts.slots * facts.hidden:
        return fault(
            "fc-width",
            f"fc takes {facts.fc_in} = {facts.slots} x {facts.hidden}, states of this target; {facts.release} builds "
            f"{list(built)} for this config ({facts.model.where}), which does not give the target's hidden size",
            f'"target_hidden_size": {facts.hidden} in the draft\'s config.json',
        )
    return fault(
        "fc-width",
        f"the checkpoint's fc.weight is {list(facts.fc)}, {facts.release} builds {list(built)} for this config "
        f"({facts.model.where}): loading it fails",
        "make the number of layer ids and target_hidden_size in the draft's config.json fit fc.weight, "
        "or use a release that reads them",
    )


def _captured(facts: Facts) -> Check | None:
    if facts.rule.captured is None:
        return None
    # Without captured layers the last state alone is handed on.
    count, columns = len(facts.rule.captured) or 1, facts.fc[1]
    if count * facts.hidden == columns:
        return None
    said = f"{count} state{'s' * (count > 1)} of {facts.hidden} make {count * facts.hidden}, fc takes {columns}"
    if not facts.plumbing.use_aux:
        return fault(
            "fc-width",
            f"{said}: the draft's eagle_config has use_aux_hidden_state false",
            '"use_aux_hidden_state": true in the draft\'s eagle_config',
        )
    return fault(
        "fc-width",
        said,
        f"give {columns // facts.hidden} layer ids in eagle_config, each within the target's layers",
        predicts=True,
    )


def _left_out(facts: Facts) -> Check | None:
    """One state as wide as the embedding: the draft's own width test then never runs the `fc` that it has."""
    if not facts.skips_fc or facts.captured is None:
        return None
    said = (
        f"one state of {facts.hidden} is as wide as the embedding, so {facts.model.class_name} ({facts.model.where}) "
        f"leaves out fc, which the checkpoint has as {list(facts.fc)}"
    )
    if facts.algorithm not in (EAGLE3, None):
        return None  # algo-flag
    fix = (
        "serve it with as many layer ids as it was trained with; a draft of one inner state needs a class that runs fc"
    )
    return fault("fc-width", said, fix, "certain" if facts.captured else "likely", predicts=True)


def _bias(facts: Facts) -> Check | None:
    """A bias that was trained and that this tree would leave out, because a key is missing."""
    name = facts.weights.find("fc.bias")
    if name is None or facts.model is None or facts.model.problem or name not in facts.model.dropped:
        return None
    return fault(
        "fc-width",
        f"the checkpoint has {name}, which {facts.release} drops: it builds fc without a bias for this config",
        '"bias": true in the draft\'s config.json',
    )
