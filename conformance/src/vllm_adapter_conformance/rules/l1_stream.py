"""L1: streams of their own: work of one keeps its order, a wait waits, another one can wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from vllm_adapter.errors import DeviceError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import _looks as looks
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._memory import expect_bytes, expect_refused, index
from vllm_adapter_conformance.rules._torch_streams import BULK, Work, emptied, has_streams, pinned

ROUNDS: Final = 4
"""Copies of BULK take so long that what is done out of order is done before their end."""
MANY: Final = 24
_NONE: Final = "the CPU has no streams"
_KEPT: Final[list[object]] = []
"""Buffers that a device may still write into, since its wait did not wait."""


def _orders(target: Target) -> Iterator[Case | NotDeclaredCase]:
    draw = chance(target, "order")
    for name in ("in, then back", "back, then in", "on the device, then back"):
        if has_streams(target):
            sizes = [draw.randrange(1, 512), draw.randrange(513, 8193)]
            yield Case(name, {"sizes": sizes})
        else:
            yield NotDeclaredCase(name, "/identity/torch_type", _NONE)


def in_order(bench: Bench, *, device: int, how: str, data: bytes, later: bytes) -> dict[str, Any]:
    """Long work first, then a small copy, and one more that sees the one before."""
    runtime, size = bench.runtime, len(data)
    back, host, next_ = emptied(bench, size), pinned(bench, data), pinned(bench, later)
    work, memory = Work(bench, device), runtime.allocate_memory(size, device)
    if how == "on the device, then back":
        looks.fill(bench, memory)
        source, other = (runtime.allocate_memory(n, device) for n in (size, BULK))
        long = runtime.allocate_memory(BULK, device)
        looks.put(bench, source, data)
        for _ in range(ROUNDS):  # the current stream's work, and nobody waits
            long.storage.copy_(other.storage)
        memory.storage.copy_(source.storage)
        runtime.copy_device_to_host(memory, back)
        for spent in (source, other, long):
            spent.free()
    else:
        looks.put(bench, memory, later if how == "in, then back" else data)
        stream = runtime.create_stream(device)
        work.queue(stream, ROUNDS)
        if how == "in, then back":
            runtime.copy_host_to_device(memory, host, stream=stream)
            runtime.copy_device_to_host(memory, back, stream=stream)
        else:
            runtime.copy_device_to_host(memory, back, stream=stream)
            runtime.copy_host_to_device(memory, next_, stream=stream)
        runtime.synchronize_stream(device, stream)
    seen = {"back": bytes(back), "memory": looks.get(bench, memory)}
    memory.free()
    work.free()
    return seen


@rule(
    "L1.stream.order",
    summary="work of one stream runs in the order in which it was queued",
    why="A layer's kernel reads what the one before wrote, and nobody waits between them. A copy "
    "that does not queue behind the stream's work, or goes to another queue, reads what was there "
    "before: tokens that depend on how busy the device is. Small copies count as large ones.",
    cases=_orders,
    needs=("L1.copy.stream",),
)
def check_order(bench: Bench, case: Case) -> None:
    """Queues a small copy behind long work, and looks what its neighbour saw."""
    for size in case.params["sizes"]:
        data, later = (content((bench.target.seed, "order", n), size) for n in range(2))
        seen = bench.observe(in_order, device=index(bench), how=case.id, data=data, later=later)
        expect_bytes(seen["back"], data, f"{size} bytes that were there at their turn ({case.id})")
        last = later if case.id == "back, then in" else data
        expect_bytes(seen["memory"], last, f"{size} bytes of the device at the end ({case.id})")


def _own(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in ("long copies", "many copies"):
        if has_streams(target):
            yield Case(name)
        else:
            yield NotDeclaredCase(name, "/identity/torch_type", _NONE)


def waited_for(bench: Bench, *, device: int, pieces: list[bytes]) -> bytes:
    """Copies pieces in and back on a stream, waits once, and looks at once."""
    runtime = bench.runtime
    stream = runtime.create_stream(device)
    size = sum(map(len, pieces))
    memory, back = runtime.allocate_memory(size, device), emptied(bench, size)
    hosts, at, work = [pinned(bench, data) for data in pieces], 0, Work(bench, device)
    work.queue(stream, ROUNDS)  # so that all the others are still queued when it is waited for
    for host in hosts:
        runtime.copy_host_to_device(memory, host, offset=at, stream=stream)
        view = back[at : at + len(host)]
        runtime.copy_device_to_host(memory, view, offset=at, stream=stream)
        at += len(host)
    runtime.synchronize_stream(device, stream)
    seen = bytes(back)
    if seen == b"".join(pieces):
        memory.free()
        work.free()
    else:
        _KEPT.append((hosts, back, memory, stream, work))
    return seen


@rule(
    "L1.stream.wait",
    summary="when a wait for a stream returns, its work is done, all of it",
    why="Sampled tokens are read by the host after one wait a step. A wait that returns early "
    "gives the tokens of the step before, or half of a block that is swapped out.",
    cases=_own,
    needs=("L1.memory.pinned",),
)
def check_wait(bench: Bench, case: Case) -> None:
    """Queues long copies or many, waits once, and looks at once."""
    if case.id == "long copies":
        pieces = [content((bench.target.seed, "wait"), BULK)]
    else:
        draw = chance(bench.target, "wait")
        pieces = [draw.randbytes(draw.randrange(1, 1 << 15)) for _ in range(MANY)]
    seen = bench.observe(waited_for, device=index(bench), pieces=pieces)
    expect_bytes(seen, b"".join(pieces), "what was copied in and back, after the wait")


def _one(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if has_streams(target):
        yield Case("own stream")
    else:
        yield NotDeclaredCase("own stream", "/identity/torch_type", _NONE)


def across(bench: Bench, *, device: int, data: bytes) -> dict[str, Any]:
    """Long work and a small copy in on one stream; another waits for it, and copies back."""
    runtime, size = bench.runtime, len(data)
    host, back = pinned(bench, data), emptied(bench, size)
    work, memory = Work(bench, device), runtime.allocate_memory(size, device)
    looks.fill(bench, memory)
    first: Any = runtime.create_stream(device)
    second: Any = runtime.create_stream(device)
    work.queue(first, ROUNDS)
    runtime.copy_host_to_device(memory, host, stream=first)
    second.wait_stream(first)
    runtime.copy_device_to_host(memory, back, stream=second)
    runtime.synchronize_stream(device, second)
    seen = bytes(back)
    runtime.synchronize_stream(device, first)
    memory.free()
    work.free()
    return {"back": seen, "streams": f"{second} waited for {first}"}


@rule(
    "L1.stream.event",
    summary="a stream that waits for another one sees all that was queued there before",
    why="Blocks come back on a stream of their own, and the step's kernels wait for that by an "
    "event and not on the host. Where the event is no real mark, the step reads the old block.",
    cases=_one,
    needs=("L1.stream.order",),
)
def check_event(bench: Bench, case: Case) -> Observation:
    """Lets one stream wait for another one's long work."""
    draw = chance(bench.target, "event")
    data = content((bench.target.seed, "event"), draw.randrange(1, 8193))
    seen = bench.observe(across, device=index(bench), data=data)
    expect_bytes(seen["back"], data, "what the other stream copied in")
    return Observation(note=seen["streams"])


