"""L1: copies that must be refused, and those of nothing, which must not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.errors import DeviceError, OutOfBounds
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, once, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side import looks
from vllm_adapter_conformance.device_side.copy_refused import beyond, of_nothing, read_only
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, expect_refused, index

WHOLE: Final = 8192


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
    data = content((bench.target.seed, "read-only"), 4097)
    seen = bench.observe(read_only, device=index(bench), data=data)
    expect_bytes(seen["memory"], data, "a copy of read-only bytes")
    expect_refused(seen["into"], DeviceError, "a copy into read-only memory")
    expect_bytes(seen["constant"], bytes(len(data)), "the read-only destination")


def _out_of_bounds(target: Target) -> Iterator[Case]:
    draw = chance(target, "bounds")
    places = [
        (0, 65),
        (1, 64),
        (64, 1),
        (-1, 1),
        (65, 0),
        (1 << 40, 1),
        (1 << 32, 8),
        (1 << 63, 1),
    ]
    for offset, length in places:
        yield Case(f"{length} at {offset}", {"size": 64, "offset": offset, "length": length})
    size = draw.randrange(100, 3 * WHOLE)
    offset = draw.randrange(1, size)
    params = {"size": size, "offset": offset, "length": size - offset + draw.randrange(1, 4)}
    yield Case("drawn", params)


@rule(
    "L1.copy.bounds",
    summary="a copy that would leave its allocation raises OutOfBounds and copies nothing",
    why="Such a copy is a defect of the caller, which is found here or as another tensor's wrong "
    "numbers. Nothing may be copied, so that the state is the one before the call, and the next "
    "copy has to work: a lock that the refusal left taken ends the server.",
    cases=_out_of_bounds,
    needs=("L1.copy.round_trip",),
)
def check_bounds(bench: Bench, case: Case) -> None:
    """Tries both directions, then looks at both sides by a copy that is right."""
    given = case.params
    seen = bench.observe(beyond, device=index(bench), **given)
    what = f"{given['length']} bytes at {given['offset']} of {given['size']}"
    expect_refused(seen["to"], OutOfBounds, f"a copy of {what} to the device")
    expect_refused(seen["back"], OutOfBounds, f"a copy of {what} from the device")
    before = bytes([looks.DEVICE_POISON]) * given["size"]
    expect_bytes(seen["memory"], before, "the device's memory after the refusals")
    expect_bytes(seen["host"], bytes(given["length"]), "the host's memory after the refusals")


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
    seen = bench.observe(of_nothing, device=index(bench))
    expect_bytes(seen, bytes([looks.DEVICE_POISON]) * 64, "the device's memory after empty copies")
