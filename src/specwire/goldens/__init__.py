"""Where goldens come from: a reference model, or data that somebody has already."""
