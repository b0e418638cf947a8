"""The device as its runtime presents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import looks
from .torch_streams import StreamWork, timed_event

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

TRIES: Final = 6
LONG: Final = 6


def opened(holder: HeldDevice) -> str:
    """The runtime's class, and where it is."""
    return f"{type(holder.runtime).__name__} on {holder.device}"


def count(holder: HeldDevice) -> list[int]:
    """The runtime's count of devices, before and after it was used."""
    runtime = holder.runtime
    first = runtime.get_device_count()
    for device in range(first):
        looks.attempt(runtime.allocate_memory, 64, device)
    return [first, runtime.get_device_count()]


def capability_twice(holder: HeldDevice, *, device: int) -> list[Any]:
    """The capability id, asked twice; what is no pair of numbers as its text."""
    found = []
    for _ in range(2):
        seen: Any = holder.runtime.get_device_capability(device)
        is_pair = isinstance(seen, tuple) and len(seen) == 2 and all(type(n) is int for n in seen)
        found.append(list(seen) if is_pair else None if seen is None else repr(seen))
    return found


def live(holder: HeldDevice, *, device: int) -> dict[str, Any]:
    """What the device itself says: a C library, or torch's module of it. Unknown is left out."""
    import torch

    runtime: Any = holder.runtime
    seen: dict[str, Any] = {"total": looks.capacity(holder, device=device)["total"]}
    library = getattr(runtime, "library", None)
    if library is not None:
        told = library.device_info(device)
        return seen | {
            "name": told.name,
            "arch": told.arch,
            "alignment": told.alignment_bytes,
            "unified": told.unified,
            "subgroup": told.subgroup_size or None,
            "size": told.total_bytes,
        }
    module = getattr(torch, holder.device.type)
    name = getattr(module, "get_device_name", None)
    properties = getattr(module, "get_device_properties", None)
    if holder.device.type != "cpu" and name is not None:
        seen["name"] = str(name(device))
    if holder.device.type != "cpu" and properties is not None:
        told = properties(device)
        for key, attribute in (("size", "total_memory"), ("subgroup", "warp_size")):
            value = getattr(told, attribute, None)
            seen |= {} if value is None else {key: int(value)}
    return seen


def on_no_device(holder: HeldDevice, *, own: int, device: int) -> dict[str, dict[str, Any]]:
    """How each use of an index that is no device ended, while memory of `own` is held."""
    runtime = holder.runtime

    def stats() -> object:
        found = runtime.memory_stats(device)
        return (found.allocated_bytes, found.live_allocations)

    held = runtime.allocate_memory(4096, own)
    seen = {
        "memory": looks.attempt(lambda: runtime.allocate_memory(64, device)),
        "a wait": looks.attempt(lambda: runtime.synchronize_stream(device)),
        "its free memory": looks.attempt(lambda: runtime.query_memory_capacity(device)),
        "its figures": looks.attempt(stats),
    }
    held.free()
    return seen


def on_each(holder: HeldDevice, *, contents: list[bytes]) -> list[dict[str, Any]]:
    """Memory of every device, all held at a time, each with bytes of its own."""
    runtime = holder.runtime
    held = [runtime.allocate_memory(len(data), i) for i, data in enumerate(contents)]
    try:
        for memory, data in zip(held, contents, strict=True):
            looks.put(holder, memory, data)
        return [
            {
                "device": memory.device_id,
                "torch": str(memory.storage.device),
                "back": looks.get(holder, memory),
                "figures": runtime.memory_stats(number).live_allocations,
            }
            for number, memory in enumerate(held)
        ]
    finally:
        for memory in held:
            memory.free()


def waited_on(holder: HeldDevice, *, device: int) -> list[bool]:
    """Whether a mark behind long work of a device is reached after a wait for that device."""
    import torch

    runtime, seen = holder.runtime, []
    module = getattr(torch, holder.device.type)
    work = StreamWork(holder, device)
    for _ in range(TRIES):
        stream = module.current_stream(f"{holder.device.type}:{device}")
        event = timed_event(holder, device, stream)
        work.queue(stream, LONG)
        event.record(stream)
        runtime.synchronize_stream(device)
        seen.append(bool(event.query()))
        event.synchronize()
    work.free()
    return seen
