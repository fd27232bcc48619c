"""The outcome of one check, and what a fault says."""

from __future__ import annotations

from dataclasses import dataclass

from specwire.finding import CONFIDENCES, Finding


@dataclass(frozen=True)
class Check:
    """`state`: ok, fault or skipped. `needed`: without it there is no verdict, so a skip makes it inconclusive.

    A fault says how sure it is, what shows it, and what to change. `predicts`: it tells what will be captured,
    which a capture knows better. A suspicion is a skipped check with a cause: it is possible, and decides nothing.
    """

    id: str
    state: str
    why: str
    needed: bool = False
    confidence: str = ""
    fix: str = ""
    predicts: bool = False

    @property
    def suspicion(self) -> bool:
        return self.state == "skipped" and bool(self.confidence)

    @property
    def finding(self) -> Finding:
        return Finding(self.id, self.confidence, self.why, self.fix)


@dataclass(frozen=True)
class Note:
    """Something risky that is no fault by itself."""

    id: str
    text: str


def ok(name: str, why: str) -> Check:
    return Check(name, "ok", why)


def fault(name: str, evidence: str, fix: str, confidence: str = "certain", *, predicts: bool = False) -> Check:
    assert confidence in CONFIDENCES
    return Check(name, "fault", evidence, confidence=confidence, fix=fix, predicts=predicts)


def suspected(name: str, evidence: str, fix: str) -> Check:
    """A possible cause, of which the files alone cannot tell whether it is one: the verdict does not hang on it."""
    return Check(name, "skipped", evidence, confidence="possible", fix=fix)


def skipped(name: str, why: str, needed: bool = False) -> Check:
    return Check(name, "skipped", why, needed)
