"""What a release makes of a command line where CUDA is: run in the release's own code, with a GPU made to look present.

    python tests/cuda_arguments.py JSON_LIST_OF_COMMAND_LINES           prints, for each, the captures that it leaves on
    python tests/cuda_arguments.py JSON_LIST_OF_COMMAND_LINES sizes     the sizes in which it captures prefills, in tokens

A command line that the release refuses is its error. Whatever of the environment an old release misses (its
kernels, names of libraries that have moved on) is replaced by nothing at all: only arguments are resolved.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from unittest import mock

KERNELS = ("sgl_kernel", "flashinfer", "deep_gemm", "sgl_kernel_npu", "aiter", "decord", "xgrammar", "outlines")


class _Nothing(types.ModuleType):
    """A module of which any name may be asked."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class _Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in KERNELS else None

    def create_module(self, spec):
        return _Nothing(spec.name)

    def exec_module(self, module):
        pass


def gpu_looks_present() -> None:
    import subprocess

    import torch

    about = types.SimpleNamespace(
        total_memory=141 << 30, major=9, minor=0, multi_processor_count=132, name="NVIDIA H200", gcnArchName=""
    )
    torch.version.hip = None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: about
    torch.cuda.get_device_name = lambda *_, **__: about.name
    torch.cuda.mem_get_info = lambda *_, **__: (140 << 30, about.total_memory)
    run = subprocess.run

    def asked(command, *args, **kwargs):
        if "nvidia-smi" in str(command):
            return subprocess.CompletedProcess(command, 0, "\n".join(["143771"] * 8) + "\n", "")
        return run(command, *args, **kwargs)

    subprocess.run = asked


def libraries_as_they_were() -> None:
    """Names that old releases import from libraries, which have dropped them since."""
    import torch
    import transformers
    import triton.runtime.cache as cache

    for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
        if not hasattr(cache, name):
            setattr(cache, name, lambda: "/nonexistent")
    if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):
        torch._C._cpu._is_amx_tile_supported = lambda: False
    register, fake = transformers.AutoConfig.register, torch.library.register_fake

    def register_fake(name, *args, **kwargs):
        return (lambda function: function) if str(name).split("::")[0] in KERNELS else fake(name, *args, **kwargs)

    torch.library.register_fake = register_fake
    transformers.AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: register(name, config, True))


def graphs_left_on(args) -> list[str]:
    config = getattr(args, "cuda_graph_config", None)
    if config is not None:
        phases = {phase: getattr(config, phase).backend for phase in ("decode", "prefill")}
        on = [f"{phase}: {backend}" for phase, backend in phases.items() if backend != "disabled"]
    else:
        on = [] if args.disable_cuda_graph else ["decode"]
        pieces = getattr(args, "enable_piecewise_cuda_graph", None)
        if hasattr(args, "disable_piecewise_cuda_graph"):
            pieces = not args.disable_piecewise_cuda_graph
        on += ["prefill: pieces"] if pieces else []
        on += ["breakable"] if getattr(args, "enable_breakable_cuda_graph", False) else []
    on += [name for name in ("debug_cuda_graph", "enable_torch_compile") if getattr(args, name, False)]
    return on


def resolved(argv: list[str]):
    """The arguments as the engine's own ranks would read them."""
    from sglang.srt.server_args import prepare_server_args

    args = prepare_server_args(argv)
    if not hasattr(args, "resolve_once"):
        return args
    args.resolve_once()
    try:  # 0.5.2x keeps what was resolved beside what was given
        from sglang.srt.runtime_context import get_exec, publish

        publish(args, role="scheduler")
        graph = get_exec().graph
        return graph if getattr(graph, "cuda_graph_config", None) is not None else args
    except ImportError:
        return args


if __name__ == "__main__":
    sys.meta_path.append(_Kernels())  # asked last: what is installed is itself
    gpu_looks_present()
    libraries_as_they_were()
    import sglang.srt.server_args  # noqa: F401  (once; each line is then resolved in a child of its own)

    for line in json.loads(sys.argv[1]):
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            try:
                args = resolved(line)
                said = args.cuda_graph_config.prefill.bs if sys.argv[2:] == ["sizes"] else graphs_left_on(args)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps(said), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
