"""Memory of this process and of the device, before and after many calls."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice


def held_by_process() -> int:
    """Bytes that this process has written and not given back, swapped out or not.

    Not the resident size: a system that takes idle pages away would hide a leak. Pages that the
    host's allocator keeps free are given back first: a leak would be served from them unseen.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        gc.collect()
        trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = (line.partition(":") for line in status.splitlines())
    kib = {name: value.split()[0] for name, _, value in fields if value.endswith(" kB")}
    resident = kib.get("RssAnon") or kib["VmRSS"]  # some sandboxes tell only the sum
    return (int(resident) + int(kib.get("VmSwap", 0))) * 1024


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_by_process() -> dict[str, int]:
    """What is allocated and not freed, to the byte: as the C library and Python count it.

    Not every C library counts.
    """
    gc.collect()
    found = {"Python objects": sys.getallocatedblocks()}
    held = malloc_bytes()
    if held is not None:
        found["bytes of malloc"] = held
    return found


def malloc_bytes() -> int | None:
    """What is allocated of the C library's malloc and not freed; None: it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _MallInfo
    info = ask()
    return int(info.uordblks) + int(info.hblkhd)


def usage_around(
    device: HeldDevice,
    call: int,
    binding: int,
    step: Mapping[str, Any] | None,
    first: int,
    calls: int,
) -> list[dict[str, int]]:
    """What is held after `first` calls, and after `calls` more."""
    repeat = _Repeat(device, call, binding, step)
    with _frozen():
        repeat(first)
        before = _usage(device)
        repeat(calls)
        return [before, _usage(device)]


def allocated_by_windows(
    device: HeldDevice,
    call: int,
    binding: int,
    step: Mapping[str, Any] | None,
    first: int,
    calls: int,
    windows: int,
) -> list[dict[str, int]]:
    """What is allocated after `first` calls, and after each of so many windows of calls."""
    repeat = _Repeat(device, call, binding, step)
    with _frozen():
        repeat(first)
        found = [_allocated(device)]
        for _ in range(windows):
            repeat(calls)
            found.append(_allocated(device))
        return found


class _Repeat:
    """Plans and runs as a server does: once a step."""

    def __init__(
        self, device: HeldDevice, call: int, binding: int, step: Mapping[str, Any] | None
    ) -> None:
        self._device, self._binding = device, device.kept(binding)
        self._arguments = device.kept(call).arguments
        self._step = None if step is None else device.step(step)

    def __call__(self, calls: int) -> None:
        for _ in range(calls):
            if self._step is not None:
                self._binding.plan(self._step)
            self._binding.run(*self._arguments)
        self._device.synchronize()


class _frozen:
    """What is there now is not looked at: with torch loaded that takes longer than the calls."""

    def __enter__(self) -> None:
        gc.freeze()

    def __exit__(self, *error: object) -> None:
        gc.unfreeze()


def _allocated(device: HeldDevice) -> dict[str, int]:
    """To the byte, by every count that there is."""
    return allocated_by_process() | _on_the_device(device)


def _usage(device: HeldDevice) -> dict[str, int]:
    """What is held now, by every measure that this machine and device have."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    gc.collect()
    # By type: isinstance asks an object for its class, which some answer with a warning.
    live = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    # What torch.compile traces with has a shape and no memory, and may outlive its graph.
    live = [t for t in live if not issubclass(type(t), FakeTensor)]
    found = {"live tensors": len(live), "bytes of live tensors": sum(t.nbytes for t in live)}
    found |= _on_the_device(device)
    found["bytes of the process"] = held_by_process()
    return found


def _on_the_device(device: HeldDevice) -> dict[str, int]:
    stats = device.runtime.memory_stats(device.index)
    return {"bytes on the device": stats.allocated_bytes} if stats.source == "framework" else {}


def held_at_rest(device: HeldDevice) -> dict[str, int]:
    """Bytes and objects that the process and the device hold now.

    Not every C library and runtime counts all of them.
    """
    found = allocated_by_process() | {"bytes of the process": held_by_process()}
    stats = device.runtime.memory_stats(device.index)
    if stats.source != "allocations":  # which counts no tensors
        found["bytes on the device"] = stats.allocated_bytes
    return found
