"""Drivers: too old, not reachable, or not the one that counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.facts import Driver, Line
from vllm_adapter_doctor.findings.box import Box, quoted
from vllm_adapter_doctor.findings.finding import Evidence
from vllm_adapter_doctor.findings.rule import Data, Hit
from vllm_adapter_doctor.findings.rules._cuda_driver import driver_of, is_older, runtime_of
from vllm_adapter_doctor.vendor_data.driver_tables import (
    cuda_of_driver,
    decode_cuda,
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


def _insufficient(box: Box) -> list[Line]:
    words = ("is insufficient for", "found no nvidia driver", "insufficientdriver")
    return [line for line, _ in box.told(_ERROR_35, words)]


def _below(box: Box, driver: Driver | None) -> bool | None:
    """Whether the driver is below what this runtime needs; None where one is not known.

    Where the runtime is not told, a driver below CUDA 12 is, and one between 12 and 13 may be.
    """
    if driver is None:
        return None
    runtime = _wanted_runtime(box)
    minimum = minimum_driver(runtime) if runtime else None
    if minimum:
        return is_older(driver.version, minimum)
    return is_older(driver.version, minimum_driver("12") or "") or None


_DEFAULTS: Final = {11: "13.0", 12: "13.0", 13: "13.0", 14: "13.2"}
"""CUDA of the default (PyPI) build of torch 2.N: pytorch#172663, #190355."""


def _wanted_runtime(box: Box) -> str | None:
    runtime, torch = runtime_of(box), box.facts.torch
    if runtime is None and torch and torch.version and not torch.local and not torch.hip:
        found = re.match(r"2\.(\d+)", torch.version)
        return _DEFAULTS.get(int(found[1])) if found else None
    return runtime


def too_old(box: Box, data: Data) -> Iterator[Hit]:
    """A driver below the minimum of the runtime. `data` names other builds by CUDA's major."""
    said = list(box.told(_TOO_OLD, ("found version",)))
    driver, runtime, torch = driver_of(box), _wanted_runtime(box), box.facts.torch
    minimum = minimum_driver(runtime) if runtime else None
    below = bool(driver and minimum and is_older(driver.version, minimum))
    vague = _insufficient(box) if _below(box, driver) else []
    if not said and not vague and not (below and torch and not torch.available):
        return
    serves = decode_cuda(int(said[0][1]["number"])) if said else None
    if serves is None and driver:
        serves = cuda_of_driver(driver.version)
    evidence = [quoted(line) for line, _ in said[:2]] + [quoted(line) for line in vague[:2]]
    if driver:
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
    yield Hit(evidence, values, "known" if runtime and minimum else "unknown")


def for_every_runtime(box: Box, data: Data) -> Iterator[Hit]:
    """A driver below all supported runtimes, and devices that no build has code for."""
    driver = driver_of(box)
    if driver and is_older(driver.version, data["oldest"]) and not box.says(_TOO_OLD):
        yield Hit(
            [Evidence(f"driver {driver.version}", driver.source)],
            {
                "driver": driver.version,
                "serves": cuda_of_driver(driver.version) or "",
                "oldest": data["oldest"],
            },
            "driver",
        )
    old = {}
    for one in box.facts.accelerators:
        arch = re.fullmatch(r"sm_(\d+)(\d)", one.arch or "")
        if arch and int(arch[1]) < data["oldest_capability"]:
            old[one.name or "the device"] = (f"{arch[1]}.{arch[2]}", one.source)
    for name, (capability, source) in old.items():
        yield Hit(
            [Evidence(f"{name}: compute capability {capability}", source)],
            {"name": name, "capability": capability},
            "device",
        )


def unreachable(box: Box, _: Data) -> Iterator[Hit]:
    """No driver at all. The same CUDA error also means an old driver: told apart by evidence."""
    missing = [
        quoted(line)
        for line, _ in box.told(_NO_LIBCUDA, ("libcuda.so", "libnvidia-ml.so"))
        if "nvidia-container-cli" not in line.text
    ][:2]
    failed = [quoted(line) for line in _insufficient(box)][:2]
    none = [quoted(line) for line, _ in box.told(_NO_DEVICE, _NO_DEVICE_WORDS)][:2]
    driver = driver_of(box)
    if driver and not missing:
        yield from _not_here(box, driver, failed, none)
    elif missing or failed or none:
        yield Hit(
            [*missing, *failed, *none],
            {
                "here": "this is a container" if box.container else "",
                "spoken": "of one" if failed and not missing else "",
            },
            "none",
        )


def _not_here(
    box: Box, driver: Driver, failed: list[Evidence], none: list[Evidence]
) -> Iterator[Hit]:
    """A driver answers on the host, and the program that failed did not reach it, or a device."""
    answers = [Evidence(f"driver {driver.version}", driver.source)]
    newest = minimum_driver("13") or ""
    open_ = not _wanted_runtime(box) and is_older(driver.version, newest)
    values = {"driver": driver.version, "newest": newest if open_ else ""}
    if failed and not _below(box, driver):
        yield Hit([*failed, *answers], values, "not reached")
    elif none:
        yield Hit([*none, *answers], values, "no device")
