"""What rules about a runtime judge with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.device_side.looks import DEVICE_POISON, HOST_POISON

if TYPE_CHECKING:
    from vllm_adapter.contract.capability import Capability
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.base.target import Target


def index(bench: Bench) -> int:
    """The device's index."""
    assert bench.target.device is not None
    return bench.target.device.index


def descriptor(bench: Bench) -> Capability:
    """The descriptor of the device."""
    assert bench.target.capability is not None
    return bench.target.capability


def torch_type(target: Target) -> str:
    """The device's torch type, such as "cpu"."""
    assert target.device is not None
    return target.device.torch.partition(":")[0]


def expect_bytes(got: bytes, want: bytes, what: str) -> None:
    """Raises a Failure with the bytes that differ, where they lie, and a guess at why."""
    if got == want:
        return
    if len(got) != len(want):
        raise Failure(f"{len(want)} bytes of {what}", f"{len(got)}")
    import numpy

    seen, right = (numpy.frombuffer(part, dtype=numpy.uint8) for part in (got, want))
    wrong = numpy.flatnonzero(seen != right)
    first, last, count = int(wrong[0]), int(wrong[-1]), len(wrong)
    guess = []
    if bool((seen[wrong] == HOST_POISON).all()):
        guess.append("They are what the host's buffer held before: is the copy back missing?")
    elif bool((seen[wrong] == DEVICE_POISON).all()):
        guess.append("They are what the device held before: did the copy to it happen?")
    elif not seen[wrong].any():
        guess.append("They are all zero.")
    if count > 1:
        guess.append(f"They lie from byte {first} to byte {last}.")
    raise Failure(
        f"{what}: byte {first} to be 0x{want[first]:02x}",
        f"0x{got[first]:02x}; {count} of {len(want)} bytes differ",
        detail=" ".join(guess),
    )


def expect_refused(seen: Mapping[str, Any], kind: type[Exception], what: str) -> None:
    """Raises a Failure unless an attempt ended in this error, or one derived from it."""
    if kind.__name__ in seen.get("kinds", ()):
        return
    if "kinds" in seen:
        raise Failure(f"{kind.__name__} for {what}", f"{seen['kinds'][0]}: {seen['said']}")
    raise Failure(f"{kind.__name__} for {what}", f"no error; it returned {seen['gave']}")