def of_device(bench: Bench, *, device: int, other: int) -> dict[str, Any]:
    """What a stream of a device says of itself, and how uses of streams of others ended."""
    runtime = bench.runtime
    stream: Any = runtime.create_stream(device)
    found = getattr(stream, "device", None)
    seen = {
        "given": stream is not None,
        "index": getattr(found, "index", getattr(stream, "device_id", None)),
        "no device": looks.attempt(lambda: runtime.create_stream(runtime.get_device_count())),
    }
    memory, host = runtime.allocate_memory(64, device), memoryview(bytearray(64))
    foreign: dict[str, Any] = {"nobody's": object()}
    if other != device:
        foreign[f"device {other}'s"] = runtime.create_stream(other)
    for name, given in foreign.items():
        seen[name] = [
            looks.attempt(partial(copy, memory, host, stream=given))
            for copy in (runtime.copy_host_to_device, runtime.copy_device_to_host)
        ]
    runtime.synchronize_stream(device)
    memory.free()
    return seen


@rule(
    "L1.stream.own",
    summary="a device that has streams gives one when asked, on the device that was named, and "
    "takes no other's",
    why="Swapping and copying beside the step's kernels need a queue of their own. None says that "
    "the device has no streams, and all work then waits in one; a stream of another device gets "
    "its work refused, or done elsewhere. One that is taken all the same leaves who waits for it "
    "with copies that are still under way: refuse it by a DeviceError.",
    cases=_one,
    needs=("L1.device.count",),
)
def check_own(bench: Bench, case: Case) -> None:
    """Makes streams on each device, and one on none; gives copies streams that are no one's."""
    devices = len(bench.target.record.devices)
    for device in range(devices):
        seen = bench.observe(of_device, device=device, other=(device + 1) % devices)
        if not seen["given"]:
            raise Failure(f"a stream of device {device}", "None, which says that it has none")
        if seen["index"] != device:
            raise Failure(f"a stream of device {device}", f"one of device {seen['index']}")
        if "kinds" not in seen["no device"]:
            raise Failure("an error for a stream of no device", seen["no device"]["gave"])
        for name in seen.keys() - {"given", "index", "no device"}:
            for tried in seen[name]:
                expect_refused(tried, DeviceError, f"a copy of device {device} on {name} stream")
