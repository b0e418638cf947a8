"""L1: what an allocation is: its size and address, its tensors, and its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from vllm_adapter.errors import AllocationFreed, DeviceError, OutOfBounds
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, once, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side import looks
from vllm_adapter_conformance.device_side.allocations import (
    addresses,
    asked_for,
    described,
    freed_by_two,
    held_together,
    through_tensors,
    used_after,
)
from vllm_adapter_conformance.rules._drawn import MIB, beside, between, chance, content
from vllm_adapter_conformance.rules._expect import (
    expect_bytes,
    expect_refused,
    index,
    torch_type,
)

POWERS: Final = tuple(1 << power for power in range(22))
"""Alignments up to 2 MiB."""
POOL: Final = 200


def _sizes(target: Target) -> Iterator[Case]:
    draw = chance(target, "allocate")
    for size in (0, 1, 4095, 4096, 4097, MIB + 3):
        yield Case(f"{size} bytes", {"sizes": [size]})
    drawn = [between(draw, 2, 1 << 26) for _ in range(6)]
    yield Case("drawn", {"sizes": [*drawn, beside(draw, draw.randrange(5, 26))]})


@rule(
    "L1.memory.allocate",
    summary="an allocation has the size, device and address that were asked for",
    why="Tensors of the KV cache and of weights are views of these allocations. One that is too "
    "short lets the last block write into somebody else's memory; one of no bytes is asked for by "
    "an empty layer, and is an allocation like any other.",
    cases=_sizes,
    needs=("L1.device.open",),
)
def check_allocate(bench: Bench, case: Case) -> None:
    """Looks at what an allocation says of itself."""
    device = index(bench)
    for size in case.params["sizes"]:
        seen = bench.observe(described, device=device, size=size)
        got = (seen["size"], seen["bytes"], seen["dimensions"])
        if got != (size, size, 1):
            raise Failure(f"{size} bytes in one dimension", f"(size, bytes, dimensions) = {got}")
        kind, _, number = seen["torch"].partition(":")
        right = kind == torch_type(bench.target) and (kind == "cpu" or int(number or 0) == device)
        if seen["device"] != device or not right:
            raise Failure(f"memory on device {device} ({torch_type(bench.target)})", seen["torch"])
        if seen["address"] != seen["data_ptr"] or (size and not seen["address"]):
            raise Failure("the address of the storage", f"{seen['address']:#x}")
        if seen["live"]:
            raise Failure("free() to end the allocation", "it still says that it is live")


def _alignments(target: Target) -> Iterator[Case | NotDeclaredCase]:
    draw = chance(target, "alignment")
    for alignment in POWERS:
        sizes = [
            draw.randrange(1, 64),
            draw.randrange(64, 4096),
            between(draw, 4097, MIB),
            MIB + draw.randrange(1, 4096),
        ]
        if alignment > MIB // 4:
            sizes = [sizes[0], sizes[3]]
        yield Case(str(alignment), {"alignment": alignment, "asked": alignment, "sizes": sizes})
    memory = target.capability.memory if target.capability else None
    declared = memory.alignment_bytes if memory else None
    if declared is not None:
        id, pointer = f"default ({declared})", "/memory/alignment_bytes"
        if target.emulator is None:
            sizes = [1, 3, 65, 4095, 17, *(between(draw, 1, 8 * MIB) for _ in range(8)), MIB + 1]
            params = {"alignment": declared, "asked": None, "sizes": sizes}
            yield Case(id, params, pointer)
        else:
            yield NotDeclaredCase(
                id, pointer, f"the memory is {target.emulator.name}'s, no chip's"
            )


@rule(
    "L1.memory.alignment",
    summary="addresses are multiples of the alignment that was asked for, up to 2 MiB, or is "
    "declared",
    why="Vector loads and DMA engines fault on, or silently round down, an address that is not "
    "aligned; pages of 2 MiB are asked for by the cache. It holds for a byte as for a gigabyte. "
    "Allocate more and shift, if the vendor's allocator promises less; or declare what it really "
    "promises in memory.alignment_bytes.",
    cases=_alignments,
    needs=("L1.memory.allocate",),
)
def check_alignment(bench: Bench, case: Case) -> None:
    """Holds several of each size at a time, small and large, so that none is aligned by luck."""
    alignment, asked = case.params["alignment"], case.params["asked"]
    sizes = case.params["sizes"]
    requests = [(size, asked) for size in sizes]
    seen = bench.observe(addresses, device=index(bench), requests=requests)
    for size, found in zip(sizes, seen, strict=True):
        for address in found:
            if address % alignment:
                raise Failure(
                    f"an address that is a multiple of {alignment}",
                    f"{address:#x} for {size} bytes",
                )


def _wrong_requests(target: Target) -> Iterator[Case]:
    yield Case("alignment 3", {"size": 64, "alignment": 3})
    yield Case("alignment 0", {"size": 64, "alignment": 0})
    yield Case("alignment -8", {"size": 64, "alignment": -8})
    yield Case("size -1", {"size": -1, "alignment": None})
    yield Case("size -2^40", {"size": -(1 << 40), "alignment": None})


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
    seen = bench.observe(asked_for, device=index(bench), **case.params)
    what = f"{case.params['size']} bytes aligned to {case.params['alignment']}"
    expect_refused(seen, DeviceError, what)


def _together(target: Target) -> Iterator[Case]:
    draw = chance(target, "disjoint")
    few = [1, 63, 64, 65, 4095, 4096, 4097, 1, 100_001, 17, 2, MIB]
    yield Case("a dozen", {"sizes": few})
    yield Case("many small", {"sizes": [between(draw, 1, 4096) for _ in range(POOL)]})
    yield Case("large", {"sizes": [between(draw, MIB, 6 * MIB) for _ in range(5)]})


@rule(
    "L1.memory.disjoint",
    summary="allocations that live at a time do not overlap",
    why="Where they do, one request's keys are another's values: output that depends on who "
    "else is served. Usual cause: the requested size is rounded in one place and not in another, "
    "or a pool gives its oldest piece again.",
    cases=_together,
    needs=("L1.copy.round_trip", "L1.memory.allocate"),
)
def check_disjoint(bench: Bench, case: Case) -> None:
    """Fills each with its own bytes, then reads all; and compares the ranges."""
    seed = bench.target.seed
    contents = [content((seed, "held", n), size) for n, size in enumerate(case.params["sizes"])]
    seen = bench.observe(held_together, device=index(bench), contents=contents)
    for number, (got, want) in enumerate(zip(seen["contents"], contents, strict=True)):
        expect_bytes(got, want, f"allocation {number} of {len(want)} bytes")
    for (start, end), (following, _) in itertools.pairwise(sorted(seen["ranges"])):
        if following < end:
            raise Failure(
                "ranges of addresses that do not overlap",
                f"{start:#x} to {end:#x} and one from {following:#x}",
            )


@rule(
    "L1.memory.tensor",
    summary="tensors over an allocation lie where they were asked for, inside it, and do not end "
    "it",
    why="Keys and values of a block are tensors at offsets of one allocation. An offset that is "
    "lost lets values overwrite keys; one tensor beyond the end, the next layer's; and a memory "
    "that goes with its first view is somebody else's by the next step.",
    cases=once,
    needs=("L1.copy.round_trip", "L1.memory.allocate"),
)
def check_tensor(bench: Bench, case: Case) -> None:
    """Writes by tensors of several dtypes, drops them, takes other memory, and looks."""
    draw, size = chance(bench.target, "tensor"), 1 << 14
    views, want = [], bytearray([looks.DEVICE_POISON]) * size
    for number, (name, width) in enumerate((("float32", 4), ("uint8", 1), ("float16", 2))):
        offset, count = 4096 * number + 16 * draw.randrange(1, 60), draw.randrange(1, 300)
        data = draw.randbytes(count * width)
        views.append((offset, count, name, data))
        want[offset : offset + len(data)] = data
    seen = bench.observe(through_tensors, device=index(bench), size=size, views=views)
    for (offset, count, name, _), said in zip(views, seen["said"], strict=True):
        if tuple(said) != (offset, count, f"torch.{name}"):
            raise Failure(
                f"(offset, elements, dtype) = {(offset, count, f'torch.{name}')}", str(said)
            )
    for tried in seen["beyond"]:
        expect_refused(tried, OutOfBounds, "a tensor that leaves its allocation")
    expect_bytes(seen["memory"], bytes(want), "memory written through tensors that are gone")


def _uses(target: Target) -> Iterator[Case]:
    for use in ("free", "address", "storage", "tensor", "copy to it", "copy from it"):
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
    """Frees an allocation and uses it, before and after its memory is others'."""
    draw = chance(bench.target, "freed", case.id)
    for size in (64, between(draw, 1, MIB)):
        seen = bench.observe(used_after, device=index(bench), use=case.id, size=size)
        for tried in seen:
            expect_refused(tried, AllocationFreed, f"{case.id} after free() of {size} bytes")


@rule(
    "L1.memory.freed_once",
    summary="of two threads that free one allocation, one succeeds and the other is told",
    why="A request that is aborted while it ends is freed by two threads. If both succeed, its "
    "memory is handed out twice, and two requests write into each other's cache.",
    cases=once,
    needs=("L1.memory.freed",),
)
def check_freed_once(bench: Bench, case: Case) -> None:
    """Lets two threads free at a time."""
    wanted = sorted(["freed", AllocationFreed.__name__])
    for seen in bench.observe(freed_by_two, device=index(bench)):
        if seen != wanted:
            raise Failure("one free() to succeed and one to raise AllocationFreed", str(seen))
