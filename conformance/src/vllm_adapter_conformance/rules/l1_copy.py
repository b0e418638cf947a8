"""L1: copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.errors import DeviceError, OutOfBounds
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, Observation, once, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._memory import (
    MIB,
    allocated,
    expect_bytes,
    expect_error,
    index,
    pattern,
    poison,
    read,
    write,
)

SIZES: Final = (1, 4095, 4096, 4097, MIB + 3)
OFFSETS: Final = ((0, 1), (1, 63), (63, 65), (64, 4096), (4095, 2), (8191, 1))
"""(offset, length) in 8192 bytes."""
WHOLE: Final = 8192
STREAM_STEPS: Final = 8


def _sizes(target: Target) -> Iterator[Case]:
    for size in SIZES:
        yield Case(f"{size} bytes", {"size": size})


@rule(
    "L1.copy.round_trip",
    summary="bytes that go to the device come back equal",
    why="Every weight and every token goes this way. The device's memory and the host's buffer "
    "are filled with other bytes first, so that a copy that does not happen is seen.",
    cases=_sizes,
    needs=("L1.device.open",),
)
def check_round_trip(bench: Bench, case: Case) -> None:
    """Writes a pattern over poison and reads it back into poison."""
    size = case.params["size"]
    data = pattern(bench, size, "round trip")
    with allocated(bench, size) as memory:
        poison(bench, memory)
        write(bench, memory, data)
        expect_bytes(read(bench, memory), data, f"the round trip of {size} bytes")


def _offsets(target: Target) -> Iterator[Case]:
    for offset, length in OFFSETS:
        yield Case(f"{length} at {offset}", {"offset": offset, "length": length})


@rule(
    "L1.copy.offset",
    summary="a copy at an offset touches its own bytes and no other",
    why="Blocks of the KV cache lie side by side. A copy that is rounded up to the transfer's "
    "granule overwrites the neighbour's first tokens.",
    cases=_offsets,
    needs=("L1.copy.round_trip",),
)
def check_offset(bench: Bench, case: Case) -> None:
    """Writes and reads a part, and looks at all the rest."""
    offset, length = case.params["offset"], case.params["length"]
    data = pattern(bench, length, "offset")
    with allocated(bench, WHOLE) as memory:
        before = poison(bench, memory)
        write(bench, memory, data, offset)
        want = before[:offset] + data + before[offset + length :]
        expect_bytes(read(bench, memory), want, f"memory around {length} bytes at {offset}")
        expect_bytes(read(bench, memory, length, offset), data, f"{length} bytes from {offset}")


@rule(
    "L1.copy.detached",
    summary="the device has a copy: what happens to the host's buffer later does not matter",
    why="Loaders use one staging buffer for all tensors. A runtime that keeps a reference, or "
    "copies later than it says, gives every tensor the bytes of the last one.",
    cases=once,
    needs=("L1.copy.round_trip",),
)
def check_detached(bench: Bench, case: Case) -> None:
    """Overwrites the host's buffer after each direction's copy has returned."""
    data, other = pattern(bench, 4097, "first"), pattern(bench, 4097, "second")
    host = bytearray(data)
    with allocated(bench, len(data)) as memory:
        bench.runtime.copy_host_to_device(memory, memoryview(host))
        host[:] = other
        expect_bytes(read(bench, memory), data, "the device after the host's buffer changed")
        back = bytearray(len(data))
        bench.runtime.copy_device_to_host(memory, memoryview(back))
        write(bench, memory, other)
        expect_bytes(bytes(back), data, "the host's copy after the device changed")


@rule(
    "L1.copy.read_only",
    summary="a source may be read-only; a destination may not",
    why="Weights are mapped read-only from their files, and must be copied from there. Writing "
    "into memory that is declared read-only changes what Python holds to be constant.",
    cases=once,
    needs=("L1.copy.round_trip",),
)
def check_read_only(bench: Bench, case: Case) -> None:
    """Copies from bytes, and tries to copy into bytes."""
    data = pattern(bench, 4097, "read-only")
    constant = bytes(len(data))
    with allocated(bench, len(data)) as memory:
        poison(bench, memory)
        bench.runtime.copy_host_to_device(memory, memoryview(data))
        bench.runtime.synchronize_stream(index(bench))
        expect_bytes(read(bench, memory), data, "a copy of read-only bytes")
        expect_error(
            DeviceError,
            "a copy into read-only memory",
            lambda: bench.runtime.copy_device_to_host(memory, memoryview(constant)),
        )
    expect_bytes(constant, bytes(len(data)), "the read-only destination")


def _out_of_bounds(target: Target) -> Iterator[Case]:
    for offset, length in ((0, 65), (1, 64), (64, 1), (-1, 1), (65, 0), (1 << 40, 1)):
        yield Case(f"{length} at {offset}", {"offset": offset, "length": length})


@rule(
    "L1.copy.bounds",
    summary="a copy that would leave its allocation raises OutOfBounds and copies nothing",
    why="Such a copy is a defect of the caller, which is found here or as another tensor's wrong "
    "numbers. Nothing may be copied, so that the state is the one before the call.",
    cases=_out_of_bounds,
    needs=("L1.copy.round_trip",),
)
def check_bounds(bench: Bench, case: Case) -> None:
    """Tries both directions on 64 bytes, then looks at both sides."""
    offset, length = case.params["offset"], case.params["length"]
    what = f"{length} bytes at {offset} of 64"
    host = bytearray(pattern(bench, length, "bounds"))
    kept = bytes(host)
    with allocated(bench, 64) as memory:
        before = poison(bench, memory)
        runtime, view = bench.runtime, memoryview(host)
        expect_error(
            OutOfBounds,
            f"a copy of {what} to the device",
            lambda: runtime.copy_host_to_device(memory, view, offset=offset),
        )
        expect_error(
            OutOfBounds,
            f"a copy of {what} from the device",
            lambda: runtime.copy_device_to_host(memory, view, offset=offset),
        )
        expect_bytes(read(bench, memory), before, "the device's memory after the refusals")
        expect_bytes(bytes(host), kept, "the host's memory after the refusals")


@rule(
    "L1.copy.empty",
    summary="a copy of no bytes is allowed, and changes nothing",
    why="Empty batches and empty parameters exist. They must not need a special case in every "
    "caller.",
    cases=once,
    needs=("L1.copy.round_trip",),
)
def check_empty(bench: Bench, case: Case) -> None:
    """Copies nothing to and from the start, the end, and an empty allocation."""
    runtime, nothing = bench.runtime, memoryview(bytearray())
    with allocated(bench, 64) as memory, allocated(bench, 0) as empty:
        before = poison(bench, memory)
        for place, offset in ((memory, 0), (memory, 64), (empty, 0)):
            runtime.copy_host_to_device(place, nothing, offset=offset)
            runtime.copy_device_to_host(place, nothing, offset=offset)
        expect_bytes(read(bench, memory), before, "the device's memory after empty copies")


def _streams(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case("current stream", {"own": False})
    kind = target.capability.identity.torch_type if target.capability else None
    if kind == "cpu":
        yield NotDeclaredCase("own stream", "/identity/torch_type", "the CPU has no streams")
    else:
        yield Case("own stream", {"own": True})


@rule(
    "L1.copy.stream",
    summary="copies on a stream keep their order, and are complete after it is waited for",
    why="Blocks are swapped on a stream of their own while others compute. Copies out of order "
    "bring back old bytes; a wait that does not wait lets a request read them too early.",
    cases=_streams,
    needs=("L1.copy.round_trip", "L1.memory.pinned"),
)
def check_stream(bench: Bench, case: Case) -> Observation:
    """Writes one place several times and reads it after each, with one wait at the end."""
    runtime, device = bench.runtime, index(bench)
    stream = runtime.create_stream(device) if case.params["own"] else None
    sources, targets = [], []
    for number in range(STREAM_STEPS):
        source, target = (runtime.allocate_pinned_memory(MIB) for _ in range(2))
        source.cast("B")[:] = pattern(bench, MIB, number)
        target.cast("B")[:] = bytes(MIB)
        sources.append(source)
        targets.append(target)
    with allocated(bench, MIB) as memory:
        for source, target in zip(sources, targets, strict=True):
            runtime.copy_host_to_device(memory, source, stream=stream)
            runtime.copy_device_to_host(memory, target, stream=stream)
        runtime.synchronize_stream(device, stream)
        for number, target in enumerate(targets):
            want = pattern(bench, MIB, number)
            expect_bytes(bytes(target.cast("B")), want, f"step {number} of {STREAM_STEPS}")
    return Observation(note="" if stream is None else f"on {stream}")
