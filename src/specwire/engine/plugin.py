"""Plugin for SGLang: keeps the attention backend that has EAGLE on a CPU without AMX.

The engine swaps intel_amx for torch_native on such a machine, and torch_native cannot draft. With
the reference kernels on PYTHONPATH, intel_amx needs no AMX. Found through the entry-point group
`sglang.srt.plugins`; does nothing unless SGLANG_USE_CPU_ENGINE=1, so a GPU server never notices it.
"""

from __future__ import annotations

import os
from typing import Any


def activate() -> None:
    """Tell the engine's argument resolution, and nothing else, that the machine has AMX."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    _wait_for_no_device()
    try:
        from sglang.srt.runtime_context import override_platform
    except ImportError:
        _before_platform_overrides()
    else:
        override_platform(has_amx=True).install()


def _wait_for_no_device() -> None:
    """A draft's model file (Kimi's with latent attention) waits for CUDA by name, whatever device it is on."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None


def _before_platform_overrides() -> None:
    """Releases before 0.5.20 ask a function instead. Only the two askers about attention are told
    otherwise: the layers that ask would go on to call kernels that exist for AMX alone."""
    for name in (
        "sglang.srt.arg_groups.overrides",
        "sglang.srt.server_args",
        "sglang.srt.speculative.draft_utils",
    ):
        try:
            module: Any = __import__(name, fromlist=["cpu_has_amx_support"])
        except ImportError:
            continue
        if hasattr(module, "cpu_has_amx_support"):
            module.cpu_has_amx_support = lambda: True
