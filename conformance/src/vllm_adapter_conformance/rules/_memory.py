"""What rules about a runtime judge with, and how a process counts its own memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.rules._looks import DEVICE_POISON, HOST_POISON

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


def _give_back_free_pages() -> None:
    """malloc_trim, where the C library has it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        gc.collect()
        trim(0)


def held_by_process() -> int:
    """Bytes that this process has written and not given back, swapped out or not.

    Not the resident size: a system that takes idle pages away would hide a leak. Pages that the
    host's allocator keeps free are given back first: a leak would be served from them unseen.
    """
    _give_back_free_pages()
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = (line.partition(":") for line in status.splitlines())
    kib = {name: value.split()[0] for name, _, value in fields if value.endswith(" kB")}
    resident = kib.get("RssAnon") or kib["VmRSS"]  # some sandboxes tell only the sum
    return (int(resident) + int(kib.get("VmSwap", 0))) * 1024


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_by_process() -> dict[str, int]:
    """What is allocated and not freed, to the byte: as the C library and Python count it.

    Not every C library counts.
    """
    gc.collect()
    found = {"Python objects": sys.getallocatedblocks()}
    held = malloc_bytes()
    if held is not None:
        found["bytes of malloc"] = held
    return found


def malloc_bytes() -> int | None:
    """What is allocated of the C library's malloc and not freed; None: it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _MallInfo
    info = ask()
    return int(info.uordblks) + int(info.hblkhd)
