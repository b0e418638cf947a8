"""Asks AMD SMI how the devices are, through AMD's own binding.

`python -m vllm_adapter_rocm.health` prints one JSON object a line, with the fields of
`vllm_adapter_doctor.live.reader_lines`. A value that the library does not give is left out. The
doctor runs it as a child process, so that a driver that crashes or hangs costs this process alone;
it imports neither torch nor core.

# upstream: amdsmi@7.0.2 amdsmi_interface.py (functions, keys of their answers, "N/A")
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

SOURCE: Final = "libamd_smi.so"
VIOLATIONS: Final[Mapping[str, str]] = {
    "active_prochot_thrm": "prochot thermal",
    "active_ppt_pwr": "ppt power",
    "active_socket_thrm": "socket thermal",
    "active_vr_thrm": "vr thermal",
    "active_hbm_thrm": "hbm thermal",
}
"""What holds the clocks down, under the names that `amd-smi metric --throttle` gives them."""
_UNREADABLE: Final = ("AMDSMI_STATUS_IO", "AMDSMI_STATUS_DRM_ERROR", "AMDSMI_STATUS_UNKNOWN_ERROR")
"""Answers about a device's own address that a healthy driver does not give."""
_VIOLATIONS_S: Final = 2.0
"""Each such question waits for two samples; 64 partitions shall not spend a reading on it."""
_LEAST_CAP_UW: Final = 1_000_000
"""Guests of a hypervisor are given the cap in watts; such a number is none of microwatts."""
_VERSION: Final = re.compile(r"\d+(?:\.\d+)+")
_PARTITION: Final = re.compile(r"[A-Z]+/NPS\d+")
_INSTALL: Final = "pip install 'vllm-adapter-rocm[health]'"
_HELP: Final = "its release has to be that of the box's ROCm"

Line = dict[str, Any]


def read() -> Iterator[Line]:
    """Versions and the devices; where none can be asked, a `fault`."""
    try:
        import amdsmi as smi
    except ModuleNotFoundError as error:
        yield {"fault": f"amdsmi cannot be imported ({error}): {_INSTALL}; {_HELP}"}
        return
    except Exception as error:  # without its library it ends in a KeyError of its own
        yield {"fault": f"amdsmi cannot load {SOURCE} ({error!r}); {_HELP}"}
        return
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except Exception as error:  # a call of a release that does not fit, too
        yield {"fault": f"amdsmi_init gave {_status(error) or repr(error)}"}
        return
    until = time.monotonic() + _VIOLATIONS_S
    yield from versions(smi, handles)
    for index, handle in enumerate(handles):
        try:
            bus = smi.amdsmi_get_gpu_device_bdf(handle)
        except Exception as error:
            if _status(error) in _UNREADABLE:
                yield {"index": index, "unreadable": "amdsmi_get_gpu_device_bdf"}
            continue  # any other is not ours to use, in a container for one
        yield device(smi, index, handle, bus, violations=time.monotonic() < until)


def versions(smi: Any, handles: list[Any]) -> Iterator[Line]:
    """The kernel driver, where it has a version of its own, and ROCm."""
    driver = _ask(smi, "amdsmi_get_gpu_driver_info", handles[0]) if handles else {}
    rocm = _ask(smi, "amdsmi_get_rocm_version")
    known = rocm[1] if isinstance(rocm, tuple) and len(rocm) == 2 and rocm[0] else None
    for component, text in (("amdgpu", _value(driver, "driver_version")), ("rocm", known)):
        if isinstance(text, str) and _VERSION.fullmatch(text):
            yield {"component": component, "version": text}


