"""Static patch-and-verification toolkit for EAGLE-3 serving in SGLang source trees."""

__version__ = "0.1.0"
