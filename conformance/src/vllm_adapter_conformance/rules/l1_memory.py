"""L1: device memory: where it lies, how much there is, and that it is given back."""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from vllm_adapter.errors import AllocationFreed, DeviceError, OutOfMemory
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import (
    Case,
    Failure,
    NotDeclaredCase,
    Observation,
    once,
    rule,
)
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._memory import (
    MIB,
    allocated,
    expect_bytes,
    expect_error,
    held_by_process,
    index,
    pattern,
    read,
    write,
)

ALIGNMENTS: Final = tuple(1 << power for power in range(13))
ODD_SIZES: Final = (1, 3, 65, 4095, 17)
"""Sizes that push the next allocation off any boundary that it is not moved to on purpose."""
HUGE: Final = 1 << 62
SMALL: Final = 256
LARGE: Final = 64
ROUNDS, PIECE = 6, 64 * MIB


def _sizes(target: Target) -> Iterator[Case]:
    for size in (0, 1, 4095, 4096, 4097, MIB + 3):
        yield Case(f"{size} bytes", {"size": size})


@rule(
    "L1.memory.allocate",
    summary="an allocation has the size, device and address that were asked for",
    why="Tensors of the KV cache and of weights are views of these allocations. One that is too "
    "short lets the last block write into somebody else's memory.",
    cases=_sizes,
    needs=("L1.device.open",),
)
def check_allocate(bench: Bench, case: Case) -> None:
    """Looks at what an allocation says of itself."""
    size = case.params["size"]
    with allocated(bench, size) as memory:
        storage = memory.storage
        got = (memory.size, storage.numel() * storage.element_size(), storage.dim())
        if got != (size, size, 1):
            raise Failure(f"{size} bytes in one dimension", f"(size, bytes, dimensions) = {got}")
        if memory.device_id != index(bench) or storage.device.type != bench.device.type:
            raise Failure(f"memory on {bench.device}", f"{storage.device}")
        if memory.address != storage.data_ptr() or (size and not memory.address):
            raise Failure("the address of the storage", f"{memory.address:#x}")
    if memory.is_live:
        raise Failure("free() to end the allocation", "it still says that it is live")


