"""A stand-in for NVIDIA's binding: two H200, with values that a real one gave.

The file that FAKE_NVML names holds what is wrong with them, as words: `hot`, `lost-late`, `lost`,
`ecc`, `untold`, `not-ours`, `unknown`, `mig`, `old-names`, `init-18`,
`no-library`, `no-count`, `crowded`, `crash`, `hang`.

# upstream: nvidia-ml-py@13 pynvml.py (names, kinds of answers, error codes)
"""

from __future__ import annotations

import os
from types import SimpleNamespace

print("a banner")  # as libraries do
_WORDS = open(os.environ["FAKE_NVML"], encoding="utf-8").read().split()
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER, LOST, UNKNOWN = 3, 4, 6, 18, 15, 999


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


def _if(word, code):
    if word in _WORDS:
        raise NVMLError(code)


def nvmlInit():
    if "crash" in _WORDS:
        os.abort()
    if "hang" in _WORDS:
        import time

        time.sleep(60)
    _if("init-18", DRIVER)
    _if("no-library", 12)


def nvmlSystemGetDriverVersion():
    return "580.159.04"


def nvmlSystemGetNVMLVersion():
    return "13.580.159.04"  # as a real one of CUDA 13 says it


def nvmlSystemGetCudaDriverVersion_v2():
    return 13010


def nvmlDeviceGetCount():
    _if("no-count", UNKNOWN)
    return 2


def nvmlDeviceGetHandleByIndex(index):
    if index == 1:
        _if("lost", LOST)
        _if("not-ours", NO_PERMISSION)
        _if("unknown", UNKNOWN)
    return index + 1


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=b"00000000:%02X:00.0" % (0x3B + handle))


def nvmlDeviceGetName(handle):
    return (
        "NVIDIA H200"
        if handle < 10 or "old-names" in _WORDS
        else f"NVIDIA H200 MIG {_PROFILES[handle % 10]}"
    )


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}" if handle < 10 else f"MIG-{handle}"


def nvmlDeviceGetCudaComputeCapability(handle):
    return (9, 0)


def nvmlDeviceGetMemoryInfo(handle):
    total = (140 if handle < 10 else 18) << 30
    return SimpleNamespace(total=total, used=90 << 30 if handle < 10 else 1 << 30, free=0)


def nvmlDeviceGetTemperature(handle, sensor):
    assert sensor == 0
    if handle == 1:
        _if("lost-late", LOST)
    return 92 if "hot" in _WORDS else 45


def nvmlDeviceGetPowerUsage(handle):
    return 350500


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 700000


def nvmlDeviceGetClockInfo(handle, kind):
    assert kind == 1  # NVML_CLOCK_SM
    return 900


def nvmlDeviceGetMaxClockInfo(handle, kind):
    assert kind == 1
    return 1980


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x48 if "hot" in _WORDS else 0x1


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    _if("untold", NOT_SUPPORTED)
    return 3 if "ecc" in _WORDS and (kind, counter) == (1, 0) else 0


def nvmlDeviceGetComputeRunningProcesses(handle):
    count = 100 if "crowded" in _WORDS else 1
    used = None if "untold" in _WORDS else 80 << 30
    return [SimpleNamespace(pid=4711 + n, usedGpuMemory=used) for n in range(count)]


def nvmlDeviceGetMigMode(handle):
    _if("untold", NOT_SUPPORTED)
    return [int("mig" in _WORDS), 0]


_PROFILES = ("1g.18gb", "2g.35gb")


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if handle != 1 or index >= len(_PROFILES):
        raise NVMLError(NOT_FOUND)
    return 10 * handle + index


def nvmlDeviceGetGpuInstanceId(handle):
    return 7 + handle % 10


def nvmlDeviceGetComputeInstanceId(handle):
    return 0


def nvmlDeviceGetAttributes(handle):
    return SimpleNamespace(multiprocessorCount=16)
