"""Holds `_specwire.py`, the one file that taps call. It is copied into a tree, not imported from here."""
