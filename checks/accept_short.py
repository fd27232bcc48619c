"""Drafts that the target confirms are not accepted.

Symptom: exact states, and drafts that the target would say itself; acceptance is lower than they deserve, or exactly 1.00.
Cause: the verification compares other rows or tokens, or cuts what it found: a limit, a count without the last, a threshold.
Fix: accept every draft that is the target's own choice after those before it.
"""

from specwire.diagnosis.case import Case
from specwire.diagnosis.evidence import Evidence
from specwire.diagnosis.finding import Cause, NotSeen, Partly


def check(evidence: Evidence) -> Cause | Partly | None:
    short = evidence.handed.cut_short
    if short:
        first = short[0]
        drafts = list(first.verified[0][1 : first.matched])
        return Cause(
            "likely",
            f"{len(short)} times the engine kept fewer drafts than the target confirms: after token {first.place} it kept "
            f"{first.accepted - 1} of {drafts}, which are the target's own answers",
            "compare what the verification counts as accepted with the target's choice in each row: the first row's is the "
            "first draft's",
            steps=2,
        )
    confirmed = [one for one in evidence.rounds.rounds if one.accepted is not None]
    if not confirmed:
        raise NotSeen("no verification was followed by another round")
    return None


CAUGHT = [Case("one of two rows", draft_run={"kept": 1})]
CLEAN = [Case("both rows", draft_run={"kept": 2})]
