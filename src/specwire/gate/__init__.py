"""What is left of instrumentation in a tree, and in which formats that is told."""
