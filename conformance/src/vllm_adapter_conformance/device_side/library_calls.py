"""A C library that is asked past core."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .looks import MIB

if TYPE_CHECKING:
    from vllm_adapter.c_abi.library import Library
    from vllm_adapter.engine.device_process.held import HeldDevice

SIZE: Final = 4096
PIECE: Final = 8 * MIB
FORK_LIMIT_S: Final = 20.0


def library_of(holder: HeldDevice) -> Library:
    """The library behind the device's runtime."""
    runtime: Any = holder.runtime
    library: Library = runtime.library
    return library


def _copies(library: Library, device: int, address: int) -> dict[str, Callable[[], None]]:
    """Copies of SIZE bytes at an address, by the place of the address. Each waits."""
    host = ctypes.create_string_buffer(SIZE)

    def own() -> int:
        return ctypes.addressof(host)  # and host lives as long as the copies

    def done(name: str, *arguments: Any) -> None:
        library.call(name, *arguments)
        library.call("stream_synchronize", device, 0)

    return {
        "copy to it": lambda: done("copy_to_device", device, 0, address, own(), SIZE),
        "copy from it": lambda: done("copy_to_host", device, 0, own(), address, SIZE),
        "copy on the device": lambda: done(
            "copy_on_device", 0, device, address, device, address, SIZE
        ),
    }


def after_release(holder: HeldDevice, *, device: int, how: str) -> dict[str, Any]:
    """How a copy ended whose block was released."""
    memory = holder.runtime.allocate_memory(SIZE, device)
    copy = _copies(library_of(holder), device, memory.address)[how]
    copy()
    memory.free()
    return looks.attempt(copy)


def of_another(holder: HeldDevice, *, device: int, other: int, how: str) -> dict[str, Any]:
    """How a copy ended whose address is another device's."""
    library = library_of(holder)
    library.open(other)
    memory = holder.runtime.allocate_memory(SIZE, other)
    try:
        return looks.attempt(_copies(library, device, memory.address)[how])
    finally:
        memory.free()


def sized(holder: HeldDevice, *, device: int) -> dict[str, Any]:
    """The library's figures of its memory, at rest and while PIECE bytes are held."""
    library, runtime = library_of(holder), holder.runtime
    before = runtime.query_memory_capacity(device)
    total = library.device_info(device).total_bytes
    memory = runtime.allocate_memory(PIECE, device)
    during = runtime.query_memory_capacity(device)
    memory.free()
    return {
        "total": before.total_bytes,
        "info": total,
        "taken": before.free_bytes - during.free_bytes,
        "above": looks.attempt(lambda: runtime.allocate_memory(total + 1, device).free()),
    }


def forked(holder: HeldDevice, *, device: int, function: str) -> int | None:
    """What a function of the library answers in a child that was forked after the open."""
    library = library_of(holder)
    library.open(device)
    functions = library.functions
    arguments: dict[str, tuple[Any, ...]] = {
        "in_bad_fork": (),
        "allocate": (device, SIZE, 0, ctypes.byref(ctypes.c_void_p())),
        "device_count": (ctypes.byref(ctypes.c_int32()),),
        "memory_info": (
            device,
            ctypes.byref(ctypes.c_uint64()),
            ctypes.byref(ctypes.c_uint64()),
        ),
        "stream_create": (device, ctypes.byref(ctypes.c_uint64())),
        "event_create": (device, ctypes.byref(ctypes.c_uint64())),
        "stream_synchronize": (device, 0),
    }
    return _in_fork(lambda: int(functions[function](*arguments[function])))


def _in_fork(ask: Callable[[], int]) -> int | None:
    """What `ask` gives in a forked child; None: it gave nothing in time."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads: that is the very case.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(theirs, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        ready, _, _ = select.select([ours], [], [], FORK_LIMIT_S)
        said = os.read(ours, 64) if ready else b""
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int(json.loads(said)) if said else None
