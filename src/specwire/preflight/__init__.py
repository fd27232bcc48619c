"""Static verdict on target, draft, launch arguments and the tree's own layer-id rule: no engine, no torch."""

from specwire.preflight.verdict import preflight

__all__ = ["preflight"]
