"""Will the boundaries that this tree captures be the ones that the draft was trained on, slot by slot?"""

from __future__ import annotations

from collections.abc import Callable

from specwire.goldens.labels import not_known, same_as_assumed
from specwire.preflight.facts import Facts
from specwire.preflight.outcome import Check, fault, ok, skipped
from specwire.preflight.plumbing import KEY
from specwire.preflight.rule import EAGLE3, advice, graph_order

IDS = (
    "slot-count",
    "final-boundary",
    "slot-order",
    "default-boundaries",
    "boundary-offset",
    "embedding-slot",
    "wrong-boundary",
)


def check(facts: Facts) -> list[Check]:
    rule = facts.rule
    if facts.foreign:
        return _not_judged("the draft's config is in a layout that is not read: draft-load", needed=True)
    if facts.kind != EAGLE3:
        return _not_judged("the draft is no EAGLE-3 draft, and captured boundaries are what those take", needed=True)
    if rule.absent or (rule.captured == () and rule.problem):
        return [fault("hook-dead", str(rule.problem), _other_release(facts)), *_not_judged("nothing is captured")]
    if facts.plumbing.problem:
        return _not_judged(f"how the ids get to the target was not read: {facts.plumbing.problem}", needed=True)
    if facts.plumbing.wrong:
        ids = rule.ids_for(facts.trained) if facts.trained and not facts.assumed else None
        fix = f"write eagle_config.{KEY} = {ids or '[...]'}: numbers, without quotes or anything around each"
        return [fault("layer-ids", rule.text, fix), *_not_judged("the layer ids are no numbers")]
    captured = _residual(facts)
    if not rule.understood:
        return [
            skipped("hook-dead", rule.problem, needed=True),
            *_not_judged(f"the rule was not read: {rule.problem}", needed=True),
        ]
    captured.insert(0, ok("hook-dead", f"the layer loop reads what {rule.where} sets"))
    if facts.without_aux and facts.trained is None:
        return captured + _not_judged("the draft's config turns inner states off, and it has no fc for any")
    if facts.other_size:
        return captured + _not_judged("the draft is for a target of another hidden size")
    if facts.trained is None:
        why = "neither a golden nor --trained says which boundaries the draft was trained on"
        return captured + _not_judged(why, needed=True)
    return captured + _compared(facts, facts.trained) + _graphs(facts, facts.trained)


def _residual(facts: Facts) -> list[Check]:
    if facts.rule.captured is None:
        return []
    if facts.rule.bare:
        said = f"{facts.rule.bare} captures the branch alone, though the layers hand on a residual beside it"
        return [fault("missing-residual", said, "capture the sum of both there, or use a release that does", "likely")]
    return [ok("missing-residual", "the capture takes in the residual, as far as the loop shows")]


def _compared(facts: Facts, trained: tuple[int, ...]) -> list[Check]:
    captured = facts.rule.captured
    if not facts.plumbing.use_aux and facts.fc_in not in (None, facts.hidden):
        return _not_judged("the draft's config switches the captured states off")
    if captured == trained and facts.rule.problem is None:
        lead = "" if facts.algorithm in (EAGLE3, None) else "with EAGLE3, "
        by = f"; {same_as_assumed(trained)}" if facts.assumed else ""
        return [ok(name, f"{lead}captured {list(captured)} as trained{by}") for name in IDS]
    if facts.assumed:
        return _not_judged(facts.rule.problem or not_known(captured or (), trained), needed=True)
    found = _explanation(facts, trained)
    others = [skipped(name, f"what differs is explained by {found.id}") for name in IDS if name != found.id]
    return [found, *others]


def _graphs(facts: Facts, trained: tuple[int, ...]) -> list[Check]:
    """Some releases capture their CUDA graphs before they know the draft's ids."""
    handed, said = graph_order(facts.rule, facts.plumbing) or (trained, "")
    if handed == trained or facts.algorithm not in (EAGLE3, None):
        return []
    if facts.graphs is False:
        return [ok("graph-order", "the launch has no CUDA graphs, which here would hand on the default boundaries")]
    if facts.graphs is None or facts.assumed:
        return [skipped("graph-order", said, needed=bool(facts.graphs))]
    return [
        fault(
            "graph-order", f"{said}; the draft was trained on {list(trained)}",
            "--disable-cuda-graph, or a release that sets the ids before it captures graphs "
            f"(only a draft trained on {list(handed)} is served right by this one with graphs)", "likely",
        )
    ]  # fmt: skip


