"""Static verdict on target, draft, launch arguments and the tree's own layer-id rule: no engine, no torch.

`verdict` puts it together. `facts` gathers all that is known: the weights' headers (`checkpoint`), the launch
(`launch`, by way of `shell` and the tree's `options`), and from the tree's source how layer ids travel (`plumbing`),
what is captured for them (`rule`, `residual`) and what is built for the draft (`draft`), read by the `interpreter`.
The `check_*` modules judge the facts, each question with an `outcome`; `render` is the page.
"""

from specwire.preflight.verdict import preflight

__all__ = ["preflight"]
