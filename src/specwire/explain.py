"""The manual page of a cause or a probe, made from the docstring of its file, which is read and never imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from specwire.errors import SpecwireError
from specwire.regular import read_text

# Causes that only `preflight` names, since they keep the engine from starting: they have no capture to be seen in.
BEFORE_THE_START = {
    "launch": """The launch is not one that this release takes.

Symptom: the engine ends with a usage error, or silently serves something else than what was meant.
Cause: an option that the release does not have, a value that it refuses, a word that belongs to no option.
Fix: write the option as this release has it; `--tree` with the release that will serve shows each of them.
""",
    "layer-ids": """The layer ids are not a list of numbers that the engine can turn into boundaries.

Symptom: the engine ends while it sets the layers to capture, or captures none of those that were meant.
Cause: ids written as text, a nested list, an id outside of the target's layers.
Fix: write `eagle_aux_hidden_state_layer_ids` as a JSON list of whole numbers.
""",
    "spec-params": """Speculative steps, top-k and number of draft tokens do not fit together.

Symptom: the engine refuses to start, or drafts fewer tokens than was meant.
Cause: one of the three given without the others, or more draft tokens than steps and top-k can make.
Fix: give all three or none; with top-k 1 the number of draft tokens is the number of steps plus one.
""",
    "draft-load": """The engine cannot load the draft, or loads it as a class that does not fit its tensors.

Symptom: an error while weights are loaded, or a draft that runs with tensors left at random.
Cause: an architecture name that the release does not know or that belongs to another kind of draft, a missing or
wrongly shaped tensor, another library's format.
Fix: write the architecture that fits the tensors into the draft's config.json, or convert the checkpoint.
""",
}


@dataclass(frozen=True)
class Page:
    """What is known of one id. `kind`: "cause" or "probe"."""

    id: str
    kind: str
    summary: str
    body: str

    def text(self) -> str:
        """The page as it is printed, without a newline at its end."""
        return "\n\n".join(part for part in (f"{self.id} ({self.kind})", self.summary, self.body) if part)


def pages() -> dict[str, Page]:
    """Every page by its id: causes first, then probes, each in the order of their ids."""
    causes = {**_documented("specwire.checks"), **BEFORE_THE_START}
    found = [_page(name, "cause", causes[name]) for name in sorted(causes)]
    found += [_page(name, "probe", text) for name, text in sorted(_documented("specwire.codemods").items())]
    return {page.id: page for page in found}


def page(name: str) -> Page:
    """The page of one id, `_` and case apart. Raises SpecwireError, with the nearest ids, for one that is not known."""
    known = pages()
    wanted = name.strip().lower().replace("_", "-")
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"Nearest: {', '.join(near)}." if near else "`specwire explain` lists them all."
    raise SpecwireError(f"no cause or probe is called {name!r}. {hint}")


def _documented(package: str) -> dict[str, str]:
    """Docstring by id of each module of a package of plug-ins."""
    spec = find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(file for folder in folders for file in folder.glob("[!_]*.py"))
    return {file.stem.replace("_", "-"): ast.get_docstring(ast.parse(read_text(file))) or "" for file in files}


def _page(name: str, kind: str, docstring: str) -> Page:
    summary, _, body = docstring.strip().partition("\n\n")
    return Page(name, kind, " ".join(summary.split()), body.strip())