def device(smi: Any, index: int, handle: Any, bus: str, *, violations: bool) -> Line:
    """What the library says of one device, which may be a partition of one."""

    def ask(name: str, *arguments: Any) -> Any:
        return _ask(smi, name, handle, *arguments)

    asic, power = ask("amdsmi_get_gpu_asic_info"), ask("amdsmi_get_power_info")
    cap = _whole(_value(ask("amdsmi_get_power_cap_info"), "power_cap"))
    clock = ask("amdsmi_get_clock_info", _member(smi, "AmdSmiClkType", "GFX"))
    memory = _member(smi, "AmdSmiMemoryType", "VRAM")
    watts = _first(
        _value(power, key)
        for key in ("socket_power", "current_socket_power", "average_socket_power")
    )
    active = ask("amdsmi_get_violation_status") if violations else None
    compute = ask("amdsmi_get_gpu_compute_partition")
    partition = f"{compute}/{ask('amdsmi_get_gpu_memory_partition')}"
    arch = str(_value(asic, "target_graphics_version") or "")
    said = {
        "index": index,
        "bus": bus,
        "name": _text(_value(asic, "market_name")),
        "uuid": _text(ask("amdsmi_get_gpu_device_uuid")),
        "arch": arch if re.fullmatch(r"gfx[0-9a-f]+", arch) else None,
        "compute_units": _whole(_value(asic, "num_compute_units")),
        "memory_total_bytes": _whole(ask("amdsmi_get_gpu_memory_total", memory)),
        "memory_used_bytes": _whole(ask("amdsmi_get_gpu_memory_usage", memory)),
        "temperature_c": _first(
            ask(
                "amdsmi_get_temp_metric",
                _member(smi, "AmdSmiTemperatureType", sensor),
                _member(smi, "AmdSmiTemperatureMetric", "CURRENT"),
            )
            for sensor in ("HOTSPOT", "EDGE")
        ),
        "power_mw": None if watts is None else watts * 1000,
        "power_cap_mw": None if cap is None or cap < _LEAST_CAP_UW else cap // 1000,
        "clock_mhz": _whole(_value(clock, "clk")),
        "clock_max_mhz": _whole(_value(clock, "max_clk")),
        "uncorrected": _whole(
            _value(ask("amdsmi_get_gpu_total_ecc_count"), "uncorrectable_count")
        ),
        "throttled": [word for key, word in VIOLATIONS.items() if _value(active, key) is True]
        if isinstance(active, Mapping)
        else None,
        "partition": partition if _PARTITION.fullmatch(partition) else None,
        "processes": _processes(ask("amdsmi_get_gpu_process_list")),
    }
    if said["partition"] and compute != "SPX":
        said["die"] = _whole(_value(ask("amdsmi_get_gpu_kfd_info"), "current_partition_id"))
    return {key: value for key, value in said.items() if value is not None}


def _processes(held: Any) -> list[list[Any]] | None:
    if not isinstance(held, list):
        return None
    return [
        [one["pid"], _whole(_value(one.get("memory_usage"), "vram_mem")), _text(one.get("name"))]
        for one in held
        if isinstance(one, Mapping) and _whole(one.get("pid")) is not None
    ]


def _ask(smi: Any, name: str, *arguments: Any) -> Any:
    """A call's answer; None where the library, or this release of it, gives none."""
    function = getattr(smi, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except Exception:  # the binding's own, and what it raises for answers that it does not expect
        return None


def _member(smi: Any, kind: str, name: str) -> Any:
    return getattr(getattr(smi, kind, None), name, None)


def _status(error: Exception) -> str:
    """The status's name, as in "AMDSMI_STATUS_IO - I/O Error"; empty for another exception."""
    return str(getattr(error, "err_info", "")).partition(" ")[0]


def _value(answer: Any, key: str) -> Any:
    return answer.get(key) if isinstance(answer, Mapping) else None


def _whole(value: Any) -> int | None:
    """A number that was reported; "N/A" and the like is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first(values: Iterator[Any]) -> int | None:
    return next((number for value in values if (number := _whole(value)) is not None), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def main() -> None:
    """Prints what the library says."""
    for line in read():
        print(json.dumps({**line, "source": SOURCE}), flush=True)


if __name__ == "__main__":
    main()
