"""What the process and the device hold now, by every count that there is."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.bench import Bench

STATUS: Final = Path("/proc/self/status")


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def counted(bench: Bench) -> dict[str, float]:
    """Bytes and objects; not every C library, system and runtime counts all of them."""
    gc.collect()
    library = ctypes.CDLL(None)
    found: dict[str, float] = {"Python objects": sys.getallocatedblocks()}
    ask = getattr(library, "mallinfo2", None)
    if ask is not None:
        ask.restype = _MallInfo
        info = ask()
        found["bytes of malloc"] = int(info.uordblks) + int(info.hblkhd)
    trim = getattr(library, "malloc_trim", None)
    if trim is not None:
        trim(0)  # pages that the allocator keeps free are no leak
    if STATUS.is_file():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                found["bytes of the process"] = 1024 * int(line.split()[1])
    stats = bench.runtime.memory_stats(bench.opened.record.index)
    if stats.source != "allocations":  # which counts no tensors
        found["bytes on the device"] = stats.allocated_bytes
    return found
