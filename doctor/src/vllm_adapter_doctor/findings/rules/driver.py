"""Drivers: too old, not reachable, or not the one that counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Driver, Line
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.devices.build_rules import code_verdicts
from vllm_adapter_doctor.devices.device_names import capability
from vllm_adapter_doctor.devices.driver_rules import BELOW_FLOOR, TOO_OLD, driver_verdicts
from vllm_adapter_doctor.devices.verdict import DeviceVerdict
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit
from vllm_adapter_doctor.findings.rules._cuda_driver import VENDOR, driver_of, runtime_of
from vllm_adapter_doctor.vendor_data.driver_tables import (
    cuda_of_driver,
    decode_cuda,
    is_older,
    minimum_driver,
)

_TOO_OLD: Final = r"driver on your system is too old \(found version (?P<number>\d+)\)"
_NO_LIBCUDA: Final = r"(?:libcuda|libnvidia-ml)\.so[.\d]*: cannot open shared object file"
_ERROR_35: Final = (
    r"(?i)CUDA driver version is insufficient for CUDA runtime version"
    r"|Found no NVIDIA driver on your system|cudaErrorInsufficientDriver"
)
_NO_DEVICE: Final = (
    r"(?i)no CUDA-capable device is detected|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE"
    r"|NVMLError_LibraryNotFound|NVML Shared Library Not Found"
)
_NO_DEVICE_WORDS: Final = (
    "no cuda-capable", "no cuda gpus", "error_no_device", "nvmlerror_libr", "nvml shared libr",
)  # fmt: skip


def _insufficient(box: ExaminedHost) -> list[Line]:
    words = ("is insufficient for", "found no nvidia driver", "insufficientdriver")
    return [line for line, _ in box.program_lines(_ERROR_35, words)]


def _is_below_minimum(box: ExaminedHost, driver: Driver | None) -> bool | None:
    """Whether the driver is below what this runtime needs; None where one is not known.

    Where the runtime is not told, a driver below CUDA 12 is, and one between 12 and 13 may be.
    """
    if driver is None:
        return None
    runtime = runtime_of(box)
    minimum = minimum_driver(runtime) if runtime else None
    if minimum:
        return is_older(driver, minimum)
    return is_older(driver, minimum_driver("12") or "") or None


def too_old(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A driver below the minimum of the runtime. `data` names other builds by CUDA's major.

    What the facts say is the devices' own verdict; a program may say it where they do not.
    """
    said = list(box.program_lines(_TOO_OLD, ("found version",)))
    driver, runtime = driver_of(box), runtime_of(box)
    verdict = _verdict(box, TOO_OLD)
    vague = _insufficient(box) if _is_below_minimum(box, driver) else []
    if not said and not vague and verdict is None:
        return
    minimum = minimum_driver(runtime) if runtime else None
    serves = decode_cuda(int(said[0][1]["number"])) if said else None
    if serves is None and driver:
        serves = cuda_of_driver(driver.version)
    evidence = [quoted(line) for line, _ in said[:2]] + [quoted(line) for line in vague[:2]]
    if verdict is not None:
        evidence += verdict.evidence
    elif driver:
        evidence.append(Evidence(f"driver {driver.version}", driver.source))
    builds = data["builds"]
    values = {
        "which": f"driver {driver.version}" if driver else "the driver",
        "serves": serves or "",
        "minimum": minimum or "",
        "runtime": runtime or "",
        "major": (runtime or "").partition(".")[0],
        "other_build": builds.get((serves or "").partition(".")[0], builds["other"]),
        **{f"minimum_{major}": minimum_driver(str(major)) or "" for major in (11, 12, 13)},
    }
    yield RuleHit(evidence, values, "known" if runtime and minimum else "unknown")


def _verdict(box: ExaminedHost, code: str) -> DeviceVerdict | None:
    """What stops every device of the vendor, of a code."""
    said = driver_verdicts(VENDOR, box.facts)
    return next((one for one in said if one.stops and one.code == code), None)


def for_every_runtime(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A driver below all supported runtimes, and devices that no build has code for."""
    verdict = _verdict(box, BELOW_FLOOR)
    if verdict and verdict.got and not box.has_line(_TOO_OLD):
        values = {
            "driver": verdict.got,
            "serves": cuda_of_driver(verdict.got) or "",
            "oldest": verdict.need or "",
        }
        yield RuleHit(verdict.evidence, values, "driver")
    for device in box.devices:
        for one in code_verdicts(device.arch, box.facts, device.vendor):
            if one.code == BELOW_FLOOR:
                name, level = device.title, capability(device) or ""
                source = device.reported.source if device.reported else "PCI"
                floor = VENDORS[device.vendor].code_floor
                case = "device" if float(level or 0) * 10 < floor else "vllm"
                least = f"{VENDORS[device.vendor].vllm_floor / 10:.1f}"
                yield RuleHit(
                    [Evidence(f"{name}: compute capability {level}", source)],
                    {"name": name, "capability": level, "least": least},
                    case,
                )


def unreachable(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """No driver at all. The same CUDA error also means an old driver; evidence decides."""
    missing = [
        quoted(line)
        for line, _ in box.program_lines(_NO_LIBCUDA, ("libcuda.so", "libnvidia-ml.so"))
        if "nvidia-container-cli" not in line.text
    ][:2]
    failed = [quoted(line) for line in _insufficient(box)][:2]
    none = [quoted(line) for line, _ in box.program_lines(_NO_DEVICE, _NO_DEVICE_WORDS)][:2]
    driver = driver_of(box)
    if driver and not missing:
        yield from _not_here(box, driver, failed, none)
    elif missing or failed or none:
        yield RuleHit(
            [*missing, *failed, *none],
            {
                "here": "this is a container" if box.container else "",
                "spoken": "of one" if failed and not missing else "",
            },
            "none",
        )


def _not_here(
    box: ExaminedHost, driver: Driver, failed: list[Evidence], none: list[Evidence]
) -> Iterator[RuleHit]:
    """A driver answers on the host, and the program that failed did not reach it, or a device."""
    answers = [Evidence(f"driver {driver.version}", driver.source)]
    newest = minimum_driver("13") or ""
    open_ = not runtime_of(box) and is_older(driver, newest)
    values = {"driver": driver.version, "newest": newest if open_ else ""}
    if failed and not _is_below_minimum(box, driver):
        yield RuleHit([*failed, *answers], values, "not reached")
    elif none:
        yield RuleHit([*none, *answers], values, "no device")
