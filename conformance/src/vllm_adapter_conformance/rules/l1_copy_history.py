"""L1: copies one after the other, many, and at a time: what came before must not matter."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import _looks as looks
from vllm_adapter_conformance.rules._drawn import MIB, PAGE, between, chance, content
from vllm_adapter_conformance.rules._memory import expect_bytes, index
from vllm_adapter_conformance.rules._torch_streams import has_streams

MANY: Final = 1500
STREAM_STEPS: Final = 8
THREADS: Final = 3
ROUNDS: Final = 12
_KEPT: Final[list[object]] = []
"""Buffers that a device may still write into, since its wait did not wait."""


def _detached(target: Target) -> Iterator[Case]:
    draw = chance(target, "detached")
    yield Case("4097 bytes", {"sizes": [4097]})
    sizes = [between(draw, 1 << 16, 1 << 20), between(draw, MIB, 4 * MIB), 8 * MIB + 1]
    yield Case("drawn", {"sizes": sizes})


def detached(bench: Bench, *, device: int, first: bytes, second: bytes) -> dict[str, bytes]:
    """What both sides hold when the other one is overwritten as soon as a copy has returned."""
    runtime, host = bench.runtime, bytearray(first)
    memory = runtime.allocate_memory(len(first), device)
    runtime.copy_host_to_device(memory, memoryview(host))
    host[:] = second
    kept = looks.get(bench, memory)
    put = bytearray(first)
    looks.put(bench, memory, bytes(put))
    back = bytearray([looks.HOST_POISON]) * len(first)
    runtime.copy_device_to_host(memory, memoryview(back))
    at_once = bytes(back)
    looks.put(bench, memory, second)
    later = bytes(back)
    if at_once != later:
        _KEPT.append(back)
    memory.free()
    return {"device": kept, "at once": at_once, "later": later}


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


def in_turn(bench: Bench, *, device: int, contents: Sequence[bytes]) -> list[bytes]:
    """What one piece of memory, and one buffer of the host, hold after each of several copies."""
    runtime, size = bench.runtime, len(contents[0])
    memory, back = runtime.allocate_memory(size, device), bytearray(size)
    try:
        seen = []
        for data in contents:
            looks.put(bench, memory, data)
            runtime.copy_device_to_host(memory, memoryview(back))
            runtime.synchronize_stream(device)
            seen.append(bytes(back))
        return seen
    finally:
        memory.free()


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


def many(bench: Bench, *, device: int, pieces: Sequence[tuple[int, bytes]]) -> dict[str, Any]:
    """Writes many pieces by a copy each, and reads them back by a copy each."""
    runtime = bench.runtime
    size = max(at + len(data) for at, data in pieces)
    memory = runtime.allocate_memory(size, device)
    try:
        looks.fill(bench, memory)
        for at, data in pieces:
            runtime.copy_host_to_device(memory, memoryview(bytearray(data)), offset=at)
        whole = looks.get(bench, memory)
        back = bytearray([looks.HOST_POISON]) * size
        for at, data in pieces:
            view = memoryview(back)[at : at + len(data)]
            runtime.copy_device_to_host(memory, view, offset=at)
        runtime.synchronize_stream(device)
        return {"memory": whole, "back": bytes(back)}
    finally:
        memory.free()


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


def on_stream(
    bench: Bench, *, device: int, own: bool, contents: Sequence[bytes]
) -> dict[str, Any]:
    """One place written and read in turns on a stream, with one wait at the end."""
    runtime, size = bench.runtime, len(contents[0])
    stream = runtime.create_stream(device) if own else None
    sources, targets = [], []
    for data in contents:
        source, target = (runtime.allocate_pinned_memory(size).cast("B") for _ in range(2))
        source[:], target[:] = data, bytes(size)
        sources.append(source)
        targets.append(target)
    memory = runtime.allocate_memory(size, device)
    for source, target in zip(sources, targets, strict=True):
        runtime.copy_host_to_device(memory, source, stream=stream)
        runtime.copy_device_to_host(memory, target, stream=stream)
    runtime.synchronize_stream(device, stream)
    seen = [bytes(target) for target in targets]
    if seen != list(contents):
        _KEPT.append((memory, sources, targets))
    else:
        memory.free()
    return {"stream": None if stream is None else str(stream), "seen": seen}


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


def at_a_time(
    bench: Bench, *, device: int, turns: Sequence[Sequence[tuple[int, bytes]]]
) -> list[list[bytes]]:
    """Each thread allocates, writes at an offset, reads all and frees, some times.

    Seen is what each has read, by thread and turn.
    """
    errors: list[BaseException] = []
    start = threading.Barrier(len(turns))
    seen: list[list[bytes]] = [[] for _ in turns]

    def work(number: int) -> None:
        try:
            start.wait()
            for offset, data in turns[number]:
                memory = bench.runtime.allocate_memory(offset + len(data), device)
                looks.put(bench, memory, data, offset)
                seen[number].append(looks.get(bench, memory, len(data), offset))
                memory.free()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(turns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return seen


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
