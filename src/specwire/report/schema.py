"""What a result must look like for a report to be made of it: the one look at kinds, before any of it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], None]
_LONGEST_TEXT, _LONGEST_LIST = 1 << 18, 1 << 18
_SMALLEST, _LARGEST = 1e-12, 1e15


class Wrong(ValueError):
    """A value that is not what its place says; the message names the place."""


def check(document: Mapping[str, Any]) -> None:
    """Raises Wrong for the first thing in a result that is not what it should be."""
    SHAPES[document["schema"]](document, "")


# --- kinds --------------------------------------------------------------------------------------------


def text(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise _wrong(where, "a text", value)


def flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)


def number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(where, "a number", value)
    if not (value == 0 or _SMALLEST <= abs(value) <= _LARGEST):  # also for a NaN
        raise _wrong(where, "a number of a sane size", value)


def amount(value: Any, where: str) -> None:
    number(value, where)
    if value < 0:
        raise _wrong(where, "no negative number", value)


def positive(value: Any, where: str) -> None:
    number(value, where)
    if value <= 0:
        raise _wrong(where, "a number above 0", value)


def plain(value: Any, where: str) -> None:
    """Whatever can be shown in a cell."""
    if isinstance(value, str):
        text(value, where)
    elif isinstance(value, float) and not math.isfinite(value) or isinstance(value, (dict, list)):
        raise _wrong(where, "a single value", value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number(value, where)


def maybe(shape: Shape) -> Shape:
    def check(value: Any, where: str) -> None:
        if value is not None:
            shape(value, where)

    return check


def many(shape: Shape) -> Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) > _LONGEST_LIST:
            raise _wrong(where, "a list", value)
        for place, each in enumerate(value):
            shape(each, f"{where}[{place}]")

    return check


def one_of(*words: str) -> Shape:
    def check(value: Any, where: str) -> None:
        if value not in words:
            raise _wrong(where, f"one of {', '.join(words)}", value)

    return check


def named(shape: Shape) -> Shape:
    """An object with any names."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        for name, each in value.items():
            text(name, where)
            shape(each, f"{where}.{name}")

    return check


def fields(optional: Mapping[str, Shape] | None = None, /, **shapes: Shape) -> Shape:
    """An object with these names, others beside them."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        for name, shape in shapes.items():
            if name not in value:
                raise Wrong(f"{f'{where}: ' if where else ''}without {name}")
            shape(value[name], f"{where}.{name}".lstrip("."))
        for name, shape in (optional or {}).items():
            if name in value:
                shape(value[name], f"{where}.{name}".lstrip("."))

    return check


def _wrong(where: str, wanted: str, value: Any) -> Wrong:
    return Wrong(f"{where or 'the whole'}: {wanted} is wanted, not {str(type(value).__name__)} {str(value)[:60]!r}")


# --- results ------------------------------------------------------------------------------------------

_spread = fields(**dict.fromkeys(("mean", "p50", "p90", "p99"), maybe(amount)))
_acceptance = fields(
    cycles=amount, length=amount, engine_length=amount, by_position=maybe(many(amount))
)  # fmt: skip
_phase = fields(
    cycles=positive,
    stages=many(fields(stage=text, total_ms=amount, share=amount)),
    between_ms=_spread,
    cycle_ms=_spread,
    acceptance=maybe(fields(length=maybe(amount))),
    accounted=amount,
    graph_share=maybe(amount),
)
_profile = fields(clock=maybe(text), device=maybe(text), ranks=amount, decode=maybe(_phase))
_run = fields(
    tokens_per_second=amount, per_user=maybe(amount), ttft_ms=_spread, itl_ms=_spread, acceptance=maybe(_acceptance)
)
_load = fields(
    {"profile": maybe(_profile)}, kind=one_of("closed", "open"), value=amount, stopped_early=flag, runs=many(_run)
)
_error = fields(stage=text, why=text, log=maybe(text), last_error=maybe(text))


def _point(value: Any, where: str) -> None:
    fields(
        {"launch": maybe(text)},
        name=text,
        draft=maybe(text),
        state=one_of("ok", "failed"),
        error=maybe(_error),
        warnings=many(text),
        loads=many(_load),
    )(value, where)
    if value["state"] != "ok" and value["error"] is None:
        raise Wrong(f"{where}.error: missing of a point that failed")


def _swept(value: Any, where: str) -> None:
    _point(value, where)
    fields(id=text)(value, where)


def _speedup(value: Any, where: str) -> None:
    fields(
        value=amount,
        low=maybe(amount),
        high=maybe(amount),
        verdict=one_of("faster", "slower", "within noise", "unknown"),
    )(value, where)
    if (value["low"] is None) != (value["high"] is None) or (value["low"] is None) != (value["verdict"] == "unknown"):
        raise Wrong(f"{where}: half an interval")


_comparison = fields(
    point=text,
    against=text,
    load=fields(kind=one_of("closed", "open"), value=amount),
    speedup=maybe(_speedup),
    verdict=one_of("faster", "slower", "within noise", "unknown"),
)
_workload = fields(
    {"boots": amount},
    prompts=amount,
    prompt_length=fields(least=amount, most=amount),
    **{"in": text},
    new_tokens=amount,
    repeats=amount,
    seed=number,
)
_model = fields(path=text, sha256=text)
_provenance = fields(
    specwire=text,
    command=many(text),
    tree=maybe(fields(version=maybe(text), root=text, sha256=text)),
    target=maybe(_model),
    drafts=many(_model),
    machine=fields(system=text, processors=amount),
)
_best = fields(
    id=text,
    baseline=fields(id=text),
    confirmed=flag,
    comparison=_comparison,
    worth_it=flag,
    as_good=many(text),
    launch=text,
)
_ran = fields(
    {
        **dict.fromkeys(("tree", "version", "target", "draft", "golden", "device"), maybe(text)),
        "sha256": maybe(named(text)),
    }
)
_slot = fields(**dict.fromkeys(("slot", "expected_boundary", "nearest_boundary", "rel_l2", "cosine", "state"), plain))

SHAPES: dict[str, Shape] = {
    "specwire.check/1": fields(
        {"tree_restored": flag, "run": maybe(_ran)},
        verdict=one_of("match", "mismatch", "inconclusive"),
        slots=many(_slot),
        causes=many(fields(id=text, confidence=text, evidence=text, fix=text)),
        ranks=amount,
        ranks_agree=maybe(flag),
        concat_shape=maybe(many(amount)),
        golden_concat_shape=maybe(many(amount)),
        noise_floor=maybe(amount),
    ),
    "specwire.bench/1": fields(
        points=many(_point), comparisons=many(_comparison), workload=_workload, provenance=_provenance
    ),
    "specwire.sweep/1": fields(
        {"confirmation": many(_swept)},
        points=many(_swept),
        left_out=many(fields(where=named(plain), why=text)),
        best=maybe(_best),
        complete=flag,
        workload=_workload,
        provenance=_provenance,
    ),
}
