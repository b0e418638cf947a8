"""L1: streams, events and memory of a C library, asked past core: rules of `vllm_adapter.h`."""

from __future__ import annotations

from typing import Final

from vllm_adapter.errors import DeviceError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, rule
from vllm_adapter_conformance.device_side.library_work import (
    destroyed,
    handles,
    linked,
    multiples,
    reused,
    sentences,
)
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._expect import descriptor, expect_bytes, expect_refused, index
from vllm_adapter_conformance.rules.l1_library import of_library

STREAMS: Final = 300
EVENTS: Final = 3000
HELD: Final = 100
PIECE: Final = 1 << 20
BULK: Final = 16 << 20


@rule(
    "L1.library.handles",
    summary="streams and events can be made and destroyed without end, and dead ones are refused",
    why="A server makes an event for each step. Where the library's table of handles fills up, or "
    "is never cleaned, it ends after some hours; where a dead handle is taken, the wait for it "
    "waits for somebody else's work, or for nothing.",
    cases=of_library("stream", "event"),
    needs=("L1.library.freed",),
)
def check_handles(bench: Bench, case: Case) -> None:
    """Makes and destroys many, holds some at a time, and uses one that is destroyed."""
    kind, count = case.id, STREAMS if case.id == "stream" else EVENTS
    seen = bench.observe(handles, device=index(bench), kind=kind, count=count, held=HELD)
    for what, text in (
        ("one by one", f"{count} {kind}s, each destroyed before the next"),
        ("at a time", f"{HELD} {kind}s at a time"),
    ):
        if "kinds" in seen[what]:
            raise Failure(f"{text} to be made", seen[what]["said"])
    if seen["unlike"] != HELD:
        raise Failure(f"{HELD} {kind}s that are held to be unlike", f"{seen['unlike']} are")
    expect_refused(seen["used"], DeviceError, f"a {kind} that was destroyed")
    expect_refused(seen["destroyed"], DeviceError, f"destroying a {kind} twice")
    expect_refused(seen["never made"], DeviceError, f"a {kind} that was never made")


@rule(
    "L1.library.destroy",
    summary="work that was queued in a stream is done, though the stream was destroyed",
    why="A request ends, and with it its stream, while the last copies of its step are still "
    "queued. Where these are dropped with the queue, the next step reads what was there before. "
    "Wait for the queue when the stream is destroyed, or let it come to its end first.",
    cases=of_library("queued copies"),
    needs=("L1.library.handles", "L1.stream.wait"),
)
def check_destroy(bench: Bench, case: Case) -> None:
    """Destroys a stream in which long copies are queued, and a short one behind them."""
    data = content((bench.target.seed, "destroy"), 4099)
    seen = bench.observe(destroyed, device=index(bench), data=data, size=BULK)
    expect_bytes(seen, data, "memory that a copy writes whose stream was destroyed")


@rule(
    "L1.library.sentence",
    summary="last_error() is the sentence of the thread's own last failure",
    why="The sentence is what the user reads. One buffer for all threads tells a request that it "
    "asked for a bad alignment, when another one did. Keep it thread-local.",
    cases=of_library("two threads"),
    needs=("L1.device.open",),
)
def check_sentence(bench: Bench, case: Case) -> Observation:
    """Lets two threads fail in turn, and asks both after that."""
    seen = bench.observe(sentences, device=index(bench))
    for number, told in enumerate(seen):
        if not told["at once"] or told["at once"] != told["later"]:
            raise Failure(
                f"the sentence of thread {number}: {told['at once'] or 'one'!r}",
                f"{told['later']!r}",
            )
    return Observation(note=seen[0]["at once"])


@rule(
    "L1.library.reuse",
    summary="memory is given again only when the work that was queued before its release has "
    "passed it",
    why="A step's temporary tensors are released while its kernels are still queued: the deleter "
    "waits for no stream. Where the next allocation gets the block at once, somebody else writes "
    "into what these kernels read. Note the last work at the release, and wait for it before the "
    "block is given again.",
    cases=of_library("released while it is read"),
    needs=("L1.stream.wait",),
)
def check_reuse(bench: Bench, case: Case) -> Observation:
    """Releases what a queued copy reads, and writes into what is allocated then."""
    seed = bench.target.seed
    data, other = (content((seed, "reuse", n), PIECE) for n in range(2))
    seen = bench.observe(reused, device=index(bench), data=data, other=other)
    expect_bytes(seen["back"], data, "memory that was released while a copy from it was queued")
    return Observation(note=f"the block was given again: {seen['again']}")


@rule(
    "L1.library.link",
    summary="a copy from another device has its place in the target's stream, and is counted",
    why="A layer's input comes over the link, and the kernel behind it in the stream reads it. A "
    "copy that runs in the other device's queue comes too early or too late: the input of another "
    "step. `link_bytes` is how traffic is measured.",
    cases=of_library("in its place", devices=2),
    needs=("L1.stream.order", "L1.copy.between"),
)
def check_link(bench: Bench, case: Case) -> None:
    """Reads the target before and after the copy, in one stream, behind long work."""
    device, size = index(bench), chance(bench.target, "link").randrange(1000, 1 << 16)
    other = next(d.index for d in bench.target.record.devices if d.index != device)
    data, old = (content((bench.target.seed, "link", n), size) for n in range(2))
    seen = bench.observe(linked, device=device, other=other, data=data, old=old)
    expect_bytes(seen["before"], old, "what was read in the stream before the copy")
    expect_bytes(seen["after"], data, "what was read in the stream after the copy")
    if seen["counted"] != size:
        raise Failure(f"{size} bytes more in link_bytes of device {other}", f"{seen['counted']}")


@rule(
    "L1.library.alignment",
    summary="an alignment may be a multiple of the device's own, which holds where none is asked",
    why="A chip whose granule is no power of two has its vectors and pages at multiples of that "
    "granule. device_info says which; kernels, and core, go by it.",
    cases=of_library("multiples"),
    needs=("L1.memory.alignment",),
)
def check_alignment(bench: Bench, case: Case) -> Observation:
    """Asks for multiples of what device_info says, and for none."""
    draw = chance(bench.target, "multiples")
    sizes = [draw.randrange(1, 5000) for _ in range(4)] + [(1 << 20) + 1]
    seen = bench.observe(multiples, device=index(bench), sizes=sizes)
    for alignment, addresses in seen:
        for address in addresses:
            if address % alignment:
                raise Failure(
                    f"an address that is a multiple of {alignment}, of which the device's own "
                    "alignment is a part",
                    f"{address:#x}",
                )
    declared = descriptor(bench).memory.alignment_bytes
    return Observation(note=f"the device says {seen[0][0]}, declared: {declared}")
