"""Copies between host and device caches: earlier releases import them on the CPU too, and call none there."""

from sgl_kernel import not_covered as __getattr__  # noqa: F401
