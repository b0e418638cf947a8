"""L1: copies one after the other, many, and at a time: what came before must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.copy_history import (
    at_a_time,
    detached,
    in_turn,
    many,
    on_stream,
)
from vllm_adapter_conformance.rules._drawn import MIB, PAGE, between, chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, index
from vllm_adapter_conformance.rules._streams import has_streams

MANY: Final = 1500
STREAM_STEPS: Final = 8
THREADS: Final = 3
ROUNDS: Final = 12


def _detached(target: Target) -> Iterator[Case]:
    draw = chance(target, "detached")
    yield Case("4097 bytes", {"sizes": [4097]})
    sizes = [between(draw, 1 << 16, 1 << 20), between(draw, MIB, 4 * MIB), 8 * MIB + 1]
    yield Case("drawn", {"sizes": sizes})


@rule(
    "L1.copy.detached",
    summary="a copy without a stream is done when it returns, and neither side matters to the "
    "other after that",
    why="Loaders use one staging buffer for all tensors, and the host reads sampled tokens right "
    "after their copy. A runtime that keeps a reference, copies later than it says, or waits for "
    "small copies alone gives every tensor the bytes of the last one.",
    cases=_detached,
    needs=("L1.copy.round_trip",),
)
def check_detached(bench: Bench, case: Case) -> None:
    """Overwrites the host's buffer after each direction's copy has returned, and looks at once."""
    for size in case.params["sizes"]:
        data, other = (content((bench.target.seed, "detached", size, n), size) for n in range(2))
        seen = bench.observe(detached, device=index(bench), first=data, second=other)
        what = f"{size} bytes"
        expect_bytes(seen["device"], data, f"{what} on the device after the host's buffer changed")
        expect_bytes(seen["at once"], data, f"{what} on the host when the copy has returned")
        expect_bytes(seen["later"], data, f"{what} on the host after the device changed")


def _again(target: Target) -> Iterator[Case]:
    draw = chance(target, "again")
    for kind in ("one byte differs", "another end", "zeros over bytes"):
        yield Case(kind, {"sizes": [between(draw, 64, PAGE), between(draw, PAGE, MIB)]})


@rule(
    "L1.copy.again",
    summary="contents that are nearly the ones before are copied all the same",
    why="A block table changes in one entry from step to step. A runtime that knows contents by "
    "their address, size or first bytes, or leaves out zeros, keeps the old ones.",
    cases=_again,
    needs=("L1.copy.round_trip",),
)
def check_again(bench: Bench, case: Case) -> None:
    """Copies contents that differ little, over each other, and reads each back."""
    for size in case.params["sizes"]:
        draw = chance(bench.target, "again", case.id, size)
        first = content((bench.target.seed, "again", size), size)
        changed = bytearray(first)
        if case.id == "one byte differs":
            changed[draw.choice((0, size // 2, size - 1, draw.randrange(size)))] ^= 0x40
        elif case.id == "another end":
            changed[size // 2 :] = draw.randbytes(size - size // 2)
        else:
            changed = bytearray(size)
        contents = [first, bytes(changed), first]
        seen = bench.observe(in_turn, device=index(bench), contents=contents)
        for number, (got, want) in enumerate(zip(seen, contents, strict=True)):
            expect_bytes(got, want, f"copy {number + 1} of {size} bytes ({case.id})")


def _many(target: Target) -> Iterator[Case]:
    yield Case(f"{MANY} small copies")


@rule(
    "L1.copy.many",
    summary="many small copies all arrive",
    why="A step copies lengths, positions and tables, some thousand times a minute. A ring of "
    "descriptors that is lapped, or a queue that is full, loses one copy in many: a wrong token "
    "that no short test has ever seen.",
    cases=_many,
    needs=("L1.copy.round_trip",),
)
def check_many(bench: Bench, case: Case) -> None:
    """Writes and reads pieces of 1 to 64 bytes, side by side."""
    draw, pieces, at = chance(bench.target, "many"), [], 0
    for _ in range(MANY):
        data = draw.randbytes(draw.randrange(1, 65))
        pieces.append((at, data))
        at += len(data)
    seen = bench.observe(many, device=index(bench), pieces=pieces)
    want = b"".join(data for _, data in pieces)
    expect_bytes(seen["memory"], want, f"{MANY} pieces on the device")
    expect_bytes(seen["back"], want, f"{MANY} pieces on the host")


def _streams(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case("current stream", {"own": False})
    if has_streams(target):
        yield Case("own stream", {"own": True})
    else:
        yield NotDeclaredCase("own stream", "/identity/torch_type", "the CPU has no streams")


@rule(
    "L1.copy.stream",
    summary="copies on a stream keep their order, and are complete after it is waited for",
    why="Blocks are swapped on a stream of their own while others compute. Copies out of order "
    "bring back old bytes; a wait that does not wait lets a request read them too early.",
    cases=_streams,
    needs=("L1.copy.round_trip", "L1.memory.pinned"),
)
def check_stream(bench: Bench, case: Case) -> Observation:
    """Few large and many small copies, of one place each, with one wait at the end."""
    own, draw, stream = case.params["own"], chance(bench.target, "stream", case.id), None
    for steps, size in ((STREAM_STEPS, MIB), (draw.randrange(40, 64), draw.randrange(1, PAGE))):
        contents = [content((bench.target.seed, "stream", n), size) for n in range(steps)]
        seen = bench.observe(on_stream, device=index(bench), own=own, contents=contents)
        if own and seen["stream"] is None:
            raise Failure("create_stream to give a stream", "None, which says that there are none")
        for number, (got, want) in enumerate(zip(seen["seen"], contents, strict=True)):
            expect_bytes(got, want, f"step {number} of {steps} with {size} bytes")
        stream = seen["stream"]
    return Observation(note="" if stream is None else f"on {stream}")


def _threads(target: Target) -> Iterator[Case]:
    yield Case(f"{THREADS} threads")


@rule(
    "L1.device.threads",
    summary="three threads may allocate, copy and free at a time",
    why="vLLM loads weights and serves requests from several threads. A runtime that keeps the "
    "current device, an offset or a staging buffer in one place for all of them mixes their data.",
    cases=_threads,
    needs=("L1.copy.round_trip", "L1.memory.allocate"),
)
def check_threads(bench: Bench, case: Case) -> None:
    """Each thread writes and reads its own memory many times, at offsets and sizes of its own."""
    draw = chance(bench.target, "threads")
    turns = [
        [
            (draw.randrange(0, 3000), content((bench.target.seed, number, turn), size))
            for turn in range(ROUNDS)
            for size in [draw.choice((4097 + turn, between(draw, 1, 1 << 17), 1 << 20 | turn))]
        ]
        for number in range(THREADS)
    ]
    seen = bench.observe(at_a_time, device=index(bench), turns=turns)
    for number, mine in enumerate(turns):
        for turn, (offset, data) in enumerate(mine):
            what = f"thread {number}, turn {turn}: {len(data)} bytes at {offset}"
            expect_bytes(seen[number][turn], data, what)
