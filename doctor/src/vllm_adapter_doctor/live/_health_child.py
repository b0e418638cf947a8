"""Asks NVIDIA's management library how its devices are; run as a program of its own.

A library that crashes or hangs costs this process alone. It imports nothing of ours:
`python -I -S _health_child.py` prints one JSON object a line, with the keys of `Health` and
`Accelerator`. A number that the library does not give is left out.

# upstream: nvidia-ml-py@13 pynvml.py (functions, structures, NVML_ERROR_* and the reasons' bits)
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST"""
UNKNOWN = 999
"""NVML_ERROR_UNKNOWN: what many drivers answer once a GPU has fallen off the bus."""
REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReason*, under the names that `nvidia-smi -q` gives them."""
_SM_CLOCK = 1
_GPU_TEMPERATURE = 0
_UNCORRECTED, _VOLATILE = 1, 0
_PROCESSES = 64
_NOT_KNOWN = (1 << 64) - 1


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t"""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")),
        ("bus_id", ctypes.c_char * 32),
    )


class MemoryInfo(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of the functions with _v3"""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def devices(library: ctypes.CDLL) -> Iterator[dict[str, Any]]:
    """One object a device; where none can be asked, one with `fault`."""
    code = library.nvmlInit_v2()
    if code != 0:
        yield {"fault": f"nvmlInit_v2 gave {code}"}
        return
    count = ctypes.c_uint()
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code != 0:
        yield {"fault": f"nvmlDeviceGetCount_v2 gave {code}"}
    for index in range(count.value):
        handle = ctypes.c_void_p()
        code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if code == 0:
            yield device(library, index, handle)
        elif code in (IS_LOST, UNKNOWN):  # else it is not ours to use, in a container for one
            key = "lost" if code == IS_LOST else "unreadable"
            yield {"index": index, key: "nvmlDeviceGetHandleByIndex_v2"}


def device(library: ctypes.CDLL, index: int, handle: ctypes.c_void_p) -> dict[str, Any]:
    """What the library says of one device; a call that says that it is lost is `lost`."""
    said: dict[str, Any] = {"index": index}

    def ask(name: str, *arguments: Any) -> bool:
        function: Callable[..., int] | None = getattr(library, name, None)
        code = None if function is None else function(handle, *arguments)
        if code == IS_LOST:
            said["lost"] = name
        return code == 0

    def whole(key: str, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> None:
        value = kind()
        if ask(name, *arguments, ctypes.byref(value)):
            said[key] = value.value

    pci, memory = PciInfo(), MemoryInfo()
    text = ctypes.create_string_buffer(96)
    if ask("nvmlDeviceGetPciInfo_v3", ctypes.byref(pci)):
        said["bus"] = pci.bus_id.decode("ascii", "replace")
    for key, name in (("name", "nvmlDeviceGetName"), ("uuid", "nvmlDeviceGetUUID")):
        if ask(name, text, ctypes.c_uint(len(text))):
            said[key] = text.value.decode("utf-8", "replace")
    if ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)):
        said |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
    whole("temperature_c", "nvmlDeviceGetTemperature", ctypes.c_uint(_GPU_TEMPERATURE))
    whole("power_mw", "nvmlDeviceGetPowerUsage")
    whole("power_cap_mw", "nvmlDeviceGetEnforcedPowerLimit")
    whole("clock_mhz", "nvmlDeviceGetClockInfo", ctypes.c_uint(_SM_CLOCK))
    whole("clock_max_mhz", "nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_SM_CLOCK))
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    if ask("nvmlDeviceGetMigMode", ctypes.byref(mode), ctypes.byref(pending)):
        said["mig"] = bool(mode.value)
    reasons = ctypes.c_ulonglong()
    # the older name of the two; drivers of all branches have it
    if ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(reasons)):
        said["throttled"] = [word for bit, word in REASONS.items() if reasons.value & bit]
    kinds = (ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(_VOLATILE))
    whole("uncorrected", "nvmlDeviceGetTotalEccErrors", *kinds, kind=ctypes.c_ulonglong)
    held, count = (ProcessInfo * _PROCESSES)(), ctypes.c_uint(_PROCESSES)
    if ask("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), held):
        said["processes"] = [
            [one.pid, None if one.used == _NOT_KNOWN else one.used]
            for one in held[: min(count.value, _PROCESSES)]
        ]
    return said


def main() -> None:
    """Prints what the library says; one that is missing or too old is a `fault`."""
    try:
        for said in devices(ctypes.CDLL(LIBRARY)):
            print(json.dumps(said), flush=True)
    except (OSError, AttributeError) as error:
        print(json.dumps({"fault": str(error)}), flush=True)


if __name__ == "__main__":
    main()
