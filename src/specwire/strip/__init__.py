"""Takes out debug code that people wrote by hand, and proves that nothing else went with it."""

from specwire.strip.words import Words

__all__ = ["Words"]
