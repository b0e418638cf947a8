"""Makes ready what is timed: copies, reads and products on the device, and calls of operators.

Nothing is timed here: see `ready`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from .ready import Call, forget_ready, in_turn, make_ready
from .timed_arguments import ArgumentMaker, TimedArguments

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.ops.bind import Binding

MIB: Final = 1 << 20
UNKNOWN_CACHE: Final = 64 * MIB
TIMES_CACHE: Final = 4
MOST_TURNS: Final = 16
MOST_SETS: Final = 64
MEMORY_PART: Final = 8
"""At most one part in so many of the free memory is taken for rotation."""
CALL: Final = "call"
BESIDE: Final = "beside"


def room(device: HeldDevice) -> dict[str, Any]:
    """`free_bytes` that may be taken at a time, and `cache_bytes`, None where nobody says it.

    With torch's version and its threads on the host.
    """
    return {
        "free_bytes": _free(device) // MEMORY_PART,
        "cache_bytes": cache_bytes(device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def ready_launch(device: HeldDevice) -> None:
    """Makes a copy of one number ready."""
    forget_ready(device)
    small = [torch.zeros(1, device=device.device) for _ in range(2)]
    make_ready(device, CALL, lambda: small[0].copy_(small[1]))


def ready_plain(device: HeldDevice, *, what: Mapping[str, Any]) -> bool:
    """Makes a copy, read or product ready; whether its buffers are several times the caches.

    `what` is {"what": "copy" or "read", "bytes"} (of a copy: read and written), or
    {"what": "gemm", "side", "dtype", "own_linear"}.
    """
    forget_ready(device)
    call, beyond = _plain(device, what)
    make_ready(device, CALL, call)
    return beyond


def ready_operator(
    device: HeldDevice,
    *,
    op: str,
    facts: Mapping[str, Any],
    dims: Mapping[str, int],
    beside: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes calls of an operator ready, and under `BESIDE` what bounds it, as `ready_plain`.

    Gives `turns` (sets of arguments that take turns) and `beyond` (together they are several
    times the caches).
    """
    forget_ready(device)
    cache = cache_bytes(device)
    binding = device.bind(op, dict(facts))
    maker = ArgumentMaker(device, str(facts["dtype"]))
    first = maker.make(op, facts, dims)
    sets = [first]
    most = _free(device) // MEMORY_PART
    wanted = TIMES_CACHE * (cache or UNKNOWN_CACHE) // max(1, first.touched) + 1
    for _ in range(min(wanted, most // max(1, first.touched), MOST_SETS) - 1):
        sets.append(maker.another(op, first, len(sets)))
    for one in sets:
        if one.weight is not None:
            one.args[one.weight] = binding.prepare_weights(one.args[one.weight])
        if one.step is not None:
            one.args[-1] = binding.handle
    if first.step is not None:
        binding.plan(first.step)  # once a step, for all layers
    make_ready(device, CALL, in_turn([_calling(binding, one) for one in sets]))
    make_ready(device, BESIDE, _plain(device, beside)[0])
    return {
        "turns": len(sets),
        "beyond": sum(one.touched for one in sets) >= TIMES_CACHE * (cache or UNKNOWN_CACHE),
    }


def cache_bytes(device: HeldDevice) -> int | None:
    """The last cache before memory, as the device or the system says; None: it does not."""
    if device.device.type != "cpu":
        ask = getattr(torch.get_device_module(device.device), "get_device_properties", None)
        found = getattr(ask(device.device), "L2_cache_size", None) if ask else None
        return int(found) if found else None
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = [text for text in (path.read_text().strip() for path in sizes) if text]
    return max((int(t[:-1]) * units[t[-1]] for t in found if t[-1] in units), default=None)


def copying(device: HeldDevice, size: int, cache: int | None) -> tuple[Call, int]:
    """A copy of `size` bytes between buffers that take turns, and how many pairs there are."""
    turns = _turns(device, 2 * size, cache)
    buffers = _buffers(device, size, 2 * turns)

    def copy(to: torch.Tensor, source: torch.Tensor) -> Call:
        return lambda: to.copy_(source)

    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    return in_turn([copy(to, source) for to, source in pairs]), turns


def reading(device: HeldDevice, size: int, cache: int | None) -> tuple[Call, int]:
    """A sum over `size` bytes of float32, of buffers that take turns, and how many there are."""
    turns = _turns(device, 2 * size, cache)
    buffers = [b.view(torch.float32).view(-1, 4096) for b in _buffers(device, size, turns)]

    def read(buffer: torch.Tensor) -> Call:
        return lambda: buffer.sum(-1)

    return in_turn([read(buffer) for buffer in buffers]), turns


def multiplying(device: HeldDevice, side: int, dtype: str, *, own_linear: bool) -> Call:
    """A product of two square matrices: torch's, or the adapter's own linear."""
    maker = ArgumentMaker(device, dtype)
    sizes = {"in_features": side, "out_features": side}
    facts = {"dtype": dtype, **sizes, "bias": False}
    made = maker.make("linear", facts, {"tokens": side, **sizes})
    if own_linear:
        binding = device.bind("linear", facts)
        made.args[1] = binding.prepare_weights(made.args[1])
        return _calling(binding, made)
    x, weight = made.args[:2]
    return lambda: torch.matmul(x, weight)


def _plain(device: HeldDevice, what: Mapping[str, Any]) -> tuple[Call, bool]:
    """The call, and whether its buffers are several times the caches."""
    if what["what"] == "gemm":
        own = what["own_linear"]
        return multiplying(device, what["side"], what["dtype"], own_linear=own), False
    cache, size = cache_bytes(device), what["bytes"]
    making = copying if what["what"] == "copy" else reading
    call, turns = making(device, size // 2 if making is copying else size, cache)
    return call, size * turns >= TIMES_CACHE * (cache or UNKNOWN_CACHE)


def _calling(binding: Binding, one: TimedArguments) -> Call:
    """The call, which keeps its binding: a plan lives as long as that."""
    args = one.args
    return lambda: binding.run(*args)


def _turns(device: HeldDevice, size: int, cache: int | None) -> int:
    """How many buffers of a size make several times the caches, within the memory."""
    wanted = -(-TIMES_CACHE * (cache or UNKNOWN_CACHE) // size)
    return max(1, min(wanted, MOST_TURNS, _free(device) // MEMORY_PART // size))


def _buffers(device: HeldDevice, size: int, count: int) -> list[torch.Tensor]:
    """So many uint8[size] on the device; written to: memory that never was has no pages."""
    first = device.to_device(torch.zeros(size, dtype=torch.uint8))
    return [first, *(first.clone() for _ in range(count - 1))]


def _free(device: HeldDevice) -> int:
    return device.runtime.query_memory_capacity(device.index).free_bytes
