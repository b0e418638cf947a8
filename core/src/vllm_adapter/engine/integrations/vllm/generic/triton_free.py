"""The engine's own Triton kernels in torch, for a device that Triton does not compile for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from vllm_adapter.errors import UnsupportedCase

_TRITONS: Final = ("cuda", "xpu")
"""Device types for which Triton compiles; AMD's are named cuda, too."""
Launch = Mapping[str, Any]
"""The arguments of one launch, by the kernel's own names for them."""


def _slot_mapping(launch: Launch) -> None:
    """Slots of each new token, from its request's row of the block table.

    `query_start_loc_ptr` int32[requests + 1], `positions_ptr` int64[tokens], `block_table_ptr`
    int32[rows, blocks], `slot_mapping_ptr` int64[max tokens]; what is behind the tokens is
    padding.

    # upstream: vllm@0.32 v1/worker/block_table.py:292; up to 0.31 the kernel's own block may be a
    # part of the cache's, and its size is `block_size`
    """
    if launch["TOTAL_CP_WORLD_SIZE"] != 1:
        raise UnsupportedCase(
            "no torch code maps slots where several devices share one sequence's KV cache",
            hint="leave --decode-context-parallel-size at 1",
        )
    starts, slots = launch["query_start_loc_ptr"], launch["slot_mapping_ptr"]
    tokens = int(launch["num_tokens"])
    size = launch.get("block_size", launch["KV_CACHE_BLOCK_SIZE"])
    table = launch["block_table_ptr"].view(-1, launch["block_table_stride"])
    places = torch.arange(tokens, device=starts.device, dtype=starts.dtype)
    # A token is behind the starts of all requests but its own and those after it.
    request = (places[:, None] >= starts[None, 1:-1]).sum(1)
    position = launch["positions_ptr"][:tokens]
    block = table[request, position // size].to(slots.dtype)
    slots[:tokens] = block * size + position % size
    slots[tokens : launch["max_num_tokens"]] = launch["PAD_ID"]


KERNELS: Final[Mapping[str, Callable[[Launch], None]]] = {
    "v1.worker.block_table:ComputeSlotMappingKernel.kernel": _slot_mapping,
}
"""By the module in vLLM and the kernel's name there."""
_replaced: Final[set[str]] = set()


class KernelInTorch:
    """Stands in for a Triton kernel: `kernel[grid](...)` calls a function, whatever the grid."""

    def __init__(self, names: tuple[str, ...], ours: Callable[[Launch], None]) -> None:
        self.arg_names = names
        self.constexprs = None
        self._ours = ours

    def __getitem__(self, grid: object) -> KernelInTorch:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._ours(dict(zip(self.arg_names, args, strict=False)) | kwargs)

    def in_order(self, *args: Any) -> None:
        """As vLLM's dispatcher calls it: every argument, in the order of the kernel's own."""
        self(*args)


def replace(torch_type: str) -> None:
    """Puts ours in the place of each kernel that Triton would compile; once a process."""
    from vllm import triton_utils

    if triton_utils.HAS_TRITON and torch_type in _TRITONS:
        return
    for place, ours in KERNELS.items():
        if place not in _replaced:
            _replaced.add(place)
            _put(place, ours)


def _put(place: str, ours: Callable[[Launch], None]) -> None:
    module, _, path = place.partition(":")
    holder: Any = importlib.import_module(f"vllm.{module}")
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    kernel = getattr(holder, name)
    names = getattr(kernel, "arg_names", None)
    names = names or inspect.signature(getattr(kernel, "func", kernel)).parameters
    stand_in = KernelInTorch(tuple(names), ours)
    try:
        dispatcher: Any = importlib.import_module("vllm.triton_utils.dispatcher")
    except ModuleNotFoundError:  # upstream: before vllm@0.31 a platform had no way to say it
        setattr(holder, name, stand_in)
    else:
        dispatcher.register_kernels({f"vllm.{place.replace(':', '.')}": stand_in.in_order})
