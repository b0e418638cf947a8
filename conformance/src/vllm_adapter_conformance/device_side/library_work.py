"""A C library's handles, sentences, memory that is used again, and links."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .library_calls import library_of
from .torch_streams import StreamWork, emptied

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

LONG: Final = 4
POLL_S: Final = 5.0


def handles(
    holder: HeldDevice, *, device: int, kind: str, count: int, held: int
) -> dict[str, Any]:
    """Creates and destroys handles one after the other, then some at a time; and uses a dead one.

    `kind` is "stream" or "event". Seen are how that ended, and how many of those that were held
    at a time were unlike.
    """
    library = library_of(holder)
    library.open(device)

    def make() -> int:
        made = ctypes.c_uint64()
        library.call(f"{kind}_create", device, ctypes.byref(made))
        return made.value

    def end(handle: int) -> None:
        library.call(f"{kind}_destroy", device, handle)

    def one_by_one() -> None:
        for _ in range(count):
            end(make())

    seen: dict[str, Any] = {"one by one": looks.attempt(one_by_one), "unlike": 0}

    def at_a_time() -> None:
        made = [make() for _ in range(held)]
        seen["unlike"] = len(set(made))
        for handle in made:
            end(handle)

    seen["at a time"] = looks.attempt(at_a_time)
    if "kinds" in seen["one by one"]:
        return seen
    dead = make()
    end(dead)
    use = "stream_synchronize" if kind == "stream" else "event_query"
    seen["used"] = looks.attempt(lambda: library.call(use, device, dead))
    seen["destroyed"] = looks.attempt(lambda: end(dead))
    seen["never made"] = looks.attempt(lambda: library.call(use, device, (1 << 63) + device))
    return seen


def destroyed(holder: HeldDevice, *, device: int, data: bytes, size: int) -> bytes:
    """What a copy wrote that was queued, behind long ones, in a stream that was then destroyed.

    It is read as long as it is not `data`, for some seconds.
    """
    library, runtime = library_of(holder), holder.runtime
    long, bulk = (runtime.allocate_memory(size, device) for _ in range(2))
    memory, source = runtime.allocate_memory(len(data), device), bytearray(data)
    looks.put(holder, memory, bytes(len(data)))
    made = ctypes.c_uint64()
    library.call("stream_create", device, ctypes.byref(made))
    for _ in range(LONG):
        library.call(
            "copy_on_device", made.value, device, long.address, device, bulk.address, size
        )
    there = (ctypes.c_char * len(data)).from_buffer(source)
    library.call("copy_to_device", device, made.value, memory.address, there, len(data))
    library.call("stream_destroy", device, made.value)
    until = time.monotonic() + POLL_S
    found = looks.get(holder, memory)
    while found[: len(data)] != data and time.monotonic() < until:
        time.sleep(0.01)
        found = looks.get(holder, memory)
    for allocation in (long, bulk, memory):
        allocation.free()
    return found[: len(data)]


def sentences(holder: HeldDevice, *, device: int) -> list[dict[str, Any]]:
    """What last_error says in two threads, each after its own failed call and the other's."""
    library = library_of(holder)
    library.open(device)
    ask: Any = library.functions["last_error"]
    turn = threading.Barrier(2)
    seen: list[dict[str, Any]] = [{}, {}]

    def text() -> str:
        raw = ask()
        return (raw or b"").decode(errors="replace") if isinstance(raw, bytes) else str(raw)

    def fail(number: int) -> None:
        functions = library.functions
        for step in range(2):
            turn.wait()
            if step == number:
                made = ctypes.c_void_p()
                if number:
                    functions["allocate"](device, 64, 3, ctypes.byref(made))
                else:
                    functions["event_query"](device, (1 << 63) + device)
                seen[number]["at once"] = text()
            turn.wait()
        turn.wait()
        seen[number]["later"] = text()

    threads = [threading.Thread(target=fail, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def reused(holder: HeldDevice, *, device: int, data: bytes, other: bytes) -> dict[str, Any]:
    """What a stream reads of memory that was released while its work was queued."""
    runtime, size = holder.runtime, len(data)
    stream: Any = runtime.create_stream(device)
    work, back = StreamWork(holder, device), emptied(holder, size)
    memory = runtime.allocate_memory(size, device)
    looks.put(holder, memory, data)
    address, given = memory.address, []
    work.queue(stream, LONG)
    runtime.copy_device_to_host(memory, back, stream=stream)
    memory.free()
    del memory
    for _ in range(4):
        fresh = runtime.allocate_memory(size, device)
        given.append(fresh)
        looks.put(holder, fresh, other)
    again = any(fresh.address == address for fresh in given)
    runtime.synchronize_stream(device, stream)
    for fresh in given:
        fresh.free()
    work.free()
    return {"back": bytes(back), "again": again}


def linked(
    holder: HeldDevice, *, device: int, other: int, data: bytes, old: bytes
) -> dict[str, Any]:
    """Copies from another device behind long work of a stream, a read before it and one after."""
    runtime: Any = holder.runtime
    size, stream = len(data), runtime.create_stream(device)
    source, target = runtime.allocate_memory(size, other), runtime.allocate_memory(size, device)
    looks.put(holder, source, data)
    looks.put(holder, target, old)
    work, first, second = StreamWork(holder, device), emptied(holder, size), emptied(holder, size)
    counted = runtime.device_memory(other).link_bytes
    work.queue(stream, LONG)
    runtime.copy_device_to_host(target, first, stream=stream)
    runtime.copy_on_device(target, source, size, stream=stream)
    runtime.copy_device_to_host(target, second, stream=stream)
    runtime.synchronize_stream(device, stream)
    runtime.synchronize_stream(other)
    seen = {
        "before": bytes(first),
        "after": bytes(second),
        "counted": runtime.device_memory(other).link_bytes - counted,
    }
    for memory in (source, target):
        memory.free()
    work.free()
    return seen


def multiples(holder: HeldDevice, *, device: int, sizes: list[int]) -> list[list[Any]]:
    """Addresses by the alignment asked for: the device's own times 1, 3, 5 and 16."""
    own = library_of(holder).device_info(device).alignment_bytes
    seen: list[list[Any]] = []
    for times in (0, 1, 3, 5, 16):
        held = [
            holder.runtime.allocate_memory(size, device, alignment=times * own or None)
            for size in sizes
        ]
        seen.append([max(times, 1) * own, [memory.address for memory in held]])
        for memory in held:
            memory.free()
    return seen
