"""The draft's layer is not run as it was trained, though with its own weights.

Symptom: exact states, a draft that loads without a word, and low acceptance: from the first token on, or from the second.
Cause: the layer's two inputs in each other's place, or steps that are run otherwise than a prefill is.
Fix: run the layer in every step as in training: the token's embedding first, then the state, with the same cache.
"""

from math import isfinite

from specwire.diagnosis.case import Case
from specwire.diagnosis.draft_rounds import PREFILL
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, Partly


def check(evidence: Evidence) -> Cause | Partly | None:
    layer = evidence.draft.layer
    run = layer.run
    if run.name is not None and run.name.startswith("with its two inputs"):
        return Cause(
            "certain",
            f"the draft's layer ran {run.name}{run.where}: so its output fits to {run.error:.1e}, as configured to "
            f"{run.configured:.1e}",
            "give the layer the token's embedding first and the state second, as in training",
            steps=1,
        )
    if run.name is None and not run.everywhere and isfinite(run.error):
        return Cause(
            "likely",
            f"the state that the draft makes{run.where} is not what its weights make of the inputs there, off by "
            f"{run.error:.2g}; everywhere else it is",
            "compare how the worker runs these forwards with a prefill: cache slots, lengths and masks of its attention, "
            "norms and residuals of the layer",
            steps=3,
        )
    return None if layer.kinds != (PREFILL,) else Partly("prefill only")


CAUGHT = [Case("inputs in each other's place", draft_run={"swapped": True})]
CLEAN = [Case("as trained", draft_run={}), Case("a layer of another seed", draft_run={"layer": "random"})]