def _alignments(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for alignment in ALIGNMENTS:
        yield Case(str(alignment), {"alignment": alignment, "asked": alignment})
    declared = target.capability.memory.alignment_bytes if target.capability else None
    if declared is not None:
        id, pointer = f"default ({declared})", "/memory/alignment_bytes"
        if target.emulator is None:
            yield Case(id, {"alignment": declared, "asked": None}, pointer)
        else:
            yield NotDeclaredCase(
                id, pointer, f"the memory is {target.emulator.name}'s, no chip's"
            )


@rule(
    "L1.memory.alignment",
    summary="addresses are multiples of the alignment that was asked for, or is declared",
    why="Vector loads and DMA engines fault on, or silently round down, an address that is not "
    "aligned. Allocate more and shift, if the vendor's allocator promises less; or declare what "
    "it really promises in memory.alignment_bytes.",
    cases=_alignments,
    needs=("L1.memory.allocate",),
)
def check_alignment(bench: Bench, case: Case) -> None:
    """Holds several odd sizes at a time, so that no address is aligned by luck."""
    alignment = case.params["alignment"]
    with ExitStack() as stack:
        for size in ODD_SIZES:
            memory = stack.enter_context(allocated(bench, size, alignment=case.params["asked"]))
            if memory.address % alignment:
                raise Failure(
                    f"an address that is a multiple of {alignment}",
                    f"{memory.address:#x} for {size} bytes",
                )


def _wrong_requests(target: Target) -> Iterator[Case]:
    yield Case("alignment 3", {"size": 64, "alignment": 3})
    yield Case("size -1", {"size": -1, "alignment": None})


@rule(
    "L1.memory.request",
    summary="a size or alignment that makes no sense is a typed error",
    why="A negative size is an overflow in the caller's arithmetic. It has to end there, and not "
    "in a small allocation that a large copy runs over.",
    cases=_wrong_requests,
    needs=("L1.memory.allocate",),
)
def check_request(bench: Bench, case: Case) -> None:
    """Asks for it."""
    size, alignment = case.params["size"], case.params["alignment"]
    expect_error(
        DeviceError,
        f"{size} bytes aligned to {alignment}",
        lambda: bench.runtime.allocate_memory(size, index(bench), alignment=alignment),
    )


@rule(
    "L1.memory.disjoint",
    summary="allocations that live at a time do not overlap",
    why="Where they do, one request's keys are another's values: output that depends on who "
    "else is served. Usual cause: the requested size is rounded in one place and not in another.",
    cases=once,
    needs=("L1.copy.round_trip", "L1.memory.allocate"),
)
def check_disjoint(bench: Bench, case: Case) -> None:
    """Fills each with its own pattern, then reads all; and compares the ranges."""
    sizes = [1, 63, 64, 65, 4095, 4096, 4097, 1, 100_001, 17, 2, MIB]
    with ExitStack() as stack:
        held = [stack.enter_context(allocated(bench, size)) for size in sizes]
        for number, memory in enumerate(held):
            write(bench, memory, pattern(bench, memory.size, number))
        for number, memory in enumerate(held):
            want = pattern(bench, memory.size, number)
            expect_bytes(read(bench, memory), want, f"allocation {number} of {memory.size} bytes")
        ranges = sorted((memory.address, memory.address + memory.size) for memory in held)
        for (start, end), (following, _) in itertools.pairwise(ranges):
            if following < end:
                raise Failure(
                    "ranges of addresses that do not overlap",
                    f"{start:#x} to {end:#x} and one from {following:#x}",
                )


def _too_large(target: Target) -> Iterator[Case]:
    yield Case("total + 1 bytes", {"size": None})
    yield Case("2^62 bytes", {"size": HUGE})


@rule(
    "L1.memory.out_of_memory",
    summary="more than there is raises OutOfMemory, and the device goes on",
    why="vLLM and the planner try sizes until one fits. A request that is granted and not there "
    "kills the process at its first use; one that leaves the device unusable ends the server.",
    cases=_too_large,
    needs=("L1.copy.round_trip", "L1.memory.capacity"),
)
def check_out_of_memory(bench: Bench, case: Case) -> None:
    """Asks for too much, then uses the device, and looks whether anything is still held."""
    runtime, device = bench.runtime, index(bench)
    total = runtime.query_memory_capacity(device).total_bytes
    size = case.params["size"] or total + 1
    before = runtime.memory_stats(device)
    expect_error(
        OutOfMemory,
        f"{size} bytes of {total} in all",
        lambda: runtime.allocate_memory(size, device),
    )
    after = runtime.memory_stats(device)
    if after != before:
        raise Failure(f"nothing to be held by the refusal: {before}", str(after))
    data = pattern(bench, 4097, "after out of memory")
    with allocated(bench, len(data)) as memory:
        write(bench, memory, data)
        expect_bytes(read(bench, memory), data, "a copy after the refusal")


def _uses(target: Target) -> Iterator[Case]:
    for use in ("free", "address", "storage", "copy to it", "copy from it"):
        yield Case(use)


@rule(
    "L1.memory.freed",
    summary="use after free(), and a second free(), raise AllocationFreed",
    why="A block that is freed twice is handed to two owners later. The error has to come at the "
    "call that is wrong, and not as a wrong number somewhere else.",
    cases=_uses,
    needs=("L1.memory.allocate",),
)
def check_freed(bench: Bench, case: Case) -> None:
    """Frees an allocation and uses it."""
    runtime = bench.runtime
    memory = runtime.allocate_memory(64, index(bench))
    memory.free()
    host = memoryview(bytearray(64))
    action = {
        "free": memory.free,
        "address": lambda: memory.address,
        "storage": lambda: memory.storage,
        "copy to it": lambda: runtime.copy_host_to_device(memory, host),
        "copy from it": lambda: runtime.copy_device_to_host(memory, host),
    }[case.id]
    expect_error(AllocationFreed, f"{case.id} after free()", action)


def _leaks(target: Target) -> Iterator[Case]:
    yield Case(f"{LARGE} x 1 MiB", {"count": LARGE, "size": MIB})
    yield Case(f"{SMALL} x 256 bytes", {"count": SMALL, "size": 256})


@rule(
    "L1.memory.leak",
    summary="what is freed is given back: the runtime's figures return to the start",
    why="A server runs for weeks. What each request leaves behind ends it, at night. The figures "
    "are the framework's own where it keeps some.",
    cases=_leaks,
    needs=("L1.memory.allocate",),
)
def check_leak(bench: Bench, case: Case) -> Observation:
    """Allocates and frees many, one after the other and all at a time."""
    runtime, device = bench.runtime, index(bench)
    count, size = case.params["count"], case.params["size"]
    before = runtime.memory_stats(device)
    for _ in range(count):
        runtime.allocate_memory(size, device).free()
    held = [runtime.allocate_memory(size, device) for _ in range(count)]
    full = runtime.memory_stats(device)
    if full.allocated_bytes - before.allocated_bytes < count * size:
        raise Failure(
            f"at least {count * size} bytes more in use while they are held",
            f"{full.allocated_bytes - before.allocated_bytes}",
        )
    for memory in held:
        memory.free()
    after = runtime.memory_stats(device)
    if after != before:
        raise Failure(
            f"{before.allocated_bytes} bytes in {before.live_allocations} allocations, as before",
            f"{after.allocated_bytes} bytes in {after.live_allocations}",
        )
    return Observation(note=f"by {before.source}")


@rule(
    "L1.memory.returned",
    summary="what is freed is given back: the system's figure does not grow from round to round",
    why="A runtime can count well and still keep the memory. Here the driver is asked (for a "
    "device that is the host: what the process has written and holds). A cache of freed blocks is "
    "fine, since it is used again in the next round.",
    cases=once,
    needs=("L1.copy.round_trip", "L1.memory.leak"),
)
def check_returned(bench: Bench, case: Case) -> Observation:
    """Fills and frees one piece in each of six rounds; a leak grows by that much in each.

    The middle of the rounds' growths is judged: others use the device, and this process, too,
    and may give back a lot in one round.
    """
    data = bytes([1]) * PIECE

    def used_after_round() -> int:
        with allocated(bench, PIECE) as memory:
            write(bench, memory, data)
        return _used(bench)

    gc.collect()  # garbage of earlier cases, given back between two rounds, would hide a leak
    used = [used_after_round() for _ in range(ROUNDS)]
    growth = int(statistics.median(after - before for before, after in itertools.pairwise(used)))
    if growth > PIECE // 2:
        raise Failure(
            f"about the same bytes in use after each round of {PIECE}",
            f"{growth} bytes more after a round (median of {ROUNDS - 1})",
        )
    return Observation(note=f"{growth} bytes more after a round (median of {ROUNDS - 1})")


def _used(bench: Bench) -> int:
    if bench.device.type == "cpu":
        return held_by_process()
    found = bench.runtime.query_memory_capacity(index(bench))
    return found.total_bytes - found.free_bytes


def _pinned(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for size in (1, 4097, MIB + 3):
        yield Case(f"{size} bytes", {"size": size})


@rule(
    "L1.memory.pinned",
    summary="pinned memory can be written and copied both ways",
    why="Weights and swapped blocks are staged through it. Memory that is shorter than was asked "
    "for, or read-only, fails in the middle of loading a model.",
    cases=_pinned,
    needs=("L1.copy.round_trip",),
)
def check_pinned(bench: Bench, case: Case) -> None:
    """A round trip whose both ends on the host are pinned."""
    size, runtime = case.params["size"], bench.runtime
    out, back = runtime.allocate_pinned_memory(size), runtime.allocate_pinned_memory(size)
    for view in (out, back):
        if view.readonly or view.nbytes != size:
            raise Failure(f"{size} bytes that may be written", f"{view.nbytes}, {view.readonly=}")
    data = pattern(bench, size, "pinned")
    out.cast("B")[:] = data
    back.cast("B")[:] = bytes(size)
    with allocated(bench, size) as memory:
        runtime.copy_host_to_device(memory, out)
        runtime.copy_device_to_host(memory, back)
        runtime.synchronize_stream(index(bench))
    expect_bytes(bytes(back.cast("B")), data, "the pinned round trip")
