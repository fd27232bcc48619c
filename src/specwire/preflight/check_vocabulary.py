"""Do `d2t` and `t2d` map the draft's vocabulary into the target's, completely and consistently?"""

from __future__ import annotations

from array import array

from specwire.errors import SpecwireError
from specwire.preflight.facts import Facts
from specwire.preflight.outcome import Check, fault, ok, skipped

_AGAIN = "export the draft with the map that it was trained with"


def check(facts: Facts) -> list[Check]:
    if facts.foreign:
        return [skipped("vocab-map", "the draft's config is in a layout that is not read: draft-load", needed=True)]
    vocabulary = facts.draft.get("vocab_size")
    if type(vocabulary) is not int:
        return [fault("vocab-map", f"{facts.draft_dir}/config.json gives vocab_size as {vocabulary!r}", "correct it")]
    size = facts.draft.get("draft_vocab_size") or vocabulary
    d2t, t2d = facts.weights.find("d2t"), facts.weights.find("t2d")
    if d2t is None:
        if size != vocabulary:
            said = f"draft_vocab_size is {size} of {vocabulary}, and {facts.draft_dir} has no d2t"
            return [fault("vocab-map", f"{said}: drafted ids would stay below {size}", _AGAIN)]
        return [ok("vocab-map", f"the draft has the whole vocabulary of {vocabulary}: no map is needed")]
    found = _sizes(facts, d2t, t2d, size, vocabulary)
    try:
        found = found or _values(facts.weights.integers(d2t), facts.weights.integers(t2d) if t2d else None, vocabulary)
    except SpecwireError as error:
        return [fault("vocab-map", str(error), "export the draft with d2t in int64 and t2d in bool")]
    return [found or ok("vocab-map", f"d2t maps {size} draft ids into {vocabulary}" + (", t2d agrees" if t2d else ""))]


def _sizes(facts: Facts, d2t: str, t2d: str | None, size: int, vocabulary: int) -> Check | None:
    have = facts.weights.shape(d2t)
    if have != (size,):
        return fault("vocab-map", f"{d2t} has shape {list(have)}, draft_vocab_size is {size}", _AGAIN)
    if t2d and facts.weights.shape(t2d) != (vocabulary,):
        return fault(
            "vocab-map",
            f"{t2d} has shape {list(facts.weights.shape(t2d))}, vocab_size is {vocabulary}",
            _AGAIN,
        )
    return None


def _values(offsets: array, marks: array | None, vocabulary: int) -> Check | None:
    """`d2t` holds offsets: draft id i stands for target id i + d2t[i]."""
    ids = [place + offset for place, offset in enumerate(offsets)]
    outside = next((place for place, token in enumerate(ids) if not 0 <= token < vocabulary), None)
    if outside is not None:
        said = f"d2t[{outside}] = {offsets[outside]} sends draft id {outside} to {ids[outside]}, outside {vocabulary}"
        if all(0 <= token < vocabulary for token in offsets) and len(set(offsets)) == len(offsets):
            said += "; its values would do as target ids themselves, but the engine adds the place"
        return fault("vocab-map", said, _AGAIN)
    if len(set(ids)) != len(ids):
        seen: set[int] = set()
        twice = next(token for token in ids if token in seen or seen.add(token))
        return fault("vocab-map", f"d2t sends two draft ids to target id {twice}", _AGAIN)
    if marks is not None:
        wrong = [token for token in ids if not marks[token]]
        marked = sum(1 for mark in marks if mark)
        if wrong or marked != len(ids):
            return fault(
                "vocab-map",
                f"d2t and t2d disagree: {len(wrong)} of {len(ids)} mapped ids are not marked, {marked} are marked",
                _AGAIN,
            )
    return None
