"""Says what a golden file holds, for people and as JSON; needs no tensor library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specwire.goldens.golden import Golden, open_golden
from specwire.goldens.log import LogGolden, is_log_golden, open_log_golden

SHOWN_TOKENS, SHOWN_PROMPTS, SHOWN_TEXT = 16, 8, 90


def describe(path: Path) -> dict[str, Any]:
    """A JSON document: what the file says of itself, and the first five values of each trained slot."""
    return _of_log(open_log_golden(path)) if is_log_golden(path) else _of_tensors(open_golden(path))


def _of_tensors(golden: Golden) -> dict[str, Any]:
    return {
        "schema": "specwire.golden/1",
        "kind": "tensors",
        "path": str(golden.path),
        "target": golden.target,
        "source": golden.source,
        "dtype": golden.dtype,
        "num_layers": golden.layers,
        "hidden_size": golden.hidden,
        "trained_boundaries": list(golden.trained),
        "trained_assumed": golden.assumed is not None,
        "boundaries": list(golden.boundaries),
        "final_norm": golden.has("final_norm"),
        "prompts": [{**prompt.described(), "token_ids": list(prompt.token_ids)} for prompt in golden.prompts],
        "concat_shape": [len(golden.prompts[0].token_ids), golden.hidden * len(golden.trained)],
        "slots": [
            {
                "slot": slot,
                "boundary": k,
                "hs_first5": first_five(golden, k),
                "noise": {dtype: table[k].worst for dtype, table in golden.noise.items() if k in table},
            }
            for slot, k in enumerate(golden.trained)
        ],
    }


def first_five(golden: Golden, boundary: int) -> list[float] | None:
    """The first five values of the first prompt's first row at `boundary`; None when the golden lacks it."""
    name = f"boundary.{boundary}"
    if name not in golden.file.tensors:
        return None
    return [float(f"{value:.6g}") for value in golden.file.values(name, 0, min(5, golden.hidden))]


def _of_log(golden: LogGolden) -> dict[str, Any]:
    return {
        "schema": "specwire.golden/1",
        "kind": "log",
        "path": str(golden.path),
        "target": golden.target,
        "source": golden.source,
        "dtype": golden.dtype,
        "num_layers": golden.layers,
        "hidden_size": golden.hidden,
        "trained_boundaries": list(golden.trained),
        "trained_assumed": False,
        "concat_shape": list(golden.concat_shape) if golden.concat_shape else None,
        "slots": [
            {"slot": slot, "boundary": k, "hs_first5": list(values) if values else None}
            for slot, (k, values) in enumerate(zip(golden.trained, golden.slots, strict=True))
        ],
    }


def describe_text(document: dict[str, Any]) -> str:
    lines = [
        f"golden    {document['path']} ({document['kind']})",
        f"target    {document['target']}: {document['num_layers']} layers, hidden {document['hidden_size']}, "
        f"{document['dtype']}",
        f"source    {document['source']}",
        f"trained   boundaries {document['trained_boundaries']}{_assumed(document)}, concat {document['concat_shape']}",
    ]
    if document["kind"] == "tensors":
        known = document["boundaries"]
        full = len(known) == document["num_layers"] + 1
        lines.append(
            f"holds     {'all ' if full else ''}{len(known)} boundaries{'' if full else f' {known}'}"
            f"{', final norm' if document['final_norm'] else ''}"
        )
        for number, one in enumerate(document["prompts"][:SHOWN_PROMPTS]):
            lines.append(_prompt(number, one["token_ids"]))
            if words := words_line(one):
                lines.append(f"          {words}")
        if (more := len(document["prompts"]) - SHOWN_PROMPTS) > 0:
            lines.append(f"          and {more} more (--tokens gives all)")
    for slot in document["slots"]:
        noise = ", ".join(f"{dtype} {value:.1e}" for dtype, value in slot.get("noise", {}).items())
        lines.append(
            f"slot {slot['slot']}    boundary {slot['boundary']}  first5 {slot['hs_first5']}"
            + (f"  noise {noise}" if noise else "")
        )
    return "\n".join(lines)


def words_line(prompt: dict[str, Any]) -> str:
    """The text that a prompt was made from, in one line, and what made it a conversation; nothing for bare ids."""
    if prompt["text"] is None:
        return ""
    given = "".join(f", {name}={json.dumps(value)}" for name, value in prompt["template_arguments"].items())
    template = f" (chat template {prompt['template']}{given})" if prompt["template"] else ""
    text = json.dumps(prompt["text"], ensure_ascii=False)
    if len(text) > SHOWN_TEXT:
        text = f"{text[: 2 * SHOWN_TEXT // 3]} ... {text[-SHOWN_TEXT // 3 :]}"
    return text + template


def _assumed(document: dict[str, Any]) -> str:
    return " (assumed: built without --trained)" if document["trained_assumed"] else ""


def _prompt(number: int, ids: list[int]) -> str:
    """The ids as `--tokens` takes them; a long prompt's first ones."""
    more = f",... ({len(ids)} tokens; --tokens gives all)" if len(ids) > SHOWN_TOKENS else f" ({len(ids)} tokens)"
    return f"prompt {number:<3}" + ",".join(map(str, ids[:SHOWN_TOKENS])) + more
