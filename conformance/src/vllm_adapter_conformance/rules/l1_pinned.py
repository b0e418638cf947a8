"""L1: pinned memory of the host, through which weights and swapped blocks are staged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.pinned import staged
from vllm_adapter_conformance.rules._drawn import MIB, between, chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, index

CAN_TELL: Final = ("cuda", "xpu")
"""Device types of torch's own whose pinned memory torch can tell from plain memory."""


def _pinned(target: Target) -> Iterator[Case | NotDeclaredCase]:
    draw = chance(target, "pinned")
    for size in (0, 1, 4097, MIB + 3):
        yield Case(f"{size} bytes", {"sizes": [size]})
    yield Case("a dozen of one size", {"sizes": [draw.choice((4096, MIB, MIB // 2))] * 12})
    yield Case("drawn", {"sizes": [between(draw, 1, 8 * MIB) for _ in range(6)] + [8 * MIB] * 2})
    kind = target.device.torch.partition(":")[0] if target.device else ""
    if kind in CAN_TELL and target.emulator is None:
        yield Case("really pinned", {"sizes": [4096, MIB]})
    else:
        reason = f"torch cannot tell pinned memory of {kind or 'this device'} from plain memory"
        yield NotDeclaredCase("really pinned", "/identity/torch_type", reason)


@rule(
    "L1.memory.pinned",
    summary="pinned memory is as long as asked, its own, can be written, and is copied both ways",
    why="Weights and swapped blocks are staged through it, several at a time. Memory that is "
    "shorter than was asked for, or read-only, fails in the middle of loading a model; buffers "
    "that share their memory mix two tensors. A view has one byte an element, so that `view[:n]` "
    "is n bytes. Memory that is not pinned is copied while everything waits, at half the speed.",
    cases=_pinned,
    needs=("L1.copy.round_trip",),
)
def check_pinned(bench: Bench, case: Case) -> Observation:
    """Round trips whose both ends on the host are pinned, with all buffers held at a time."""
    sizes, seed = case.params["sizes"], bench.target.seed
    contents = [content((seed, "pinned", case.id, n), size) for n, size in enumerate(sizes)]
    seen = bench.observe(staged, device=index(bench), contents=contents)
    for number, (told, data) in enumerate(zip(seen, contents, strict=True)):
        size = len(data)
        if told["read-only"] or told["bytes"] != [size, size] or told["lengths"] != [size, size]:
            raise Failure(
                f"{size} bytes that may be written, one an element",
                f"{told['bytes']} bytes in {told['lengths']} elements, "
                f"{'read-only' if told['read-only'] else 'writable'}",
            )
        what = f"pinned buffer {number} of {len(sizes)} with {size} bytes"
        expect_bytes(told["out"], data, f"{what}, after all were filled")
        expect_bytes(told["back"], data, f"{what}, copied in and back")
        if case.id == "really pinned" and told["pinned"] is not True:
            raise Failure("memory that torch calls pinned", str(told["pinned"]))
    return Observation(note=f"is_pinned: {seen[-1].get('pinned')}")
