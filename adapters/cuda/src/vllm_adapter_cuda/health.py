"""Asks NVML how the devices are, through NVIDIA's own binding.

`python -m vllm_adapter_cuda.health` prints one JSON object a line, with the fields of
`vllm_adapter_doctor.live.reader_lines`. A value that the library does not give is left out. The
doctor runs it as a child process, so that a driver that crashes or hangs costs this process alone;
it imports neither torch nor core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

SOURCE: Final = "libnvidia-ml.so.1"
IS_LOST: Final = 15
"""NVML_ERROR_GPU_IS_LOST"""
UNKNOWN: Final = 999
"""NVML_ERROR_UNKNOWN: what many drivers answer once a GPU has fallen off the bus."""
NO_LIBRARY: Final = 12
"""NVML_ERROR_LIBRARY_NOT_FOUND"""
REASONS: Final[Mapping[int, str]] = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReason*, under the names that `nvidia-smi -q` gives them."""
_SM_CLOCK: Final = 1
_GPU_TEMPERATURE: Final = 0
_UNCORRECTED: Final = (1, 0)
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED since the driver was loaded, NVML_VOLATILE_ECC."""
_HANDLE: Final = "nvmlDeviceGetHandleByIndex_v2"
_PROFILE: Final = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\S+)")

Line = dict[str, Any]


def read() -> Iterator[Line]:
    """Versions, then the devices and their MIG instances; where none can be asked, a `fault`."""
    try:
        import pynvml as nvml
    except ImportError as error:
        yield {"fault": f"nvidia-ml-py cannot be imported ({error}): pip install nvidia-ml-py"}
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        missing = error.value == NO_LIBRARY
        yield {"fault": "no such library" if missing else f"nvmlInit_v2 gave {error.value}"}
        return
    yield from versions(nvml)
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield {"fault": f"nvmlDeviceGetCount_v2 gave {error.value}"}
        return
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:  # any other is not ours to use, in a container for one
            if error.value in (IS_LOST, UNKNOWN):
                yield {
                    "index": index,
                    "lost" if error.value == IS_LOST else "unreadable": _HANDLE,
                }
        else:
            yield from device(nvml, index, handle)


def versions(nvml: Any) -> Iterator[Line]:
    """The kernel driver, the library itself, and the CUDA version that they serve."""
    asked = NvmlCalls(nvml)
    for component, name in (
        ("nvidia", "nvmlSystemGetDriverVersion"),
        ("nvml", "nvmlSystemGetNVMLVersion"),
    ):
        text = asked(name)
        if text:
            yield {"component": component, "version": release(text)}
    number = asked("nvmlSystemGetCudaDriverVersion_v2")
    if number:
        yield {"component": "cuda", "version": f"{number // 1000}.{number % 1000 // 10}"}


def release(version: str) -> str:
    """The driver's own number: NVML puts its CUDA major before it, as in 13.580.159.04."""
    first, _, rest = version.partition(".")
    second = rest.partition(".")[0]
    prefixed = first.isdecimal() and int(first) < 100 and second.isdecimal() and int(second) >= 300
    return rest if prefixed else version


class NvmlCalls:
    """Calls of the binding: None where the library, or this release of it, does not answer.

    `lost` is the name of a call that said that the GPU is lost.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.lost: str | None = None

    def __call__(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == IS_LOST:
                self.lost = name
        except ValueError:  # a name that is not UTF-8
            pass
        return None


def device(nvml: Any, index: int, handle: Any) -> Iterator[Line]:
    """What the library says of one device; MIG instances follow it."""
    asked = NvmlCalls(nvml)
    pci = asked("nvmlDeviceGetPciInfo", handle)
    capability = asked("nvmlDeviceGetCudaComputeCapability", handle)
    mode = asked("nvmlDeviceGetMigMode", handle)
    # the older name of the two; drivers of all branches have it
    reasons = asked("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    split = bool(mode and mode[0])
    said = {
        "index": index,
        "bus": None if pci is None else _text(pci.busId),
        "name": asked("nvmlDeviceGetName", handle),
        "uuid": asked("nvmlDeviceGetUUID", handle),
        "arch": None if capability is None else f"sm_{capability[0]}{capability[1]}",
        **_memory(asked, handle),
        "temperature_c": asked("nvmlDeviceGetTemperature", handle, _GPU_TEMPERATURE),
        "power_mw": asked("nvmlDeviceGetPowerUsage", handle),
        "power_cap_mw": asked("nvmlDeviceGetEnforcedPowerLimit", handle),
        "clock_mhz": asked("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        "clock_max_mhz": asked("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "partition": "MIG" if split else None,
        "throttled": None
        if reasons is None
        else [word for bit, word in REASONS.items() if reasons & bit],
        "uncorrected": asked("nvmlDeviceGetTotalEccErrors", handle, *_UNCORRECTED),
        "processes": _processes(asked, handle),
    }
    yield _value(said | {"lost": asked.lost})
    if split:
        for number in range(asked("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = asked("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is not None:
                yield _value(_instance(asked, index, number, instance))


def _instance(asked: NvmlCalls, index: int, number: int, handle: Any) -> Line:
    """A MIG instance; its name ends with its profile, on drivers that have one for it."""
    name = asked("nvmlDeviceGetName", handle) or ""
    profile = _PROFILE.search(name)
    part = asked("nvmlDeviceGetGpuInstanceId", handle)
    compute = asked("nvmlDeviceGetComputeInstanceId", handle)
    known = part is not None and compute is not None
    attributes = asked("nvmlDeviceGetAttributes", handle)
    return {
        "index": index,
        "die": number,
        "name": name.partition(" MIG ")[0] or None,
        "uuid": asked("nvmlDeviceGetUUID", handle),
        "partition": profile[1] if profile else f"GI {part} CI {compute}" if known else None,
        **_memory(asked, handle),
        "compute_units": getattr(attributes, "multiprocessorCount", None),
        "processes": _processes(asked, handle),
    }


def _memory(asked: NvmlCalls, handle: Any) -> Line:
    memory = asked("nvmlDeviceGetMemoryInfo", handle)
    if memory is None:
        return {}
    return {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}


def _processes(asked: NvmlCalls, handle: Any) -> list[list[int | None]] | None:
    """Ids with the memory that each holds, which the driver does not tell everywhere."""
    held = asked("nvmlDeviceGetComputeRunningProcesses", handle)
    return None if held is None else [[one.pid, one.usedGpuMemory] for one in held]


def _value(said: Line) -> Line:
    return {key: value for key, value in said.items() if value is not None}


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def main() -> None:
    """Prints what the library says."""
    for line in read():
        print(json.dumps({**line, "source": SOURCE}), flush=True)


if __name__ == "__main__":
    main()
