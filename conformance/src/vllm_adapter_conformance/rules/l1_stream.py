"""L1: streams of their own: work of one keeps its order, a wait waits, another one can wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.errors import DeviceError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.stream import across, in_order, of_device, waited_for
from vllm_adapter_conformance.device_side.torch_streams import BULK
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, expect_refused, index
from vllm_adapter_conformance.rules._streams import has_streams

MANY: Final = 24
_NONE: Final = "the CPU has no streams"


def _orders(target: Target) -> Iterator[Case | NotDeclaredCase]:
    draw = chance(target, "order")
    for name in ("in, then back", "back, then in", "on the device, then back"):
        if has_streams(target):
            sizes = [draw.randrange(1, 512), draw.randrange(513, 8193)]
            yield Case(name, {"sizes": sizes})
        else:
            yield NotDeclaredCase(name, "/identity/torch_type", _NONE)


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
