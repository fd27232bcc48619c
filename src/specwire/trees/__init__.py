"""Trees on disk: found, walked, locked, and changed all together or not at all."""
