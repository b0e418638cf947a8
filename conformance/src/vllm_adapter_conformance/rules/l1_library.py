"""L1: what a device's C library refuses when it is asked past core: rules of `vllm_adapter.h`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from vllm_adapter.errors import DeviceError, OutOfMemory
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._expect import descriptor, expect_refused, index

if TYPE_CHECKING:
    pass


from vllm_adapter_conformance.device_side.library_calls import (
    PIECE,
    after_release,
    forked,
    of_another,
    sized,
)

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
