"""A tiny interpreter for the few statements of SGLang's source that decide what is captured.

It walks syntax trees with our own code: nothing of the tree is imported, compiled or run. What
it cannot know (a device, a batch, an environment variable) is UNKNOWN and stays so; a decision
that hangs on an unknown is followed both ways, and counts only when both ways agree.

`modules` finds classes and functions, `values` are what is computed with, `machine` is the state of one run.
`execute` runs statements, `evaluate` expressions, `attributes` and `calls` the two kinds that need most care.
"""
