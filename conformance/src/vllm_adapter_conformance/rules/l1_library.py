"""L1: what a device's C library refuses when it is asked past core: rules of `vllm_adapter.h`."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.errors import DeviceError, OutOfMemory
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import _looks as looks
from vllm_adapter_conformance.rules._drawn import MIB
from vllm_adapter_conformance.rules._memory import descriptor, expect_refused, index

if TYPE_CHECKING:
    from vllm_adapter.c_abi.library import Library

SIZE: Final = 4096
PIECE: Final = 8 * MIB
FORK_LIMIT_S: Final = 20.0
_NO_LIBRARY: Final = "the device is torch's own, and not a C library's"

Cases = Callable[[Target], Iterator[Case | NotDeclaredCase]]


def of_library(*names: str, devices: int = 1) -> Cases:
    """The cases of a rule that asks the C library itself, on that many devices at least."""

    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        manifest = target.record.manifest
        section = manifest.device if manifest else None
        for name in names:
            if section is None or section.library is None:
                yield NotDeclaredCase(name, "/device/library", _NO_LIBRARY)
            elif len(target.record.devices) < devices:
                yield NotDeclaredCase(name, "/devices", "there is one device only")
            else:
                yield Case(name)

    return cases


def library_of(bench: Bench) -> Library:
    """The library behind the bench's runtime."""
    runtime: Any = bench.runtime
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


def after_release(bench: Bench, *, device: int, how: str) -> dict[str, Any]:
    """How a copy ended whose block was released."""
    memory = bench.runtime.allocate_memory(SIZE, device)
    copy = _copies(library_of(bench), device, memory.address)[how]
    copy()
    memory.free()
    return looks.attempt(copy)


@rule(
    "L1.library.freed",
    summary="the library refuses an address whose memory was released",
    why="A tensor that outlives its memory is a defect of the caller. A library that takes the "
    "address all the same reads or overwrites whoever has the block now: somebody else's request. "
    "Keep a table of live blocks, and answer VA_ERROR_NOT_DEVICE.",
    cases=of_library("copy to it", "copy from it", "copy on the device"),
    needs=("L1.memory.freed", "L1.copy.round_trip"),
)
def check_freed(bench: Bench, case: Case) -> None:
    """Releases a block, and copies to or from its address."""
    seen = bench.observe(after_release, device=index(bench), how=case.id)
    expect_refused(seen, DeviceError, f"a {case.id} after its release")


def of_another(bench: Bench, *, device: int, other: int, how: str) -> dict[str, Any]:
    """How a copy ended whose address is another device's."""
    library = library_of(bench)
    library.open(other)
    memory = bench.runtime.allocate_memory(SIZE, other)
    try:
        return looks.attempt(_copies(library, device, memory.address)[how])
    finally:
        memory.free()


@rule(
    "L1.library.foreign",
    summary="the library refuses an address of another device",
    why="Ranks of a parallel run have one device each. An address of another one that is taken "
    "for this one's reads other bytes, or the right ones over a link that nobody counted. Answer "
    "VA_ERROR_NOT_DEVICE; `copy_on_device` is for copies between devices.",
    cases=of_library("copy to it", "copy from it", "copy on the device", devices=2),
    needs=("L1.copy.round_trip",),
)
def check_foreign(bench: Bench, case: Case) -> None:
    """Gives the address of one device to the copies of another."""
    device = index(bench)
    other = next(d.index for d in bench.target.record.devices if d.index != device)
    seen = bench.observe(of_another, device=device, other=other, how=case.id)
    expect_refused(seen, DeviceError, f"a {case.id}, which is memory of device {other}")


def sized(bench: Bench, *, device: int) -> dict[str, Any]:
    """The library's figures of its memory, at rest and while PIECE bytes are held."""
    library, runtime = library_of(bench), bench.runtime
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


@rule(
    "L1.library.capacity",
    summary="the library's figures of memory agree with each other, and with what it gives",
    why="The KV cache is sized by them. Two totals that differ, or free bytes that do not fall "
    "when memory is taken, end in an out of memory under load, hours after the start.",
    cases=of_library("totals", "a request above the total", "free falls"),
    needs=("L1.memory.capacity", "L1.memory.allocate"),
)
def check_capacity(bench: Bench, case: Case) -> Observation:
    """Compares memory_info, device_info, and memory_stats around an allocation."""
    seen = bench.observe(sized, device=index(bench))
    total = seen["info"]
    if case.id == "totals":
        if seen["total"] != total:
            raise Failure(
                f"memory_info to give device_info's total of {total} bytes",
                f"{seen['total']} bytes",
            )
    elif case.id == "a request above the total":
        expect_refused(seen["above"], OutOfMemory, f"{total + 1} bytes of {total}")
    elif not descriptor(bench).memory.free_step_bytes and not PIECE <= seen["taken"] <= 2 * PIECE:
        raise Failure(
            f"about {PIECE} bytes less free while they are held", f"{seen['taken']} less"
        )
    return Observation(note=f"{total} bytes")


FORKED: Final = (
    "in_bad_fork",
    "allocate",
    "device_count",
    "memory_info",
    "stream_create",
    "event_create",
    "stream_synchronize",
)


def forked(bench: Bench, *, device: int, function: str) -> int | None:
    """What a function of the library answers in a child that was forked after the open."""
    library = library_of(bench)
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


@rule(
    "L1.library.fork",
    summary="after a fork the child gets an error that says so, and nothing from the library",
    why="A driver's handles do not survive a fork: the child's work goes nowhere, or into the "
    "parent's queues. vLLM and loaders start workers; those that fork must get a sentence. "
    "Remember the process that opened the device; in_bad_fork() is not 0 in another one, and "
    "every other function answers VA_ERROR_FORKED, without taking a lock.",
    cases=of_library(*FORKED),
    needs=("L1.memory.allocate",),
)
def check_fork(bench: Bench, case: Case) -> None:
    """Forks after the device was opened, and asks the library in the child."""
    from vllm_adapter.c_abi import abi

    answer = bench.observe(forked, device=index(bench), function=case.id)
    wanted = "a number that is not 0" if case.id == "in_bad_fork" else f"{abi.FORKED} (forked)"
    right = answer != 0 if case.id == "in_bad_fork" else answer == abi.FORKED
    if answer is None or not right:
        seen = "no answer" if answer is None else str(answer)
        raise Failure(f"{case.id} in a forked child to give {wanted}", seen)


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
