"""Makes a golden of training data, with the convention that its layer ids were written under."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from specwire import __version__
from specwire.errors import SpecwireError
from specwire.goldens.golden import check_token_ids
from specwire.goldens.labels import CONVENTIONS
from specwire.goldens.records import Record, read_records
from specwire.goldens.write import States, write_golden
from specwire.model_files import read_config, target_name, text_config


def import_golden(
    path: Path,
    out: Path,
    target: Path,
    *,
    ids: Sequence[int] | None = None,
    convention: str | None = None,
    trained: Sequence[int] | None = None,
    limit: int = 8,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Write a golden of the first `limit` records below `path`, made by the model in `target`.

    `ids` are the layer ids in the order of the data, under `convention`. Raises SpecwireError, with nothing
    written, when they are needed and missing, and when more than one convention fits.
    """
    config = text_config(read_config(target))
    layers, hidden, vocabulary = (int(config[key]) for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    records = list(itertools.islice(read_records(path, hidden, say), limit))
    check_token_ids([record.token_ids for record in records], vocabulary, str(path))
    counts = {len(record.states) for record in records}
    if len(counts) > 1:
        raise SpecwireError(
            f"the records below {path} hold {sorted(counts)} layers: import those of one kind at a time"
        )
    boundaries, how = _boundaries(records[0], ids, convention, layers)
    if trained is None:
        # speculators keeps the verifier's last states behind the layers that the draft gets: the id tells.
        ends = records[0].of_any_layer and len(boundaries) > 1 and boundaries[-1] == layers
        trained = boundaries[:-1] if ends else boundaries
        if records[0].boundaries is not None:
            raise SpecwireError(
                "the capture holds boundaries, not which of them the draft was trained on: say so with --trained"
            )
    if not all(0 <= k <= layers for k in trained):
        raise SpecwireError(f"--trained {list(trained)}: the target has boundaries 0 to {layers}")
    if lacking := sorted(set(trained) - set(boundaries)):
        raise SpecwireError(
            f"--trained {list(trained)}: the data holds boundaries {list(boundaries)}, not {lacking}, so there would be "
            "nothing to compare"
        )
    say(f"ids read as {how}: boundaries {list(boundaries)}, trained {list(trained)}")
    dtype = str(records[0].states[0].dtype).removeprefix("torch.")
    write_golden(
        out,
        [_states(record, boundaries) for record in records],
        trained=trained,
        layers=layers,
        dtype=dtype,
        target=target_name(target),
        source=f"imported from {path.name} ({len(records)} records), ids read as {how}; specwire "
        f"{__version__} golden import",
        extra={
            "vocab_size": str(vocabulary),
            "id_convention": how,
            "imported_ids": json.dumps(list(ids) if ids else None),
        },
    )


def _boundaries(
    record: Record, ids: Sequence[int] | None, convention: str | None, layers: int
) -> tuple[tuple[int, ...], str]:
    count = len(record.states)
    if record.boundaries is not None:
        return record.boundaries, "boundary (the capture says so)"
    if ids is None:
        raise SpecwireError(
            f"{record.origin} holds {count} layers and does not say which: give their ids with --ids, in the "
            "data's order, "
            "and --convention boundary or layer-output"
        )
    if len(ids) != count:
        raise SpecwireError(
            f"--ids names {len(ids)} layers, {record.origin} holds {count}{_end(record, ids, convention, layers)}"
        )
    if len(set(ids)) < count:
        raise SpecwireError(f"--ids {list(ids)} names a layer twice: the data's layers are each one of their own")
    fitting = {
        name: tuple(k + step for k in ids)
        for name, step in CONVENTIONS.items()
        if all(0 <= k + step <= layers for k in ids)
    }
    if convention is not None:
        if convention not in fitting:
            raise SpecwireError(f"ids {list(ids)} as {convention} are beyond the target's {layers} layers")
        return fitting[convention], convention
    if len(fitting) == 1:
        name, found = next(iter(fitting.items()))
        return found, f"{name} (the only convention that fits)"
    if not fitting:
        raise SpecwireError(f"ids {list(ids)} are no layers of a target with {layers}, under any convention")
    raise SpecwireError(
        f"ids {list(ids)} fit two conventions: as boundary they are {list(fitting['boundary'])}, as "
        "layer-output "
        f"{list(fitting['layer-output'])}. Say which with --convention; the trainer's code or documentation "
        "tells"
    )


def _end(record: Record, ids: Sequence[int], convention: str | None, layers: int) -> str:
    """That the layer left out is the last one, and how it is named."""
    if not record.last_is_end or len(ids) != len(record.states) - 1:
        return ""
    named = [
        f"--ids {','.join(map(str, (*ids, layers - step)))} --convention {name}"
        for name, step in CONVENTIONS.items()
        if convention in (None, name) and layers - step not in ids
    ]
    said = ": the last one is the output of the last layer, which speculators saves behind those that the draft gets"
    return f"{said}; name it as well, as by {' or '.join(named)}" if named else said


def _states(record: Record, boundaries: Sequence[int]) -> States:
    import torch

    for k, states in zip(boundaries, record.states, strict=True):
        if not torch.isfinite(states).all():
            raise SpecwireError(f"boundary {k} of {record.origin} holds NaN or infinity")
        if states.shape[0] != len(record.token_ids):
            raise SpecwireError(f"{record.origin}: {states.shape[0]} rows for {len(record.token_ids)} token ids")
    return States(record.token_ids, dict(zip(boundaries, record.states, strict=True)), record.final_norm)