def _explanation(facts: Facts, trained: tuple[int, ...]) -> Check:
    """The simplest explanation of the difference, simplest first."""
    captured = facts.rule.captured
    said = f"{facts.rule.text}; the draft was trained on {list(trained)}"
    if facts.rule.problem:
        said += f"; {facts.rule.problem}"
    fix = _fix(facts, trained)
    if captured is None:
        return fault("final-boundary" if facts.rule.num_layers in trained else "slot-count", said, fix)
    tests: list[tuple[str, Callable[[], bool]]] = [
        ("final-boundary", lambda: facts.rule.num_layers in set(trained) - set(captured)),
        ("slot-count", lambda: len(captured) != len(trained)),
        ("slot-order", lambda: sorted(captured) == sorted(trained)),
        ("default-boundaries", lambda: facts.plumbing.layer_ids is None or _ids_ignored(facts)),
        ("boundary-offset", lambda: len({have - want for have, want in zip(captured, trained)}) == 1),
        ("embedding-slot", lambda: 0 in set(captured) - set(trained)),
        ("wrong-boundary", lambda: True),
    ]
    name = next(name for name, holds in tests if holds())
    if 0 in set(captured) - set(trained) and name == "slot-count":
        name = "embedding-slot"
    sure = "likely" if facts.rule.assumptions else "certain"
    said += _detail(facts, name, captured, trained)
    if facts.recorded.relabelled and facts.recorded.relabelled[0] == captured:
        _, other, how = facts.recorded.relabelled
        said += f"; {how}: by that the draft was trained on what is captured"
        fix = (
            f"see which convention the data was written by: `specwire verify` compares the states. If they match, import "
            f"the golden again with --convention {other}; if not: {fix}"
        )
        sure = "likely"
    return fault(name, said, fix, sure)


def _ids_ignored(facts: Facts) -> bool:
    """Whether the rule gives its defaults for ids that mean other boundaries, under either reading of an id."""
    ids, captured, default = facts.plumbing.layer_ids, facts.rule.captured, facts.rule.for_ids(None)
    meant = [tuple(ids or ()), tuple(k + 1 for k in ids or ())]
    return default is not None and default.captured == captured and captured not in meant


def _detail(facts: Facts, name: str, captured: tuple[int, ...], trained: tuple[int, ...]) -> str:
    if name == "boundary-offset":
        shift = captured[0] - trained[0]
        return f"; every slot is {abs(shift)} {'above' if shift > 0 else 'below'} the trained one"
    if name == "slot-order":
        return "; the layer loop appends in ascending order, whatever the order of the ids"
    if name == "embedding-slot":
        return "; boundary 0 is the embedding"
    if name == "default-boundaries":
        top = facts.draft.get(KEY)
        if not facts.plumbing.reads_config:
            return f"; {facts.release} never reads layer ids from the draft's config"
        if facts.plumbing.layer_ids is not None:
            return f"; {facts.plumbing.layer_ids} makes no difference: without ids it captures the same"
        if top is not None:
            return f"; the config has {KEY} at its top level, where this release does not look"
        return f"; the draft's config gives no eagle_config.{KEY}"
    if name == "slot-count":
        ids = facts.plumbing.layer_ids or []
        twice = sorted({value for value in ids if ids.count(value) > 1})
        return f"; {len(captured)} slots instead of {len(trained)}" + (f", ids {twice} stand twice" if twice else "")
    return ""


def _fix(facts: Facts, trained: tuple[int, ...]) -> str:
    if not facts.plumbing.use_aux and facts.plumbing.reads_config:
        on = 'Set "use_aux_hidden_state": true in the draft\'s eagle_config'
        return (
            f"{on}. {advice(facts.rule, trained)}"
            if facts.plumbing.layer_ids != facts.rule.ids_for(trained)
            else f"{on}."
        )
    if not facts.plumbing.reads_config:
        only = list(facts.rule.captured or [])
        return f"use a release that reads eagle_config.{KEY}; this one captures {only} only"
    if facts.rule.captured is not None and sorted(facts.rule.captured) == sorted(trained):
        order = [trained.index(boundary) for boundary in facts.rule.captured]
        return (
            f"no order of the ids gives {list(trained)}: put the column blocks of fc.weight in the order {order} "
            "(and per-slot norms with them), so that the draft expects ascending boundaries"
        )
    return advice(facts.rule, trained)


def _other_release(facts: Facts) -> str:
    return (
        f"serve {facts.rule.architecture or 'this target'} with a release that captures for it: "
        "compare with preflight --tree A --tree B"
    )


def _not_judged(why: str, needed: bool = False) -> list[Check]:
    return [skipped(name, why, needed) for name in IDS]
