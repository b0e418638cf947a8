"""A stand-in for AMD's binding: two MI300X, with the keys and units of the real one.

The file that FAKE_AMDSMI names holds what is wrong, as words: `no-library`, `old-driver`, `cpx`,
`dead`, `not-ours`, `hot`, `guest`.

# upstream: amdsmi@7.0.2 amdsmi_interface.py, amdsmi_exception.py
"""

from __future__ import annotations

import os
from enum import IntEnum

_WORDS = open(os.environ["FAKE_AMDSMI"], encoding="utf-8").read().split()
if "no-library" in _WORDS:  # what the real one does without libamd_smi.so
    print("libamd_smi.so: cannot open shared object file: No such file or directory")
    print("Unable to find libamd_smi.so library try installing amd-smi-lib")
    raise KeyError("libamd_smi.so")


class AmdSmiLibraryException(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.err_info = text


class AmdSmiClkType(IntEnum):
    GFX = 0


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


def amdsmi_init():
    if "old-driver" in _WORDS:
        raise AmdSmiLibraryException("AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")


def amdsmi_get_processor_handles():
    return [1, 2]


def amdsmi_get_gpu_driver_info(handle):
    return {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "N/A"}


def amdsmi_get_rocm_version():
    return (True, "7.0.2")


def amdsmi_get_gpu_device_bdf(handle):
    if handle == 2 and "dead" in _WORDS:
        raise AmdSmiLibraryException("AMDSMI_STATUS_IO - I/O Error")
    if handle == 2 and "not-ours" in _WORDS:
        raise AmdSmiLibraryException("AMDSMI_STATUS_NO_PERM - Permission Denied")
    return f"0000:{5 * handle:02x}:00.0"


def amdsmi_get_gpu_asic_info(handle):
    return {
        "market_name": "AMD Instinct MI300X",
        "num_compute_units": 304,
        "target_graphics_version": "gfx942",
    }


def amdsmi_get_gpu_device_uuid(handle):
    return f"c6ff74a1-0000-1000-80a{handle}-6f6d7a0c7ed9"


def amdsmi_get_gpu_memory_total(handle, kind):
    assert kind is AmdSmiMemoryType.VRAM
    return 196592 << 20


def amdsmi_get_gpu_memory_usage(handle, kind):
    assert kind is AmdSmiMemoryType.VRAM
    return 283 << 20


def amdsmi_get_temp_metric(handle, sensor, metric):
    assert metric is AmdSmiTemperatureMetric.CURRENT
    if sensor is AmdSmiTemperatureType.EDGE:
        raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
    return 98 if "hot" in _WORDS else 41


def amdsmi_get_power_info(handle):
    return {"current_socket_power": 132, "average_socket_power": "N/A", "power_limit": 750000000}


def amdsmi_get_power_cap_info(handle):
    return {"power_cap": 750 if "guest" in _WORDS else 750000000}


def amdsmi_get_clock_info(handle, kind):
    assert kind is AmdSmiClkType.GFX
    return {"clk": 132, "min_clk": 500, "max_clk": 2100, "clk_deep_sleep": "N/A"}


def amdsmi_get_gpu_total_ecc_count(handle):
    return {"correctable_count": 0, "uncorrectable_count": 2 if "hot" in _WORDS else 0}


def amdsmi_get_violation_status(handle):
    return {
        "active_prochot_thrm": False,
        "active_ppt_pwr": "N/A",
        "active_socket_thrm": "hot" in _WORDS,
        "active_vr_thrm": False,
        "active_hbm_thrm": "hot" in _WORDS,
    }


def amdsmi_get_gpu_compute_partition(handle):
    return "CPX" if "cpx" in _WORDS else "SPX"


def amdsmi_get_gpu_memory_partition(handle):
    return "NPS4" if "cpx" in _WORDS else "NPS1"


def amdsmi_get_gpu_kfd_info(handle):
    return {"kfd_id": 1, "node_id": 1, "current_partition_id": handle - 1}


def amdsmi_get_gpu_process_list(handle):
    return [
        {"name": "python3", "pid": 4711, "mem": 1, "memory_usage": {"vram_mem": 80 << 30}},
        {"name": "N/A", "pid": 4712, "mem": 1, "memory_usage": {"vram_mem": "N/A"}},
    ]
