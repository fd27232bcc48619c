"""Copies between host and device caches, which earlier releases import on the CPU too and never call there."""

from sgl_kernel import not_covered as __getattr__  # noqa: F401
