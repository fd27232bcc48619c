"""Reference kernels in plain PyTorch, importable as `sgl_kernel` on a machine with no GPU.

Put the directory above this one on PYTHONPATH and SGLang serves an EAGLE-3 draft on the CPU with
the intel_amx attention backend: these are the operations that path calls. They are written to be
read and to be right, not to be fast. Everything else that the engine may import from here can be
imported, and raises NotImplementedError with its own name when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.caches import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.4.10"  # the engine refuses kernels that it takes for too old

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# The attention backend takes these two from torch.ops. Plain functions do: nothing here is traced,
# and their parameters differ between releases, which an operator schema could not express.
_operations: Any = torch.ops.sgl_kernel
_operations.extend_attention_cpu = extend_attention_cpu
_operations.decode_attention_cpu = decode_attention_cpu


def not_covered(name: str) -> Callable[..., NoReturn]:
    """An operation that can be imported by `name`, and says so when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def operation(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no reference operation for the CPU: this stand-in covers the path "
            "that EAGLE-3 takes. Run on a GPU, or choose engine arguments that avoid it."
        )

    operation.__name__ = operation.__qualname__ = name
    return operation


__getattr__ = not_covered
