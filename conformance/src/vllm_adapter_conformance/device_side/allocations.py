"""Memory that is asked for, held, viewed, freed, and used after that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

HELD: Final = 3
"""Allocations of one size and alignment at a time, so that none is aligned by luck."""
RACES: Final = 12


def described(holder: HeldDevice, *, device: int, size: int) -> dict[str, Any]:
    """What an allocation says of itself, while it lives and after."""
    memory = holder.runtime.allocate_memory(size, device)
    storage = memory.storage
    seen = {
        "size": memory.size,
        "bytes": storage.numel() * storage.element_size(),
        "dimensions": storage.dim(),
        "device": memory.device_id,
        "torch": str(storage.device),
        "address": memory.address,
        "data_ptr": storage.data_ptr(),
    }
    memory.free()
    return seen | {"live": memory.is_live}


def addresses(
    holder: HeldDevice, *, device: int, requests: Sequence[tuple[int, int | None]]
) -> list[list[int]]:
    """Addresses of HELD allocations at a time for each (size, alignment)."""
    found = []
    for size, alignment in requests:
        held = []
        for _ in range(HELD):
            held.append(holder.runtime.allocate_memory(size, device, alignment=alignment))
            # what comes between moves the next one off any boundary it is not put on
            held.append(holder.runtime.allocate_memory(17, device))
        found.append([memory.address for memory in held[::2]])
        for memory in held:
            memory.free()
    return found


def asked_for(
    holder: HeldDevice, *, device: int, size: int, alignment: int | None
) -> dict[str, Any]:
    """How a request ended; what it gave is given back."""

    def ask() -> object:
        memory = holder.runtime.allocate_memory(size, device, alignment=alignment)
        memory.free()
        return memory

    return looks.attempt(ask)


def held_together(holder: HeldDevice, *, device: int, contents: Sequence[bytes]) -> dict[str, Any]:
    """Fills many allocations that live at a time, and reads them all after that."""
    held = [holder.runtime.allocate_memory(len(data), device) for data in contents]
    try:
        for memory, data in zip(held, contents, strict=True):
            looks.put(holder, memory, data)
        return {
            "ranges": [(memory.address, memory.address + memory.size) for memory in held],
            "contents": [looks.get(holder, memory) for memory in held],
        }
    finally:
        for memory in held:
            memory.free()


def through_tensors(
    holder: HeldDevice, *, device: int, size: int, views: Sequence[tuple[int, int, str, bytes]]
) -> dict[str, Any]:
    """Writes through tensors over one allocation; tries one that would leave it; drops them all.

    `views` are (offset, elements, dtype, bytes).
    """
    import torch

    memory = holder.runtime.allocate_memory(size, device)
    try:
        looks.fill(holder, memory)
        said = []
        for offset, count, name, data in views:
            dtype = getattr(torch, name)
            tensor = memory.tensor((count,), dtype, offset=offset)
            host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            tensor.view(torch.uint8).copy_(host)
            holder.runtime.synchronize_stream(device)
            said.append((tensor.data_ptr() - memory.address, tensor.numel(), str(tensor.dtype)))
            del tensor
        beyond = [
            looks.attempt(lambda: memory.tensor((size // 4 + 1,), torch.float32)),
            looks.attempt(lambda: memory.tensor((2,), torch.float64, offset=size - 8)),
            looks.attempt(lambda: memory.tensor((1,), torch.uint8, offset=-1)),
        ]
        others = [holder.runtime.allocate_memory(size, device) for _ in range(4)]
        for other in others:
            looks.fill(holder, other, 0x11)
        whole = looks.get(holder, memory)
        for other in others:
            other.free()
        return {"said": said, "beyond": beyond, "memory": whole}
    finally:
        memory.free()


def used_after(holder: HeldDevice, *, device: int, use: str, size: int) -> list[dict[str, Any]]:
    """How a use after free() ended: at once, and after others have had the memory."""
    runtime = holder.runtime
    memory = runtime.allocate_memory(size, device)
    host = memoryview(bytearray(size))
    actions = {
        "free": memory.free,
        "address": lambda: memory.address,
        "storage": lambda: memory.storage,
        "tensor": lambda: memory.tensor((1,), _uint8()),
        "copy to it": lambda: runtime.copy_host_to_device(memory, host),
        "copy from it": lambda: runtime.copy_device_to_host(memory, host),
    }
    memory.free()
    seen = [looks.attempt(actions[use])]
    others = [runtime.allocate_memory(size, device) for _ in range(3)]
    seen.append(looks.attempt(actions[use]))
    for other in others:
        other.free()
    return seen


def _uint8() -> Any:
    import torch

    return torch.uint8


def freed_by_two(holder: HeldDevice, *, device: int) -> list[list[str]]:
    """How free() ended in each of two threads that call it at a time, some times."""
    found = []
    for _ in range(RACES):
        memory, start = holder.runtime.allocate_memory(4096, device), threading.Barrier(2)
        ends: list[str] = []

        def free(memory: Any = memory, start: Any = start, ends: list[str] = ends) -> None:
            start.wait()
            seen = looks.attempt(memory.free)
            ends.append(seen["kinds"][0] if "kinds" in seen else "freed")

        threads = [threading.Thread(target=free) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(sorted(ends))
    return found
