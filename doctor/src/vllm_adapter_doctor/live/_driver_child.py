"""Asks the user-space libraries of drivers for their versions; run as a program of its own.

A library that crashes or hangs costs this process alone. It imports nothing of ours, so that it
starts in a few milliseconds: `python -I -S _driver_child.py` prints one JSON object a line.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from typing import Any


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t. # upstream: nvidia-ml-py@13 pynvml.py (nvmlPciInfo_t)"""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")),
        ("bus_id", ctypes.c_char * 32),
    )


def nvml() -> Iterator[dict[str, Any]]:
    """The kernel driver, the library itself, the CUDA version that they serve, and devices."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2() != 0:
        return
    for component, call in (
        ("nvidia", library.nvmlSystemGetDriverVersion),
        ("nvml", library.nvmlSystemGetNVMLVersion),
    ):
        text = ctypes.create_string_buffer(96)
        if call(text, ctypes.c_uint(len(text))) == 0:
            yield {
                "component": component,
                "version": release(text.value.decode("ascii", "replace")),
            }
    number = ctypes.c_int()
    if library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == 0:
        yield {"component": "cuda", "version": decimal(number.value)}
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        yield from device(library, index)


def release(version: str) -> str:
    """The driver's own number: NVML puts its CUDA major before it, as in 13.580.159.04."""
    first, _, rest = version.partition(".")
    second = rest.partition(".")[0]
    prefixed = first.isdecimal() and int(first) < 100 and second.isdecimal() and int(second) >= 300
    return rest if prefixed else version


def device(library: ctypes.CDLL, index: int) -> Iterator[dict[str, Any]]:
    """One device's bus address and compute capability, which no table of nvidia-smi prints."""
    handle, pci = ctypes.c_void_p(), PciInfo()
    major, minor = ctypes.c_int(), ctypes.c_int()
    if (
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
        and library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == 0
        and library.nvmlDeviceGetCudaComputeCapability(
            handle, ctypes.byref(major), ctypes.byref(minor)
        )
        == 0
    ):
        bus = pci.bus_id.decode("ascii", "replace")
        yield {"index": index, "bus": bus, "arch": f"sm_{major.value}{minor.value}"}


def cuda() -> Iterator[dict[str, Any]]:
    """The highest CUDA runtime that the loaded libcuda serves; needs no device."""
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
        yield {"component": "cuda", "version": decimal(number.value)}


def decimal(number: int) -> str:
    """12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def main() -> None:
    """Prints what each library says; one that is missing says nothing."""
    for source, ask in (("libnvidia-ml.so.1", nvml), ("libcuda.so.1", cuda)):
        try:
            for said in ask():
                print(json.dumps({**said, "source": source}), flush=True)
        except (OSError, AttributeError):  # no such library, or one without the function
            continue


if __name__ == "__main__":
    main()
