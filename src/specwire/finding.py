"""What every judging command says: what is wrong, how sure that is, what shows it, and what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass

CONFIDENCES = ("certain", "likely", "possible")  # the surest first


@dataclass(frozen=True)
class Finding:
    """A named cause. `confidence` is one of CONFIDENCES; `evidence` and `fix` are sentences without a full stop."""

    id: str
    confidence: str
    evidence: str
    fix: str

    def document(self) -> dict[str, str]:
        """As it stands under `causes` in every JSON document."""
        return asdict(self)
