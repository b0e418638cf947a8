"""Asks the user-space libraries of drivers for their versions; run as a program of its own.

A library that crashes or hangs costs this process alone. It imports nothing of ours, so that it
starts in a few milliseconds: `python -I -S _driver_child.py` prints one JSON object a line.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator


def nvml() -> Iterator[tuple[str, str]]:
    """The kernel driver, the library itself, and the CUDA version that they serve."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2() != 0:
        return
    for component, call in (
        ("nvidia", library.nvmlSystemGetDriverVersion),
        ("nvml", library.nvmlSystemGetNVMLVersion),
    ):
        text = ctypes.create_string_buffer(96)
        if call(text, ctypes.c_uint(len(text))) == 0:
            yield component, text.value.decode("ascii", "replace")
    number = ctypes.c_int()
    if library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == 0:
        yield "cuda", decimal(number.value)


def cuda() -> Iterator[tuple[str, str]]:
    """The highest CUDA runtime that the loaded libcuda serves; needs no device."""
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
        yield "cuda", decimal(number.value)


def decimal(number: int) -> str:
    """12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def main() -> None:
    """Prints what each library says; one that is missing says nothing."""
    for source, ask in (("libnvidia-ml.so.1", nvml), ("libcuda.so.1", cuda)):
        try:
            for component, version in ask():
                print(json.dumps([component, version, source]), flush=True)
        except (OSError, AttributeError):  # no such library, or one without the function
            continue


if __name__ == "__main__":
    main()
