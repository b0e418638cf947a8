"""L1: streams of their own: work of one keeps its order, a wait waits, another one can wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._memory import (
    HOST_POISON,
    MIB,
    allocated,
    expect_bytes,
    index,
    pattern,
    poison,
    write,
)

BULK: Final = 16 * MIB
ROUNDS: Final = 4
"""Copies of BULK take so long that what is done out of order is done before their end."""
SMALL: Final = 4096
_KEPT: Final[list[object]] = []
"""Buffers that a device may still write into, since its wait did not wait."""


def has_streams(target: Target) -> bool:
    """Whether the device has streams at all; one that the CPU stands in for has none."""
    if target.device is not None:
        return target.device.torch.partition(":")[0] != "cpu"
    capability = target.capability
    return capability is None or capability.identity.torch_type != "cpu"


def _orders(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in ("in, then back", "back, then in", "on the device, then back"):
        if has_streams(target):
            yield Case(name)
        else:
            yield NotDeclaredCase(name, "/identity/torch_type", "the CPU has no streams")


@rule(
    "L1.stream.order",
    summary="work of one stream runs in the order in which it was queued",
    why="A layer's kernel reads what the one before wrote, and nobody waits between them. A copy "
    "that does not queue behind the stream's work, or goes to another queue, reads what was there "
    "before: tokens that depend on how busy the device is.",
    cases=_orders,
    needs=("L1.copy.stream",),
)
def check_order(bench: Bench, case: Case) -> None:
    """Long work first, then a small copy, and one more that sees the one before."""
    runtime, device = bench.runtime, index(bench)
    data = pattern(bench, SMALL, "order")
    host, back = pinned(bench, data), emptied(bench, SMALL)
    bulk = pinned(bench, bytes(BULK))
    with allocated(bench, BULK) as long, allocated(bench, SMALL) as memory:
        if case.id == "on the device, then back":
            poison(bench, memory)
            with allocated(bench, SMALL) as source, allocated(bench, BULK) as other:
                write(bench, source, data)
                for _ in range(ROUNDS):  # the current stream's work, and nobody waits
                    long.storage.copy_(other.storage)
                memory.storage.copy_(source.storage)
                runtime.copy_device_to_host(memory, back)
            expect_bytes(bytes(back), data, "what a copy on the device wrote just before")
            return
        if case.id == "in, then back":
            poison(bench, memory)
        else:
            write(bench, memory, data)
        stream = runtime.create_stream(device)
        for _ in range(ROUNDS):
            runtime.copy_host_to_device(long, bulk, stream=stream)
        if case.id == "in, then back":
            runtime.copy_host_to_device(memory, host, stream=stream)
            runtime.copy_device_to_host(memory, back, stream=stream)
        else:
            later = pinned(bench, pattern(bench, SMALL, "later"))
            runtime.copy_device_to_host(memory, back, stream=stream)
            runtime.copy_host_to_device(memory, later, stream=stream)
        runtime.synchronize_stream(device, stream)
        expect_bytes(bytes(back), data, f"what was there at its turn ({case.id})")


def _own(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if has_streams(target):
        yield Case("own stream")
    else:
        yield NotDeclaredCase("own stream", "/identity/torch_type", "the CPU has no streams")


@rule(
    "L1.stream.wait",
    summary="when a wait for a stream returns, its work is done",
    why="Sampled tokens are read by the host after one wait a step. A wait that returns early "
    "gives the tokens of the step before, or half of a block that is swapped out.",
    cases=_own,
    needs=("L1.memory.pinned",),
)
def check_wait(bench: Bench, case: Case) -> None:
    """Queues long copies, waits once, and looks at once."""
    runtime, device = bench.runtime, index(bench)
    data = pattern(bench, BULK, "wait")
    host, back = pinned(bench, data), emptied(bench, BULK)
    memory = runtime.allocate_memory(BULK, device)
    stream = runtime.create_stream(device)
    runtime.copy_host_to_device(memory, host, stream=stream)
    runtime.copy_device_to_host(memory, back, stream=stream)
    runtime.synchronize_stream(device, stream)
    seen = bytes(back)
    if seen != data:
        _KEPT.append((host, back, memory))
    else:
        memory.free()
    expect_bytes(seen, data, "what was copied in and back, after the wait")


@rule(
    "L1.stream.event",
    summary="a stream that waits for another one sees all that was queued there before",
    why="Blocks come back on a stream of their own, and the step's kernels wait for that by an "
    "event and not on the host. Where the event is no real mark, the step reads the old block.",
    cases=_own,
    needs=("L1.stream.order",),
)
def check_event(bench: Bench, case: Case) -> Observation:
    """Long work and a small copy in on one stream; another waits for it, and copies back."""
    runtime, device = bench.runtime, index(bench)
    data = pattern(bench, SMALL, "event")
    host, back = pinned(bench, data), emptied(bench, SMALL)
    bulk = pinned(bench, bytes(BULK))
    with allocated(bench, BULK) as long, allocated(bench, SMALL) as memory:
        poison(bench, memory)
        first: Any = runtime.create_stream(device)
        second: Any = runtime.create_stream(device)
        for _ in range(ROUNDS):
            runtime.copy_host_to_device(long, bulk, stream=first)
        runtime.copy_host_to_device(memory, host, stream=first)
        second.wait_stream(first)
        runtime.copy_device_to_host(memory, back, stream=second)
        runtime.synchronize_stream(device, second)
        seen = bytes(back)
        runtime.synchronize_stream(device, first)
        expect_bytes(seen, data, "what the other stream copied in")
    return Observation(note=f"{second} waited for {first}")


def pinned(bench: Bench, data: bytes) -> memoryview:
    """Pinned host memory that holds bytes."""
    view = bench.runtime.allocate_pinned_memory(len(data)).cast("B")
    view[:] = data
    return view


def emptied(bench: Bench, size: int) -> memoryview:
    """Pinned host memory full of HOST_POISON."""
    return pinned(bench, bytes([HOST_POISON]) * size)
