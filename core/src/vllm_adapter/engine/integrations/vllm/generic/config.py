"""What a device of an adapter makes of vLLM's configuration: chosen for it, or refused."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.vllm.generic.served import ServedDevice
from vllm_adapter.errors import UnsupportedCase

WORKER: Final = "vllm_adapter.engine.integrations.vllm.generic.worker.GenericWorker"
_GIB: Final = 1 << 30
_HOST_CACHE: Final = "VLLM_CPU_KVCACHE_SPACE"
"""How vLLM's users bound the cache in the CPU's memory, in GiB."""


def update(device: ServedDevice, vllm_config: Any) -> None:
    """Settles worker, block size and compilation, and refuses what cannot run.

    Raises:
        UnsupportedCase: the model or a flag needs what this shape does not have.
    """
    from vllm_adapter.engine.integrations.vllm.generic.refused import refuse

    refuse(device, vllm_config)
    parallel = vllm_config.parallel_config
    if parallel.worker_cls == "auto":
        parallel.worker_cls = WORKER
    # A fork of a process that has opened the device cannot use it.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    vllm_config.scheduler_config.async_scheduling = False
    if vllm_config.model_config is not None:
        check_dtype(device, vllm_config.model_config.dtype)
    _set_blocks(device, vllm_config.cache_config)
    _set_compilation(vllm_config.compilation_config)


def check_dtype(device: ServedDevice, dtype: torch.dtype) -> None:
    """Whether a model may have that dtype.

    Raises:
        UnsupportedCase: the descriptor has no units for it.
    """
    if dtype not in device.dtypes:
        names = [str(one).removeprefix("torch.") for one in device.dtypes]
        raise UnsupportedCase(
            f"{device.torch_type} has no units for {str(dtype).removeprefix('torch.')}; its "
            f"descriptor has {', '.join(names)} (/compute_units)",
            hint=f"use --dtype {names[-1]}",
        )


def refuse_quantization(device: ServedDevice, kind: str) -> None:
    """Quantised weights are vLLM's kernels for devices that it knows.

    Raises:
        UnsupportedCase: always.
    """
    raise UnsupportedCase(
        f"weights quantised by {kind} are not served on {device.torch_type}: vLLM's methods for "
        "them call kernels of other devices",
        hint="serve the model's own weights; `vllm-adapter run` takes a .gguf",
    )


def _set_blocks(device: ServedDevice, cache: Any) -> None:
    if cache is None:
        return
    blocks = device.capability.kv
    if not getattr(cache, "user_specified_block_size", False):
        cache.block_size = blocks.block_size
    elif cache.block_size % (blocks.block_multiple or 1):
        raise UnsupportedCase(
            f"blocks of {cache.block_size} tokens cannot be used on {device.torch_type}: "
            f"its descriptor wants multiples of {blocks.block_multiple} (/kv/block_multiple)",
            hint=f"leave --block-size out, or use {blocks.block_size}",
        )
    bound = os.environ.get(_HOST_CACHE)
    if device.is_host and bound and cache.kv_cache_memory_bytes is None:
        cache.kv_cache_memory_bytes = int(bound) * _GIB


def _set_compilation(compilation: Any) -> None:
    """No graphs are captured; a model is compiled where the adapter has a compiler."""
    from vllm.config import CompilationMode, CUDAGraphMode

    from vllm_adapter.engine.integrations.vllm import policy

    compilation.cudagraph_mode = CUDAGraphMode.NONE
    compilation.cudagraph_capture_sizes = []
    compilation.max_cudagraph_capture_size = 0
    compilation.compile_sizes = compilation.compile_sizes or []
    for name in ("fuse_norm_quant", "fuse_act_quant"):
        if hasattr(compilation.pass_config, name):
            # upstream: vllm@0.32 compilation/passes/pass_manager.py imports these on CUDA alone
            setattr(compilation.pass_config, name, False)
    chosen = policy.in_use()
    has_compiler = chosen is not None and chosen.compiler is not None
    if compilation.mode == CompilationMode.VLLM_COMPILE:
        # One graph, as vLLM's own CPU platform has it: pieces are for the capture of graphs.
        compilation.mode = (
            CompilationMode.DYNAMO_TRACE_ONCE if has_compiler else CompilationMode.NONE
        )
