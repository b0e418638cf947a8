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

    # upstream: vllm@0.32 v1/worker/block_table.py:292
    """
    if launch["TOTAL_CP_WORLD_SIZE"] != 1:
        raise UnsupportedCase(
            "no torch code maps slots where several devices share one sequence's KV cache",
            hint="leave --decode-context-parallel-size at 1",
        )
    starts, slots = launch["query_start_loc_ptr"], launch["slot_mapping_ptr"]
    tokens, size = int(launch["num_tokens"]), launch["KV_CACHE_BLOCK_SIZE"]
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


def replace(torch_type: str) -> None:
    """Puts ours in the place of each kernel; once a process."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.triton_utils.dispatcher import register_kernels

    if HAS_TRITON and torch_type in _TRITONS:
        return
    left = {place: ours for place, ours in KERNELS.items() if place not in _replaced}
    _replaced.update(left)
    register_kernels(
        {f"vllm.{place.replace(':', '.')}": _launched(place, ours) for place, ours in left.items()}
    )


def _launched(place: str, ours: Callable[[Launch], None]) -> Callable[..., None]:
    """`ours`, called as vLLM's dispatcher does: arguments in the order of the release's kernel."""
    names = _names_of(place)

    def launch(*args: Any) -> None:
        ours(dict(zip(names, args, strict=True)))

    return launch


def _names_of(place: str) -> tuple[str, ...]:
    module, _, path = place.partition(":")
    kernel: Any = importlib.import_module(f"vllm.{module}")
    for part in path.split("."):
        kernel = getattr(kernel, part)
    names = getattr(kernel, "arg_names", None)
    return tuple(names or inspect.signature(getattr(kernel, "func", kernel)).parameters)
