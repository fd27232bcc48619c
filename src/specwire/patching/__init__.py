"""Taps: planned, proven removable, put in and taken out again."""
